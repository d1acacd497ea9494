"""What a scripted model can be asked and can reply, whatever the provider: answers, and every way they go wrong."""

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
