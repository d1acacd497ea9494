"""Histories of runs that no worker could go on with, and what had happened to them.

For three of them, a query had handed the result of a model call to the run before the workflow task that delivered it,
with the time of the task before. The run decided by this time that its backoff was over. A replay has the time of the
task itself, and starts a timer. The other tests say what had happened to their histories.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from loom.workflows.changes import STARTED_WITH
from loom.workflows.payload_converter import data_converter
from loom.workflows.runner import WORKFLOW_RUNNER, WORKFLOWS

STUCK = Path(__file__).parents[2] / "replay" / "stuck"


@pytest.mark.parametrize(
    ("name", "early", "before"),
    [
        ("run-stuck-in-backoff", 52, 46),
        ("chat-stuck-in-backoff", 69, 63),
        ("run-with-queries-and-a-frozen-worker", 59, 51),
    ],
)
async def test_the_history_is_sound_if_a_result_came_with_a_query(name: str, early: int, before: int) -> None:
    history = json.loads((STUCK / f"{name}.json").read_text())
    with pytest.raises(NondeterminismError, match="Timer machine does not handle this event"):
        await _replay(history)
    events = {int(event["eventId"]): event for event in history["events"]}
    assert events[early]["eventType"] == events[before]["eventType"] == "EVENT_TYPE_WORKFLOW_TASK_STARTED"

    events[early]["eventTime"] = events[before]["eventTime"]

    await _replay(history)


async def test_the_history_is_sound_if_the_end_of_a_quick_read_is_recorded_when_the_run_was_told() -> None:
    history = json.loads((STUCK / "quick-read-and-pause.json").read_text())
    with pytest.raises(NondeterminismError, match="Activity machine does not handle this event"):
        await _replay(history)
    ended, told = 28, 31
    events = history["events"]
    assert events[ended - 1]["markerRecordedEventAttributes"]["markerName"] == "core_local_activity"
    assert events[told - 1]["eventType"] == "EVENT_TYPE_WORKFLOW_TASK_COMPLETED"

    events.insert(told - 1, events.pop(ended - 1))
    await _replay(_renumbered(history))


async def test_the_history_is_sound_if_a_task_that_came_with_a_query_was_completed() -> None:
    history = json.loads((STUCK / "task-that-came-with-a-query.json").read_text())
    with pytest.raises(NondeterminismError, match="does not handle HistoryEvent"):
        await _replay(history)
    events = {int(event["eventId"]): event for event in history["events"]}
    given_up, again = events[529], events[533]
    assert given_up["eventType"] == "EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT"
    assert again["eventType"] == "EVENT_TYPE_WORKFLOW_TASK_COMPLETED"

    times_out = given_up.pop("workflowTaskTimedOutEventAttributes")
    place = {name: times_out[name] for name in ("scheduledEventId", "startedEventId")}
    completes = {**again["workflowTaskCompletedEventAttributes"], **place}
    given_up |= {"eventType": again["eventType"], "workflowTaskCompletedEventAttributes": completes}

    await _replay(history)


async def test_the_history_is_sound_if_the_run_has_its_changes_from_the_start() -> None:
    """The task that brings the pause (46 to 52) is completed when the read has ended (52), but the run learned of the
    end in the next one (53 to 58). There it called `workflow.patched` for the first time (56). A replay calls it one
    task earlier, where the SDK doesn't know the marker yet.
    """
    history = json.loads((STUCK / "quick-read-and-query-before-a-pause.json").read_text())
    with pytest.raises(NondeterminismError, match="Non-deprecated patch marker encountered"):
        await _replay(history)
    events = history["events"]
    marker, attribute = events.pop(55), events.pop(55)
    assert marker["markerRecordedEventAttributes"]["markerName"] == "core_patch"
    assert "TemporalChangeVersion" in json.dumps(attribute)

    events[3]["workflowTaskCompletedEventAttributes"]["sdkMetadata"]["langUsedFlags"] += STARTED_WITH

    await _replay(_renumbered(history))


def _renumbered(history: Any) -> Any:
    """Return the history with the ids that its events have by their places."""
    new = {event["eventId"]: str(place) for place, event in enumerate(history["events"], start=1)}
    return json.loads(json.dumps(history), object_hook=lambda found: _with_ids(found, new))


def _with_ids(found: dict[str, Any], new: Mapping[str, str]) -> dict[str, Any]:
    return {name: new.get(value, value) if name.lower().endswith("eventid") else value for name, value in found.items()}


async def _replay(history: object) -> None:
    replayer = Replayer(workflows=WORKFLOWS, workflow_runner=WORKFLOW_RUNNER, data_converter=data_converter())
    await replayer.replay_workflow(WorkflowHistory.from_json("stuck", json.dumps(history)))
