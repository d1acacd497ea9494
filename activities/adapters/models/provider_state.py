"""What a server puts beside a reply and its calls, and wants back with the next request.

Gemini rejects a call that comes back without its `extra_content`, for example. Loom keeps all fields that it doesn't
know, unread, and returns them in the same place, but only to the server that sent them: others may reject them.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import structlog

from loom.activities.adapters.models.sendable import encodable
from loom.domain.core.messages import JsonObject, Message, canonical

MOST_STATE: Final = 256_000
"""Maximum number of characters of one reply's state. A larger one isn't kept."""

OF_MESSAGE: Final = frozenset({
    *("role", "content", "refusal", "tool_calls", "function_call", "name", "index", "id", "type", "audio", "images"),
    *("reasoning", "reasoning_content", "reasoning_details", "reasoning_text", "thinking", "thought"),
    *("annotations", "citations", "search_results", "executed_tools", "tool_plan", "logprobs", "token_ids"),
    *("thinking_blocks", "content_filter_results", "stop_reason", "finish_reason", "padding"),
})  # fmt: skip
"""Fields of a message that Loom reads, and fields about the reply that servers don't take back."""
OF_CALL: Final = frozenset({"index", "id", "type", "function"})
OF_FUNCTION: Final = frozenset({"name", "arguments"})
OF_TOOL_USE: Final = frozenset({"type", "id", "name", "input", "caller", "cache_control"})
"""Fields of a call in Anthropic's messages."""

UNSIGNED: Final[JsonObject] = {"extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}}
"""What Gemini takes beside calls of other models, which have no signature of its own."""
SIGNATURE: Final = "thought_signature"
"""What Gemini names when it rejects a call without a signature."""

_KEY: Final = "provider_state"
_REFUSAL: Final = re.compile(
    r"unsupported|not supported|unknown|unrecognized|unexpected|not permitted|not allowed|extra |additional",
    re.IGNORECASE,
)

_CHOICE: Final = re.compile(r"(?:\A|_)(?:type|role|object|id|index|status|name|format|kind|phase)\Z")
"""Names of fields whose value is one word, which is never continued."""

_log = structlog.get_logger("loom.model")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProviderState:
    """The unknown fields of one reply."""

    message: JsonObject = field(default_factory=dict)
    calls: Sequence[JsonObject] = ()
    """The fields beside each call, in the order of the calls."""

    @classmethod
    def of(cls, message: Message, host: str) -> "ProviderState":
        """Return what this server put beside the message."""
        note = message.metadata.get(_KEY)
        if not host or not isinstance(note, Mapping) or note.get("host") != host:
            return _NOTHING
        return cls(message=note.get("message") or {}, calls=note.get("calls") or ())

    def fields_of_call(self, place: int) -> JsonObject:
        """Return the fields beside the call at this place."""
        return self.calls[place] if place < len(self.calls) else {}

    def without(self, names: Collection[str]) -> "ProviderState":
        """Return the state without the fields of these names."""
        if not names or self is _NOTHING:
            return self
        message, *calls = (
            {name: value for name, value in fields.items() if name not in names}
            for fields in (self.message, *self.calls)
        )
        return ProviderState(message=message, calls=calls)

    def note(self, host: str) -> JsonObject:
        """Return metadata with these fields and the server that they belong to."""
        if not host or not (self.message or any(self.calls)):
            return {}
        note: JsonObject = encodable({"host": host, "message": self.message, "calls": self.calls})
        if (size := len(canonical(note))) > MOST_STATE:
            _log.warning("provider_state_dropped", host=host, characters=size)
            return {}
        return {_KEY: note}


_NOTHING: Final = ProviderState()


def unknown_fields(sent: Mapping[str, Any], known: Collection[str]) -> JsonObject:
    """Return the fields that Loom doesn't know and that have a value."""
    return {name: value for name, value in sent.items() if name not in known and value not in (None, "", [], {})}


def extra_fields_of_call(piece: Mapping[str, Any]) -> JsonObject:
    """Return the unknown fields of a piece of a call in chat completions."""
    function = piece.get("function")
    inside = unknown_fields(function, OF_FUNCTION) if isinstance(function, Mapping) else {}
    return {**unknown_fields(piece, OF_CALL), **({"function": inside} if inside else {})}


def extra_fields_of_message(delta: Mapping[str, Any]) -> JsonObject:
    """Return the unknown fields of a message's delta. Flags are left out, because they describe the piece of text that
    they come with.
    """
    return {name: value for name, value in _without_flags(unknown_fields(delta, OF_MESSAGE)).items() if value != {}}


def joined(before: Mapping[str, Any], piece: Mapping[str, Any]) -> dict[str, Any]:
    """Return the unknown fields with those of the next piece. Objects are merged, and texts and lists continued. A
    server may also repeat a value in each piece, or all of it so far. Any other value replaces the one before.
    """
    return {
        **before,
        **{name: _joined(name, before[name], new) if name in before else new for name, new in piece.items()},
    }


def _joined(name: str, before: Any, new: Any) -> Any:
    match before, new:
        case Mapping(), Mapping():
            return joined(before, new)
        case (str(), str()) | (list(), list()) if not _CHOICE.search(name) and before != new[: len(before)]:
            # What is already too large to be kept need not grow.
            return before + new if len(before) <= MOST_STATE else before
        case _:
            return new


def _without_flags(value: JsonObject) -> JsonObject:
    return {
        name: _without_flags(inner) if isinstance(inner, Mapping) else inner
        for name, inner in value.items()
        if not isinstance(inner, bool)
    }


def refused_fields(error: str, messages: Sequence[Message], host: str, otherwise: JsonObject) -> frozenset[str]:
    """Return the fields that a request contained, but the server doesn't accept: fields that it had put beside its
    replies, and those in `otherwise`, which other replies got.
    """
    if not _REFUSAL.search(error):
        return frozenset()
    states = (ProviderState.of(message, host) for message in messages)
    names = {name for state in states for fields in (state.message, *state.calls) for name in fields}
    names.update(otherwise)
    return frozenset(name for name in names if name != "function" and name in error)


def host_of(url: str) -> str:
    """Return the name of a server, which owns the state that it sends."""
    return urlsplit(url).hostname or ""
