"""Read what a server sends in reply: server-sent events, or one JSON body.

The SDKs' own decoders report events without data, don't skip a byte order mark, and fail on bytes that aren't UTF-8.
Therefore, only `response` of the SDKs' streams is used.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from httpx2 import Response, ServerSentEvent

DONE: Final = "[DONE]"
"""The value of the event with which many servers end a stream."""

PINGS: Final = ("ping", "keepalive", "keep-alive", "heartbeat")
"""The names of events that only keep a connection open. Their data can be anything."""

_ERROR_FIELD: Final = re.compile(rb"(\A(?:\xef\xbb\xbf)?|(?<=[\r\n]))error:")
"""Some servers send an error as a field `error`, which other readers ignore."""

_REST: Final = 0.1
"""The number of seconds to wait for the end of a body after the reply is complete."""


class NotAReply(Exception):
    """Raised when a part of a reply isn't what its protocol says."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a stream."""

    name: str
    """`message` if the server gave none."""
    value: Any
    """The decoded JSON, or `DONE`. In an event that is named `error`, it can be any text."""


@contextmanager
def reading() -> Iterator[None]:
    """Raise NotAReply if code that reads a JSON value finds another shape than it expects."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise NotAReply(type(error).__name__) from error


def text_in(field: Any) -> str:
    """Return a field that is a text or null. Raises TypeError for other types."""
    return "" if field is None else field + ""


def index_in(field: Any) -> int | None:
    """Return a position, which may be a text or a float, or None if it isn't a number."""
    try:
        return int(field)
    except (TypeError, ValueError, OverflowError):
        return None


def content_type_of(response: "Response") -> str:
    """Return the content type, or an empty string if the server didn't say."""
    return response.headers.get("content-type", "")


def is_one_body(response: "Response") -> bool:
    """Whether a server that was asked for a stream sends its whole reply as one JSON body."""
    return content_type_of(response).partition(";")[0].strip().lower() == "application/json"


async def whole_body(response: "Response") -> Any:
    """Return the decoded body. Raises NotAReply if it isn't JSON."""
    return _decoded((await response.aread()).decode("utf-8-sig", "replace"))


async def events_of(response: "Response", is_over: Callable[[], bool]) -> AsyncIterator[Event]:
    """Yield the events that have data, up to `[DONE]` or to the one after which `is_over` returns True. Raises
    NotAReply if the data isn't JSON.
    """
    from httpx2 import EventSource, RequestError  # noqa: PLC0415  # slow to import

    body = _Body(response)
    events = aiter(EventSource(body.as_event_stream(), max_event_size=None))
    async for sent in events:
        if (event := _event(sent, is_cut=body.has_ended)) is None:
            continue
        yield event
        if event.value == DONE or is_over():
            break
    # Read to the end, so that the connection can be used again. The reply is whole even if this fails.
    with suppress(TimeoutError, RequestError):
        async with asyncio.timeout(_REST):
            async for _ in events:
                pass


class _Body:
    """The body of a response. Some servers omit the empty line after the last event."""

    def __init__(self, response: "Response") -> None:
        self._response = response
        self.has_ended = False

    def as_event_stream(self) -> "Response":
        """Return the response with the content type that the decoder requires. Such a body is always UTF-8."""
        from httpx2 import Response  # noqa: PLC0415

        return Response(
            200,
            headers={"content-type": "text/event-stream"},
            content=self._pieces(),
            request=self._response.request,
            default_encoding="utf-8-sig",
        )

    async def _pieces(self) -> AsyncIterator[bytes]:
        line = b""
        async for piece in self._response.aiter_bytes():
            lines = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
            if lines:
                yield _with_error_events(line + piece[:lines])
                line = b""
            line += piece[lines:]
        yield _with_error_events(line)
        self.has_ended = True
        yield b"\n\n"


def _with_error_events(lines: bytes) -> bytes:
    """Return these lines with fields `error` as events that are named so."""
    return _ERROR_FIELD.sub(rb"\1event: error\ndata:", lines)


def _event(sent: "ServerSentEvent", *, is_cut: bool) -> Event | None:
    """Return the event, or None if its data says nothing. The last event of a body may have been cut."""
    data = sent.data.strip()
    if not data or sent.event in PINGS:
        return None
    if data.startswith(DONE):
        return Event(sent.event, DONE)
    try:
        value = _decoded(data)
    except NotAReply:
        if sent.event == "error":
            return Event(sent.event, data)
        if is_cut:
            return None
        raise
    says_nothing = value is None or isinstance(value, bool) or value == ""
    return None if says_nothing and sent.event != "error" else Event(sent.event, value)


def _decoded(text: str) -> Any:
    """Return the value of JSON text, which may contain raw control characters."""
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise NotAReply(type(error).__name__) from None
