"""The pattern `reflect`, told as a transcript: draft, critique, revision, and what comes between."""

from dataclasses import replace
from typing import Any

import pytest

from loom.domain.agents.reflection import CRITICISE, REVISE, approves
from loom.domain.core.output_schema import CheckedAnswer
from loom.domain.core.requests import RunStatus
from loom.domain.machine.activity_requests import model_request, summary_of
from loom.domain.run.events import AbortRequested, MessageReceived, PauseRequested, ResumeRequested
from loom.domain.run.state import Outcome, RunState, result_of
from tests.unit.domain.story import (
    AT,
    BEGAN,
    READS,
    SPEC,
    after,
    call,
    conversation,
    fails,
    returned,
    says,
    told,
    wants,
)

REFLECTS = replace(SPEC, pattern="reflect", rounds=2)
GOOD = says('{"good": true}', approves=True)
NOT_GOOD = says('The date is missing. {"good": false}')


def drafted(**spec: Any) -> RunState:
    """A run that has written its first draft."""
    return after(told(spec=replace(REFLECTS, **spec)), BEGAN, says("Draft."))


def outcome(state: RunState) -> Outcome:
    """How the run ended."""
    assert state.outcome is not None
    return state.outcome


def test_a_draft_is_criticised_and_revised_and_then_it_is_the_answer() -> None:
    state = after(drafted(), BEGAN, NOT_GOOD, BEGAN, says("Revised."), BEGAN, GOOD)

    assert (outcome(state).status, outcome(state).output) == (RunStatus.COMPLETED, "Revised.")
    assert conversation(state) == [
        ("user", "Do it."),
        ("assistant", "Draft."),
        ("user", f"<system-reminder>{CRITICISE}</system-reminder>"),
        ("assistant", 'The date is missing. {"good": false}'),
        ("user", f"<system-reminder>{REVISE}</system-reminder>"),
        ("assistant", "Revised."),
        ("user", f"<system-reminder>{CRITICISE}</system-reminder>"),
        ("assistant", '{"good": true}'),
    ]
    assert state.turn == 4


def test_each_turn_says_what_it_is_for() -> None:
    first = after(told(spec=REFLECTS), BEGAN)
    critique = after(first, says("Draft."), BEGAN)
    revision = after(critique, NOT_GOOD, BEGAN)

    assert [model_request(state).stage for state in (first, critique, revision)] == ["draft", "critique", "revision"]
    assert [summary_of(state) for state in (first, critique, revision)] == [
        "t1 · draft · model demo",
        "t2 · critique 1 of 2 · model demo",
        "t3 · revision 1 of 2 · model demo",
    ]
    assert model_request(after(told(), BEGAN)).stage == ""


def test_a_draft_that_is_good_ends_it_early() -> None:
    state = after(drafted(), BEGAN, GOOD)

    assert (outcome(state).output, state.turn) == ("Draft.", 2)


def test_after_the_last_round_the_answer_is_what_it_is() -> None:
    state = after(drafted(rounds=1), BEGAN, NOT_GOOD, BEGAN, says("Revised."))

    assert (outcome(state).output, state.turn) == ("Revised.", 3)


def test_a_revision_may_use_tools() -> None:
    state = after(drafted(rounds=1), BEGAN, NOT_GOOD, BEGAN, wants((call("c"), READS)), returned(c="2026-01-02"))

    assert model_request(after(state, BEGAN)).stage == "revision"
    assert outcome(after(state, BEGAN, says("Revised."))).output == "Revised."


def test_done_gives_a_draft_too() -> None:
    finished = wants((call("d", "done", result="Draft."), READS))
    state = after(told(spec=REFLECTS), BEGAN, finished, BEGAN, GOOD)

    assert (outcome(state).output, outcome(state).explicit) == ("Draft.", True)


def test_calls_in_a_critique_are_not_run() -> None:
    state = after(drafted(), BEGAN, wants((call("c"), READS), text="Let me look."), BEGAN)

    assert conversation(state)[4][1].startswith("not run: this turn was for judging")
    assert model_request(state).stage == "revision"


@pytest.mark.parametrize(
    "spec",
    [{"rounds": 9}, {"output_schema": {"type": "object"}, "rounds": 9}],
)
def test_at_the_last_turn_the_draft_is_the_answer(spec: dict[str, Any]) -> None:
    checked = CheckedAnswer(value={"a": 1})
    state = after(told(spec=replace(REFLECTS, **spec), max_turns=2), BEGAN, says("Draft.", checked=checked), BEGAN)

    ended = outcome(after(state, NOT_GOOD, BEGAN))
    assert (ended.status, ended.output, ended.structured) == (RunStatus.COMPLETED, "Draft.", {"a": 1})


def test_a_revision_that_does_not_fit_the_schema_leaves_the_draft_that_did() -> None:
    spec = replace(REFLECTS, output_schema={"type": "object"})
    wrong = says("Revised.", checked=CheckedAnswer(problems=("no",)))
    state = after(told(spec=spec), BEGAN, says("{}", checked=CheckedAnswer(value={})), BEGAN, NOT_GOOD)

    for _ in range(4):
        state = after(state, BEGAN, wrong)

    assert (outcome(state).status, outcome(state).output) == (RunStatus.COMPLETED, "{}")


def test_a_provider_that_fails_in_a_critique_does_not_cost_the_draft() -> None:
    state = after(drafted(), BEGAN, fails("LLMRefusedError"))

    assert (outcome(state).status, outcome(state).output) == (RunStatus.COMPLETED, "Draft.")


def test_an_abort_keeps_the_draft_as_output() -> None:
    state = after(drafted(), BEGAN, AbortRequested(at=AT))

    assert (outcome(state).status, result_of(state, outcome(state)).output) == (RunStatus.ABORTED, "Draft.")


HEARD = MessageReceived(text="in blue", at=AT)


@pytest.mark.parametrize(
    "events",
    [[HEARD], [BEGAN, HEARD, GOOD], [BEGAN, HEARD, NOT_GOOD]],
    ids=["before the critique", "during one that approves", "during one that does not"],
)
def test_what_a_person_says_goes_before_any_critique(events: list[Any]) -> None:
    state = after(drafted(), *events, BEGAN)

    assert state.outcome is None
    assert state.answer.draft is None
    assert conversation(state)[-1] == ("user", "in blue")
    assert model_request(state).stage == "draft"
    assert model_request(after(state, says("Blue."), BEGAN)).stage == "critique"


def test_a_held_run_keeps_what_was_approved_until_it_goes_on() -> None:
    state = after(drafted(), BEGAN, PauseRequested(at=AT), GOOD)

    assert state.outcome is None
    assert outcome(after(state, ResumeRequested(at=AT), BEGAN)).output == "Draft."


@pytest.mark.parametrize(
    ("critique", "good"),
    [
        ('{"good": true}', True),
        ('All is right.\n{"good": true}', True),
        ('```json\n{"good": true}\n```', True),
        ('Complete, see {"problems": [], "good": true}.', True),
        ('{"good": false}', False),
        ('{"good": "true"}', False),
        ('{"good": false}\nOn second thoughts:\n{"good": true}', True),
        ("Looks good to me!", False),
        ("", False),
    ],
)
def test_only_a_critique_that_says_so_approves(critique: str, good: bool) -> None:
    assert approves(critique) is good
