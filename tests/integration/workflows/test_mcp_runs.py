"""Runs with tools of MCP servers, end to end: a server that dies costs its call, never the run."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.client import Client
from temporalio.worker import Worker

from loom import LoomClient, LoomPlugin, Settings
from loom.activities.adapters.mcp.connection import ConnectionTimeouts
from loom.activities.adapters.mcp.servers import McpServers
from loom.activities.toolbox.tool_sets import JoinedToolSets
from loom.composition.temporal_connection import connected
from loom.composition.worker_parts import WorkerParts
from loom.domain.core.requests import RunStatus
from loom.domain.tools.mcp_servers import McpServer
from tests.harness import Addresses, Harness, replay_all, settings_for
from tests.integration.activities.test_mcp import Raw
from tests.model_server import ModelServer, ToolUse, calls, script, text

QUICK = ConnectionTimeouts(first_pause=0.05, longest_pause=0.2, probe=0.5, restart=0.5)


class WithServers(LoomPlugin):
    """Loom with these servers, which are soon dialled again."""

    def __init__(self, settings: Settings, servers: Sequence[McpServer]) -> None:
        super().__init__(settings)
        self._servers = servers
        self._queue = settings.task_queue

    def parts_for(self, client: Client) -> WorkerParts:
        """The usual parts, with the servers."""
        parts = super().parts_for(client)
        queue = f"{self._queue}-{uuid4().hex}"
        mcp = McpServers(self._servers, environment={"PATH": "/usr/bin:/bin"}, patience=QUICK, own_queue=queue)
        registry = replace(parts.registry, mcp_servers=tuple(self._servers))
        return replace(parts, registry=registry, servers=mcp, tools=JoinedToolSets(parts.tools, mcp.tools))


@asynccontextmanager
async def working_with(
    addresses: Addresses, workspace: Path, answers: Any, *servers: McpServer, replay: bool = True, **given: Any
) -> AsyncIterator[tuple[Harness, ModelServer]]:
    """A worker with these servers beside its built-in tools; its runs are replayed at the end."""
    async with ModelServer(answers) as model:
        settings = settings_for(addresses, workspace, model, **given)
        async with connected(settings) as temporal, LoomClient.connected(settings) as client:
            plugin = WithServers(settings, servers)
            working = Worker(temporal, task_queue=settings.task_queue, plugins=[plugin])
            async with plugin.opened(working), working:
                ready = Harness(client=client, settings=settings, workspace=workspace)
                yield ready, model
                if replay:
                    await replay_all(ready)


def read_by_model(model: ModelServer, index: int) -> list[str]:
    """The tool results in one request to the model."""
    return [message["content"] for message in model.requests[index].messages if message["role"] == "tool"]


async def test_a_server_that_dies_in_a_call_costs_that_call_and_not_the_run(
    addresses: Addresses, workspace: Path, tmp_path: Path
) -> None:
    raw = Raw(tmp_path)
    answers = script(
        [
            calls(ToolUse("mcp__raw__say", {"word": "hi"})),
            calls(ToolUse("mcp__raw__die")),
            text("It died, so I stop."),
        ]
    )
    allowed = {"mcp__raw__say": "allow", "mcp__raw__die": "allow"}
    async with working_with(addresses, workspace, answers, raw.server()) as (loom, model):
        result = await loom.run(permissions=allowed)

    assert (result.status, result.output, result.tool_calls) == (RunStatus.COMPLETED, "It died, so I stop.", 2)
    assert read_by_model(model, 1) == ['{"word": "hi"}']
    assert "the outcome is unknown, and it may have run" in read_by_model(model, 2)[-1]
    assert raw.diary.read_text().splitlines().count("tools/call die") == 1


async def test_a_tool_of_an_untrusted_server_asks_and_an_abort_reaches_its_server(
    addresses: Addresses, workspace: Path, tmp_path: Path
) -> None:
    raw = Raw(tmp_path)
    answers = script([calls(ToolUse("mcp__raw__quiet"))])
    async with working_with(addresses, workspace, answers, raw.server()) as (loom, _):
        run_id = await loom.start(permissions={"default": "ask"})
        asked = (await loom.asked(run_id))["pending_approvals"][0]
        await loom.client.approve(run_id, asked["call_id"], digest=asked["digest"])
        await raw.heard("tools/call quiet")
        await loom.client.abort(run_id)
        result = await loom.client.result(run_id)
        await raw.heard("notifications/cancelled")

    assert result.status is RunStatus.ABORTED
