"""What a conversation is made of: immutable, typed, and lossless when written down and read back.

A model's answer and the results of its tool calls belong together: a provider refuses a call without its result and a
result without its call. So whatever leaves messages out leaves out whole groups (`groups_of`).

Values are named by digests, so that every byte of a conversation enters history once. The name of a transcript is its
number of messages and a rolling digest: digest(n) = H(digest(n-1) + H(message n)). Workers keep transcripts under that
name. A model call sends the name and what no activity has produced. A worker that does not know the name answers
"resend" and gets the messages whole. Nothing depends on this but speed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
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


@dataclass(frozen=True, kw_only=True, slots=True)
class TranscriptRef:
    """A conversation by its digest."""

    count: int = 0
    digest: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultRef:
    """A tool result that an activity produced, known to workers by its call and digest."""

    call_id: str
    digest: str


TailItem: TypeAlias = ResultRef | Message
"""What follows a cached transcript: results by reference, everything else inline."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Transcript:
    """The messages of a run's current window with their digest."""

    messages: tuple[Message, ...] = ()
    digest: str = ""

    @property
    def ref(self) -> TranscriptRef:
        """This transcript's reference."""
        return TranscriptRef(count=len(self.messages), digest=self.digest)

    def extended(self, messages: Iterable[Message]) -> "Transcript":
        """A new transcript with these messages at its end."""
        added = tuple(messages)
        digest = self.digest
        for message in added:
            digest = short_digest(digest + message_digest(message))
        return Transcript(messages=self.messages + added, digest=digest)


def transcript_of(messages: Iterable[Message]) -> Transcript:
    """The transcript that has exactly these messages."""
    return Transcript().extended(messages)


def message_digest(message: Message) -> str:
    """12 hex digits that identify what the model sees of this message. Metadata and ids do not count."""
    calls = [(call.id, call.name, call.arguments, call.malformed) for call in message.tool_calls]
    seen = (message.role, _content(message), calls, message.tool_call_id, message.is_error)
    return short_digest(json.dumps(seen, sort_keys=True, ensure_ascii=False, default=str))


def _content(message: Message) -> str | list[tuple[str, str, str, str, str]]:
    if isinstance(message.content, str):
        return message.content
    return [_part(part) for part in message.content]


def _part(part: Part) -> tuple[str, str, str, str, str]:
    return (part.type, part.text, part.media_type, part.data, part.url)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """The messages after a cached transcript, in order, each inline or by reference."""

    base: TranscriptRef = field(default_factory=TranscriptRef)
    items: tuple[TailItem, ...] = ()


def tail_of(base: TranscriptRef, messages: Sequence[Message], produced: frozenset[str]) -> Tail:
    """What to send after `base`: results of the calls in `produced` by reference, the rest inline."""
    items = tuple(
        ResultRef(call_id=message.tool_call_id, digest=message_digest(message))
        if message.role == "tool" and message.tool_call_id in produced
        else message
        for message in messages[base.count :]
    )
    return Tail(base=base, items=items)
