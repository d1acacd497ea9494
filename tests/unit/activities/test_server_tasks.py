"""The result of an MCP server's task arrives, although the connection is lost meanwhile. No server."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR, CallToolResult, TextContent

from loom.activities.adapters.mcp import tasks
from loom.activities.adapters.mcp.tasks import GetTask, ServerTask, follow
from loom.activities.toolbox.mcp_tool import McpCall
from loom.domain.core.tool_calls import Effect

CALL = McpCall(tool="build", arguments={}, effect=Effect.ONCE, timeout=60, as_task=True, task="task-1")
BUILT = CallToolResult(content=[TextContent(type="text", text="built")])


class Server:
    """A server of the protocol 2025-11-25 whose task has ended. It answers requests for the result with these."""

    protocol_version = "2025-11-25"

    def __init__(self, *answers: CallToolResult | Exception) -> None:
        self.session = SimpleNamespace(send_request=self._sent)
        self._answers = [*answers]

    async def connected(self) -> Client:
        return cast("Client", self)

    async def _sent(self, request: Any, *_: Any) -> ServerTask | CallToolResult:
        if isinstance(request, GetTask):
            return ServerTask(task_id="task-1", status="completed")
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def result(*answers: CallToolResult | Exception) -> CallToolResult | ServerTask:
    async def tell(progress: float, total: float | None, message: str | None) -> None:
        raise AssertionError((progress, total, message))

    return await follow(Server(*answers).connected, lambda _: None, CALL, "web", tell)


async def test_a_lost_connection_does_not_lose_the_result_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "FIRST_PAUSE", 0.0)
    closed = MCPError(code=CONNECTION_CLOSED, message="Connection closed")
    restarted = MCPError(code=-32600, message="Session terminated")
    assert await result(closed, OSError("reset"), restarted, BUILT) == BUILT


async def test_what_the_server_says_of_a_failed_task_is_its_result() -> None:
    with pytest.raises(MCPError, match="no bricks"):
        await result(MCPError(code=INTERNAL_ERROR, message="no bricks"), BUILT)
