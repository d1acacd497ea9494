"""Where a retry takes an ended run back to: the workflow task that ended it, in the histories of all releases."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from loom.activities.adapters.temporal.retries import closing_task
from tests.replay.contents import HISTORIES


def in_flight(events: Iterable[HistoryEvent]) -> set[int]:
    """The activities and children that these events start and do not end."""
    begun: set[int] = set()
    for event in events:
        name = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_")
        if name in ("ACTIVITY_TASK_SCHEDULED", "START_CHILD_WORKFLOW_EXECUTION_INITIATED"):
            begun.add(event.event_id)
        elif name.startswith("ACTIVITY_TASK_") and name not in (
            "ACTIVITY_TASK_STARTED",
            "ACTIVITY_TASK_CANCEL_REQUESTED",
        ):
            begun.discard(getattr(event, f"{name.lower()}_event_attributes").scheduled_event_id)
        elif name.startswith("CHILD_WORKFLOW_EXECUTION_") and not name.endswith("STARTED"):
            begun.discard(getattr(event, f"{name.lower()}_event_attributes").initiated_event_id)
    return begun


RUNS = [path for path in HISTORIES if "-upkeep-" not in path.stem]


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_nothing_was_in_flight_when_a_run_ended_so_nothing_starts_again(path: Path) -> None:
    events = WorkflowHistory.from_json(path.stem, path.read_text()).events
    task = closing_task(events[-1])
    if task is None:
        ends = "CONTINUED_AS_NEW", "TERMINATED", "WORKFLOW_TASK_STARTED"
        assert EventType.Name(events[-1].event_type).endswith(ends)
        return
    before, closing, *after = events[: task - 1], *events[task - 1 :]
    assert closing.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    assert not in_flight(before)
    assert not any(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED for event in after)
