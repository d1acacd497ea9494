"""A worker stands still while a tool written in Python runs, its run is aborted, and the worker goes on."""

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from io import FileIO
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from loom.domain.core.requests import RunStatus
from loom.testing.model_server import ToolUse, calls, script
from loom.testing.waiting import eventually
from tests.acceptance.conftest import Killable

Frozen: TypeAlias = Callable[[str], AbstractAsyncContextManager[str]]

APP: Final = """
import asyncio, os, time
from pathlib import Path
from loom import LoomApp, ToolContext, errors

app = LoomApp()

def note(workspace, name):
    (workspace / name).touch()

def wait(workspace):
    "Wait outside of Python until the test writes."
    note(workspace, "begun")
    (workspace / "pipe").open("rb", buffering=0).read(1)

@app.tool(effect="once", permission="allow", queue=os.environ["TOOLS_QUEUE"])
async def asynchronous(context: ToolContext) -> str:
    "Wait in steps."
    note(context.workspace, "begun")
    try:
        while not (context.workspace / "go").exists():
            await asyncio.sleep(0.01)
        note(context.workspace, "effect")
    except asyncio.CancelledError:
        note(context.workspace, "refused")
        raise
    return "done"

@app.tool(effect="once", permission="allow", queue=os.environ["TOOLS_QUEUE"])
def checks(context: ToolContext) -> str:
    "Check before it takes effect."
    wait(context.workspace)
    try:
        context.check()
        note(context.workspace, "effect")
    except (errors.ExecutionAbortedError, asyncio.CancelledError):
        note(context.workspace, "refused")
        raise
    return "done"

@app.tool(effect="once", permission="allow", queue=os.environ["TOOLS_QUEUE"])
def reports(context: ToolContext) -> str:
    "Take effect through Loom."
    wait(context.workspace)
    try:
        context.progress("late")
        note(context.workspace, "effect")
    except (errors.ExecutionAbortedError, asyncio.CancelledError):
        note(context.workspace, "refused")
        raise
    return "done"

@app.tool(effect="once", permission="allow", queue=os.environ["TOOLS_QUEUE"])
def computes(context: ToolContext) -> None:
    "Know nothing of aborts."
    note(context.workspace, "begun")
    try:
        while True:
            time.sleep(0.01)
    except asyncio.CancelledError:
        note(context.workspace, "refused")
        raise

@app.tool(effect="once", permission="allow", queue=os.environ["TOOLS_QUEUE"])
def waits(context: ToolContext) -> str:
    "Wait where it can't be stopped."
    wait(context.workspace)
    return "done"
"""


@pytest.fixture
def pipe(workspace: Path) -> Iterator[FileIO]:
    """What a function waits for, outside of Python."""
    os.mkfifo(workspace / "pipe")
    with FileIO(workspace / "pipe", "r+") as pipe:
        yield pipe


@pytest.fixture
async def frozen(killable: Killable, workspace: Path, tmp_path: Path) -> Frozen:
    """`async with frozen(tool) as run_id`: the worker of the tool stands still, and its run was aborted meanwhile."""

    @asynccontextmanager
    async def frozen(tool: str) -> AsyncIterator[str]:
        (file := tmp_path / "fenced.py").write_text(APP, encoding="utf-8")
        reply = calls(ToolUse(tool, {}, "t1"))
        loom, _, workers = await killable(script([reply]), app=f"{file}:app")
        # With a queue of its own, the frozen worker doesn't hold back the run's workflow tasks.
        queue = f"{loom.settings.task_queue}-tools"
        worker = await workers.start(LOOM_TASK_QUEUE=queue, TOOLS_QUEUE=queue)
        await workers.start(TOOLS_QUEUE=queue)
        run_id = await loom.start()
        await _exists(workspace / "begun")
        with workers.frozen(worker):
            await loom.client.abort(run_id)
            assert (await loom.client.result(run_id)).status is RunStatus.ABORTED
            yield run_id

    return frozen


@pytest.mark.parametrize(
    "tool",
    [
        "asynchronous",
        "checks",
        pytest.param("reports", marks=pytest.mark.slow),
        pytest.param("computes", marks=pytest.mark.slow),
    ],
)
async def test_a_tool_of_a_frozen_worker_takes_no_effect_after_its_run_was_aborted(
    frozen: Frozen, pipe: FileIO, workspace: Path, tmp_path: Path, tool: str
) -> None:
    async with frozen(tool):
        (workspace / "go").touch()
        pipe.write(b"x")  # what waits for one of them goes on as soon as its process does

    await _exists(workspace / "refused")
    assert not (workspace / "effect").exists()
    await _logged(tmp_path / "worker-0.log", '"worker_stood_still"', '"call_goes_on": false')


async def test_a_tool_of_a_frozen_worker_that_cannot_be_stopped_is_named_in_the_log(
    frozen: Frozen, pipe: FileIO, tmp_path: Path
) -> None:
    async with frozen("waits") as run_id:
        pass

    await _logged(tmp_path / "worker-0.log", '"tool_left_running"', '"waits"', run_id)
    pipe.write(b"x")


async def _exists(path: Path) -> None:
    async def look() -> bool:
        return path.exists()

    await eventually(look)


async def _logged(log: Path, *words: str) -> None:
    async def look() -> bool:
        return any(all(word in line for word in words) for line in log.read_text(encoding="utf-8").splitlines())

    await eventually(look)
