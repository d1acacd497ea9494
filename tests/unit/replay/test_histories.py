"""Histories of past releases: today's workflow code must take the same path through every one of them, and ask for the
same on the way, but for what `differences.json` lists.
"""

import json
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.workflow import _Definition

from loom.workflows.runner import WORKFLOWS
from tests.replay.contents import DIFFERENCES, HISTORIES, differences

EXPECTED = json.loads(DIFFERENCES.read_text())


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_recorded_history_still_replays(path: Path) -> None:
    history = WorkflowHistory.from_json(path.stem, path.read_text())

    assert await differences(history) == EXPECTED.get(path.stem, [])


def test_every_workflow_of_the_worker_has_recorded_histories() -> None:
    histories = [WorkflowHistory.from_json(path.stem, path.read_text()) for path in HISTORIES]
    recorded = {each.events[0].workflow_execution_started_event_attributes.workflow_type.name for each in histories}

    assert {_Definition.must_from_class(workflow).name for workflow in WORKFLOWS} <= recorded
