"""A scripted model behind real HTTP: OpenAI's chat completions and Anthropic's messages, with all kinds of failures.

    async with ModelServer(script([calls(ToolUse("read_file", {"path": "a"})), text("done")])) as server:
        OpenAIProvider(api_key="k", base_url=server.openai_url)

A script is any function from a `SeenRequest` to a `Reply`; the replies of `loom.testing.model_replies` can all be
imported from here. `python -m loom.testing.model_server --turns 3` serves one for benches.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from secrets import token_hex
from types import TracebackType
from typing import Any, Final, Self

from loom.testing.model_replies import (
    Api,
    Reply,
    Script,
    SeenRequest,
    ToolUse,
    calls,
    context_length,
    cut_after,
    cut_length,
    empty,
    garbage,
    hang,
    malformed_call,
    refusal,
    status,
    text,
)
from loom.testing.model_wire import completion_of, events_of

__all__ = [
    "ModelServer",
    "Reply",
    "Script",
    "SeenRequest",
    "ThreadedModelServer",
    "ToolUse",
    "calls",
    "context_length",
    "conversation",
    "cut_after",
    "cut_length",
    "empty",
    "garbage",
    "hang",
    "malformed_call",
    "refusal",
    "script",
    "serving",
    "status",
    "text",
    "turns",
]

_PATHS: Final[dict[str, Api]] = {
    "/v1/chat/completions": "openai",
    "/v1/responses": "openai",
    "/v1/messages": "anthropic",
}
_USED_PORTS: Final[set[int]] = set()
"""No server gets the address of an earlier one, of which workers may remember that it asked them to wait."""
_STREAM_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def script(replies: Sequence[Reply], *, repeat_last: bool = False) -> Script:
    """Send one reply after the other. After the last one, the server fails loudly, or repeats it."""

    def reply(request: SeenRequest) -> Reply:
        if request.index < len(replies):
            return replies[request.index]
        if repeat_last:
            return replies[-1]
        return status(418, message=f"the script has {len(replies)} replies, and this is request {request.index + 1}")

    return reply


def conversation(replies: Sequence[Reply]) -> Script:
    """In every conversation, one reply for each turn, also when a call is retried. After the last one the server fails
    loudly.
    """

    def reply(request: SeenRequest) -> Reply:
        if request.turn < len(replies):
            return replies[request.turn]
        return status(418, message=f"the script has {len(replies)} replies, and this is turn {request.turn + 1}")

    return reply


def turns(count: int, tool: str, arguments: Mapping[str, Any], answer: str = "finished") -> Script:
    """In every conversation: `count` turns with one tool call each, then an answer. Any number of runs at once."""
    # The id has the turn in it, so the server need not remember anything of a conversation.
    return lambda request: (
        calls(ToolUse(tool, arguments, f"call_{request.turn}")) if request.turn < count else text(answer)
    )


class ModelServer:
    """Serves a script on 127.0.0.1 until its context ends."""

    def __init__(self, script: Script | Sequence[Reply], *, port: int = 0, record: bool = True) -> None:
        """`script` may be a list with one reply for each turn, see `conversation`.

        Port 0 means any free port. The server's URLs then start with a random path, so that it doesn't answer requests
        meant for an earlier server on the same port.
        """
        self.requests: list[SeenRequest] = []
        """All requests, in order."""
        self.count = 0
        self._script = script if callable(script) else conversation(script)
        self._port = port
        self._prefix = "" if port else f"/{token_hex(4)}"
        self._apis = {f"{self._prefix}{path}": api for path, api in _PATHS.items()}
        self._record = record
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Scheme, host, port and path prefix."""
        return f"http://127.0.0.1:{self._port}{self._prefix}"

    @property
    def openai_url(self) -> str:
        """The value for OPENAI_BASE_URL."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The value for ANTHROPIC_BASE_URL."""
        return self.url

    async def __aenter__(self) -> Self:
        self._server = await self._listen(self._port)
        while not self._port and self._server.sockets[0].getsockname()[1] in _USED_PORTS:
            self._server.close()
            self._server = await self._listen(0)
        self._port = self._server.sockets[0].getsockname()[1]
        _USED_PORTS.add(self._port)
        return self

    async def _listen(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", port, limit=1 << 26, backlog=1024)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task, writer in list(self._open.items()):
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()

    async def reply_to(self, request: SeenRequest) -> Reply:
        """What to send."""
        return self._script(request)

    @contextlib.asynccontextmanager
    async def unavailable(self) -> AsyncIterator[None]:
        """Be unavailable until the context ends: open connections break, and new ones are refused."""
        await self.__aexit__(None, None, None)
        try:
            # The port stays reserved, or another server could get it, with the requests that are meant for this one.
            with socket.socket() as reserved:
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                reserved.bind(("127.0.0.1", self._port))
                yield
        finally:
            await self.__aenter__()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._exchange(reader, writer):
                    pass
        # A cancelled handler would be reported by asyncio as an error of the server.
        except asyncio.CancelledError:
            pass
        finally:
            del self._open[task]
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        request_line, *lines = head.decode("latin-1").split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        asked = request_line.split(" ")[1].partition("?")[0]
        api = self._apis.get(asked)
        if api is None:
            return await _send_whole(writer, status(404, message=f"no such path: {asked}"))
        path = asked.removeprefix(self._prefix)
        body = json.loads(content)
        request = SeenRequest(index=self.count, provider=api, path=path, headers=headers, body=body)
        self.count += 1
        if self._record:
            self.requests.append(request)
        reply = await self.reply_to(request)
        if reply.raw is not None:
            return await _send_whole(writer, reply)
        if not request.body.get("stream"):
            return await _send_whole(writer, replace(reply, raw=completion_of(request, reply)))
        return await _send_stream(reader, writer, request, reply)


async def _send_whole(writer: asyncio.StreamWriter, reply: Reply) -> bool:
    body = reply.raw or b""
    headers = {"content-type": "application/json", **reply.headers, "content-length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {reply.status} Scripted\r\n{lines}\r\n".encode() + body)
    await writer.drain()
    return True


async def _send_stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: SeenRequest, reply: Reply
) -> bool:
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events_of(request, reply)]
    if reply.events is None and not reply.delay:
        writer.write(_STREAM_HEAD + b"".join(chunks) + b"0\r\n\r\n")
        await writer.drain()
        return True
    try:
        return await _send_slowly(reader, writer, chunks, reply)
    # A client can go away between two chunks, or while one is being written.
    except (ConnectionError, asyncio.IncompleteReadError):
        request.disconnected = True
        return False


