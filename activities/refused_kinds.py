"""The kinds of content that a provider may refuse, and how a request does without each.

The kinds are in the order in which they are tried: those that lose nothing come first. Names and meanings of kinds are
part of histories.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, Literal, TypeAlias

from loom.activities.ports import ModelCall
from loom.domain.core.messages import LEFT_OUT, JsonObject, Message, Part, ToolCall, canonical
from loom.domain.core.tool_calls import ToolSpec

LONGEST_RESULT: Final = 2_000
"""The number of characters of a refused tool result that are sent again."""

_NOT_SENT: Final = "Left out, because the model's server refused it."
_NONCHARACTERS: Final = "".join(f"{chr(plane * 0x10000 - 2)}{chr(plane * 0x10000 - 1)}" for plane in range(2, 18))
_ODD = re.compile(
    rf"[{_NONCHARACTERS}"
    r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufdd0-\ufdef"
    r"\ufeff\ufff9-\uffff\U000e0000-\U0010ffff]"
)
"""Control characters, halves of characters, invisible characters and other code points that some servers refuse."""
_SIMPLE_TYPES: Final = ("string", "integer", "number", "boolean", "object", "array")

_NEVER: Final = re.compile("(?!)")

Change: TypeAlias = Callable[[ModelCall, int, int], ModelCall]
"""Leaves a kind out of the messages between two positions, or out of the whole call."""
Reach: TypeAlias = Literal["newest", "earlier", "always", "shorter"]
"""Which messages a kind is left out of: those that were new in the refused request; all of this request; all of this
request and of those that follow; or all of this request, which then has fewer messages.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of content that a provider may refuse."""

    name: str
    """The name in histories. It never changes."""
    change: Change
    reach: Reach = "newest"
    words: re.Pattern[str] = _NEVER
    """What a server's message contains if it speaks of this kind. Such a kind is tried first."""


def _changed(call: ModelCall, start: int, stop: int, change: Callable[[Message], Message]) -> ModelCall:
    messages = call.messages
    return replace(call, messages=(*messages[:start], *map(change, messages[start:stop]), *messages[stop:]))


# Characters and ids


def _with_plain_characters(call: ModelCall, start: int, stop: int) -> ModelCall:
    plain = _changed(call, start, stop, _plain)
    tools, deferred = (tuple(map(_plain_tool, tools)) for tools in (call.tools, call.deferred))
    return replace(plain, system=_ODD.sub(" ", call.system), tools=tools, deferred=deferred)


def _plain_tool(tool: ToolSpec) -> ToolSpec:
    description, parameters = _ODD.sub(" ", tool.description), _plain_value(tool.parameters)
    is_plain = (description, parameters) == (tool.description, tool.parameters)
    return tool if is_plain else replace(tool, description=description, parameters=parameters)


def _plain(message: Message) -> Message:
    return replace(
        message,
        content=_plain_content(message),
        tool_calls=tuple(map(_plain_call, message.tool_calls)),
        tool_call_id=_short_id(message.tool_call_id) if message.tool_call_id is not None else None,
    )


def _plain_content(message: Message) -> str | tuple[Part, ...]:
    if not isinstance(message.content, str):
        return tuple(map(_plain_part, message.content))
    text = _ODD.sub(" ", message.content)
    return text if text.strip() or message.role == "assistant" else "(empty)"


def _plain_part(part: Part) -> Part:
    return replace(part, text=_ODD.sub(" ", part.text), name=_ODD.sub(" ", part.name))


def _plain_call(call: ToolCall) -> ToolCall:
    malformed = None if call.malformed is None else _ODD.sub(" ", call.malformed)
    return replace(call, id=_short_id(call.id), arguments=_plain_value(call.arguments), malformed=malformed)


