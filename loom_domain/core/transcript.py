"""Refer to a conversation by its digest, so that every byte of it enters history once.

A transcript is identified by its number of messages and a rolling digest: digest(n) = H(digest(n-1) + H(message n)).
Workers cache transcripts under it. A model call sends the digest and what no activity has produced. A worker that does
not know the digest returns "resend" and gets the messages whole. This only affects speed.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, TypeAlias

from loom.domain.core.messages import Message, Part

_DIGEST_BYTES: Final = 6


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
            digest = _digest(digest + message_digest(message))
        return Transcript(messages=self.messages + added, digest=digest)


def transcript_of(messages: Iterable[Message]) -> Transcript:
    """The transcript that has exactly these messages."""
    return Transcript().extended(messages)


def message_digest(message: Message) -> str:
    """12 hex digits that identify what the model sees of this message. Metadata and ids do not count."""
    calls = [(call.id, call.name, call.arguments, call.malformed) for call in message.tool_calls]
    seen = (message.role, _content(message), calls, message.tool_call_id, message.is_error)
    return _digest(json.dumps(seen, sort_keys=True, ensure_ascii=False, default=str))


def _content(message: Message) -> str | list[tuple[str, str, str, str, str]]:
    if isinstance(message.content, str):
        return message.content
    return [_part(part) for part in message.content]


def _part(part: Part) -> tuple[str, str, str, str, str]:
    return (part.type, part.text, part.media_type, part.data, part.url)


def _digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()


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
