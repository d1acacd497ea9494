"""An ended run goes on when a person retries it: from its end, and without repeating anything."""

from dataclasses import replace
from typing import Any, Final

import pytest

from loom.domain.core.requests import Budget, RunError, RunRequest, RunResult, RunStatus
from loom.domain.machine.activity_requests import model_request
from loom.domain.machine.reopening import GOES_ON, INTERRUPTED
from loom.domain.machine.reopening_rules import refused_reopening
from loom.domain.machine.steering import refusal
from loom.domain.machine.transitions import closed, evolve, next_action, start
from loom.domain.run.actions import AwaitAdmission, AwaitPerson, BeginTurn, CallModel, Finish
from loom.domain.run.activity_payloads import Prepared
from loom.domain.run.events import (
    AbortRequested,
    Event,
    MessageReceived,
    PauseRequested,
    RetryRequested,
    RunAdmitted,
    RunPrepared,
    RunReopened,
    TimeRanOut,
)
from loom.domain.run.state import RunState, result_of
from loom.domain.tree.lineage import TreeLimits
from tests.unit.domain.story import (
    AT,
    BEGAN,
    READS,
    SPEC,
    WRITES,
    after,
    asked,
    asks,
    at,
    call,
    conversation,
    fails,
    notices,
    results,
    returned,
    running,
    says,
    told,
    wants,
)

FIRST_TURN: Final = (BEGAN, wants((call("a"), READS)), returned(a="x"))
GIVES_UP: Final = fails("LLMConfigurationError")
ABORT: Final = AbortRequested(reason="enough", by="ann", at=AT)
BIG: Final = TreeLimits(children=4)


def limited(*events: Event, **request: Any) -> RunState:
    """A run that gives a last answer when it reaches a limit."""
    began = RunPrepared(prepared=Prepared(spec=SPEC, limits=BIG))
    return after(start("run-1", RunRequest(task="Do it.", **request), AT), began, *events)


def retried(state: RunState, seconds: float = 60.0, **changes: Any) -> RunState:
    """The run after a person has retried it, so long after it began."""
    asked_for = RetryRequested(end=state.retries + 1, by="bob", at=at(seconds), **changes)
    return after(state, asked_for, RunReopened(at=at(seconds)))


def is_over(state: RunState) -> bool:
    """Whether the run has ended."""
    return isinstance(next_action(state), Finish)


def test_a_run_whose_provider_failed_makes_the_same_call_again_under_a_new_number() -> None:
    ended = told(*FIRST_TURN, BEGAN, GIVES_UP)
    going_on = retried(ended)
    assert is_over(ended)
    assert next_action(going_on) == CallModel()
    assert (going_on.turn, going_on.transcript) == (ended.turn, ended.transcript)
    assert model_request(going_on).attempt == 2
    assert evolve(going_on, says("done")).outcome is not None


def test_a_retry_names_another_model() -> None:
    going_on = retried(told(BEGAN, GIVES_UP), model="openai:b")
    assert (going_on.agent.model, next_action(going_on)) == ("openai:b", CallModel())
    assert model_request(going_on).spec == going_on.agent
    assert [action for action, _ in notices(going_on)] == ["node.retried", "node.fallback"]


def test_the_retry_may_arrive_before_the_end_that_it_takes_back() -> None:
    before = told(*FIRST_TURN, BEGAN, RetryRequested(end=1, at=AT))
    assert next_action(before) == CallModel()
    ended = evolve(before, GIVES_UP)
    assert is_over(ended)
    assert next_action(evolve(ended, RunReopened(at=AT))) == CallModel()


def test_a_retry_of_a_run_that_does_not_end_has_no_effect_on_a_later_end() -> None:
    ended = told(BEGAN, RetryRequested(end=1, at=AT), ABORT)
    assert is_over(evolve(ended, RunReopened(at=at(11))))
    assert evolve(ended, RunReopened(at=at(11))).reopening is None


def test_a_second_retry_of_the_same_end_has_no_effect() -> None:
    ended = told(BEGAN, GIVES_UP)
    twice = after(ended, *(RetryRequested(end=1, by=by, at=AT) for by in ("ann", "bob")), RunReopened(at=AT))
    assert (twice.retries, notices(twice)[-1][1]["by"]) == (1, "bob")
    late = evolve(twice, RetryRequested(end=1, at=AT))
    assert (late.reopening, notices(late)[-1][0]) == (None, "node.ignored")


