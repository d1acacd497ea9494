"""Runs in clones whose files can't be made here for a while, or never."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from loom.activities.adapters.git.clone import RunClone
from loom.domain.core.errors import BadRequest, LoomError, UnreachableError
from loom.domain.core.requests import RunStatus
from loom.testing.harness import Harness
from loom.testing.model_server import ModelServer, ToolUse, calls, script, text
from loom.testing.waiting import eventually
from tests.git_server import repository
from tests.integration.workflows.conftest import Working

FREELY = {"bash": "allow", "write_file": "allow"}
FIRST = [
    calls(ToolUse("bash", {"command": "echo one > a.txt"}, "c1")),
    calls(ToolUse("ask_user", {"question": "go on?"}, "ask")),
]


class Gone:
    """The reason why no clone can be made, as long as there is one."""

    def __init__(self) -> None:
        self.why: LoomError | None = None
        self.times = 0

    async def is_tried_again(self) -> bool:
        return self.times >= 2

    def told(self) -> None:
        self.times += 1
        if self.why is not None:
            raise self.why


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> Gone:
    gone, build = Gone(), RunClone.build

    async def attempted(self: RunClone, *given: Any, **named: Any) -> None:
        gone.told()
        await build(self, *given, **named)

    monkeypatch.setattr(RunClone, "build", attempted)
    return gone


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a repository."""
    repository(tmp_path / "app.git", {"a.txt": "zero\n"})
    return f"file://{tmp_path / 'app.git'}"


async def asked(loom: Harness, url: str) -> str:
    """Start a run, and return its id once it has changed a file and asks a person. The clone is gone by then."""
    run_id = await loom.start(workspace={"git": url}, permissions=FREELY)
    await loom.until(run_id, lambda status: status["status"] == "waiting_for_input")
    shutil.rmtree(await loom.client.workspace_of(run_id))
    return run_id


def results(model: ModelServer) -> dict[str, str]:
    """What the model was last told, by call."""
    return {m["tool_call_id"]: str(m["content"]) for m in model.requests[-1].messages if m["role"] == "tool"}


async def test_the_model_is_not_asked_until_the_files_are_here(working: Working, url: str, gone: Gone) -> None:
    last = [calls(ToolUse("bash", {"command": "cat a.txt"}, "c2")), text("done")]
    loom, model = await working(script([*FIRST, *last]), repositories=(url,))
    run_id = await asked(loom, url)
    gone.why, gone.times, before = UnreachableError("the server doesn't respond"), 0, len(model.requests)

    await loom.client.send(run_id, "yes")
    await eventually(gone.is_tried_again)
    assert len(model.requests) == before
    gone.why = None
    result = await loom.client.result(run_id)

    assert result.status is RunStatus.COMPLETED
    assert len(model.requests) == before + 2
    assert "in its state after bash (c1)" in results(model)["c2"]
    assert results(model)["c2"].endswith("one")


async def test_calls_are_not_judged_without_the_files_that_rules_look_at(
    working: Working, url: str, gone: Gone
) -> None:
    last = [calls(ToolUse("bash", {"command": "cat a.txt"}, "c2")), text("done")]
    loom, model = await working(script([*FIRST, *last]), repositories=(url,))
    run_id = await asked(loom, url)
    gone.why = BadRequest("the repository is gone", field="workspace.git")

    await loom.client.send(run_id, "yes")
    result = await loom.client.result(run_id)

    assert result.status is RunStatus.COMPLETED
    assert results(model)["c2"] == "Not run: the repository is gone"
