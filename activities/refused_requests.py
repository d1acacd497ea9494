"""Repeat a model call that the provider has refused, without what it may have refused.

A provider that doesn't accept one part of a conversation, such as a picture or the name of a call, would refuse every
later request, too, and the run could never go on. So the call is repeated with one kind of content after the other
left out or mended, until the provider accepts it. What the model would otherwise miss is replaced with words.

The reply's metadata records what was left out (`left_out`), so that no later call, on whichever worker, sends it again
to the same model.

    answer ──400, 413, 422──▶ the next kind that changes the request ──accepted──▶ reply with `left_out`
                                   ▲                          │
                                   └────────────refused───────┘   after the last kind: the first error
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, TypeAlias

import structlog

from loom.activities.ports import LLMProvider, ModelAnswer, ModelCall, OnDelta
from loom.domain.core.errors import LLMConfigurationError, LLMContextLengthError, LoomError
from loom.domain.core.messages import LEFT_OUT, JsonObject, Message, Part, ToolCall, canonical, left_out, with_left_out
from loom.domain.core.tool_calls import ToolSpec

HEAVY: Final = 1_000_000
"""The number of bytes of images and files from which these may be the reason that a request is too large."""
LONGEST_RESULT: Final = 2_000
"""The number of characters of a refused tool result that are sent again."""

_log = structlog.get_logger("loom.model")

_NOT_SENT: Final = "Left out, because the model's server refused it."
_ODD = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufdd0-\ufdef\ufeff\ufffe\uffff]")
"""Control characters, halves of characters and other code points that some servers refuse."""
_SIMPLE_TYPES: Final = ("string", "integer", "number", "boolean", "object", "array")

Change: TypeAlias = Callable[[ModelCall, int, int], ModelCall]
"""Leaves a kind out of the messages between two positions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of content that a provider may refuse."""

    name: str
    """The name in histories. It never changes."""
    change: Change
    words: re.Pattern[str]
    """What a server's message contains if it speaks of this kind. Such a kind is tried first."""
    is_lasting: bool = False
    """Whether the change applies to the whole request, and to later requests as well. Otherwise, it applies to the
    messages that were refused.
    """


class ForgivingProvider:
    """An `LLMProvider` that repeats refused calls without what the provider may have refused."""

    def __init__(self, provider: LLMProvider) -> None:
        self.provider = provider

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """See the port. If the provider refuses every form of the request, raise its first error."""
        call = without_refused(call)
        try:
            return await self.provider.answer(call, on_delta)
        except LoomError as error:
            if not _may_be_content(error, call):
                raise
            first = error
        tried: list[str] = []
        for kind, changed in _without_one_kind_more(call, first):
            call = changed
            tried.append(kind.name)
            _log.warning("request_refused", model=call.model, message=first.message, left_out=kind.name)
            try:
                answer = await self.provider.answer(call, on_delta)
            except LoomError as error:
                if not (_may_be_content(error, call) or type(error) is type(first)):
                    raise
                continue
            message = with_left_out(answer.message, call.model, tried, because=first.message)
            return replace(answer, message=message)
        raise first


def has_answered(call: ModelCall) -> bool:
    """Whether the conversation contains a reply of a model."""
    return any(message.role == "assistant" for message in call.messages)


def is_refused(error: LoomError) -> bool:
    """Whether the provider has refused the content of the request."""
    return isinstance(error, LLMConfigurationError) and bool(error.context.get("refused"))


def without_refused(call: ModelCall) -> ModelCall:
    """Return the call without what its model has refused earlier in the conversation."""
    refused = [(place, kinds) for place, message in enumerate(call.messages) if (kinds := _kinds(message, call.model))]
    # A change may shorten the conversation, and so the last one comes first.
    for position, kinds in reversed(refused):
        for kind in (kind for kind in KINDS if kind.name in kinds and not kind.is_lasting):
            call = kind.change(call, _before(call.messages, position), position)
    for kind in (kind for kind in KINDS if kind.is_lasting and any(kind.name in kinds for _, kinds in refused)):
        call = kind.change(call, 0, len(call.messages))
    return call


def _kinds(message: Message, model: str) -> Sequence[str]:
    """Return the names of the kinds that the model's provider had refused before it gave this reply."""
    note = left_out(message)
    return note["kinds"] if note is not None and note.get("model") == model else ()


def _before(messages: Sequence[Message], position: int) -> int:
    """Return the position of the last reply before this one. What follows it was new to the provider."""
    return next((place for place in range(position - 1, -1, -1) if messages[place].role == "assistant"), 0)


