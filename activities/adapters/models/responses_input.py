"""Convert a conversation to the input of OpenAI's Responses API."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from loom.activities.adapters.models.media_parts import in_words, is_document, is_image
from loom.activities.adapters.models.wire import arguments_of, reasoning_of
from loom.activities.ports import ModelCall
from loom.domain.core.messages import Message, Part, ToolCall
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.core.tool_names import SEARCH_TOOLS
from loom.domain.tools.tool_search import loaded_by

Item: TypeAlias = dict[str, Any]

SEARCH_CALL: Final = "tool_search_call"
NOTE: Final = "responses:{}"
"""The name of a model in the note about its reasoning. Only this API understands the note."""


def input_items(call: ModelCall) -> list[Item]:
    """Return all messages in order. The system prompt is a field of its own."""
    deferred = {tool.name: tool for tool in call.deferred}
    return [item for message in call.messages for item in _items(message, call.model, deferred)]


def function_tool(tool: ToolSpec) -> Item:
    """Return the definition of a tool."""
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": False,  # with true, the API rejects schemas that have optional fields
    }


def search_tool(tool: ToolSpec) -> Item:
    """Return the definition of `search_tools` in the API's own form. Loom carries out the searches."""
    return {
        "type": "tool_search",
        "execution": "client",
        "description": tool.description,
        "parameters": tool.parameters,
    }


def _items(message: Message, model: str, deferred: Mapping[str, ToolSpec]) -> Iterator[Item]:
    match message.role:
        case "assistant":
            yield from reasoning_of(message, NOTE.format(model)) or ()
            if message.text:
                yield {"role": "assistant", "content": message.text}
            yield from (_call(call, deferred) for call in message.tool_calls)
        case "tool" if deferred and message.name == SEARCH_TOOLS:
            yield from _found(message, deferred)
        case "tool":
            output = _content(message.content)
            yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": output}
        case role:
            yield {"role": role, "content": _content(message.content)}


def _call(call: ToolCall, deferred: Mapping[str, ToolSpec]) -> Item:
    if deferred and call.name == SEARCH_TOOLS:
        return {**_searching(SEARCH_CALL, call.id), "arguments": arguments_of(call)}
    arguments = json.dumps(arguments_of(call), ensure_ascii=False)
    return {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments}


def _found(message: Message, deferred: Mapping[str, ToolSpec]) -> Iterator[Item]:
    """Yield the result of a search. It can only contain tools, so what to try instead follows in a message."""
    found = [deferred[name] for name in loaded_by(message) if name in deferred]
    tools = [{**function_tool(tool), "defer_loading": True} for tool in found]
    yield {**_searching("tool_search_output", message.tool_call_id), "tools": tools}
    if not found:
        yield {"role": "developer", "content": message.text}


def _searching(kind: str, call_id: str | None) -> Item:
    return {"type": kind, "call_id": call_id, "execution": "client", "status": "completed"}


def _content(content: str | Sequence[Part]) -> str | list[Item]:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Part) -> Item:
    if is_image(part):
        return {"type": "input_image", "image_url": part.url or _data_url(part), "detail": "auto"}
    if is_document(part):
        return {"type": "input_file", "filename": part.name or "file.pdf", "file_data": _data_url(part)}
    return {"type": "input_text", "text": in_words(part)}


def _data_url(part: Part) -> str:
    return f"data:{part.media_type};base64,{part.data}"
