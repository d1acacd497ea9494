"""A run that has started as an MCP task. No server."""

from types import SimpleNamespace
from typing import Any, cast

from mcp.server.context import ServerRequestContext
from mcp_types import CallToolRequestParams, CallToolResult

from loom.serve.caller_runs import CallerRuns
from loom.serve.faces.mcp_tasks import EXTENSION, RunTasks


def unreachable(_: Any) -> CallerRuns:
    raise AssertionError("nothing is asked about the run")


async def test_a_client_gets_the_id_of_a_started_run_even_if_the_run_says_nothing() -> None:
    async def started(_: Any) -> CallToolResult:
        return CallToolResult(content=[], structured_content={"run_id": "run-1"})

    declared = SimpleNamespace(extensions={EXTENSION: {}})
    session = SimpleNamespace(client_capabilities=declared)
    ctx = cast("ServerRequestContext[Any, Any]", SimpleNamespace(session=session, protocol_version="2026-07-28"))
    params = CallToolRequestParams(name="start_run", arguments={"task": "write"})

    task = await RunTasks(unreachable, lambda *_: None).intercept_tool_call(params, ctx, started)  # type: ignore[arg-type]
    assert (task["resultType"], task["taskId"], task["status"]) == ("task", "run-1", "working")  # type: ignore[index]
