"""Histories of runs that no worker could go on with, and what had happened to them.

A query had handed each of them the result of a model call before the workflow task that delivered it, with the time of
the task before. The run decided by this time that its backoff was over. A replay has the time of the task itself, and
starts a timer.
"""

import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

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


@pytest.mark.xfail(
    raises=NondeterminismError, strict=True, reason="the SDK tells a replay earlier of a quick read's end"
)
async def test_a_pause_that_comes_with_the_end_of_a_quick_read() -> None:
    await _replay(json.loads((STUCK / "quick-read-and-pause.json").read_text()))


async def _replay(history: object) -> None:
    replayer = Replayer(workflows=WORKFLOWS, workflow_runner=WORKFLOW_RUNNER, data_converter=data_converter())
    await replayer.replay_workflow(WorkflowHistory.from_json("stuck", json.dumps(history)))
