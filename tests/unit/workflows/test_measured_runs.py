"""A run is measured once, however often Temporal executes its workflow tasks."""

from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from loom.domain.core import metrics
from loom.domain.core.requests import RunRequest, RunStatus
from loom.domain.machine.transitions import evolve, start
from loom.domain.run.activity_payloads import Prepared
from loom.domain.run.events import Event, RunPrepared
from loom.domain.run.state import Outcome, RunState, result_of
from loom.workflows import measured_runs
from loom.workflows.measured_runs import RunMeter
from tests.seen_meters import SeenMeters
from tests.unit.domain.story import AT, BEGAN, READS, SPEC, call, returned, says, wants

STORY: tuple[Event, ...] = (
    RunPrepared(prepared=Prepared(spec=SPEC)),
    BEGAN,
    wants((call("a"), READS), (call("b"), READS)),
    returned(a="one", b="two"),
    BEGAN,
    says("done"),
)


def played(meter: RunMeter, events: Iterable[Event]) -> RunState:
    state = start("run-1", RunRequest(task="Do it."), AT)
    for event in events:
        before, state = state, evolve(state, event)
        meter.advanced(before, event, state)
    return state


@pytest.mark.parametrize("replayed", range(2, len(STORY) + 1))
def test_events_that_happen_again_because_a_workflow_task_timed_out_are_measured_once(
    replayed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has lost the run from its cache: it replays what the history has, and the rest happens again."""
    left = 0

    def is_replaying() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    now = SimpleNamespace(now=lambda: AT, unsafe=SimpleNamespace(is_replaying=is_replaying))
    monkeypatch.setattr(measured_runs, "workflow", now)
    meters, counted = SeenMeters(), dict[str, dict[int, frozenset[tuple[str, int]]]]()
    played(RunMeter(meters, counted, "an execution"), STORY)
    once = list(meters.seen)

    left = replayed
    played(RunMeter(meters, counted, "an execution"), STORY)
    assert meters.seen == once

    played(RunMeter(meters, counted, "another execution"), STORY)
    assert meters.seen == [*once, *once]


def test_each_end_of_a_run_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry resets the run to its last workflow task. If the retry comes too late, the run ends there once more."""
    now = SimpleNamespace(now=lambda: AT, unsafe=SimpleNamespace(is_replaying=lambda: False))
    monkeypatch.setattr(measured_runs, "workflow", now)
    meters, counted = SeenMeters(), dict[str, dict[int, frozenset[tuple[str, int]]]]()
    for retries in (0, 0, 1):
        meter = RunMeter(meters, counted, "an execution")
        state = played(meter, STORY)
        meter.ended(replace(result_of(state, Outcome(status=RunStatus.FAILED)), retries=retries))
    assert meters.total(metrics.RUNS) == 2
