"""A web site of a test's own: real sockets, raw answers, and a memory of what was asked.

async with WebSite({"/": page("<h1>Hi</h1>")}) as site:
    await fetcher.fetch(web_url(site.url("/")), 5)
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeAlias

Talk: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[None]]
"""Writes an answer piece by piece."""

NAME = "site.test"


def page(body: bytes | str = b"", media_type: str = "text/html", status: int = 200, **headers: str) -> bytes:
    """A whole answer; underscores in header names become hyphens."""
    data = body.encode() if isinstance(body, str) else body
    named = {"Content-Type": media_type, "Content-Length": str(len(data))}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in named.items() if value)]
    return "\r\n".join([*lines, "", ""]).encode() + data


def moved(location: str, status: int = 302) -> bytes:
    """A redirect."""
    return page(status=status, Location=location)


class WebSite:
    """Answers by path for as long as its context lasts; one request to a connection."""

    def __init__(
        self,
        pages: Mapping[str, bytes | Talk],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.requests: list[str] = []
        """The heads of all requests, in order."""
        self.port = port
        self._pages = pages
        self._host = host
        self._tls = tls
        self._open: set[asyncio.Task[None]] = set()

    @property
    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [head.split(" ")[1] for head in self.requests]

    def url(self, path: str = "/", name: str = NAME) -> str:
        """Where a page is, by a name that the test's resolver knows."""
        return f"{'https' if self._tls else 'http'}://{name}:{self.port}{path}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has gone, or the test has ended
        finally:
            self._open.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.requests.append(head)
        answer = self._pages.get(head.split(" ")[1], page("nothing here", "text/plain", 404))
        if isinstance(answer, bytes):
            writer.write(answer)
        else:
            await answer(writer)
        await writer.drain()


class Names:
    """A resolver: each name's answers in order, the last one for ever."""

    def __init__(self, **answers: Sequence[Sequence[str]]) -> None:
        self.asked: list[str] = []
        self._answers = {name.replace("_", "."): list(given) for name, given in answers.items()}

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        answers = self._answers.get(host)
        if not answers:
            raise OSError(-2, "Name or service not known")
        return answers.pop(0) if len(answers) > 1 else answers[0]
