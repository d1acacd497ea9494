"""Histories of past releases: today's workflow code must take the same path through every one of them, and ask for the
same on the way, but for what `differences.json` lists.
"""

import json
import re
from collections.abc import Set
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.workflow import _Definition

from loom.domain.core.repositories import IN_CLONE
from loom.workflows.runner import WORKFLOWS
from tests.replay.contents import DIFFERENCES, HISTORIES, differences
from tests.replay.planted import ROOT

EXPECTED = json.loads(DIFFERENCES.read_text())


def activities_of(path: Path) -> Set[str]:
    """The names of the activities that a history schedules. An activity in a clone counts as the same one."""
    events = WorkflowHistory.from_json(path.stem, path.read_text()).events
    types = (event.activity_task_scheduled_event_attributes.activity_type for event in events)
    names = {each.name.removesuffix(IN_CLONE) for each in types}
    return names - {""}


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
async def test_a_recorded_history_still_replays(path: Path) -> None:
    history = WorkflowHistory.from_json(path.stem, path.read_text())

    assert await differences(history) == EXPECTED.get(path.stem, [])


def test_every_workflow_of_the_worker_has_recorded_histories() -> None:
    histories = [WorkflowHistory.from_json(path.stem, path.read_text()) for path in HISTORIES]
    recorded = {each.events[0].workflow_execution_started_event_attributes.workflow_type.name for each in histories}

    assert {_Definition.must_from_class(workflow).name for workflow in WORKFLOWS} <= recorded


def test_every_activity_of_a_worker_is_in_a_history() -> None:
    sources = (path.read_text() for path in (ROOT / "activities").rglob("*.py"))
    named = {name for source in sources for name in re.findall(r'activity\.defn\(name="(\w+)"\)', source)}

    assert named == {activity for path in HISTORIES for activity in activities_of(path)}
