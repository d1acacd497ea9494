"""Read an MCP server's standard error to its end, log a limited part of it, and keep the last line."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TextIO

import anyio
import structlog

from loom.domain.tools.mcp_servers import visible

_log = structlog.get_logger("loom.mcp")

LINES: Final = 200
"""Maximum number of lines to log per session. Further lines are only counted."""

_WIDTH: Final = 500
_CHUNK: Final = 64 * 1024
_FLOOD_PAUSE: Final = 0.005
"""Seconds between reads after the logging limit is reached, so that endless output doesn't slow down the worker."""


@dataclass(slots=True)
class StderrTail:
    """A server's last line of output, and the number of lines that it has written so far."""

    server: str
    scrub: Callable[[str], str]
    text: str = ""
    lines: int = 0

    def hear(self, line: str) -> None:
        """Add one line."""
        words = self.scrub(visible(line[:_WIDTH]).strip())
        if not words:
            return
        self.text = words
        self.lines += 1
        if self.lines <= LINES:
            _log.debug("mcp_stderr", server=self.server, line=words)


@asynccontextmanager
async def logged_stderr(words: StderrTail) -> AsyncIterator[TextIO]:
    """Open a file for a program's standard error. This process closes the file after the program has started."""
    reading, writing = os.pipe()
    pipe = os.fdopen(reading, "rb", 0)
    stream = asyncio.StreamReader(limit=_CHUNK)
    with os.fdopen(writing, "w", encoding="utf-8") as file:
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
        pump = asyncio.create_task(_pump(stream, words))
        try:
            yield file
        finally:
            file.close()
            with anyio.CancelScope(
                shield=True
            ):  # the wait is bounded, and must survive the cancellation that closes the connection
                await _read_rest(pump)
            pipe.close()
            if words.lines > LINES:
                _log.info("mcp_stderr_cut", server=words.server, lines=words.lines, logged=LINES)


async def _pump(stream: asyncio.StreamReader, words: StderrTail) -> None:
    rest = b""
    while data := await stream.read(_CHUNK):
        *lines, rest = (rest + data).split(b"\n")
        rest = rest[-_WIDTH * 4 :]
        for line in lines:
            words.hear(line.decode("utf-8", "replace"))
        if words.lines > LINES:
            await asyncio.sleep(_FLOOD_PAUSE)
    words.hear(rest.decode("utf-8", "replace"))


async def _read_rest(pump: "asyncio.Task[None]") -> None:
    """Read the remaining output without waiting for a process that keeps the pipe open."""
    _, unfinished = await asyncio.wait([pump], timeout=0.5)
    for task in unfinished:
        task.cancel()