def _plain_value(value: Any) -> Any:
    match value:
        case str():
            return _ODD.sub(" ", value)
        case Mapping():
            return {_ODD.sub("_", name): _plain_value(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain_value(each) for each in value]
    return value


def _short_id(call_id: str) -> str:
    """Return an id of nine letters and digits, which every known server accepts. Mistral's accepts no other ids."""
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    return blake2b(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:9]


# Thinking and other state


def _without_state(call: ModelCall, start: int, stop: int) -> ModelCall:
    return _changed(call, start, stop, _stateless)


def _stateless(message: Message) -> Message:
    if message.role != "assistant" or not message.metadata.keys() - {LEFT_OUT}:
        return message
    return replace(message, metadata={name: note for name, note in message.metadata.items() if name == LEFT_OUT})


# Schemas


def _with_simple_schemas(call: ModelCall, _start: int, _stop: int) -> ModelCall:
    return replace(call, tools=tuple(map(_simple_tool, call.tools)), deferred=tuple(map(_simple_tool, call.deferred)))


def _simple_tool(tool: ToolSpec) -> ToolSpec:
    simple = {"type": "object", **_simple_object(tool.parameters)}
    return tool if simple == tool.parameters else replace(tool, parameters=simple)


def _simple_object(schema: JsonObject) -> dict[str, Any]:
    given = schema.get("properties")
    properties = {
        name: _simple(each)
        for name, each in (given.items() if isinstance(given, Mapping) else ())
        if re.fullmatch(r"[a-zA-Z0-9_]{1,64}", name)
    }
    required = [name for name in schema.get("required") or () if name in properties]
    return {"properties": properties, **({"required": required} if required else {})}


def _simple(schema: Any) -> JsonObject:
    """Return the schema with only its type, its description, and the schemas of what it contains."""
    if not isinstance(schema, Mapping):
        return {"type": "string"}
    described = {"description": schema["description"]} if isinstance(schema.get("description"), str) else {}
    kind = _type_of(schema)
    inner = {"items": _simple(schema.get("items"))} if kind == "array" else {}
    return {"type": kind, **described, **inner, **(_simple_object(schema) if kind == "object" else {})}


def _type_of(schema: JsonObject) -> str:
    others = (schema.get(name) for name in ("anyOf", "oneOf", "allOf"))
    options = [schema, *(option for each in others if isinstance(each, list) for option in each)]
    given = (option.get("type") for option in options if isinstance(option, Mapping))
    types = chain.from_iterable(each if isinstance(each, list) else [each] for each in given)
    return next((name for name in types if name in _SIMPLE_TYPES), "string")


def _without_odd_tools(call: ModelCall, _start: int, _stop: int) -> ModelCall:
    """Leave out the tools whose names or schemas are unusual."""
    return replace(
        call,
        tools=tuple(tool for tool in call.tools if _is_usual(tool)),
        deferred=tuple(tool for tool in call.deferred if _is_usual(tool)),
    )


def _is_usual(tool: ToolSpec) -> bool:
    is_named = re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_-]{0,62}", tool.name) is not None
    flat = all(_type_of(each) not in ("object", "array") for each in tool.parameters.get("properties", {}).values())
    return is_named and flat


# Images, documents and recordings


def _without(*types: str) -> Change:
    def change(call: ModelCall, start: int, stop: int) -> ModelCall:
        return _changed(call, start, stop, lambda message: _in_words(message, types))

    return change


def _in_words(message: Message, types: Sequence[str]) -> Message:
    parts = _parts(message)
    if all(part.type not in types for part in parts):
        return message
    return replace(message, content=tuple(_told(part) if part.type in types else part for part in parts))


def _told(part: Part) -> Part:
    return Part(type="text", text=f"{part.told} {_NOT_SENT}")


def attached_bytes(messages: Sequence[Message]) -> int:
    """Return the number of bytes of all images, recordings and files."""
    return sum(part.bytes for message in messages for part in _parts(message) if part.type != "text")


def _parts(message: Message) -> Sequence[Part]:
    return () if isinstance(message.content, str) else message.content


# Results and calls


def _with_short_results(call: ModelCall, start: int, stop: int) -> ModelCall:
    return _changed(call, start, stop, _short_result)


def _short_result(message: Message) -> Message:
    if message.role != "tool":
        return message
    text = message.told
    shown = "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text[:LONGEST_RESULT])
    if shown == message.content:
        return message
    told = f"(The model's server refused this result, which has {len(text):,} characters. It begins:)"
    return replace(message, content=f"{told}\n{shown}")


def _without_results(call: ModelCall, start: int, stop: int) -> ModelCall:
    return _changed(call, start, stop, _no_result)


