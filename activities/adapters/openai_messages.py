"""A conversation in the words of OpenAI's chat completions."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from activities.adapters.provider_wire import arguments_of, reasoning_of
from activities.ports import ModelCall
from loom_domain.messages import Message, Part

Wire: TypeAlias = dict[str, Any]


def wire_messages(call: ModelCall) -> list[Wire]:
    """The system prompt and every message, in order."""
    wire: list[Wire] = [{"role": "system", "content": call.system}] if call.system else []
    pictures: list[Wire] = []
    for message in call.messages:
        if message.role != "tool" and pictures:
            wire.append({"role": "user", "content": pictures})
            pictures = []
        match message.role:
            case "assistant":
                wire.append(_assistant(message, call.model))
            case "tool":
                wire.append({"role": "tool", "tool_call_id": message.tool_call_id, "content": message.text})
                # A tool message is text only; what else the tool gave follows after the last result of the turn.
                pictures.extend(_parts([part for part in _all_parts(message) if part.type != "text"]))
            case role:
                wire.append({"role": role, "content": _content(message.content)})
    if pictures:
        wire.append({"role": "user", "content": pictures})
    return wire


def _assistant(message: Message, model: str) -> Wire:
    wire: Wire = {"role": "assistant", "content": message.text}
    if reasoning := reasoning_of(message, model):
        wire["reasoning_content"] = reasoning
    if message.tool_calls:
        wire["content"] = message.text or None
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


def _all_parts(message: Message) -> Sequence[Part]:
    return () if isinstance(message.content, str) else message.content


def _parts(parts: Sequence[Part]) -> Iterator[Wire]:
    for part in parts:
        match part.type:
            case "text":
                yield {"type": "text", "text": part.text}
            case "image":
                yield {"type": "image_url", "image_url": {"url": part.url or _data_url(part)}}
            case "audio" if part.data:
                kind = part.media_type.rpartition("/")[2]
                yield {"type": "input_audio", "input_audio": {"data": part.data, "format": kind}}
            case "file" if part.data:
                yield {"type": "file", "file": {"filename": part.name or "file", "file_data": _data_url(part)}}
            case _:
                yield {"type": "text", "text": f"({part.type}: {part.name} {part.url})"}


def _data_url(part: Part) -> str:
    return f"data:{part.media_type};base64,{part.data}"