def test_a_call_that_an_abort_interrupted_is_not_repeated_and_the_model_hears_of_it() -> None:
    both = (call("a"), READS), (call("b"), WRITES), (call("c"), WRITES)
    ended = told(BEGAN, wants(*both), returned(a="x"), ABORT)
    assert running(replace(ended, outcome=None)) == ["b"]
    going_on = retried(ended)
    assert running(going_on) == ["c"]
    there = evolve(going_on, returned(c="z"))
    assert results(there) == [("a", "x", False), ("b", INTERRUPTED, True), ("c", "z", False)]
    assert next_action(there) == BeginTurn()


def test_a_result_that_arrived_after_the_abort_counts() -> None:
    ended = told(BEGAN, wants((call("b"), WRITES)), ABORT, returned(b="done"))
    assert results(retried(ended)) == [("b", "done", False)]


def test_an_ask_that_was_open_when_the_run_was_aborted_is_open_again_for_its_whole_time() -> None:
    ended = told(BEGAN, wants((call("a"), asks())), ABORT)
    going_on = retried(ended)
    assert asked(going_on) == ["a"]
    assert going_on.asks[0].asked_at == at(60)


def test_a_message_answers_the_question_that_was_open() -> None:
    question = call("q", "ask_user", question="Which colour?")
    ended = told(BEGAN, wants((question, READS)), ABORT)
    assert next_action(retried(ended)) == AwaitPerson(call_id="q")
    assert results(retried(ended, message="blue")) == [("q", "bob answers: blue", False)]


def test_messages_that_nobody_had_read_are_read_now() -> None:
    unread = MessageReceived(text="use blue", by="ann", at=AT)
    going_on = retried(told(BEGAN, unread, GIVES_UP), message="and hurry")
    assert [said for _, said in conversation(going_on)] == ["Do it.", "use blue", "and hurry"]
    assert going_on.inbox == ()


def test_a_run_that_reached_its_turns_goes_on_after_its_last_answer_with_its_tools() -> None:
    ended = limited(*FIRST_TURN, BEGAN, says("so far"), max_turns=1)
    assert ended.outcome is not None
    assert (ended.outcome.status, ended.turns) == (RunStatus.LIMIT_REACHED, 1)
    going_on = after(retried(ended, max_turns=2), BEGAN)
    summary, goes_on = (message.text for message in going_on.transcript.messages[-2:])
    assert (summary, GOES_ON in goes_on) == ("so far", True)
    assert not model_request(going_on).wrap_up
    assert (going_on.turns, going_on.max_turns, going_on.turn_state.is_final) == (2, 2, True)
    again = evolve(going_on, says("done"))
    assert (again.outcome.status if again.outcome else None) == RunStatus.COMPLETED


def test_a_limit_that_still_holds_ends_the_run_as_it_was_without_another_answer() -> None:
    ended = limited(*FIRST_TURN, BEGAN, says("so far"), max_turns=1)
    still = retried(ended)
    assert (still.outcome, still.transcript, still.retries) == (ended.outcome, ended.transcript, 0)
    action, told_of = notices(still)[-1]
    assert (action, told_of["signal"]) == ("node.ignored", "retry")


def test_a_larger_budget_applies_to_the_run_and_what_it_may_lend() -> None:
    ended = limited(*FIRST_TURN, BEGAN, says("so far"), budget=Budget(tokens=10, turns=50))
    assert ended.outcome is not None
    assert ended.outcome.status is RunStatus.BUDGET_EXHAUSTED
    going_on = retried(ended, budget=Budget(tokens=1000))
    assert next_action(going_on) == BeginTurn()
    assert going_on.request.budget == Budget(tokens=1000, turns=50)
    assert (going_on.tree.share.tokens, going_on.tree.share.turns) == (1000, 50)
    assert going_on.spending.usage == ended.spending.usage


def test_more_time_moves_the_deadline() -> None:
    ended = limited(BEGAN, TimeRanOut(at=at(100)), budget=Budget(seconds=100))
    assert is_over(retried(ended, 200))
    assert next_action(retried(ended, 200, budget=Budget(seconds=1000))) == CallModel()


def test_a_paused_run_that_was_aborted_goes_on_without_the_pause() -> None:
    assert next_action(retried(told(BEGAN, PauseRequested(at=AT), ABORT))) == CallModel()


def test_a_run_of_a_tenant_waits_for_its_turn_again() -> None:
    admitted = Prepared(spec=SPEC, admission="admitted")
    began = told(BEGAN)
    ended = after(replace(began, admission=admitted.admission), GIVES_UP)
    going_on = retried(ended)
    assert next_action(going_on) == AwaitAdmission()
    assert next_action(evolve(going_on, RunAdmitted())) == CallModel()


def test_a_run_that_had_closed_its_calls_begins_another_turn() -> None:
    ended = closed(told(BEGAN, wants((call("a"), asks())), ABORT), AT)
    going_on = retried(ended)
    assert next_action(going_on) == BeginTurn()
    assert len(results(going_on)) == 1


