"""What every server requires of a conversation, whatever models, tools and earlier servers have put into it."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from loom.domain.core.messages import JsonObject, Message, Part, ToolCall
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.core.whole_characters import whole_characters

EMPTY: Final = "(empty)"
"""Stands for a message or a result without content, which servers reject."""
_NO_RESULT: Final = "(this call has no result)"

_UNENCODABLE: Final = re.compile("[\0\ud800-\udfff]")


def encodable(value: Any) -> Any:
    """Return a JSON value that every server can read. Halves of a character are joined, or become U+FFFD, as does
    NUL. NaN and infinite numbers become null.
    """
    if isinstance(value, str):
        return value if _is_plain(value) else _whole(value)
    if isinstance(value, list | tuple):
        return [encodable(inner) for inner in value]
    if isinstance(value, Mapping):
        return {encodable(key): encodable(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_plain(text: str) -> bool:
    # Most texts are ASCII, which Python knows without reading them.
    return "\0" not in text if text.isascii() else _UNENCODABLE.search(text) is None


def _whole(text: str) -> str:
    return whole_characters(text).replace("\0", "\N{REPLACEMENT CHARACTER}")


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
    missing: set[str | None] = set()
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in missing:
                return False
            missing.discard(message.tool_call_id)
            continue
        if missing:
            return False
        if message.role == "assistant" and message.tool_calls:
            ids = [call.id for call in message.tool_calls]
            missing.update(ids)
            if len(missing) < len(ids) or not seen.isdisjoint(ids):
                return False
            seen.update(ids)
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
