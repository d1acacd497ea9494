"""What a run costs on Temporal Cloud: docs/operations/sizing.md states the Actions that recorded histories contain.

The rules are those of https://docs.temporal.io/cloud/actions. Histories contain neither heartbeats nor queries.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory

from tests.replay.contents import HISTORIES

PAGE: Final = Path(__file__).parents[3] / "docs/operations/sizing.md"
ONE_EACH: Final = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,  # by a client, a parent, or continue-as-new
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED,
    EventType.EVENT_TYPE_TIMER_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_OPTIONS_UPDATED,
}


def executions_of(story: str) -> Iterator[Sequence[HistoryEvent]]:
    """The events of a story's run, and of the executions as which it continued."""
    for path in HISTORIES:
        if re.fullmatch(rf"0\.4\.0-{story}-\d+", path.stem):
            yield WorkflowHistory.from_json(story, path.read_text(encoding="utf-8")).events


def actions(events: Sequence[HistoryEvent]) -> int:
    """The billed Actions that the events of an execution stand for."""
    started = [event.activity_task_started_event_attributes for event in events]
    upserts = [event.upsert_workflow_search_attributes_event_attributes.search_attributes for event in events]
    tasks_with_markers = {
        event.marker_recorded_event_attributes.workflow_task_completed_event_id
        for event in events
        if event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED
    }
    return (
        sum(event.event_type in ONE_EACH for event in events)
        + sum(activity.attempt for activity in started)  # an activity is billed each time it starts
        + sum(bool(set(each.indexed_fields) - {"TemporalChangeVersion"}) for each in upserts)
        + len(tasks_with_markers)  # local activities, among others
    )


def stated() -> dict[str, int]:
    """The Actions of each row of the page's table."""
    rows = re.findall(r"^\| per (.+?) \| (\d+)\b", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"\[(.+)\]\(.+\)", r"\1", label): int(number) for label, number in rows}


@pytest.mark.parametrize(
    ("story", "parts"),
    [
        ("read-quickly", {"turn": 4}),  # three model calls, and a tool call that isn't quick
        ("whole-retried", {"turn": 2, "retry of a model call": 2}),
        ("whole-notified", {"turn": 3, "approval": 1, "notification": 2}),
        ("whole-crew", {"turn": 5, "sub-agent or member of a crew": 5}),
        ("whole-rotated", {"turn": 41, "continue-as-new": 1}),  # 21 model calls, and 20 tool calls that ran locally
    ],
)
def test_a_run_takes_the_actions_that_the_page_states(story: str, parts: Mapping[str, int]) -> None:
    each = stated()
    taken = sum(actions(events) for events in executions_of(story))
    assert taken == each["run"] + sum(each[name] * number for name, number in parts.items())