@pytest.mark.parametrize("ended", [told(BEGAN, says("done")), told(ABORT)], ids=["completed", "not begun"])
def test_a_completed_run_and_one_that_had_not_begun_stay_ended(ended: RunState) -> None:
    assert retried(ended).outcome == ended.outcome


def test_each_end_of_a_run_has_its_own_last_task() -> None:
    ended = told(BEGAN, GIVES_UP)
    assert ended.outcome is not None
    again = evolve(retried(ended), GIVES_UP)
    assert again.outcome is not None
    assert [result_of(state, state.outcome).end_key for state in (ended, again) if state.outcome] == ["end", "end-2"]


def test_the_stream_is_told_who_retried_and_what_changes() -> None:
    going_on = retried(told(BEGAN, GIVES_UP), max_turns=9, budget=Budget(tokens=5000))
    error, budget = "LLMConfigurationError", {"tokens": 5000}
    said = {"after": "failed", "error": error, "number": 1, "by": "bob", "max_turns": 9, "budget": budget}
    assert notices(going_on) == [("node.retried", said)]


def test_limits_and_messages_of_a_running_run_do_not_change() -> None:
    for change in ({"max_turns": 5}, {"message": "hi"}, {"budget": Budget(tokens=5)}):
        running_on = told(BEGAN, RetryRequested(at=AT, **change))
        action, said = notices(running_on)[-1]
        assert (action, "has not ended" in said["why"]) == ("node.ignored", True)


def result(status: RunStatus, limit: str = "", turns: int = 5) -> RunResult:
    """A result of a run that has used 5 turns, 700 tokens and 2 tool calls."""
    error = RunError(type="SomeError", message="no", context={"limit": limit} if limit else {})
    return RunResult(
        status=status,
        output="",
        structured_output=None,
        completed_explicitly=False,
        turns=turns,
        usage={"total_tokens": 700},
        cost=0.5,
        quality_metrics=None,
        tool_calls=2,
        artifacts=(),
        error=error,
    )


@pytest.mark.parametrize(
    ("limit", "changes", "why"),
    [
        ("max_turns", {}, "name a larger one with `max_turns`"),
        ("max_turns", {"budget": Budget(tokens=900)}, "`max_turns`"),
        ("max_turns", {"max_turns": 5}, "has already used 5"),
        ("max_turns", {"max_turns": 6}, None),
        ("tokens", {}, "`budget.tokens`"),
        ("tokens", {"budget": Budget(tokens=700)}, "has already used 700"),
        ("tokens", {"budget": Budget(tokens=701)}, None),
        ("cost_usd", {"budget": Budget(cost_usd=0.4)}, "has already used 0.5"),
        ("tool_calls", {"budget": Budget(tool_calls=3)}, None),
        ("seconds", {}, "`budget.seconds`"),
        ("seconds", {"budget": Budget(seconds=1)}, None),
        ("turns_in_all", {}, "`budget.turns`"),
        ("loop", {}, None),
        ("", {}, None),
    ],
)
def test_a_run_that_reached_a_limit_needs_a_larger_one(limit: str, changes: dict[str, Any], why: str | None) -> None:
    asked_for = RetryRequested(end=1, at=AT, **changes)
    refused = refused_reopening(result(RunStatus.LIMIT_REACHED, limit), asked_for)
    assert (refused is None) is (why is None)
    assert why is None or why in (refused or "")


def test_a_completed_run_is_forked_and_one_without_a_turn_is_started_again() -> None:
    asked_for = RetryRequested(end=1, at=AT)
    assert "loom fork" in (refused_reopening(result(RunStatus.COMPLETED), asked_for) or "")
    assert "start it again" in (refused_reopening(result(RunStatus.FAILED, turns=0), asked_for) or "")


def test_a_run_that_completed_after_a_retry_is_not_sent_to_a_fork() -> None:
    completed = replace(result(RunStatus.COMPLETED), retries=1)
    said = refused_reopening(completed, RetryRequested(end=2, at=AT)) or ""
    assert "a retry has already continued it, and it has since completed" in said
    assert "fork" not in said


@pytest.mark.parametrize("changes", [{}, {"max_turns": 9}])
def test_a_retry_of_a_run_that_goes_on_after_its_end_is_told_so(changes: Any) -> None:
    going_on = retried(told(*FIRST_TURN, BEGAN, GIVES_UP))
    about_to = told(*FIRST_TURN, BEGAN, RetryRequested(end=1, at=AT))
    for state in (going_on, about_to):
        assert "a retry has already continued it" in (refusal(state, RetryRequested(at=AT, **changes)) or "")
