"""Events as the bytes of a body, and bodies with faults."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, Literal, TypeAlias

Fault: TypeAlias = Literal["", "error", "garbage", "reason", "cut", "reset"]

_PINGS: Final = (
    (":", "x"),
    (":", "\udcff\udcfe"),  # bytes that aren't UTF-8
    ("retry", "3000"),
    ("id", "7"),
    ("unknown", "data: x"),
    ("event", "ping"),
)
_GARBAGE: Final = ("{not json", '{"a":', "]", "'x'", "[" * 100_000, '"x"', "5", "[1]")
_ERRORS: Final[tuple[tuple[str, Any], ...]] = (
    ("", {"error": {"message": "no", "type": "server_error"}}),
    ("", {"error": "no"}),
    ("", {"error": {"code": 500}}),
    ("", {"error": True, "message": "\ud83d"}),
    ("", {"error_code": 50002, "text": "CUDA out of memory"}),
    ("", {"object": "error", "message": "no", "code": 40303}),
    ("", {"type": "error", "error": {"type": "overloaded_error", "message": "no"}}),
    ("", {"type": "error", "code": "server_error", "message": "no", "param": None}),
    ("", {"detail": "no"}),
    ("", {"detail": [{"loc": ["body"], "msg": "no", "type": "x"}]}),
    ("", {"code": 500, "message": "no"}),
    ("", {"code": "InternalError", "message": "no", "request_id": "1"}),
    ("", {"message": "Internal server error"}),
    ("", {"type": "BadGatewayError", "message": "no"}),
    ("", {"base_resp": {"status_code": 1004, "status_msg": "no"}}),
    ("", [{"error": {"code": 503, "message": "no", "status": "UNAVAILABLE"}}]),
    ("", {"exception": "no"}),
    ("", {"errorMessage": "no", "errorType": "x"}),
    ("", {"Error": {"Message": "no"}}),
    ("", {"status": 500, "title": "no"}),
    ("error", {"message": "no"}),
    ("error", {"a": 1}),
    ("error", "no"),
    ("error", None),
    ("error", 5),
    ("error", ["no"]),
    ("error", {"type": "error", "error": {"type": "api_error", "message": "no"}}),
)
_ENDS: Final = ("stop", "length", "tool_calls", "end_turn", "stop_sequence", "tool_use", "max_tokens")
_STATUSES: Final = ("completed", "incomplete")
_BAD_REASONS: Final = (
    *("error", "network_error", "abort", "aborted", "cancelled", "failed", "timeout", "overloaded", "server_error"),
    *("insufficient_system_resource", "MALFORMED_FUNCTION_CALL", "SAFETY", "RECITATION", "sensitive", "content_filter"),
)
_ESCAPED = re.compile(r"(\\\\)|\\t|\\u00(?:0[1-8be-f]|1[0-9a-f])")


@dataclass(frozen=True)
class Sent:
    """An event. Its value is JSON or, as `[DONE]`, a text that is sent as it is."""

    name: str
    value: Any
    is_text: bool = False


@dataclass(frozen=True, kw_only=True)
class Body:
    """The bytes of a reply, as they are sent in chunks, and what is wrong with them."""

    chunks: tuple[bytes, ...]
    fault: Fault

    @property
    def whole(self) -> bytes:
        """The bytes."""
        return b"".join(self.chunks)


def body_of(dice: Random, events: Sequence[Sent], fault: Fault) -> Body:
    """Return the bytes of these events. An error or garbage comes at any place before the last but one.
    A bad reason takes the place of the good one, which may follow it.
    """
    sent = list(events)
    place = dice.randrange(_last(events))
    if fault == "error":
        name, value = dice.choice(_ERRORS)
        sent.insert(place, Sent(name, value))
    if fault == "garbage":
        sent.insert(place, Sent("", dice.choice(_GARBAGE), is_text=True))
    if fault == "reason":
        sent = list(_with_reason(sent, dice.choice(_BAD_REASONS), is_followed=dice.random() < 0.3))
    style = _Style(dice)
    data = style.start() + b"".join(map(style.event, sent))
    if dice.random() < 0.1:
        data = data.rstrip(b"\r\n") + style.end.encode() * dice.randrange(2)
    if fault in ("cut", "reset"):
        data = data[: dice.randrange(len(data))]
    return Body(chunks=tuple(_chunks(dice, data)), fault=fault)


def _with_reason(events: Sequence[Sent], reason: str, *, is_followed: bool) -> Iterator[Sent]:
    for each in events:
        changed = _replaced(each.value, reason)
        yield replace(each, value=changed)
        if is_followed and changed != each.value:
            yield each


def _replaced(value: Any, reason: str) -> Any:
    """Return the value with another reason for the end."""
    if isinstance(value, list):
        return [_replaced(inside, reason) for inside in value]
    if not isinstance(value, Mapping):
        return value
    is_end = {name: inside in (_STATUSES if name == "status" else _ENDS) for name, inside in value.items()}
    return {
        name: reason
        if name in ("finish_reason", "stop_reason", "status") and is_end[name]
        else _replaced(inside, reason)
        for name, inside in value.items()
    }


def _last(events: Sequence[Sent]) -> int:
    """Return the number of events before the one with which a reader may stop."""
    ends = ("[DONE]", "message_stop", "response.completed", "response.incomplete")
    named = (each.value.get("type") if isinstance(each.value, Mapping) else each.value for each in events)
    return next((at + 1 for at, name in enumerate(named) if name in ends), len(events))


class _Style:
    """How a server writes events."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self.end = dice.choice(("\n", "\n", "\n", "\r\n", "\r"))
        self._blank = dice.choice((" ", " ", ""))
        self._ascii = dice.random() < 0.5
        self._names = dice.random() < 0.8
        self._raw = dice.random() < 0.2

    def start(self) -> bytes:
        bom = "\ufeff" if self._dice.random() < 0.1 else ""
        return (bom + self.end * self._dice.choice((0, 0, 0, 1, 2))).encode()

    def event(self, sent: Sent) -> bytes:
        text = sent.value if sent.is_text else self._json(sent.value)
        lines = [f"data:{self._blank}{line}" for line in text.split("\n")]
        if sent.name == "error" and len(lines) == 1 and self._dice.random() < 0.2:
            lines = [f"error:{self._blank}{text}"]
        elif sent.name and (self._names or sent.name == "error"):
            lines.insert(self._dice.choice((0, 0, 0, len(lines))), f"event:{self._blank}{sent.name}")
        while self._dice.random() < 0.1:
            lines.insert(self._dice.randrange(len(lines) + 1), self._dice.choice((": ping", "id: 1", "retry: 5", "x")))
        before = [self._ping() for _ in range(self._dice.choice((0, 0, 0, 0, 1, 2)))]
        everything = self.end.join((*before, *lines, "", ""))
        return everything.encode("utf-8", "surrogateescape")

    def _ping(self) -> str:
        """Return an event without data that says anything."""
        name, value = self._dice.choice(_PINGS)
        data = self._dice.choice(("", f"data:{self._blank}{self.end}", f"data{self.end}"))
        if name == "event":
            data = self._dice.choice((data, f"data: x{self.end}", f'data: {{"type": "ping", "x": 1}}{self.end}'))
        return f"{name}: {value}{self.end}{data}"

    def _json(self, value: Any) -> str:
        indent = self._dice.choice((None,) * 9 + (1,))
        text = json.dumps(self._shuffled(value), ensure_ascii=self._ascii, indent=indent)
        if self._raw:  # as servers do that don't escape control characters
            text = _ESCAPED.sub(lambda found: found[1] or json.loads(f'"{found[0]}"'), text)
        return "".join(f"\\u{ord(each):04x}" if "\ud800" <= each <= "\udfff" else each for each in text)

    def _shuffled(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._shuffled(inside) for inside in value]
        if not isinstance(value, Mapping):
            return value
        fields = [(name, self._shuffled(inside)) for name, inside in value.items()]
        self._dice.shuffle(fields)
        return dict(fields)


def _chunks(dice: Random, data: bytes) -> list[bytes]:
    if dice.random() < 0.05 and len(data) < 2_000:
        return [data[at : at + 1] for at in range(len(data))]
    cuts = sorted({dice.randrange(len(data) + 1) for _ in range(dice.choice((0, 1, 3, 10, 30)))})
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start < end]
