"""A run's time: what of it is kept for a last answer, and how a run ends wherever it stands."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from loom.domain.core.requests import Budget, RunRequest, RunStatus
from loom.domain.core.tool_names import DELEGATE
from loom.domain.machine.delegation import child_start
from loom.domain.machine.limits import deadline, hard_end, last_call, limit_hit
from loom.domain.machine.transitions import next_action, start
from loom.domain.run.actions import BeginTurn, CallModel, Finish
from loom.domain.run.activity_payloads import Prepared
from loom.domain.run.events import MessageReceived, PauseRequested, RunPrepared, TimeRanOut, TurnBegan
from loom.domain.run.state import RunState, result_of, status_of
from loom.domain.tree.events import ChildrenBegan
from loom.domain.tree.lineage import Lineage, TreeLimits
from tests.unit.domain.story import AT, BEGAN, READS, SPEC, after, asks, at, call, says, told, wants

LIMITS = TreeLimits()
OVER = TimeRanOut(at=at(100))
DRAFTS = replace(SPEC, pattern="reflect")
RATED = replace(SPEC, evaluates=True)


def timed(*events: Any, seconds: float | None = 100, lineage: Lineage | None = None, spec: Any = SPEC) -> RunState:
    """A run that has so much time, after these events."""
    begun = start("run-1", RunRequest(task="Do it.", budget=Budget(seconds=seconds)), AT, lineage)
    return after(begun, RunPrepared(prepared=Prepared(spec=spec, limits=LIMITS)), BEGAN, *events)


@pytest.mark.parametrize(("seconds", "kept"), [(1, 0.1), (100, 10), (300, 30), (86_400, 30)])
def test_a_tenth_of_the_time_but_no_more_than_half_a_minute_is_for_the_last_answer(seconds: float, kept: float) -> None:
    state = timed(seconds=seconds)

    assert (deadline(state), hard_end(state), last_call(state)) == (at(seconds), at(seconds), at(seconds - kept))


def test_a_run_without_a_limit_of_time_has_no_end() -> None:
    state = timed(seconds=None)

    assert (deadline(state), hard_end(state), last_call(state)) == (None, None, None)
    assert limit_hit(state, at(10**9)) is None
    assert after(state, OVER) == state


def test_a_run_from_before_has_its_time_looked_at_between_turns_only() -> None:
    state = told(BEGAN, budget=Budget(seconds=100))

    assert (hard_end(state), last_call(state)) == (None, at(100))
    assert after(state, OVER) == state


def test_from_its_last_call_on_a_run_begins_nothing_but_its_last_answer() -> None:
    working = timed(wants((call("c1"), READS)))
    over = after(working, TimeRanOut(at=at(100)))
    assert isinstance(next_action(over), Finish)

    done = timed(says("half", stop="length"))
    late = after(done, TurnBegan(at=at(90)))

    assert isinstance(next_action(late), CallModel)
    assert "90 of 100, and the rest is for a last answer" in late.transcript.messages[-1].text
    ended = after(late, says("all in all"))
    assert ended.outcome is not None
    assert (ended.outcome.status, ended.outcome.output) == (RunStatus.BUDGET_EXHAUSTED, "halfall in all")


def test_children_have_to_be_done_by_their_parents_last_call_and_theirs_in_turn() -> None:
    handed = call("c1", DELEGATE, description="a part", prompt="Do a part.")
    state = after(timed(wants((handed, READS))), ChildrenBegan(names={"c1": "d1-1"}, at=at(50)))

    begun = child_start(state, state.tree.children[0])

    assert begun.lineage.deadline == at(90)
    child = replace(start(begun.run_id, begun.request, at(50), begun.lineage), spec=SPEC)
    child = after(child, RunPrepared(prepared=Prepared(spec=SPEC, limits=LIMITS)))
    assert last_call(replace(child, tree=replace(child.tree, limits=LIMITS))) == at(86)


def test_a_child_that_began_too_late_has_no_time_and_no_less() -> None:
    state = timed(lineage=_below(at(-5)))

    assert last_call(state) == at(-5)
    assert limit_hit(state, AT) is not None


def _below(until: datetime) -> Lineage:
    return Lineage(parent_run_id="p", root_run_id="p", depth=1, limits=LIMITS, deadline=until)


@pytest.mark.parametrize(
    ("state", "waited_on"),
    [
        (timed(), "model"),
        (timed(wants((call("c1", command="make"), READS), text="looking")), "tools: bash: make"),
        (timed(wants((call("c1", command="rm"), asks()), text="looking")), "approval: bash: rm"),
        (timed(wants((call("c1", "ask_user", question="Which?"), READS), text="looking")), "answer: Which?"),
        (timed(PauseRequested(at=AT)), "resume"),
    ],
)
def test_at_the_end_of_its_time_a_run_ends_wherever_it_waits_with_what_it_said(state: RunState, waited_on: str) -> None:
    ended = after(state, OVER)

    assert ended.outcome is not None
    assert status_of(ended) is RunStatus.BUDGET_EXHAUSTED
    error = ended.outcome.error
    assert error is not None
    assert (error.type, error.context) == ("BudgetExceededError", {"limit": "seconds"})
    assert f"100 of 100, while it waited on {waited_on}" in error.message
    said = [m.text for m in state.transcript.messages if m.role == "assistant"]
    assert result_of(ended, ended.outcome).output == (said[-1] if said else "")
    assert ended.hold is None


@pytest.mark.parametrize("state", [timed(says("Four."), spec=RATED), timed(says("Four."), spec=DRAFTS)])
def test_an_answer_that_is_only_being_rated_or_criticised_is_the_answer(state: RunState) -> None:
    ended = after(state, OVER)

    assert ended.outcome is not None
    assert (ended.outcome.status, ended.outcome.output) == (RunStatus.COMPLETED, "Four.")


def test_an_answer_that_does_not_know_what_a_person_said_since_is_none() -> None:
    ended = after(timed(says("Four."), spec=RATED), MessageReceived(text="in words", by="ann", at=AT), OVER)

    assert ended.outcome is not None
    result = result_of(ended, ended.outcome)
    assert (result.status, result.output) == (RunStatus.BUDGET_EXHAUSTED, "Four.")
    assert result.error is not None
    assert result.error.context["unread"] == ["in words"]


def test_a_last_answer_that_takes_too_long_is_not_waited_for() -> None:
    late = after(timed(wants((call("c1"), READS), text="looking")), OVER)
    assert late.outcome is not None

    waiting = after(timed(says("half", stop="length")), TurnBegan(at=at(95)), OVER)

    assert waiting.outcome is not None
    assert (waiting.outcome.status, result_of(waiting, waiting.outcome).output) == ("budget_exhausted", "half")


def test_what_has_ended_stays_as_it_is() -> None:
    ended = timed(says("Four."))

    assert after(ended, OVER) == ended
    assert isinstance(next_action(timed(says("half", stop="length"))), BeginTurn)
