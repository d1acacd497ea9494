"""Histories of past releases: today's workflow code must take the same path through every one of them."""

from dataclasses import replace
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from loom.workflows.agent_run import AgentRun
from loom.workflows.crew_run import CrewRun
from loom.workflows.payload_converter import data_converter
from loom.workflows.runner import WORKFLOW_RUNNER

HISTORIES = sorted(Path(__file__).parent.joinpath("histories").glob("*.json"))


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_recorded_history_still_replays(path: Path) -> None:
    replayer = Replayer(workflows=[AgentRun, CrewRun], workflow_runner=WORKFLOW_RUNNER, data_converter=data_converter())

    history = WorkflowHistory.from_json(path.stem, path.read_text())
    began = history.events[0].workflow_execution_started_event_attributes
    replayed = await replayer.replay_workflow(replace(history, workflow_id=began.workflow_id))

    assert replayed.replay_failure is None


def test_there_are_histories_to_replay() -> None:
    assert len(HISTORIES) >= 5
