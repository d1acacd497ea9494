"""What every server requires of a conversation, whatever models, tools and earlier servers have put into it."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from operator import is_
from typing import Any, Final, TypeVar

from loom.domain.core.messages import JsonObject, Message, Part, ToolCall
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.core.whole_characters import accepted_text

EMPTY: Final = "(empty)"
"""Stands for a message or a result without content, which servers reject."""
_NO_RESULT: Final = "(this call has no result)"

_NOTES_TO_SERVERS: Final = ("reasoning", "provider_state")
"""The metadata of a reply that its server gets back."""
_ENCODABLE: Final = "encodable"
_CONVERTED: Final = "converted"
_Form = TypeVar("_Form")
_Wire = TypeVar("_Wire")

_UNENCODABLE: Final = re.compile("[\0\ud800-\udfff]")


def encodable(value: Any) -> Any:
    """Return a JSON value that every server can read, or the same object if it is one. Halves of a character are
    joined, or become U+FFFD, as does NUL. NaN and infinite numbers become null.
    """
    if isinstance(value, str):
        return value if _is_plain(value) else accepted_text(value)
    if isinstance(value, list | tuple):
        items = [encodable(inner) for inner in value]
        return value if all(map(is_, items, value)) else items
    if isinstance(value, Mapping):
        members = {encodable(name): encodable(inner) for name, inner in value.items()}
        is_same = len(members) == len(value) and all(map(is_, members, value))
        return value if is_same and all(map(is_, members.values(), value.values())) else members
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_plain(text: str) -> bool:
    # Most texts are ASCII, which Python knows without reading them.
    return "\0" not in text if text.isascii() else _UNENCODABLE.search(text) is None


def sendable(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages as every server accepts them: with encodable content, and with the results of each reply
    behind it. Names and ids stay as they are, because `wire_names` gives them an accepted form.
    """
    return paired([_encodable(message) for message in messages])


def _encodable(message: Message) -> Message:
    # A long conversation is sent in each turn, but each of its messages is read only once.
    derived = message.derived
    if _ENCODABLE not in derived:
        derived[_ENCODABLE] = _mended(message)
    mended: Message | None = derived[_ENCODABLE]
    return mended or message


def _mended(message: Message) -> Message | None:
    """Return the message with encodable content, or None if it is encodable."""
    given = message.content
    content = encodable(given) if isinstance(given, str) else tuple(map(_encodable_part, given))
    calls = tuple(map(_encodable_call, message.tool_calls))
    notes = {name: message.metadata[name] for name in _NOTES_TO_SERVERS if name in message.metadata}
    mended_notes = encodable(notes)
    if content == given and calls == message.tool_calls and mended_notes is notes:
        return None
    return replace(message, content=content, tool_calls=calls, metadata={**message.metadata, **mended_notes})


def _encodable_call(call: ToolCall) -> ToolCall:
    arguments, malformed = encodable(call.arguments), encodable(call.malformed)
    is_same = arguments is call.arguments and malformed is call.malformed
    return call if is_same else replace(call, arguments=arguments, malformed=malformed)


def _encodable_part(part: Part) -> Part:
    return replace(part, **{each.name: encodable(getattr(part, each.name)) for each in fields(part)})


def converted_once(message: Message, form: _Form, convert: Callable[[Message, _Form], _Wire]) -> _Wire:
    """Return what `convert` makes of the message in this form. The result is kept for the next turns, so nobody may
    change it.
    """
    kept = message.derived.get(_CONVERTED)
    if kept is None or kept[0] is not convert or kept[1] != form:
        kept = message.derived[_CONVERTED] = (convert, form, convert(message, form))
    wire: _Wire = kept[2]
    return wire


def schema_of(tool: ToolSpec) -> JsonObject:
    """Return the tool's schema, which says that the arguments are an object with properties."""
    given = tool.parameters
    properties = given.get("properties")
    if given.get("type") == "object" and isinstance(properties, Mapping):
        return given
    return {**given, "type": "object", "properties": properties if isinstance(properties, Mapping) else {}}


def said_parts(parts: Sequence[Part]) -> Iterator[Part]:
    """Yield the parts without blank texts."""
    return (part for part in parts if part.type != "text" or part.text.strip())


def paired(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages, in which the results of a reply's calls directly follow the reply, one for each call.

    Servers reject a call without a result, and a result without a call. A missing result is made up. A result without a
    call is told as a message.
    """
    if _is_paired(messages):
        return messages
    numbered, results, loose = _matched(messages)
    ordered: list[Message] = []
    for place, message in enumerate(numbered):
        if message.role == "tool":
            ordered.extend([_told(message)] if place in loose else ())
            continue
        ordered.append(message)
        if message.role == "assistant":
            ordered.extend(results.get(call.id) or _made_up(call) for call in message.tool_calls)
    return ordered


def _is_paired(messages: Sequence[Message]) -> bool:
    """Whether nothing must change. A conversation is checked in each turn, and hardly any needs more than this."""
    seen: set[str] = set()
    missing: set[str] = set()
    for message in messages:
        if message.role == "tool":
            answered = message.tool_call_id
            if answered not in missing:
                return False
            missing.remove(answered)
            continue
        if missing:
            return False
        if message.tool_calls and message.role == "assistant":
            missing = {call.id for call in message.tool_calls}
            if len(missing) < len(message.tool_calls) or not seen.isdisjoint(missing):
                return False
            seen |= missing
    return not missing


def _matched(messages: Sequence[Message]) -> tuple[Sequence[Message], Mapping[str, Message], Collection[int]]:
    """Return the messages with an id of its own for each call, the calls' results, and the places of other results."""
    numbered: list[Message] = []
    results: dict[str, Message] = {}
    loose: set[int] = set()
    uses: Counter[str] = Counter()
    waiting: dict[str | None, list[str]] = {}
    for place, message in enumerate(messages):
        numbered.append(message)
        if message.role == "assistant" and message.tool_calls:
            made = tuple(_numbered(call, uses) for call in message.tool_calls)
            waiting.update({call.id: [] for call in message.tool_calls})
            for given, own in zip(message.tool_calls, made, strict=True):
                waiting[given.id].append(own.id)
            numbered[place] = replace(message, tool_calls=made)
        elif message.role == "tool" and (ids := waiting.get(message.tool_call_id)):
            own_id = ids.pop(0)
            results[own_id] = replace(message, tool_call_id=own_id)
        elif message.role == "tool":
            loose.add(place)
    return numbered, results, loose


def _numbered(call: ToolCall, uses: Counter[str]) -> ToolCall:
    uses[call.id] += 1
    return call if uses[call.id] == 1 else replace(call, id=f"{call.id}#{uses[call.id]}")


def _made_up(call: ToolCall) -> Message:
    return Message(role="tool", tool_call_id=call.id, name=call.name, content=_NO_RESULT, is_error=True)


def _told(result: Message) -> Message:
    """Return a result whose call isn't part of the conversation as a message."""
    about = Part(type="text", text="(the result of an earlier tool call:)")
    content = (Part(type="text", text=result.content),) if isinstance(result.content, str) else result.content
    return Message(role="user", content=(about, *content))
