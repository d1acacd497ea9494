"""A run goes by what it was started with; a worker that has other things says so, or refuses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from uuid import uuid4

from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.core.tasks import Action
from loom.testing.harness import Addresses, Harness, harness
from loom.testing.model_server import ModelServer, Reply, ToolUse, calls, script, text
from loom.testing.stream import told

LOOK = calls(ToolUse("bash", {"command": "ls"}, "c1"))


def write(folder: Path, prompt: str, code: str = "", **others: str) -> str:
    """An app of its own with one agent, whatever the code adds, and other agents by their prompts."""
    folder.mkdir()
    (folder / "mine.py").write_text(f"from loom import LoomApp\napp = LoomApp()\n{dedent(code)}")
    (folder / "agents").mkdir()
    for name, said in others.items():
        (folder / "agents" / f"{name}.yaml").write_text(f"system_prompt: {said}\n")
    (folder / "agents" / "clerk.yaml").write_text(f"system_prompt: {prompt}\npermissions: {{bash: ask}}\n")
    return f"{folder}/mine.py:app"


@asynccontextmanager
async def moved(
    addresses: Addresses, workspace: Path, apps: tuple[str, str], on_change: str, first: Reply = LOOK
) -> AsyncIterator[tuple[Harness, ModelServer, str, RunResult]]:
    """A run that one worker began and another one, whose agent was written anew, has ended."""
    queue = f"moved-{uuid4().hex[:8]}"
    one, other = apps
    async with harness(addresses, workspace, script([first]), app=one, task_queue=queue, replay=False) as (loom, _):
        run_id = await loom.start(agent="clerk")
        await loom.asked(run_id)
    async with harness(
        addresses, workspace, script([text("done")]), app=other, task_queue=queue, on_changed_manifest=on_change
    ) as (loom, model):
        loom.started.append(run_id)
        await loom.client.approve(run_id, "c1")
        yield loom, model, run_id, await loom.client.result(run_id)


async def test_a_worker_with_another_prompt_keeps_to_the_pinned_one_and_says_so(
    addresses: Addresses, workspace: Path, tmp_path: Path
) -> None:
    apps = write(tmp_path / "one", "Be kind."), write(tmp_path / "other", "Be rude.")
    async with moved(addresses, workspace, apps, "keep") as (loom, model, run_id, result):
        assert result.status is RunStatus.COMPLETED
        assert "Be kind." in model.requests[0].messages[0]["content"]
        events = [event.task for event in await told(loom.client, run_id)]
        (changed,) = [event for event in events if event.action is Action.MANIFEST]
        assert changed.parameters == {"kept": "pinned", "parts": ["prompt"], "tools": []}


async def test_a_worker_that_is_told_to_refuses_a_run_that_was_started_with_another_prompt(
    addresses: Addresses, workspace: Path, tmp_path: Path
) -> None:
    apps = write(tmp_path / "one", "Be kind."), write(tmp_path / "other", "Be rude.")
    async with moved(addresses, workspace, apps, "refuse") as (_, model, _run_id, result):
        assert model.requests == []
        assert result.error is not None
        assert (result.status, result.error.type) == (RunStatus.FAILED, "ManifestChangedError")
        assert "prompt of agent clerk" in result.error.message


GREET = calls(ToolUse("greet", {"name": "ann"}, "c1"))
TOOL = """
from pathlib import Path

@app.tool(permission="ask")
def greet(name: str) -> str:
    \"\"\"Greet somebody.\"\"\"
    with Path(__file__).with_name("greeted").open("a") as file:
        file.write(name)
    return f"{word}, {{name}}"
"""


def greeting(tmp_path: Path) -> tuple[str, str]:
    """Two versions of an app whose tool does something else, by the same schema."""
    one, other = (TOOL.format(word=word) for word in ("hello", "good bye"))
    return write(tmp_path / "one", "Be kind.", one), write(tmp_path / "other", "Be kind.", other)


async def test_a_tool_whose_code_is_another_one_when_it_runs_is_told_once(
    addresses: Addresses, workspace: Path, tmp_path: Path
) -> None:
    async with moved(addresses, workspace, greeting(tmp_path), "keep", GREET) as (loom, model, run_id, result):
        assert result.status is RunStatus.COMPLETED
        assert model.requests[0].messages[-1]["content"] == "good bye, ann"
        events = [event.task for event in await told(loom.client, run_id)]
        (changed,) = [event for event in events if event.action is Action.MANIFEST]
        new = {"kept": "pinned", "parts": [], "tools": [], "new": ["code of tool greet"]}
        assert changed.parameters == new
        actions = [event.action for event in events]
        assert actions.index(Action.MANIFEST) < actions.index(Action.TOOL_RESULT)


async def test_a_worker_that_is_told_to_refuses_to_run_a_tool_whose_code_is_another_one(
    addresses: Addresses, workspace: Path, tmp_path: Path
) -> None:
    async with moved(addresses, workspace, greeting(tmp_path), "refuse", GREET) as (_, _model, _run_id, result):
        assert not (tmp_path / "other" / "greeted").exists()
        assert result.error is not None
        assert (result.status, result.error.type) == (RunStatus.FAILED, "ManifestChangedError")
        assert "code of tool greet" in result.error.message


HOOK = """
@app.on_complete
def told(result, run):
    return {answer!r}
"""


async def test_changed_hooks_and_sub_agents_are_told_too(addresses: Addresses, workspace: Path, tmp_path: Path) -> None:
    apps = (
        write(tmp_path / "one", "Be kind.", HOOK.format(answer="a"), cook="Cook.", baker="Bake."),
        write(tmp_path / "other", "Be kind.", HOOK.format(answer="b"), cook="Do not cook.", baker="Bake."),
    )
    async with moved(addresses, workspace, apps, "keep") as (loom, _model, run_id, result):
        assert result.status is RunStatus.COMPLETED
        events = [event.task for event in await told(loom.client, run_id)]
        (changed,) = [event for event in events if event.action is Action.MANIFEST]
        assert changed.parameters["new"] == ["code of hook told", "sub-agent cook"]
