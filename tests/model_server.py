"""A scripted model behind real HTTP: OpenAI's chat completions and Anthropic's messages, with every way they go wrong.

    async with ModelServer(script([calls(ToolUse("read_file", {"path": "a"})), text("done")])) as server:
        OpenAIProvider(api_key="k", base_url=server.openai_url)

A script is any function from a `SeenRequest` to a `Reply`. `python -m tests.model_server --turns 3` serves one for benches.
"""

import argparse
import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

Json: TypeAlias = dict[str, Any]
Api: TypeAlias = Literal["openai", "anthropic"]


@dataclass(frozen=True)
class ToolUse:
    """A tool call that the scripted model makes."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    """A string goes out as it is, also when it is not JSON."""
    id: str | None = None
    """None: the server makes one up; empty: it sends none."""


@dataclass(kw_only=True)
class SeenRequest:
    """A request as it came in."""

    index: int
    """How many requests came before it."""
    provider: Api
    headers: Mapping[str, str]
    body: Json
    disconnected: bool = False
    """The client went away before the reply was out."""

    @property
    def messages(self) -> list[Json]:
        """The conversation as sent."""
        messages: list[Json] = self.body["messages"]
        return messages

    @property
    def turn(self) -> int:
        """How often the model has already answered in this conversation."""
        return sum(message["role"] == "assistant" for message in self.messages)


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What to send."""

    text: str = ""
    calls: tuple[ToolUse, ...] = ()
    finish: Literal["end", "length", "refusal"] = "end"
    pieces: int = 1
    """Into how many chunks the text is cut."""
    delay: float = 0.0
    """Seconds before each chunk."""
    usage: tuple[int, int, int] | None = (10, 5, 0)
    """Prompt tokens (cached ones included), completion tokens, cached tokens; None: the server does not tell."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    """A body sent as it is, instead of an answer."""
    events: int | None = None
    """Events after which `then` happens instead of the rest."""
    then: Literal["reset", "end", "hang"] = "reset"


Script: TypeAlias = Callable[[SeenRequest], Reply]


def text(content: str, *, chunks: int = 1, delay: float = 0.0) -> Reply:
    """A plain answer."""
    return Reply(text=content, pieces=chunks, delay=delay)


def calls(*uses: ToolUse, text: str = "") -> Reply:
    """An answer that asks for tools."""
    return Reply(text=text, calls=uses)


def malformed_call(name: str, arguments: str) -> Reply:
    """A tool call whose arguments are not a JSON object."""
    return Reply(calls=(ToolUse(name, arguments),))


def empty() -> Reply:
    """An answer with nothing in it."""
    return Reply()


def cut_length(partial: str) -> Reply:
    """An answer that ran into the limit of output tokens."""
    return Reply(text=partial, finish="length")


def refusal(reason: str = "I cannot help with that.") -> Reply:
    """The model declines."""
    return Reply(text=reason, finish="refusal")


def cut_after(chunks: int, *, clean: bool = False, content: str = "one two three four five six") -> Reply:
    """A stream that breaks off: the connection is reset, or (`clean`) the body just ends without a last event."""
    return Reply(text=content, pieces=6, events=chunks, then="end" if clean else "reset")


def hang(chunks: int = 2) -> Reply:
    """A stream that says a little and then nothing until the client goes away."""
    return Reply(text="one two three four five six", pieces=6, events=chunks, then="hang")


def status(
    code: int,
    *,
    retry_after: float | str | None = None,
    message: str = "scripted failure",
    error_code: str = "",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """An HTTP error."""
    sent = {**(headers or {}), **({} if retry_after is None else {"retry-after": str(retry_after)})}
    error = {"type": error_code or "error", "code": error_code or None, "message": message}
    content = json.dumps({"type": "error", "error": error}).encode() if body is None else body
    return Reply(status=code, headers=sent, raw=content)


def context_length(tokens: int = 9000, limit: int = 8192) -> Reply:
    """The conversation is too long; both providers' words for it are in the one message."""
    message = (
        f"prompt is too long: {tokens} tokens > {limit} maximum (this model's maximum context length is {limit} tokens)"
    )
    return status(400, message=message, error_code="context_length_exceeded")


