"""The requests and replies of a scripted model, for any provider: answers, and all kinds of failures."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Json: TypeAlias = dict[str, Any]
Api: TypeAlias = Literal["openai", "anthropic"]


@dataclass(frozen=True)
class ToolUse:
    """A tool call that the scripted model makes."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    """A string is sent unchanged, even if it isn't JSON."""
    id: str | None = None
    """None: the server generates one. Empty: it sends none."""


@dataclass(kw_only=True)
class SeenRequest:
    """A request that the model server has received."""

    index: int
    """The number of earlier requests."""
    provider: Api
    path: str = "/v1/chat/completions"
    headers: Mapping[str, str]
    body: Json
    disconnected: bool = False
    """Whether the client disconnected before the end of the reply."""

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
    """The number of chunks in which the text is sent."""
    delay: float = 0.0
    """Seconds before each chunk."""
    usage: tuple[int, int, int] | None = (10, 5, 0)
    """Prompt tokens (cached ones included), completion tokens, cached tokens; None: the server doesn't report them."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    """A body to send unchanged, instead of an answer."""
    events: int | None = None
    """The number of events after which `then` replaces the rest."""
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
    """An empty answer."""
    return Reply()


def cut_length(partial: str) -> Reply:
    """An answer that was cut at the limit of output tokens."""
    return Reply(text=partial, finish="length")


def refusal(reason: str = "I cannot help with that.") -> Reply:
    """The model declines."""
    return Reply(text=reason, finish="refusal")


def cut_after(chunks: int, *, clean: bool = False, content: str = "one two three four five six") -> Reply:
    """A stream that breaks off: the connection is reset, or (`clean`) the body ends without a last event."""
    return Reply(text=content, pieces=6, events=chunks, then="end" if clean else "reset")


def hang(chunks: int = 2) -> Reply:
    """A stream that sends a little, and then nothing until the client disconnects."""
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
    """An error for a conversation that is too long. Its message has the wording of both providers."""
    message = (
        f"prompt is too long: {tokens} tokens > {limit} maximum (this model's maximum context length is {limit} tokens)"
    )
    return status(400, message=message, error_code="context_length_exceeded")


def garbage(kind: Literal["sse", "html", "json", "shape", "bytes"] = "sse") -> Reply:
    """A response with status 200 and a meaningless body."""
    bodies: dict[str, tuple[str, bytes]] = {
        "sse": ("text/event-stream", b"event: message_start\ndata: {not json\n\n"),
        "html": ("text/html", b"<html><body>Welcome to nginx</body></html>"),
        "json": ("application/json", b'{"hello": "world"}'),
        "shape": ("text/event-stream", b'event: message_start\ndata: {"type": "message_start", "choices": 42}\n\n'),
        "bytes": ("text/event-stream", b"event: message_start\ndata: \xff\xfe\x00\n\n"),
    }
    content_type, body = bodies[kind]
    return Reply(headers={"content-type": content_type}, raw=body)
