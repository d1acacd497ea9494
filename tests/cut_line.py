"""A line to a server that a test can cut and mend."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress


class CutLine:
    """Forwards a port of this machine to a server, except while the line is cut."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def address(self) -> str:
        """The address of this end of the line."""
        return f"127.0.0.1:{self.port}"

    async def mend(self) -> None:
        """Take connections, always at the same port."""
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        """Close all connections, and refuse others."""
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        with suppress(OSError, asyncio.CancelledError), closing(writer):
            there, to_there = await asyncio.open_connection(self._host, int(self._port))
            with closing(to_there):
                ways = [asyncio.create_task(_copy(*way)) for way in ((reader, to_there), (there, writer))]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)


@asynccontextmanager
async def cut_line(address: str) -> AsyncIterator[CutLine]:
    """A line to a server, which can be cut."""
    line = CutLine(address)
    await line.mend()
    try:
        yield line
    finally:
        await line.cut()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while chunk := await source.read(65536):
        target.write(chunk)
        await target.drain()
