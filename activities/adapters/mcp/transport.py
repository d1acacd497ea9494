"""Open the transport to one MCP server and mend its messages. The transport is either a process or an HTTP client."""

import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import anyio
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

from loom.activities.adapters.mcp.http_client import BODY_LIMIT, http_client
from loom.activities.adapters.mcp.mending import mend_result, reread, well_formed_tools
from loom.activities.adapters.mcp.oauth import oauth_of
from loom.activities.adapters.mcp.process_guard import guarded
from loom.activities.adapters.mcp.stderr import StderrTail, logged_stderr
from loom.domain.core.errors import ToolUnavailableError
from loom.domain.tools.mcp_servers import McpServer, expand

JUNK_LIMIT: Final = 100
"""Maximum number of invalid lines in a session. Some are allowed, because some programs print a short greeting first.
"""

Streams = tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]


@dataclass(slots=True, eq=False)
class Transport:
    """The state of one transport, apart from its messages."""

    words: StderrTail
    ended: anyio.Event = field(default_factory=anyio.Event)
    """Whether the server has closed its side."""
    remark: str = ""
    """Error details that the library doesn't report: an HTTP status, or the reason why Loom closed the connection."""
    malformed: list[str] = field(default_factory=list)
    """Tools that were removed from the server's list."""
    junk: int = 0
    """Number of received lines that weren't valid messages."""


@asynccontextmanager
async def open_transport(
    server: McpServer, environment: Mapping[str, str], transport: Transport, home: Path | None = None
) -> AsyncIterator[Streams]:
    """Connect to the server. On exit, end all of the server's processes or its HTTP session. Sign-ins are in `home`."""
    through = _http(server, environment, transport, home) if server.url else _process(server, environment, transport)
    async with through as (reading, writing):
        yield _SanitizedStream(reading, transport), writing


@asynccontextmanager
async def _process(server: McpServer, environment: Mapping[str, str], transport: Transport) -> AsyncIterator[Streams]:
    known = _environment(environment) | expand(server.env, environment)
    program = shutil.which(server.command[0], path=known["PATH"])
    if program is None:
        raise ToolUnavailableError(f"the program {server.command[0]!r} is not on the worker's PATH: install it")
    command, *arguments = guarded((program, *server.command[1:]))
    parameters = StdioServerParameters(command=command, args=arguments, env=known, encoding_error_handler="replace")
    async with logged_stderr(transport.words) as errors, stdio_client(parameters, errlog=errors) as streams:
        errors.close()
        yield streams


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a program. By default, the program receives only a few of the worker's variables. All
    other variables must be configured by name.
    """
    kept = {name: environment[name] for name in ("PATH", "HOME", "LANG") if name in environment}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **kept}


@asynccontextmanager
async def _http(
    server: McpServer, environment: Mapping[str, str], transport: Transport, home: Path | None
) -> AsyncIterator[Streams]:
    def note(status: int) -> None:
        transport.remark = f"HTTP {status}"

    async with (
        http_client(server, environment, note, oauth_of(server, environment, home)) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=BODY_LIMIT) as streams,
    ):
        yield streams


class _SanitizedStream:
    """A message stream that mends messages, removes malformed tools from lists, and records when it ends."""

    def __init__(self, stream: ReadStream[SessionMessage | Exception], transport: Transport) -> None:
        self._stream = stream
        self._transport = transport

    @property
    def last_context(self) -> Any:
        """The sender's context, if the stream has one."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        return self._mended(await self._stream.receive())

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        """Iterate over the messages."""
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        """Return the next message until the server closes its side."""
        try:
            return self._mended(await self._stream.__anext__())
        except (StopAsyncIteration, anyio.ClosedResourceError):
            self._transport.ended.set()
            raise

    async def __aenter__(self) -> Self:
        """Open the stream."""
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Close the stream."""
        return await self._stream.__aexit__(kind, error, trace)

    def _mended(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        if isinstance(item, Exception):
            item = reread(item) or item
        if isinstance(item, Exception):
            self._transport.junk += 1
            if self._transport.junk > JUNK_LIMIT:
                self._transport.remark = f"it sent {JUNK_LIMIT} lines that are not messages"
                raise ConnectionError(self._transport.remark)
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            result = item.message.result
            if "tools" in result:
                result["tools"] = well_formed_tools(result["tools"], self._transport.malformed)
            mend_result(result)
        return item
