"""MCP servers that run calls as tasks: the run records the task, so that whatever dies, nothing is begun twice."""

import json
from pathlib import Path

import pytest

from loom.domain.core.errors import ToolExecutionError
from loom.domain.core.requests import RunStatus
from loom.domain.core.tool_input import NeededInput
from loom.domain.tools.mcp_servers import McpServer
from loom.testing.harness import Addresses
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from tests.integration.activities.test_mcp import ECHO, Raw, call, connect, tool
from tests.integration.workflows.test_mcp_input import once_then, the_ask
from tests.integration.workflows.test_mcp_runs import read_by_model, working_with

BUILD = "mcp__echo__build"
ALLOWED = {"default": "allow"}


class Builder:
    """A server of the protocol 2026-07-28 whose tool `build` is a task. A file has its state."""

    def __init__(self, folder: Path) -> None:
        self.diary = folder / "echo"
        self._tasks = folder / "echo.tasks"

    def server(self) -> McpServer:
        return McpServer(name="echo", command=(*ECHO, "--diary", str(self.diary)))

    def goes_on(self, status: str) -> None:
        """From now on, the task has this status."""
        self._tasks.write_text(json.dumps({"id": "task-1", "status": status}))

    async def notes(self, start: str, least: int = 1) -> list[str]:
        """Wait for so many different notes that start with this."""

        async def look() -> list[str] | None:
            lines = self.diary.read_text().splitlines() if self.diary.exists() else []
            found = list(dict.fromkeys(line for line in lines if line.startswith(start)))
            return found if len(found) >= least else None

        return await eventually(look)


@pytest.mark.parametrize("protocol", ["2025-11-25", "2026-07-28"])
async def test_a_tool_that_needs_a_task_runs_as_one_and_its_question_reaches_a_person(
    addresses: Addresses, workspace: Path, tmp_path: Path, protocol: str
) -> None:
    raw, builder = Raw(tmp_path), Builder(tmp_path)
    raw.list(tool("build", execution={"taskSupport": "required"}))
    server = raw.server() if protocol == "2025-11-25" else builder.server()
    answers = script([calls(ToolUse(f"mcp__{server.name}__build", {"city": "Oslo"})), text("Built.")])
    async with working_with(addresses, workspace, answers, server) as (loom, model):
        run_id = await loom.start(permissions=ALLOWED)
        if protocol == "2026-07-28":
            await builder.notes("polled")
            builder.goes_on("input_required")
        asked = await the_ask(loom, run_id)
        assert asked["question"] == f"The MCP server {server.name} asks: Which colour?"
        await loom.client.approve(run_id, asked["call_id"], digest=asked["digest"], arguments={"colour": "red"})
        result = await loom.client.result(run_id)

    assert (result.status, result.tool_calls) == (RunStatus.COMPLETED, 1)
    (read,) = read_by_model(model, 1)
    if protocol == "2025-11-25":
        assert json.loads(read) == {"action": "accept", "content": {"colour": "red"}}
        assert raw.diary.read_text().splitlines().count("build begun") == 1
    else:
        assert read == "built in red"
        assert await builder.notes("build") == ["build {'city': 'Oslo'}"]
        assert await builder.notes("told") == ["told accept"]


async def test_another_process_goes_on_with_a_task(tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    async with connect(builder.server()) as servers:
        assert (await call(servers, BUILD, city="Oslo")).needs == NeededInput(requests=(), task="task-1")
    builder.goes_on("green")
    told: list[str] = []
    async with connect(builder.server()) as servers:
        goes_on = {"round": 1, "server_task": "task-1"}
        assert (await call(servers, BUILD, told.append, goes_on, city="Oslo")).text == "built in green"
        with pytest.raises(ToolExecutionError, match=r"no longer knows the task of build .*: the outcome is unknown"):
            await call(servers, BUILD, context={**goes_on, "server_task": "task-2"}, city="Oslo")
    assert await builder.notes("build") == ["build {'city': 'Oslo'}"]


@pytest.mark.slow
async def test_another_worker_goes_on_with_the_task_of_a_call_that_runs_once(
    addresses: Addresses, workspace: Path, tmp_path: Path
) -> None:
    builder = Builder(tmp_path)
    answers = once_then("Built.", ToolUse(BUILD, {"city": "Oslo"}))
    async with working_with(addresses, workspace, answers, builder.server(), replay=False) as (first, _):
        run_id = await first.start(permissions=ALLOWED)
        await builder.notes("polled")
        queue = first.settings.task_queue
    async with working_with(addresses, workspace, answers, builder.server(), task_queue=queue) as (loom, model):
        loom.started.append(run_id)
        await builder.notes("polled", least=2)  # by the server of the second worker
        builder.goes_on("green")
        result = await loom.client.result(run_id)

    assert result.status is RunStatus.COMPLETED
    assert read_by_model(model, -1) == ["built in green"]
    assert builder.diary.read_text().count("build {") == 1
    assert "cancelled" not in builder.diary.read_text()


async def test_an_abort_reaches_the_task(addresses: Addresses, workspace: Path, tmp_path: Path) -> None:
    builder = Builder(tmp_path)
    answers = script([calls(ToolUse(BUILD, {"city": "Oslo"}))])
    async with working_with(addresses, workspace, answers, builder.server()) as (loom, _):
        run_id = await loom.start(permissions=ALLOWED)
        await builder.notes("polled")
        await loom.client.abort(run_id)
        assert (await loom.client.result(run_id)).status is RunStatus.ABORTED
        assert await builder.notes("cancelled") == ["cancelled task-1"]