def _no_result(message: Message) -> Message:
    if message.role != "tool":
        return message
    length = f"{len(message.told):,} characters"
    return replace(message, content=f"({_NOT_SENT} The result had {length}. Ask for it in another form or in parts.)")


def _with_calls_in_words(call: ModelCall, _start: int, stop: int) -> ModelCall:
    """Replace all calls and their results with text, and join what a person and the tools say in a row."""
    told: list[Message] = []
    for message in call.messages[:stop]:
        plain = _call_in_words(message)
        last = told[-1] if told else None
        if last is not None and last.role == plain.role == "user":
            told[-1] = replace(last, content=f"{last.told}\n\n{plain.told}")
        else:
            told.append(plain)
    messages = (*told, *call.messages[stop:])
    return call if messages == tuple(call.messages) else replace(call, messages=messages, called=None)


def _call_in_words(message: Message) -> Message:
    match message.role:
        case "tool":
            return Message(
                role="user", content=f"(Result of {message.name or 'the call'}:)\n{message.told or '(empty)'}"
            )
        case "assistant" if message.tool_calls:
            calls = (f"(Called {call.name} with {_arguments(call)}.)" for call in message.tool_calls)
            text = "\n".join(filter(None, (message.text, *calls)))
            return replace(message, content=text, tool_calls=(), metadata=_stateless(message).metadata)
    return message


def _without_own_work(call: ModelCall, _start: int, stop: int) -> ModelCall:
    """Keep only what people have said, and the names of the tools that the model has called."""
    said = [message for message in call.messages[:stop] if message.role in ("user", "system")]
    names = dict.fromkeys(each.name for message in call.messages[:stop] for each in message.tool_calls)
    if len(said) == stop:
        return call
    told = f"({_NOT_SENT[:-1]}: your work so far. Tools that you called: {', '.join(names) or 'none'}.)"
    return replace(call, messages=(*said, Message(role="user", content=told), *call.messages[stop:]), called=None)


def _arguments(call: ToolCall) -> str:
    return call.malformed if call.malformed is not None else canonical(call.arguments)


def _words(*words: str) -> re.Pattern[str]:
    return re.compile("|".join(words), re.IGNORECASE)


_IMAGES: Final = "pictures"
_DOCUMENTS: Final = "documents"
_SOUNDS: Final = "recordings"
_ALL_ATTACHED: Final = "attachments"
ATTACHED: Final = (_IMAGES, _DOCUMENTS, _SOUNDS, _ALL_ATTACHED)


def _without_all_attached(call: ModelCall, _start: int, stop: int) -> ModelCall:
    return _without("image", "audio", "file")(call, 0, stop)


KINDS: Final = (
    Kind(
        name="characters",
        change=_with_plain_characters,
        words=_words(r"\bids?\b", "tool_call_id", "tool_use_id", "call_id", "unicode", "utf", "character", "blank"),
        reach="always",
    ),
    Kind(
        name=_IMAGES,
        change=_without("image"),
        words=_words("image", "picture", "vision", "multi.?modal", "media", "base64", "pixel", "图"),
    ),
    Kind(
        name=_DOCUMENTS,
        change=_without("file"),
        words=_words("document", "pdf", r"\bfiles?\b", "pages?\b"),
    ),
    Kind(name=_SOUNDS, change=_without("audio"), words=_words("audio", "sound")),
    Kind(
        name="state",
        change=_without_state,
        words=_words("signature", "thinking", "reasoning", "encrypted", "unknown (?:field|parameter)", "extra"),
        reach="always",
    ),
    Kind(
        name="schemas",
        change=_with_simple_schemas,
        words=_words(
            "schema", "propert", r"\btools?\[", r"tools\.\d", "function declaration", r"parameters\b", "anyOf"
        ),
        reach="always",
    ),
    Kind(name=_ALL_ATTACHED, change=_without_all_attached, reach="earlier"),
    Kind(name="long results", change=_with_short_results, words=_words("string too long", "content too long")),
    Kind(name="results", change=_without_results),
    Kind(
        name="calls",
        change=_with_calls_in_words,
        reach="shorter",
        words=_words("tool_calls?", "tool_use", "function.?call", "role"),
    ),
    Kind(name="own work", change=_without_own_work, reach="shorter"),
    Kind(name="tools", change=_without_odd_tools, words=_words("too many tools"), reach="always"),
)
