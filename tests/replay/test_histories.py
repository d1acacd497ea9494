"""Histories of past releases: today's workflow code must take the same path through every one of them."""

from dataclasses import replace
from pathlib import Path

import pytest
from temporalio.api.history.v1 import WorkflowExecutionStartedEventAttributes
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import _Definition

from loom.workflows.payload_converter import data_converter
from loom.workflows.runner import WORKFLOW_RUNNER, WORKFLOWS

HISTORIES = sorted(Path(__file__).parent.joinpath("histories").glob("*.json"))


def _began(history: WorkflowHistory) -> WorkflowExecutionStartedEventAttributes:
    return history.events[0].workflow_execution_started_event_attributes


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_recorded_history_still_replays(path: Path) -> None:
    replayer = Replayer(workflows=WORKFLOWS, workflow_runner=WORKFLOW_RUNNER, data_converter=data_converter())

    history = WorkflowHistory.from_json(path.stem, path.read_text())
    replayed = await replayer.replay_workflow(replace(history, workflow_id=_began(history).workflow_id))

    assert replayed.replay_failure is None


def test_every_workflow_of_the_worker_has_recorded_histories() -> None:
    recorded = {_began(WorkflowHistory.from_json(path.stem, path.read_text())).workflow_type.name for path in HISTORIES}

    assert {_Definition.must_from_class(workflow).name for workflow in WORKFLOWS} <= recorded
