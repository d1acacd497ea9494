"""Messages and transcripts: immutable, typed values that can be serialized without loss.

A model's answer and the results of its tool calls belong together, because a provider rejects a call without its result
and a result without its call. Code that removes messages must therefore remove whole groups (see `groups_of`).

Values are identified by digests, so that every byte of a conversation enters history only once. A transcript is
identified by its number of messages and a rolling digest: digest(n) = H(digest(n-1) + H(message n)). Workers cache
transcripts under this reference. In addition to the reference, a model call sends only the new messages that no
activity has produced. If the worker doesn't have the transcript, it replies "resend", and the next request contains all
messages in full. References are purely an optimization and never affect a run's behavior.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

from loom.domain.core.tokens import BINARY, IMAGE, MESSAGE, text_tokens, tokens_of

JsonObject: TypeAlias = Mapping[str, Any]
"""A decoded JSON object."""

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One part of a message: inline text, or other content, which is either stored, or inline, or at a URL."""

    type: Literal["text", "image", "audio", "file"]
    """`text` has a `text`. The others have `data`, a `url`, a `path`, or a stored content."""
    text: str = ""
    """The text of a `text` part."""
    media_type: str = ""
    """The type of the content, such as `image/png`."""
    data: str = ""
    """The content in base64. Empty if the content is stored or at a URL."""
    url: str = ""
    """Where the provider reads the content, if it isn't sent."""
    name: str = ""
    """The file's name, if it is known."""
    digest: str = ""
    """The SHA-256 of a stored content, in hexadecimal digits. The content itself never enters history."""
    size: int = 0
    """The number of bytes of a stored content."""
    counted: int = 0
    """The number of tokens, as estimated from the content when it was stored."""
    path: str = ""
    """A file in the workspace that a request names. It is read, and its content stored, before a model gets it."""

    @property
    def id(self) -> str:
        """The short form of the digest, by which a model can name a stored part."""
        return self.digest[:12]

    @property
    def bytes(self) -> int:
        """The number of bytes of the content, as far as it is known."""
        return self.size or len(self.data) * 3 // 4 - self.data[-2:].count("=")

    @property
    def told(self) -> str:
        """The part in words: its text, or a line that says that it was there."""
        if self.type == "text":
            return self.text
        size = f"{self.bytes:,} bytes" if self.size or self.data else ""
        return f"[{self.type}: {', '.join(filter(None, (self.name or self.url, self.media_type, size)))}]"

    @property
    def tokens(self) -> int:
        """The estimated number of tokens."""
        if self.type == "text":
            return text_tokens(self.text)
        if self.counted:
            return self.counted
        return IMAGE if self.type == "image" else max(IMAGE, len(self.data) // BINARY)


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A model's request to run one tool."""

    id: str
    """The id of the call. The message with its result names it as `tool_call_id`."""
    name: str
    """The name of the tool, such as `write_file`."""
    arguments: JsonObject = field(default_factory=dict)
    """The arguments as the model gave them: a JSON object, such as `{"path": "out.txt"}`. They may not fit the tool's
    schema.
    """
    malformed: str | None = None
    """The model's original argument text, if it is not a JSON object."""

    @cached_property
    def tokens(self) -> int:
        """The estimated number of tokens."""
        given = self.malformed if self.malformed is not None else canonical(self.arguments)
        return MESSAGE + text_tokens(self.name + given)


@dataclass(frozen=True, kw_only=True)
class Message:
    """One entry of a conversation."""

    role: Role
    """Who says it: `system`, `user`, `assistant` (the model), or `tool` (the result of a call)."""
    content: str | tuple[Part, ...] = ""
    """The text, or its parts if there is more than text. `text` and `told` return it as one text."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls that the model asks for, in its order. Set only for the `assistant` role."""
    tool_call_id: str | None = None
    """The id of the call that this message answers. Set only for the `tool` role."""
    name: str | None = None
    """The name of the tool whose result this is. Set only for the `tool` role."""
    is_error: bool = False
    """Whether the call failed. If so, the content gives the reason. Set only for the `tool` role."""
    metadata: JsonObject = field(default_factory=dict)
    """Data for people and programs that use the run. It is never shown to the model."""

    @property
    def text(self) -> str:
        """The message's text, with the parts joined by newlines."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if part.type == "text")

    @property
    def told(self) -> str:
        """The message's text, with a line for each image, recording and file."""
        return self.content if isinstance(self.content, str) else "\n".join(part.told for part in self.content)

    @cached_property
    def derived(self) -> dict[str, Any]:
        """Values that are derived from this message alone and needed in each turn. Their modules keep them here."""
        return {}

    @cached_property
    def tokens(self) -> int:
        """The estimated number of tokens. It is needed in each turn of a conversation."""
        content = self.content
        said = text_tokens(content) if isinstance(content, str) else sum(part.tokens for part in content)
        return MESSAGE + said + sum(call.tokens for call in self.tool_calls)


def user(text: str, **metadata: Any) -> Message:
    """Return a message from a person, or from Loom on their behalf. `metadata["kind"]` marks a message from Loom."""
    return Message(role="user", content=text, metadata=metadata)


LEFT_OUT: Final = "left_out"
"""The key of a reply's metadata that says what the provider had refused before it gave this reply."""


def left_out(message: Message) -> JsonObject | None:
    """Return what the request for this reply had to leave out, or None. The value contains the `model`, the `kinds` of
    content, and `because`, which is the provider's message.
    """
    note = message.metadata.get(LEFT_OUT)
    return note if isinstance(note, Mapping) else None


def with_left_out(message: Message, model: str, kinds: Sequence[str], *, because: str) -> Message:
    """Return the reply with a note that the request for it had to leave out these kinds of content."""
    before = left_out(message) or {}
    note = {"model": model, "kinds": [*before.get("kinds", ()), *kinds], "because": before.get("because") or because}
    return replace(message, metadata={**message.metadata, LEFT_OUT: note})


def with_parts(message: Message, parts: Sequence[Part]) -> Message:
    """Return the message with images, recordings and files after its text."""
    return replace(message, content=(Part(type="text", text=message.text), *parts)) if parts else message


AGENT: Final = "agent"
"""The value of `metadata["kind"]` for a message from another agent."""
RETRIED: Final = "retried"
"""The key in the metadata of the message that tells an agent or a crew that its run goes on after its end."""


def reminder(text: str) -> Message:
    """Return a short message from Loom to the model, marked as not written by a person."""
    return user(f"<system-reminder>{text}</system-reminder>", kind="reminder")


def recollection(text: str, source: str) -> Message:
    """Return a message that contains memories recalled for the preceding messages. `source` tells people where the
    memories come from.
    """
    inside = text.replace("</memory>", "<\\/memory>")
    return user(f"<memory>\n{inside}\n</memory>", kind="memory", by=source)


def well_formed(text: str) -> str:
    """Return the text without NUL characters and surrogates, so that every store accepts it. Stored names and digests
    depend on this form. For any other text, see `accepted_text`.
    """
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def last_text(messages: Sequence[Message]) -> str:
    """Return the assistant's last text, or an empty string if there is none."""
    return next((m.text for m in reversed(messages) if m.role == "assistant" and m.text), "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """The tokens used by one or more model calls, as counted by the provider."""

    input_tokens: int = 0
    """All prompt tokens, including cached ones."""
    output_tokens: int = 0
    """Tokens that the models wrote, including their thinking."""
    cached_tokens: int = 0
    """Prompt tokens read from the provider's cache."""
    model_calls: int = 0
    """The number of calls."""
    cache_write_tokens: int = 0
    """Prompt tokens written to the provider's cache, for which some providers charge more."""

    @property
    def total_tokens(self) -> int:
        """The sum of the prompt and completion tokens."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        """Add two usages field by field."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            model_calls=self.model_calls + other.model_calls,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
        )


Group: TypeAlias = tuple[int, int]
"""A group's start position and its exclusive end position."""


@dataclass(kw_only=True, slots=True)
class Grouping:
    """The groups of a conversation. It grows with the conversation."""

    count: int = 0
    """The number of messages."""
    starts: list[int] = field(default_factory=list)
    """The position of each group's first message."""
    callers: dict[str | None, int] = field(default_factory=dict)
    """The position of the message with each call, by the call's id."""

    def add(self, message: Message) -> None:
        """Add the next message."""
        if message.role == "tool" and (caller := self.callers.get(message.tool_call_id)) is not None:
            while self.starts[-1] > caller:
                self.starts.pop()
        else:
            self.starts.append(self.count)
        for call in message.tool_calls:
            self.callers[call.id] = self.count
        self.count += 1

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups, in order."""
        return tuple(pairwise((*self.starts, self.count)))


def groups_of(messages: Sequence[Message]) -> tuple[Group, ...]:
    """Return the conversation's groups, in order. A message that doesn't belong with any other message forms a group by
    itself.
    """
    grouping = Grouping()
    for message in messages:
        grouping.add(message)
    return grouping.groups


def groups_that_fit(
    messages: Sequence[Message], groups: Sequence[Group], places: Iterable[int], room: int
) -> set[Group]:
    """Return the groups of the messages at these places that together fit into `room` tokens. The places are in the
    order of their priority.
    """
    fitting: set[Group] = set()
    for place in places:
        group = next(((start, stop) for start, stop in groups if start <= place < stop), None)
        if group is None or group in fitting:
            continue
        size = tokens_of(messages[group[0] : group[1]])
        if size <= room:
            room -= size
            fitting.add(group)
    return fitting


def last_turn(messages: Sequence[Message], groups: Sequence[Group]) -> int:
    """Return the position of the model's last reply, or the end of the conversation if there is no reply. The model has
    not received the results of this reply's calls yet.
    """
    return next((start for start, _ in reversed(groups) if messages[start].role == "assistant"), len(messages))


def unanswered(messages: Sequence[Message]) -> bool:
    """Whether any call in these messages lacks a result."""
    called = {call.id for message in messages for call in message.tool_calls}
    return bool(called - {message.tool_call_id for message in messages if message.role == "tool"})


def is_from_person(message: Message) -> bool:
    """Whether a person wrote this message. Reminders and recollections come from Loom."""
    return message.role == "user" and "kind" not in message.metadata


def canonical(arguments: JsonObject) -> str:
    """Return canonical JSON with sorted keys and no spaces (RFC 8785 without its number rules)."""
    return json.dumps(arguments, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def call_digest(run_id: str, call: ToolCall) -> str:
    """Return 12 hex digits that identify this call with these arguments in this run. People approve calls by
    `ask_digest`, except calls that a worker of a release before 0.4.0 has prepared, and the start of a run.
    """
    return short_digest("\0".join((run_id, call.id, call.name, canonical(call.arguments))))


ASK_DIGEST_LENGTH: Final = 32


def ask_digest(run_id: str, execution: str, turn: int, call: ToolCall, *, reset_at: int) -> str:
    """Return 32 hex digits (BLAKE2b-128) that identify this call with these arguments in this turn of this execution.

    A person approves the call by its digest. An approval therefore never holds for an equal call in another turn, or
    in a run that uses the same id later. If a reset has made the run's approvals void, `reset_at` is its time, else 0.
    """
    execution = f"{execution}@{reset_at}" if reset_at else execution
    named = "\0".join((run_id, execution, str(turn), call.id, call.name, canonical(call.arguments)))
    return blake2b(named.encode("utf-8", "surrogatepass"), digest_size=ASK_DIGEST_LENGTH // 2).hexdigest()


def short_digest(text: str) -> str:
    """Return 12 hex digits that identify this text (BLAKE2b-48)."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def arguments_digest(arguments: JsonObject) -> str:
    """Return 12 hex digits that identify these arguments."""
    return short_digest(canonical(arguments))


def usage_view(usage: Usage) -> JsonObject:
    """Return the token counts under their public names."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "total_tokens": usage.total_tokens,
        "model_calls": usage.model_calls,
        **({"cache_write_tokens": usage.cache_write_tokens} if usage.cache_write_tokens else {}),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class TranscriptRef:
    """A reference to a conversation by its digest."""

    count: int = 0
    digest: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultRef:
    """A reference to a tool result that an activity produced. Workers find the result by its call and digest."""

    call_id: str
    digest: str


TailItem: TypeAlias = ResultRef | Message
"""One entry after a cached transcript: a tool result by reference, or any other message inline."""


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """The messages in a run's current window and their digest."""

    messages: tuple[Message, ...] = ()
    digest: str = ""

    @cached_property
    def derived(self) -> dict[str, Any]:
        """Values that are derived from these messages and grow with the conversation. Their modules keep them here. The
        next transcript takes them over, so they only ever describe the beginning of the transcript that has them.
        """
        return {}

    @property
    def ref(self) -> TranscriptRef:
        """Return a reference to this transcript."""
        return TranscriptRef(count=len(self.messages), digest=self.digest)

    def extended(self, messages: Iterable[Message]) -> "Transcript":
        """Return a new transcript with these messages appended."""
        added = tuple(messages)
        if not added:
            return self
        digest = self.digest
        for message in added:
            digest = short_digest(digest + message_digest(message))
        following = Transcript(messages=self.messages + added, digest=digest)
        following.derived.update(self.derived)
        self.derived.clear()
        return following


def transcript_of(messages: Iterable[Message]) -> Transcript:
    """Return the transcript of these messages."""
    return Transcript().extended(messages)


def message_digest(message: Message) -> str:
    """Return 12 hex digits that identify this message's content for the model. Names and metadata are excluded."""
    calls = [(call.id, call.name, call.arguments, call.malformed) for call in message.tool_calls]
    seen = (message.role, _content(message), calls, message.tool_call_id, message.is_error)
    return short_digest(json.dumps(seen, sort_keys=True, ensure_ascii=False, default=str))


def _content(message: Message) -> str | list[tuple[str, ...]]:
    if isinstance(message.content, str):
        return message.content
    return [_part(part) for part in message.content]


def _part(part: Part) -> tuple[str, ...]:
    seen = (part.type, part.text, part.media_type, part.data, part.url)
    return (*seen, part.digest) if part.digest else seen  # digests of earlier releases keep their meaning


@dataclass(frozen=True, kw_only=True, slots=True)
class Tail:
    """The messages that follow a cached transcript, in order. Each message is either inline or a reference."""

    base: TranscriptRef = field(default_factory=TranscriptRef)
    items: tuple[TailItem, ...] = ()


def tail_of(base: TranscriptRef, messages: Sequence[Message], produced: frozenset[str]) -> Tail:
    """Return the messages to send after `base`. Results of the calls in `produced` are sent by reference, and all other
    messages are sent inline.
    """
    items = tuple(
        ResultRef(call_id=message.tool_call_id, digest=message_digest(message))
        if message.role == "tool" and message.tool_call_id in produced
        else message
        for message in messages[base.count :]
    )
    return Tail(base=base, items=items)
