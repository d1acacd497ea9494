"""Manage all of a worker's MCP servers. When the worker starts, it connects to all servers in parallel. One mapping
contains the current tools of all servers.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import structlog

from loom.activities.adapters.mcp.tool_cache import ToolCache
from loom.activities.ports import Tool
from loom.activities.toolbox.mcp_tool import offer
from loom.domain.core.errors import BadRequest
from loom.domain.tools.mcp_servers import ListedTool, McpServer

if TYPE_CHECKING:
    from loom.activities.adapters.mcp.connection import ConnectionTimeouts, ServerConnection

_log = structlog.get_logger("loom.mcp")

FIRST_WAIT: Final = 5.0
"""Seconds that a starting worker waits for its servers. Slower servers connect while the worker is running."""
_HANGING_UP: Final = 8.0
"""Seconds for the servers to shut down when the worker stops. A program is killed after two seconds."""


class LiveTools(Mapping[str, Tool]):
    """The current tools of all servers, sorted by name."""

    def __init__(self) -> None:
        self._by_server: dict[str, Mapping[str, Tool]] = {}
        self._all: Mapping[str, Tool] = {}

    def put(self, server: str, tools: Mapping[str, Tool]) -> None:
        """Replace the tools of a server."""
        self._by_server[server] = tools
        self._all = dict(sorted(item for box in self._by_server.values() for item in box.items()))

    def __getitem__(self, name: str) -> Tool:
        """Return the tool with this name."""
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, sorted."""
        return iter(self._all)

    def __len__(self) -> int:
        """Return the number of tools."""
        return len(self._all)


class McpServers:
    """Connects to all servers on entry and disconnects on exit. A failing server never affects the other servers."""

    def __init__(
        self,
        servers: Sequence[McpServer],
        *,
        environment: Mapping[str, str],
        home: Path | None = None,
        first_wait: float = FIRST_WAIT,
        patience: "ConnectionTimeouts | None" = None,
        own_queue: str = "",
    ) -> None:
        """`environment` is the worker's environment. If there is no `home`, tools aren't cached for the next start.
        `own_queue` is a task queue that only this worker serves.
        """
        names = [server.name for server in servers]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise BadRequest(f"two MCP servers are named {twice[0]!r}: rename one", field=f"mcp.{twice[0]}")
        self._servers = servers
        self._environment = environment
        self._home = home
        self._tool_cache = None if home is None else ToolCache(home)
        self._first_wait = first_wait
        self._patience = patience
        self.own_queue = own_queue if servers else ""
        """The task queue for calls that only this worker can continue. Empty if there is none."""
        self._box = LiveTools()
        self._links: dict[str, ServerConnection] = {}
        self._refused: dict[str, Sequence[str]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools, sorted by their `mcp__server__tool` names. The mapping changes whenever a server connects or
        changes its tools.
        """
        return self._box

    async def __aenter__(self) -> Self:
        """Connect to all servers. Return as soon as each server has connected or has failed to connect once, but wait
        for at most FIRST_WAIT seconds.
        """
        if not self._servers:
            return self
        # Importing the library takes a second, so import it only if there are servers.
        from loom.activities.adapters.mcp.connection import ConnectionTimeouts, ServerConnection  # noqa: PLC0415

        if sampling := [server.name for server in self._servers if server.sampling]:
            _log.warning("mcp_sampling_is_deprecated", servers=sampling, since="2026-07-28")
        for server in self._servers:
            on_listed = partial(self._listed, server)
            patience = self._patience or ConnectionTimeouts()
            link = ServerConnection(
                server, self._environment, on_listed, patience, home=self._home, own_queue=self.own_queue
            )
            self._links[server.name] = link
            if self._tool_cache is not None:
                self._put(server, *self._tool_cache.load(server))
            self._tasks.append(asyncio.create_task(link.run(), name=f"mcp {server.name}"))
        waiting = [asyncio.create_task(link.settled()) for link in self._links.values()]
        _, late = await asyncio.wait(waiting, timeout=self._first_wait)
        for task in late:
            task.cancel()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections concurrently. When this method returns, all server programs and their child processes
        have ended.
        """
        for link in self._links.values():
            link.stop()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=_HANGING_UP)
        for task in late:
            task.cancel()

    def report(self) -> dict[str, dict[str, Any]]:
        """Return a report for `doctor`. For each server, it contains the number of tools, the rejected tools and any
        problem.
        """
        return {
            name: {
                "ok": (trouble := link.trouble()) is None,
                "tools": sum(each.startswith(f"mcp__{name}__") for each in self._box),
                "refused": list(self._refused.get(name, ())),
                **({} if trouble is None else {"hint": trouble}),
            }
            for name, link in self._links.items()
        }

    def _listed(
        self, server: McpServer, tools: Sequence[ListedTool], malformed: Sequence[str], instructions: str
    ) -> None:
        before = len(self._box)
        refused = (*malformed, *self._put(server, tools, instructions))
        if refused:
            _log.warning("mcp_tools_refused", server=server.name, tools=refused[:20], count=len(refused))
        self._refused[server.name] = refused
        if self._tool_cache is not None:
            self._tool_cache.save(server, tools, instructions)
        _log.info("mcp_tools", server=server.name, listed=len(tools), before=before, now=len(self._box))

    def _put(self, server: McpServer, tools: Sequence[ListedTool], instructions: str) -> Sequence[str]:
        made = offer(server, tools, self._links[server.name], instructions)
        self._box.put(server.name, made.tools)
        return made.refused