def garbage(kind: Literal["sse", "html", "json", "shape", "bytes"] = "sse") -> Reply:
    """Status 200 and nothing that makes sense."""
    bodies: dict[str, tuple[str, bytes]] = {
        "sse": ("text/event-stream", b"event: message_start\ndata: {not json\n\n"),
        "html": ("text/html", b"<html><body>Welcome to nginx</body></html>"),
        "json": ("application/json", b'{"hello": "world"}'),
        "shape": ("text/event-stream", b'event: message_start\ndata: {"type": "message_start", "choices": 42}\n\n'),
        "bytes": ("text/event-stream", b"event: message_start\ndata: \xff\xfe\x00\n\n"),
    }
    content_type, body = bodies[kind]
    return Reply(headers={"content-type": content_type}, raw=body)


def script(replies: Sequence[Reply], *, repeat_last: bool = False) -> Script:
    """One reply after the other; after the last one the server fails loudly, or repeats it."""

    def reply(request: SeenRequest) -> Reply:
        if request.index < len(replies):
            return replies[request.index]
        if repeat_last:
            return replies[-1]
        return status(418, message=f"the script has {len(replies)} replies, and this is request {request.index + 1}")

    return reply


def turns(count: int, tool: str, arguments: Mapping[str, Any], answer: str = "finished") -> Script:
    """In every conversation: `count` turns with one tool call each, then an answer. Any number of runs at once."""
    # The id has the turn in it, so the server need not remember anything of a conversation.
    return lambda request: (
        calls(ToolUse(tool, arguments, f"call_{request.turn}")) if request.turn < count else text(answer)
    )


class ModelServer:
    """Serves a script on 127.0.0.1 for as long as its context lasts."""

    def __init__(self, script: Script, *, port: int = 0, record: bool = True) -> None:
        self.requests: list[SeenRequest] = []
        """Everything that was asked, in order."""
        self.count = 0
        self._script = script
        self._port = port
        self._record = record
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def openai_url(self) -> str:
        """What goes into OPENAI_BASE_URL."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """What goes into ANTHROPIC_BASE_URL."""
        return self.url

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=1 << 26, backlog=1024)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

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
        path = request_line.split(" ")[1].partition("?")[0]
        api: Api | None = {"/v1/chat/completions": "openai", "/v1/messages": "anthropic"}.get(path)  # type: ignore[assignment]
        if api is None:
            return await _send_whole(writer, status(404, message=f"no such path: {path}"))
        request = SeenRequest(index=self.count, provider=api, headers=headers, body=json.loads(content))
        self.count += 1
        if self._record:
            self.requests.append(request)
        reply = self._script(request)
        if reply.raw is not None:
            return await _send_whole(writer, reply)
        if not request.body.get("stream"):
            return await _send_whole(writer, replace(reply, raw=json.dumps(_completion(request, reply)).encode()))
        return await _send_stream(reader, writer, request, reply)


async def _send_whole(writer: asyncio.StreamWriter, reply: Reply) -> bool:
    body = reply.raw or b""
    headers = {"content-type": "application/json", **reply.headers, "content-length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {reply.status} Scripted\r\n{lines}\r\n".encode() + body)
    await writer.drain()
    return True


_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


async def _send_stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: SeenRequest, reply: Reply
) -> bool:
    events = _openai_events(request, reply) if request.provider == "openai" else _anthropic_events(request, reply)
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    if reply.events is None and not reply.delay:
        writer.write(_STREAM_HEAD + b"".join(chunks) + b"0\r\n\r\n")
        await writer.drain()
        return True
    writer.write(_STREAM_HEAD)
    for chunk in chunks[: reply.events]:
        await asyncio.sleep(reply.delay)
        if reader.at_eof():
            request.disconnected = True
            return False
        writer.write(chunk)
        await writer.drain()
    if reply.events is None or reply.then == "end":
        writer.write(b"0\r\n\r\n")
        return True
    if reply.then == "hang":
        request.disconnected = await reader.read(1) == b""
    return False


def _openai_events(request: SeenRequest, reply: Reply) -> Iterator[bytes]:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": request.body["model"]}
    told = reply.finish == "refusal"
    for index, piece in enumerate(_cut(reply.text, reply.pieces)):
        delta: Json = {"role": "assistant"} if index == 0 else {}
        delta["refusal" if told else "content"] = piece
        yield _data({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    for index, use in enumerate(reply.calls):
        function = {"name": use.name, "arguments": ""}
        opened = {"index": index, "id": _call_id(request, index, use), "type": "function", "function": function}
        yield _data({**head, "choices": [{"index": 0, "delta": {"tool_calls": [opened]}, "finish_reason": None}]})
        for piece in _cut(_arguments(use), 2):
            more = {"index": index, "function": {"arguments": piece}}
            yield _data({**head, "choices": [{"index": 0, "delta": {"tool_calls": [more]}, "finish_reason": None}]})
    yield _data({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _openai_finish(reply)}]})
    if reply.usage is not None:
        yield _data({**head, "choices": [], "usage": _openai_usage(reply.usage)})
    yield b"data: [DONE]\n\n"


def _openai_usage(usage: tuple[int, int, int]) -> Json:
    prompt, completion, cached = usage
    details = {"cached_tokens": cached}
    return {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}


def _openai_finish(reply: Reply) -> str:
    if reply.finish == "length":
        return "length"
    return "tool_calls" if reply.calls else "stop"


def _completion(request: SeenRequest, reply: Reply) -> Json:
    """OpenAI's answer in one piece."""
    uses = [
        {
            "id": _call_id(request, index, use),
            "type": "function",
            "function": {"name": use.name, "arguments": _arguments(use)},
        }
        for index, use in enumerate(reply.calls)
    ]
    message = {"role": "assistant", "content": reply.text, "tool_calls": uses or None}
    choice = {"index": 0, "message": message, "finish_reason": _openai_finish(reply)}
    usage = _openai_usage(reply.usage) if reply.usage else None
    model = request.body["model"]
    return {"id": "c", "object": "chat.completion", "created": 0, "model": model, "choices": [choice], "usage": usage}