async def _send_slowly(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chunks: Sequence[bytes], reply: Reply
) -> bool:
    writer.write(_STREAM_HEAD)
    for chunk in chunks[: reply.events]:
        await asyncio.sleep(reply.delay)
        if reader.at_eof():
            raise ConnectionResetError
        writer.write(chunk)
        await writer.drain()
    if reply.events is None or reply.then == "end":
        writer.write(b"0\r\n\r\n")
        return True
    if reply.then == "hang":
        await reader.readexactly(1)
    return False


class ThreadedModelServer:
    """The same server in a thread with its own event loop, so that a busy test doesn't slow it down."""

    def __init__(self, script: Script, *, record: bool = True) -> None:
        self._server = ModelServer(script, record=record)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> ModelServer:
        self._thread.start()
        self._ready.wait()
        return self._server

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        assert self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with self._server:
            self._ready.set()
            await self._over.wait()


@contextlib.asynccontextmanager
async def serving(*replies: Reply) -> AsyncIterator[ModelServer]:
    """A server with a fixed sequence of replies."""
    async with ModelServer(script(replies)) as server:
        yield server


async def _main() -> None:
    parser = argparse.ArgumentParser(
        description="Serve a scripted model: N turns with a tool call each, then an answer."
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--tool", default="read_file")
    parser.add_argument("--arguments", type=json.loads, default={"path": "README.md"})
    parser.add_argument("--answer", default="finished")
    given = parser.parse_args()
    serve = turns(given.turns, given.tool, given.arguments, given.answer)
    async with ModelServer(serve, port=given.port, record=False) as server:
        print(server.openai_url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main())
