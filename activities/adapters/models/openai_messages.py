"""Convert a conversation to the messages of OpenAI's Chat Completions API."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from loom.activities.adapters.models.media_parts import in_words, is_document, is_image
from loom.activities.adapters.models.wire import arguments_of, reasoning_of
from loom.activities.ports import ModelCall
from loom.domain.core.messages import Message, Part

Wire: TypeAlias = dict[str, Any]

THINK_TAGS: Final = "think"
"""The name under which thinking is noted that the server sent as a part of the text."""

_SOUNDS: Final = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
"""Maps the media types of accepted audio formats to the provider's names for them."""


def wire_messages(call: ModelCall) -> list[Wire]:
    """Return the system prompt and all messages in order."""
    wire: list[Wire] = [{"role": "system", "content": call.system}] if call.system else []
    shown: list[Message] = []
    for message in call.messages:
        if message.role != "tool":
            wire.extend(_pictures(shown))
            shown = []
        match message.role:
            case "assistant":
                wire.append(_assistant(message, call.model))
            case "tool":
                wire.append({"role": "tool", "tool_call_id": message.tool_call_id, "content": _result(message)})
                # A tool message can contain only text, so images follow the turn's last result.
                shown.append(message)
            case role:
                wire.append({"role": role, "content": _content(message.content)})
    wire.extend(_pictures(shown))
    return wire


def _assistant(message: Message, model: str) -> Wire:
    wire: Wire = {"role": "assistant", "content": message.text}
    if reasoning := reasoning_of(message, model):
        fields = reasoning if isinstance(reasoning, Mapping) else {"reasoning_content": reasoning}
        wire.update({name: text for name, text in fields.items() if name != THINK_TAGS})
        if thought := fields.get(THINK_TAGS):
            wire["content"] = f"<think>{thought}</think>\n\n{message.text}"
    if message.tool_calls:
        wire["content"] = wire["content"] or None
        wire["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(arguments_of(call), ensure_ascii=False)},
            }
            for call in message.tool_calls
        ]
    return wire


def _content(content: str | Sequence[Part]) -> str | list[Wire]:
    return content if isinstance(content, str) else list(_parts(content))


def _result(message: Message) -> str:
    """Return the text of a tool result, with descriptions of the parts that can't be sent as images."""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(in_words(part) for part in message.content if not _may_follow(part))


def _pictures(results: Sequence[Message]) -> Iterator[Wire]:
    """Yield one message with the images and documents from a turn's results. If they come from several results, the
    message names the call that returned them.
    """
    seen = [(result, [part for part in _all_parts(result) if _may_follow(part)]) for result in results]
    given = [(result, parts) for result, parts in seen if parts]
    content: list[Wire] = []
    for result, parts in given:
        if len(given) > 1:
            content.append({"type": "text", "text": f"(from {result.name or 'the tool'}, call {result.tool_call_id}:)"})
        content.extend(_parts(parts))
    if content:
        yield {"role": "user", "content": content}


def _all_parts(message: Message) -> Sequence[Part]:
    return () if isinstance(message.content, str) else message.content


def _may_follow(part: Part) -> bool:
    return is_image(part) or is_document(part)


def _parts(parts: Sequence[Part]) -> Iterator[Wire]:
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