def _may_be_content(error: LoomError, call: ModelCall) -> bool:
    if isinstance(error, LLMContextLengthError):
        # A limit of the request's bytes rather than of tokens. A compression doesn't make images smaller.
        return "limit" not in error.context and _attached(call.messages) > HEAVY
    return is_refused(error)


def _attached(messages: Sequence[Message]) -> int:
    return sum(part.bytes for message in messages for part in _parts(message) if part.type != "text")


def _without_one_kind_more(call: ModelCall, error: LoomError) -> Iterator[tuple[Kind, ModelCall]]:
    """Yield the call with one more kind left out each time. The kinds that were refused before come first, and then
    those that the server's words name.
    """
    call = replace(call, messages=tuple(call.messages), tools=tuple(call.tools), deferred=tuple(call.deferred))
    newest = _before(call.messages, len(call.messages))
    named = {kind.name for kind in KINDS if kind.words.search(error.message)}
    before = {name for message in call.messages for name in _kinds(message, call.model)}
    may_be_any = has_answered(call) and not isinstance(error, LLMContextLengthError)
    # Before the model's first answer, the cause of a refusal is more likely a setting.
    kinds = [kind for kind in KINDS if may_be_any or kind.name in {*named, *_ATTACHED}]
    for kind in sorted(kinds, key=lambda kind: (kind.name not in before, kind.name not in named)):
        changed = kind.change(call, 0 if kind.is_lasting else newest, len(call.messages))
        if changed != call:
            call = changed
            yield kind, call


def _changed(call: ModelCall, start: int, stop: int, change: Callable[[Message], Message]) -> ModelCall:
    messages = call.messages
    return replace(call, messages=(*messages[:start], *map(change, messages[start:stop]), *messages[stop:]))


# Characters and ids


def _with_plain_characters(call: ModelCall, start: int, stop: int) -> ModelCall:
    return replace(_changed(call, start, stop, _plain), system=_ODD.sub(" ", call.system))


def _plain(message: Message) -> Message:
    content = message.content
    return replace(
        message,
        content=_plain_text(content) if isinstance(content, str) else tuple(map(_plain_part, content)),
        tool_calls=tuple(map(_plain_call, message.tool_calls)),
        tool_call_id=_short_id(message.tool_call_id) if message.tool_call_id is not None else None,
    )


def _plain_text(text: str) -> str:
    return _ODD.sub(" ", text) if text.strip() else "(empty)"


def _plain_part(part: Part) -> Part:
    return (
        replace(part, text=_plain_text(part.text))
        if part.type == "text"
        else replace(part, name=_ODD.sub(" ", part.name))
    )


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


def _arguments(call: ToolCall) -> str:
    return call.malformed if call.malformed is not None else canonical(call.arguments)


def _words(*words: str) -> re.Pattern[str]:
    return re.compile("|".join(words), re.IGNORECASE)


_IMAGES: Final = "pictures"
_DOCUMENTS: Final = "documents"
_SOUNDS: Final = "recordings"
_EVERYTHING_ATTACHED: Final = "attachments"
_ATTACHED: Final = (_IMAGES, _DOCUMENTS, _SOUNDS, _EVERYTHING_ATTACHED)


def _without_all_attached(call: ModelCall, _start: int, stop: int) -> ModelCall:
    return _without("image", "audio", "file")(call, 0, stop)


KINDS: Final = (
    Kind(
        name="characters",
        change=_with_plain_characters,
        words=_words(r"\bids?\b", "tool_call_id", "tool_use_id", "call_id", "unicode", "utf", "character", "blank"),
        is_lasting=True,
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
        is_lasting=True,
    ),
    Kind(
        name="schemas",
        change=_with_simple_schemas,
        words=_words(
            "schema", "propert", r"\btools?\[", r"tools\.\d", "function declaration", r"parameters\b", "anyOf"
        ),
        is_lasting=True,
    ),
    Kind(name=_EVERYTHING_ATTACHED, change=_without_all_attached, words=_words("(?!)")),
    Kind(name="long results", change=_with_short_results, words=_words("string too long", "content too long")),
    Kind(name="results", change=_without_results, words=_words("(?!)")),
    Kind(name="calls", change=_with_calls_in_words, words=_words("tool_calls?", "tool_use", "function.?call", "role")),
    Kind(name="tools", change=_without_odd_tools, words=_words("too many tools"), is_lasting=True),
)