def _anthropic_events(request: SeenRequest, reply: Reply) -> Iterator[bytes]:
    prompt, completion, cached = reply.usage or (0, 0, 0)
    usage = {"input_tokens": prompt - cached, "cache_read_input_tokens": cached, "output_tokens": 1}
    head = {"id": "m", "type": "message", "role": "assistant", "model": request.body["model"], "content": []}
    yield _event("message_start", message={**head, **({"usage": usage} if reply.usage else {})})
    refused = reply.finish == "refusal"
    index = 0
    if reply.text and not refused:
        yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        for piece in _cut(reply.text, reply.pieces):
            yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
        yield _event("content_block_stop", index=0)
        index = 1
    for number, use in enumerate(reply.calls):
        block = {"type": "tool_use", "id": _call_id(request, number, use), "name": use.name, "input": {}}
        yield _event("content_block_start", index=index + number, content_block=block)
        for piece in _cut(_arguments(use), 2):
            yield _event(
                "content_block_delta", index=index + number, delta={"type": "input_json_delta", "partial_json": piece}
            )
        yield _event("content_block_stop", index=index + number)
    reason = {"length": "max_tokens", "refusal": "refusal"}.get(
        reply.finish, "tool_use" if reply.calls else "end_turn"
    )
    details = {"type": "refusal", "category": "cyber", "explanation": reply.text} if refused else None
    delta = {"stop_reason": reason, "stop_details": details}
    yield _event("message_delta", delta=delta, usage={"output_tokens": completion})
    yield _event("message_stop")


def _call_id(request: SeenRequest, index: int, use: ToolUse) -> str:
    return f"call_{request.index}_{index}" if use.id is None else use.id


def _arguments(use: ToolUse) -> str:
    return use.arguments if isinstance(use.arguments, str) else json.dumps(use.arguments)


@cache
def _cut(content: str, pieces: int) -> tuple[str, ...]:
    size = max(1, -(-len(content) // pieces))
    return tuple(content[at : at + size] for at in range(0, len(content), size))


def _data(chunk: Json) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


class ThreadedModelServer:
    """The same server on a thread and loop of its own, so that a busy test does not slow it."""

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
    parser = argparse.ArgumentParser(description="Serve a scripted model: N turns with a tool call each, then an answer.")
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
