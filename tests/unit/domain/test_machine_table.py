"""The table of the machine: which events fit where, what is ignored, and the page that shows it."""

from typing import get_args

import pytest

from bench.machine_diagram import DOC, page
from loom.domain.machine.transitions import ENDED, TABLE, evolve, ignored, place
from loom.domain.run.events import (
    AbortRequested,
    AsksExpired,
    BackoffEnded,
    Event,
    ModelReplied,
    OwnEvent,
    SteeringEvent,
    TimeRanOut,
    ToolsReturned,
    TurnBegan,
)
from loom.domain.run.state import Phase, RunState
from loom.domain.tree.events import BudgetGranted, ChildStarted, TreeEvent, TreeSignalSent
from tests.unit.domain.story import AT, BEGAN, PREPARED, READS, after, asks, call, returned, says, told, wants

READY = told()
THINKING = told(BEGAN)
ACTING = told(BEGAN, wants((call("a"), READS)))
ASKING = told(BEGAN, wants((call("a"), asks())))
OVER = after(THINKING, AbortRequested(at=AT))


def test_the_table_names_every_event() -> None:
    assert set(TABLE) == {*get_args(OwnEvent), *get_args(SteeringEvent), *get_args(TreeEvent)}


def test_every_phase_and_the_end_can_be_reached_and_left() -> None:
    arrows = {
        (before, following)
        for transition in TABLE.values()
        for before, places in transition.to.items()
        for following in places
        if following != before
    }
    assert {before for before, _ in arrows} == {*Phase, ENDED}
    assert {following for _, following in arrows} == {*Phase, ENDED} - {Phase.STARTING}


@pytest.mark.parametrize(
    ("state", "event", "why"),
    [
        (READY, PREPARED, "RunPrepared does not fit a run that is ready"),
        (READY, says("late"), "ModelReplied does not fit a run that is ready"),
        (THINKING, TurnBegan(at=AT), "TurnBegan does not fit a run that is thinking"),
        (THINKING, returned(a="A"), "ToolsReturned does not fit a run that is thinking"),
        (THINKING, BackoffEnded(), "BackoffEnded does not fit: no retry is due"),
        (ACTING, says("twice"), "ModelReplied does not fit a run that is acting"),
        (ACTING, AsksExpired(at=AT), "AsksExpired does not fit: no call is waiting for approval"),
        (ACTING, TimeRanOut(at=AT), "TimeRanOut does not fit: the run has no deadline"),
        (ACTING, ChildStarted(run_id="run-1/d1"), "ChildStarted does not fit: there is no child with this id"),
        (ACTING, TreeSignalSent(), "TreeSignalSent does not fit: no signal is queued"),
        (OVER, TurnBegan(at=AT), "TurnBegan does not fit a run that is ended"),
        (OVER, returned(a="A"), "ToolsReturned does not fit: no tool call is open"),
    ],
)
def test_an_event_that_does_not_fit_is_ignored_for_a_reason(state: RunState, event: Event, why: str) -> None:
    assert ignored(state, event) == why
    assert evolve(state, event) is state


@pytest.mark.parametrize(
    ("state", "event", "then"),
    [
        (READY, BEGAN, Phase.THINKING),
        (THINKING, says("done"), ENDED),
        (THINKING, wants((call("a"), READS)), Phase.ACTING),
        (ACTING, returned(a="A"), Phase.READY),
        (ASKING, AsksExpired(at=AT), Phase.ACTING),
        (OVER, says("late"), ENDED),
    ],
)
def test_an_event_that_fits_leads_where_the_table_says(state: RunState, event: Event, then: str) -> None:
    assert ignored(state, event) is None
    assert place(evolve(state, event)) == then
    assert then in TABLE[type(event)].to[place(state)]


def test_a_late_answer_of_the_model_still_counts_what_it_cost() -> None:
    late = evolve(OVER, says("late"))
    assert isinstance(says("late"), ModelReplied)
    assert late.spending.usage.total_tokens == 15


def test_no_answer_is_taken_to_a_request_that_was_never_made() -> None:
    child = evolve(THINKING, BudgetGranted(number=1, granted=THINKING.tree.reserve))
    assert child is THINKING


def test_the_results_of_calls_that_are_not_open_are_ignored() -> None:
    assert evolve(READY, ToolsReturned(outcomes={}, at=AT)) is READY


def test_the_page_shows_the_machine_as_it_is() -> None:
    shown = DOC.read_text()
    assert page(shown) == shown, "run `python -m bench.machine_diagram --write`"
