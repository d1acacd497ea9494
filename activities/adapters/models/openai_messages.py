"""Convert a conversation to the messages of OpenAI's Chat Completions API."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias

from loom.activities.adapters.models.media_parts import in_words, is_document, is_image
from loom.activities.adapters.models.provider_state import UNSIGNED, ProviderState
from loom.activities.adapters.models.sendable import EMPTY, converted_once, encodable, said_parts, schema_of, sendable
from loom.activities.adapters.models.wire import arguments_of, reasoning_of
from loom.activities.ports import ModelCall
from loom.domain.core.messages import Message, Part, ToolCall
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.tools.wire_names import chat_id, wire_name

Wire: TypeAlias = dict[str, Any]

THINK_TAGS: Final = "think"
"""The name under which thinking is noted that the server sent as a part of the text."""

_SOUNDS: Final = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
"""Maps the media types of accepted audio formats to the provider's names for them."""


_SHOWN_BELOW: Final = "(shown below)"
"""Stands for a result that consists of images and documents."""


class _Form(NamedTuple):
    """What the form of a reply depends on, beside the reply itself."""

    model: str
    host: str
    without: frozenset[str]
    needs_signatures: bool


def wire_messages(
    call: ModelCall, host: str = "", *, without: frozenset[str] = frozenset(), needs_signatures: bool = False
) -> list[Wire]:
    """Return the system prompt and all messages in order.

    `host` gets back the fields that it put beside its replies, except those in `without`. If the model needs
    signatures, calls that its server hasn't signed get one that is accepted without a check.
    """
    wire: list[Wire] = [{"role": "system", "content": encodable(call.system)}] if call.system.strip() else []
    shown: list[Message] = []
    form = _Form(call.model, host, without, needs_signatures)
    for message in sendable(call.messages):
        if shown and message.role != "tool":
            wire.extend(_pictures(shown))
            shown = []
        match message.role:
            case "assistant" if message.tool_calls or message.text.strip():
                wire.append(converted_once(message, form, _assistant))
            case "assistant":
                pass  # many servers reject a reply without text and calls
            case "tool":
                call_id = chat_id(message.tool_call_id or "")
                wire.append({"role": "tool", "tool_call_id": call_id, "content": _result(message)})
                if not isinstance(message.content, str):
                    # A tool message can contain only text, so images follow the turn's last result.
                    shown.append(message)
            case role:
                wire.append({"role": role, "content": _content(message.content)})
    wire.extend(_pictures(shown))
    return wire


def function_tool(tool: ToolSpec) -> Wire:
    """Return the definition of a tool."""
    about = {"name": wire_name(tool.name), "description": tool.description, "parameters": schema_of(tool)}
    return {"type": "function", "function": about}


def _assistant(message: Message, form: _Form) -> Wire:
    state = ProviderState.of(message, form.host)
    if form.needs_signatures and not any(state.calls):
        state = replace(state, calls=[UNSIGNED] * len(message.tool_calls))
    state = state.without(form.without)
    text = message.text
    wire: Wire = {**state.message, "role": "assistant", "content": text}
    if reasoning := reasoning_of(message, form.model):
        fields = reasoning if isinstance(reasoning, Mapping) else {"reasoning_content": reasoning}
        wire.update({name: text for name, text in fields.items() if name != THINK_TAGS})
        if thought := fields.get(THINK_TAGS):
            wire["content"] = f"<think>{thought}</think>\n\n{text}"
    if message.tool_calls:
        wire["content"] = wire["content"] if wire["content"].strip() else None
        wire["tool_calls"] = [_call(call, state.fields_of_call(place)) for place, call in enumerate(message.tool_calls)]
    return wire


def _call(call: ToolCall, extra_fields: Mapping[str, Any]) -> Wire:
    arguments = json.dumps(arguments_of(call), ensure_ascii=False)
    function = {**extra_fields.get("function", {}), "name": wire_name(call.name), "arguments": arguments}
    return {**extra_fields, "id": chat_id(call.id), "type": "function", "function": function}


def _content(content: str | Sequence[Part]) -> str | list[Wire]:
    if isinstance(content, str):
        return content if content.strip() else EMPTY
    return list(_parts(said_parts(content))) or EMPTY


def _result(message: Message) -> str:
    """Return the text of a tool result, with descriptions of the parts that can't be sent as images."""
    if isinstance(message.content, str):
        return message.content if message.content.strip() else EMPTY
    text = "\n".join(in_words(part) for part in message.content if not _may_follow(part))
    return text if text.strip() else _SHOWN_BELOW if any(map(_may_follow, message.content)) else EMPTY


def _pictures(results: Sequence[Message]) -> Iterator[Wire]:
    """Yield one message with the images and documents from a turn's results. If they come from several results, the
    message names the call that returned them.
    """
    seen = [(result, [part for part in _all_parts(result) if _may_follow(part)]) for result in results]
    given = [(result, parts) for result, parts in seen if parts]
    content: list[Wire] = []
    for result, parts in given:
        if len(given) > 1:
            source = wire_name(result.name) if result.name else "the tool"
            content.append({"type": "text", "text": f"(from {source}, call {chat_id(result.tool_call_id or '')}:)"})
        content.extend(_parts(parts))
    if content:
        yield {"role": "user", "content": content}


def _all_parts(message: Message) -> Sequence[Part]:
    return () if isinstance(message.content, str) else message.content


def _may_follow(part: Part) -> bool:
    return is_image(part) or is_document(part)


def _parts(parts: Iterable[Part]) -> Iterator[Wire]:
    for part in parts:
        match part.type:
            case "text":
                yield {"type": "text", "text": part.text}
            case "image" if is_image(part):
                yield {"type": "image_url", "image_url": {"url": part.url or _data_url(part)}}
            case "audio" if part.data and part.media_type in _SOUNDS:
                yield {"type": "input_audio", "input_audio": {"data": part.data, "format": _SOUNDS[part.media_type]}}
            case "file" if is_document(part):
                yield {"type": "file", "file": {"filename": part.name or "file.pdf", "file_data": _data_url(part)}}
            case _:
                yield {"type": "text", "text": in_words(part)}


def _data_url(part: Part) -> str:
    return f"data:{part.media_type};base64,{part.data}"
