"""Create the HTTP client for one MCP server. It sends the configured headers and limits the size of responses.

It also replaces halves of characters in responses, because the library can't read a message with one.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

import httpx2

from loom.domain.core.json_text import with_whole_escapes
from loom.domain.tools.mcp_servers import McpServer, expand

BODY_LIMIT: Final = 8 * 1024 * 1024
"""Maximum size of one message in bytes."""

_QUIET: Final = 300.0
"""Maximum number of seconds that a stream may stay silent."""


def http_client(
    server: McpServer,
    environment: Mapping[str, str],
    on_refused: Callable[[int], None],
    auth: httpx2.Auth | None = None,
) -> httpx2.AsyncClient:
    """Create a client for one server. The client calls `on_refused` with the status of each error response."""

    async def bound(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            on_refused(response.status_code)
        # Don't request compression, because a few compressed bytes can expand to any size.
        if "content-encoding" in response.headers:
            del response.headers["content-encoding"]
        # The length of an event stream isn't limited, because the library limits the size of each event.
        kind = response.headers.get("content-type", "").lower()
        if isinstance(response.stream, httpx2.AsyncByteStream):
            is_events = kind.startswith("text/event-stream")
            response.stream = _WholeCharacters(response.stream if is_events else _Bounded(response.stream))

    return httpx2.AsyncClient(
        headers={**expand(server.headers, environment), "accept-encoding": "identity"},
        timeout=httpx2.Timeout(min(30.0, server.connect_timeout), read=max(_QUIET, server.timeout + 30)),
        event_hooks={"response": [bound]},
        auth=auth,
    )


class _Bounded(httpx2.AsyncByteStream):
    """A response body that raises an error if it exceeds the maximum size."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate over the chunks."""
        taken = 0
        async for chunk in self._stream:
            taken += len(chunk)
            if taken > BODY_LIMIT:
                raise httpx2.StreamError(f"the response is longer than {BODY_LIMIT} bytes")
            yield chunk

    async def aclose(self) -> None:
        """Close the body."""
        await self._stream.aclose()


class _WholeCharacters(httpx2.AsyncByteStream):
    """A response body in which no JSON text has half a character. It is passed on line by line."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate over the lines."""
        rest: list[bytes] = []
        size = 0
        async for chunk in self._stream:
            end = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
            if end:
                yield _mended(b"".join((*rest, chunk[:end])))
                rest, size = [], 0
            if chunk[end:]:
                rest.append(chunk[end:])
                size += len(rest[-1])
            if size > BODY_LIMIT:  # the library limits the size of an event
                yield _mended(b"".join(rest))
                rest, size = [], 0
        if rest:
            yield _mended(b"".join(rest))

    async def aclose(self) -> None:
        """Close the body."""
        await self._stream.aclose()


def _mended(line: bytes) -> bytes:
    return with_whole_escapes(line.decode("latin-1")).encode("latin-1")  # escapes are ASCII, whatever the rest is
