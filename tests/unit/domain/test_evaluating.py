"""Evaluating an answer: the last step of a run, which nothing that happens in it can spoil."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.context.answer_rating import METRICS, question, read_ratings
from loom.domain.core.json_text import NotJson
from loom.domain.core.messages import Message, TranscriptRef, Usage, user
from loom.domain.core.requests import Budget, RunStatus
from loom.domain.core.tokens import text_tokens
from loom.domain.machine.activity_requests import evaluate_request, summary_of_evaluation
from loom.domain.machine.transitions import next_action
from loom.domain.run.actions import AwaitResume, BeginTurn, EvaluateAnswer
from loom.domain.run.activity_payloads import Evaluated
from loom.domain.run.events import (
    AbortRequested,
    AnswerEvaluated,
    EvaluationFailed,
    MessageReceived,
    PauseRequested,
    ResumeRequested,
)
from loom.domain.run.retry_policy import Failure
from loom.domain.run.state import RunState, result_of, waiting_on
from loom.domain.tree.budget import Spend
from tests.unit.domain.story import AT, BEGAN, LOST, SPEC, after, notices, says, told

EVALUATES = replace(SPEC, evaluates=True)
RATINGS = {"confidence": 0.9, "coverage": 1.0, "novelty": 0.2}


def rated(metrics: dict[str, float] | None = None, **evaluated: Any) -> AnswerEvaluated:
    """The model has rated the answer."""
    usage = Usage(input_tokens=100, output_tokens=20, model_calls=1)
    given = {"metrics": metrics, "usage": usage, "cost_micros": 7, **evaluated}
    return AnswerEvaluated(evaluated=Evaluated(**given), at=AT)


def answered(**request: Any) -> RunState:
    """A run that has its answer."""
    return after(told(spec=EVALUATES, **request), BEGAN, says("Four."))


def test_ratings_stand_in_the_result_and_their_price_counts() -> None:
    before = answered()
    assert next_action(before) == EvaluateAnswer()
    assert (evaluate_request(before).answer, summary_of_evaluation(before)) == ("Four.", "t1 · evaluate the answer")
    assert waiting_on(before) == "evaluation"

    state = after(before, rated(RATINGS))

    assert state.outcome is not None
    result = result_of(state, state.outcome)
    assert (result.status, result.output, result.quality_metrics) == (RunStatus.COMPLETED, "Four.", RATINGS)
    assert (result.usage["model_calls"], result.usage["total_tokens"], result.cost) == (2, 135, 0.000107)


def test_a_run_that_is_not_to_evaluate_ends_with_its_answer() -> None:
    assert after(told(), BEGAN, says("Four.")).outcome is not None


REFUSED = Failure(kind="provider", type="LLMRefusedError", message="no", context={})


@pytest.mark.parametrize("event", [EvaluationFailed(failure=f, at=AT) for f in (REFUSED, LOST)] + [rated(why="?")])
def test_whatever_goes_wrong_the_answer_stands(event: Any) -> None:
    state = after(answered(), event)

    assert state.outcome is not None
    assert (state.outcome.status, state.outcome.output, state.outcome.quality) == (RunStatus.COMPLETED, "Four.", None)


def test_the_stream_is_told_why_there_are_no_ratings() -> None:
    ((name, said),) = notices(after(answered(), EvaluationFailed(failure=REFUSED, at=AT)))

    assert (name, said["purpose"], said["error"]) == ("node.model_call", "evaluation", "LLMRefusedError")


def test_a_spent_budget_is_not_overdrawn_for_it() -> None:
    state = answered(budget=Budget(tokens=10))

    assert state.outcome is not None
    assert (state.outcome.status, state.outcome.quality) == (RunStatus.COMPLETED, None)
    ((name, said),) = notices(state)
    assert (name, said["text"][:28]) == ("node.budget", "The answer is not evaluated:")


def test_one_that_what_is_left_does_not_cover_is_left_out_and_the_stream_is_told() -> None:
    state = after(answered(), rated(uncovered=Spend(tokens=3000)))

    assert state.outcome is not None
    assert (state.outcome.status, state.outcome.output, state.outcome.quality) == (RunStatus.COMPLETED, "Four.", None)
    assert state.spending.usage.model_calls == 1
    ((name, said),) = notices(state)
    assert (name, said["text"][:28]) == ("node.budget", "The answer is not evaluated:")


def test_used_up_turns_do_not_forbid_it() -> None:
    assert next_action(answered(max_turns=1)) == EvaluateAnswer()


def test_a_worker_that_does_not_know_the_conversation_gets_it_whole_once() -> None:
    again = after(answered(), rated(resend=True))

    assert evaluate_request(again).tail.base == TranscriptRef()
    assert (evaluate_request(again).spec, evaluate_request(again).attempt) == (EVALUATES, 2)
    given_up = after(again, rated(resend=True))
    assert given_up.outcome is not None
    assert given_up.outcome.quality is None


def test_what_a_person_says_meanwhile_is_read_before_the_run_ends() -> None:
    state = after(answered(), MessageReceived(text="in words?", at=AT))
    assert isinstance(next_action(state), BeginTurn)

    later = after(state, rated(RATINGS), BEGAN, says("4, in words four."), rated(RATINGS))
    assert later.outcome is not None
    assert later.outcome.output == "4, in words four."


def test_a_held_run_ends_when_it_goes_on_and_is_not_rated_twice() -> None:
    state = after(answered(), PauseRequested(at=AT), rated(RATINGS))
    assert isinstance(next_action(state), AwaitResume)

    ended = after(state, ResumeRequested(at=AT), BEGAN).outcome
    assert ended is not None
    assert ended.quality == RATINGS


def test_an_abort_meanwhile_is_an_abort_and_keeps_the_answer() -> None:
    state = after(answered(), AbortRequested(at=AT), rated(RATINGS))

    assert state.outcome is not None
    assert (state.outcome.status, result_of(state, state.outcome).output) == (RunStatus.ABORTED, "Four.")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0.9", "no JSON object"),
        ("very good", "not JSON"),
        ('{"confidence": 0.9, "coverage": 1}', "novelty is None"),
        ('{"confidence": 1.5, "coverage": 1, "novelty": 0}', "confidence is 1.5"),
        ('{"confidence": true, "coverage": 1, "novelty": 0}', "confidence is True"),
        ('{"confidence": "high", "coverage": 1, "novelty": 0}', "confidence is 'high'"),
    ],
)
def test_ratings_that_are_none_say_why(text: str, why: str) -> None:
    with pytest.raises(NotJson, match=why):
        read_ratings(text)


@given(st.fixed_dictionaries(dict.fromkeys(METRICS, st.floats(0, 1))))
def test_ratings_are_read_as_given(ratings: dict[str, float]) -> None:
    import json  # noqa: PLC0415 - only here

    assert read_ratings(f"```json\n{json.dumps(ratings)}\n```") == ratings


def test_a_long_run_costs_no_more_to_rate_than_a_short_one() -> None:
    said = [user("Do it."), *(Message(role="assistant", content="x " * 5000) for _ in range(200))]

    assert text_tokens(question(said, "word " * 50_000)) < 8000
