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

MOST_TOOLS: Final = 64
"""The number of tools that stay if a provider refuses all of them together."""
LONGEST_RESULT: Final = 2_000
"""The number of characters of a refused tool result that are sent again."""

_NOT_SENT: Final = "Left out, because the model's server refused it."
_NONCHARACTERS: Final = "".join(f"{chr(plane * 0x10000 - 2)}{chr(plane * 0x10000 - 1)}" for plane in range(2, 18))
_ODD = re.compile(
    rf"[{_NONCHARACTERS}\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufdd0-\ufdef\ufeff\ufff9-\uffff]"
)
"""Control characters, halves of characters and noncharacters, which say nothing and which some servers refuse."""
_INVISIBLE = re.compile(r"[\u200b-\u200f\u202a-\u202e\u2060-\u206f\U000e0000-\U0010ffff]")
"""Characters without a form of their own. Some join or separate others, as in Persian and in emojis."""
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


def _derived(message: Message, name: str, make: Callable[[], Message]) -> Message:
    """Return a form of the message, which is kept, because each turn of a long conversation needs it again."""
    if name not in message.derived:
        message.derived[name] = make()
    form: Message = message.derived[name]
    return form


# Characters and ids


def _without_characters(pattern: re.Pattern[str]) -> Change:
    def change(call: ModelCall, start: int, stop: int) -> ModelCall:
        changed = _changed(call, start, stop, lambda message: _plain(message, pattern))
        tools, deferred = (tuple(_plain_tool(tool, pattern) for tool in tools) for tools in (call.tools, call.deferred))
        return replace(changed, system=pattern.sub(" ", call.system), tools=tools, deferred=deferred)

    return change


def _plain(message: Message, pattern: re.Pattern[str]) -> Message:
    return _derived(message, pattern.pattern, lambda: _plain_message(message, pattern))


def _plain_message(message: Message, pattern: re.Pattern[str]) -> Message:
    content = message.content
    if isinstance(content, str):
        plain: str | tuple[Part, ...] = pattern.sub(" ", content)
        plain = plain if str(plain).strip() or message.role == "assistant" else "(empty)"
    else:
        plain = tuple(_plain_part(part, pattern) for part in content)
    calls = tuple(_plain_call(call, pattern) for call in message.tool_calls)
    is_same = (plain, calls) == (content, message.tool_calls)
    return message if is_same else replace(message, content=plain, tool_calls=calls)


def _plain_part(part: Part, pattern: re.Pattern[str]) -> Part:
    return replace(part, text=pattern.sub(" ", part.text), name=pattern.sub(" ", part.name))


def _plain_call(call: ToolCall, pattern: re.Pattern[str]) -> ToolCall:
    malformed = None if call.malformed is None else pattern.sub(" ", call.malformed)
    return replace(call, arguments=_plain_value(call.arguments, pattern), malformed=malformed)


def _plain_tool(tool: ToolSpec, pattern: re.Pattern[str]) -> ToolSpec:
    description, parameters = pattern.sub(" ", tool.description), _plain_value(tool.parameters, pattern)
    is_plain = (description, parameters) == (tool.description, tool.parameters)
    return tool if is_plain else replace(tool, description=description, parameters=parameters)


def _plain_value(value: Any, pattern: re.Pattern[str]) -> Any:
    match value:
        case str():
            return pattern.sub(" ", value)
        case Mapping():
            return {pattern.sub("_", name): _plain_value(each, pattern) for name, each in value.items()}
        case list() | tuple():
            return [_plain_value(each, pattern) for each in value]
    return value


def _with_short_ids(call: ModelCall, start: int, stop: int) -> ModelCall:
    return _changed(call, start, stop, lambda message: _derived(message, "short ids", lambda: _with_short(message)))


def _with_short(message: Message) -> Message:
    if message.tool_call_id is not None:
        return replace(message, tool_call_id=_short_id(message.tool_call_id))
    if not message.tool_calls:
        return message
    return replace(message, tool_calls=tuple(replace(call, id=_short_id(call.id)) for call in message.tool_calls))


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
    listed = schema.get("required")
    required = [name for name in properties if isinstance(listed, list) and name in listed]
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
    """Leave out the tools whose names or schemas are unusual, and those that are too many."""
    tools = tuple(tool for tool in call.tools if _is_usual(tool))[:MOST_TOOLS]
    deferred = tuple(tool for tool in call.deferred if _is_usual(tool))[: MOST_TOOLS - len(tools)]
    stay = {tool.name for tool in (*tools, *deferred)}
    gone = [tool.name for tool in (*call.tools, *call.deferred) if tool.name not in stay]
    if not gone:
        return call
    told = f"(The model's server refused these tools, so you can't call them: {', '.join(gone)}.)"
    return replace(call, tools=tools, deferred=deferred, system=f"{call.system}\n\n{told}".lstrip())


def _is_usual(tool: ToolSpec) -> bool:
    if re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_-]{0,62}", tool.name) is None:
        return False
    properties = _simple_object(tool.parameters)["properties"]
    return all(each["type"] not in ("object", "array") for each in properties.values())


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
        is_text = last is not None and isinstance(last.content, str) and isinstance(plain.content, str)
        if last is not None and is_text and last.role == plain.role == "user":
            told[-1] = replace(last, content=f"{last.content}\n\n{plain.content}")
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
        change=_without_characters(_ODD),
        words=_words("unicode", "utf", "character", "blank", "encod"),
        reach="always",
    ),
    Kind(
        name="ids",
        change=_with_short_ids,
        words=_words(r"\bids?\b", "tool_call_id", "tool_use_id", "call_id"),
        reach="always",
    ),
    Kind(
        name=_IMAGES,
        change=_without("image"),
        words=_words("image", "picture", "vision", "multi.?modal", r"\bmedia\b", "base64", "pixel", "图"),
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
    Kind(name="invisible characters", change=_without_characters(_INVISIBLE), reach="always"),
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
