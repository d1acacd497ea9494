"""kill -9 of a worker that keeps variables, or that commits: the model is told the truth, and nothing is left."""

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from loom.domain.core.requests import RunStatus
from loom.testing.model_server import ModelServer, ToolUse, calls, script, text
from loom.testing.waiting import eventually
from tests.acceptance.conftest import Killable
from tests.processes import command_of

GONE = "The variables of earlier calls are gone: the worker that kept them has stopped"
DELEGATE = ToolUse("delegate_task", {"description": "count", "prompt": "SUB", "tools": ["python"]}, "d1")


def python(code: str, call: str) -> ToolUse:
    return ToolUse("python", {"code": code}, call)


def results(model: ModelServer) -> dict[str, str]:
    """What the model has read last, by call."""
    messages = model.requests[-1].messages
    return {each["tool_call_id"]: each["content"] for each in messages if each["role"] == "tool"}


def processes_in(workspace: Path) -> list[str]:
    commands = [" ".join(command_of(each)) for each in psutil.process_iter()]
    return [command for command in commands if str(workspace) in command]


async def none_left(workspace: Path) -> None:
    async def look() -> bool:
        return not processes_in(workspace)

    await eventually(look)


@pytest.mark.slow
async def test_variables_end_with_their_worker_and_the_next_call_says_so(killable: Killable, workspace: Path) -> None:
    steps = [
        calls(python("x = 40", "p1")),
        calls(python("x + 2", "p2")),
        calls(python("open('begun', 'w'); import time; time.sleep(60)", "p3")),
        calls(python("open('runs', 'a').write('once'); x", "p4")),
        calls(python("x = 1; x", "p5")),
        text("done"),
    ]
    loom, model, workers = await killable(script(steps))
    worker = await workers.start()
    run_id = await loom.start(permissions={"python": "allow"})

    async def begun() -> bool:
        return (workspace / "begun").exists()

    await eventually(begun)
    await workers.kill(worker)
    await none_left(workspace)
    await workers.start()
    result = await loom.client.result(run_id)

    assert (result.status, result.output) == (RunStatus.COMPLETED, "done")
    told = results(model)
    assert told["p2"] == "42"
    assert told["p3"].startswith("Interrupted: the worker was lost while this ran")
    assert GONE in told["p4"]
    assert "NameError: name 'x' is not defined" in told["p4"]
    assert told["p5"] == "1"
    assert (workspace / "runs").read_text() == "once"
    await none_left(workspace)


async def test_a_sub_agent_has_its_own_variables_and_a_runs_end_ends_its_interpreter(
    killable: Killable, workspace: Path
) -> None:
    steps = [
        calls(python("x = 'parent'", "p1")),
        calls(DELEGATE),
        calls(python("'x' in globals()", "s1")),
        text("sub says"),
        calls(python("x", "p2")),
        text("done"),
    ]
    loom, model, workers = await killable(script(steps))
    await workers.start()
    result = await loom.run(permissions={"python": "allow"})

    assert result.status is RunStatus.COMPLETED
    sub = next(request for request in model.requests if request.messages[-1].get("tool_call_id") == "s1")
    assert sub.messages[-1]["content"] == "False"
    assert results(model)["p2"] == "'parent'"
    await none_left(workspace)


def git(place: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=place, check=True, capture_output=True, text=True).stdout


FILES = 3_000
"""A commit that takes long enough to be interrupted."""
MOMENTS: dict[str, Callable[[Path], bool]] = {
    "while files are added": lambda git: sum(1 for _ in (git / "objects").iterdir()) > 100,
    "while the commit is recorded": lambda git: (git / "loom-commit").exists(),
    "after it was recorded": lambda git: (git / "index.lock").exists(),
}


@pytest.mark.parametrize(
    "moment",
    [
        "while files are added",
        pytest.param("while the commit is recorded", marks=pytest.mark.slow),
        pytest.param("after it was recorded", marks=pytest.mark.slow),
    ],
)
async def test_a_worker_that_dies_in_a_commit_leaves_one_commit_and_no_lock(
    killable: Killable, workspace: Path, moment: str
) -> None:
    git(workspace, "init", "-q")
    for number in range(FILES):
        (workspace / f"file-{number}.txt").write_text(f"{number}\n")
    commit = ToolUse("git_commit", {"message": "Add the files"}, "g1")
    loom, model, workers = await killable(script([calls(commit), text("done")]))
    worker = await workers.start()
    run_id = await loom.start(permissions={"git_commit": "allow"})

    async with asyncio.timeout(60):
        while not MOMENTS[moment](workspace / ".git"):
            await asyncio.sleep(0.001)
    await workers.kill(worker)
    await none_left(workspace)
    already = int(git(workspace, "rev-list", "--all", "--count"))
    await workers.start()
    result = await loom.client.result(run_id)

    assert already == {"while files are added": 0, "after it was recorded": 1}.get(moment, already)
    assert (result.status, result.tool_calls) == (RunStatus.COMPLETED, 1)
    told, head = results(model)["g1"], git(workspace, "rev-parse", "--short", "HEAD").strip()
    assert git(workspace, "rev-list", "--all", "--count") == "1\n"
    assert told.startswith(f"committed {head} on ")
    assert f"{FILES} files changed" in told
    assert git(workspace, "status", "--porcelain") == ""
    assert not [*(workspace / ".git").glob("**/*.lock"), *(workspace / ".git").glob("loom-commit*")]
