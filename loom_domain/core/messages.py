"""The messages of a conversation: immutable, typed, and serialized without loss.

A model's reply and the results of its tool calls belong together: a provider rejects a call without its result and a
result without its call. Messages are therefore removed in whole groups (`groups_of`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final, Literal, TypeAlias

JsonObject: TypeAlias = Mapping[str, Any]
"""A decoded JSON object with any JSON values."""

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One part of a message: inline text, or other content by media type and base64 data or URL."""

    type: Literal["text", "image", "audio", "file"]
    text: str = ""
    media_type: str = ""
    data: str = ""
    """Base64; empty if `url` is set."""
    url: str = ""
    name: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """A model's request to run one tool."""

    id: str
    name: str
    arguments: JsonObject = field(default_factory=dict)
    malformed: str | None = None
    """The argument text as the model wrote it, if it was not a JSON object."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One entry of a conversation."""

    role: Role
    content: str | tuple[Part, ...] = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """Set for the role `tool`: the call that this is the result of."""
    name: str | None = None
    is_error: bool = False
    """Set for the role `tool`: the call failed, and the content says why."""
    id: str | None = None
    parent_id: str | None = None
    timestamp: datetime | None = None
    metadata: JsonObject = field(default_factory=dict)
    """For people and programs around the run; never shown to the model."""

    @property
    def text(self) -> str:
        """The textual content, with parts joined by newlines."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if part.type == "text")


def user(text: str, **metadata: Any) -> Message:
    """A message from a person, or from Loom on their behalf, in which case `metadata["kind"]` says what it is."""
    return Message(role="user", content=text, metadata=metadata)


AGENT: Final = "agent"
"""The kind of a message from another agent."""


def reminder(text: str) -> Message:
    """A short message from Loom to the model, marked as not from a person."""
    return user(f"<system-reminder>{text}</system-reminder>", kind="reminder")


def recollection(text: str, source: str) -> Message:
    """What was recalled for the messages before it; `source` names its origin for people."""
    inside = text.replace("</memory>", "<\\/memory>")
    return user(f"<memory>\n{inside}\n</memory>", kind="memory", by=source)


def well_formed(text: str) -> str:
    """The text as every store accepts it: no NUL, no half surrogate pairs."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def last_text(messages: Sequence[Message]) -> str:
    """The assistant's last text, or an empty string."""
    return next((m.text for m in reversed(messages) if m.role == "assistant" and m.text), "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Tokens of one or more model calls, as the provider counts them."""

    input_tokens: int = 0
    """All prompt tokens, including cached ones."""
    output_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens read from the provider's cache."""
    model_calls: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        """The sum, field by field."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            model_calls=self.model_calls + other.model_calls,
        )


Group: TypeAlias = tuple[int, int]
"""Positions of the first message of a group and of the one after its last."""


def groups_of(messages: Sequence[Message]) -> tuple[Group, ...]:
    """The groups in order, which together are the whole conversation. A single message is a group of its own."""
    ends = _ends(messages)
    groups: list[Group] = []
    place = 0
    while place < len(messages):
        start, stop = place, place + 1
        while place < stop:  # groups inside may extend further
            stop = max(stop, ends[place])
            place += 1
        groups.append((start, stop))
    return tuple(groups)


def last_turn(messages: Sequence[Message], groups: Sequence[Group]) -> int:
    """The position of the model's last reply, whose results it has not seen yet; the end if there is none."""
    return next((start for start, _ in reversed(groups) if messages[start].role == "assistant"), len(messages))


def unanswered(messages: Sequence[Message]) -> bool:
    """Whether a call in these messages has no result in them."""
    called = {call.id for message in messages for call in message.tool_calls}
    return bool(called - {message.tool_call_id for message in messages if message.role == "tool"})


def is_from_person(message: Message) -> bool:
    """Whether a person wrote this. Reminders and recollections come from Loom."""
    return message.role == "user" and "kind" not in message.metadata


def _ends(messages: Sequence[Message]) -> list[int]:
    """For each message, the position after the last result of its calls."""
    ends = [place + 1 for place in range(len(messages))]
    callers: dict[str, int] = {}
    for place, message in enumerate(messages):
        if message.role == "tool" and message.tool_call_id in callers:
            ends[callers[message.tool_call_id]] = place + 1
        callers.update((call.id, place) for call in message.tool_calls)
    return ends


def canonical(arguments: JsonObject) -> str:
    """One spelling for equal arguments: sorted keys, no spaces (RFC 8785 without its number rules)."""
    return json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def call_digest(run_id: str, call: ToolCall) -> str:
    """12 hex digits that identify this call, of this run, with these arguments."""
    return short_digest("\0".join((run_id, call.id, call.name, canonical(call.arguments))))


def short_digest(text: str) -> str:
    """12 hex digits that identify this text (BLAKE2b-48)."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def arguments_digest(arguments: JsonObject) -> str:
    """12 hex digits that identify these arguments."""
    return short_digest(canonical(arguments))


def usage_view(usage: Usage) -> JsonObject:
    """Token counts under their public names."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "total_tokens": usage.total_tokens,
        "model_calls": usage.model_calls,
    }
