"""A run goes by what it was started with; a worker that has other things says so, or refuses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from loom_domain.requests import RunResult, RunStatus
from loom_domain.tasks import Action
from tests.harness import Addresses, Harness, harness
from tests.model_server import ModelServer, ToolUse, calls, script, text
from tests.stream import told

LOOK = calls(ToolUse("bash", {"command": "ls"}, "c1"))


def write(folder: Path, prompt: str) -> str:
    """An app of its own with one agent."""
    folder.mkdir()
    (folder / "mine.py").write_text("from loom_app import LoomApp\napp = LoomApp()\n")
    (folder / "agents").mkdir()
    (folder / "agents" / "clerk.yaml").write_text(f"system_prompt: {prompt}\npermissions: {{bash: ask}}\n")
    return f"{folder}/mine.py:app"


@asynccontextmanager
async def moved(
    addresses: Addresses, workspace: Path, tmp_path: Path, on_change: str
) -> AsyncIterator[tuple[Harness, ModelServer, str, RunResult]]:
    """A run that one worker began and another one, whose agent was written anew, has ended."""
    queue = f"moved-{uuid4().hex[:8]}"
    one, other = write(tmp_path / "one", "Be kind."), write(tmp_path / "other", "Be rude.")
    async with harness(addresses, workspace, script([LOOK]), app=one, task_queue=queue, replay=False) as (loom, _):
        run_id = await loom.start(agent="clerk")
        await loom.asked(run_id)
    async with harness(
        addresses, workspace, script([text("done")]), app=other, task_queue=queue, on_changed_manifest=on_change
    ) as (loom, model):
        loom.started.append(run_id)
        await loom.client.approve(run_id, "c1")
        yield loom, model, run_id, await loom.client.result(run_id)


@pytest.mark.timeout(240)
async def test_a_worker_with_another_prompt_keeps_to_the_pinned_one_and_says_so(
    addresses: Addresses, workspace: Path, tmp_path: Path
) -> None:
    async with moved(addresses, workspace, tmp_path, "keep") as (loom, model, run_id, result):
        assert result.status is RunStatus.COMPLETED
        assert "Be kind." in model.requests[0].messages[0]["content"]
        events = [event.task for event in await told(loom.client, run_id)]
        (changed,) = [event for event in events if event.action is Action.MANIFEST]
        assert changed.parameters == {"kept": "pinned", "parts": ["prompt"], "tools": []}


@pytest.mark.timeout(240)
async def test_a_worker_that_is_told_to_refuses_a_run_that_was_started_with_another_prompt(
    addresses: Addresses, workspace: Path, tmp_path: Path
) -> None:
    async with moved(addresses, workspace, tmp_path, "refuse") as (_, model, _run_id, result):
        assert model.requests == []
        assert result.error is not None
        assert (result.status, result.error.type) == (RunStatus.FAILED, "ManifestChangedError")
        assert "prompt of agent clerk" in result.error.message
