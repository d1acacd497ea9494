"""Convert a conversation to the input of OpenAI's Responses API."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from loom.activities.adapters.models.media_parts import in_words, is_document, is_image
from loom.activities.adapters.models.sendable import EMPTY, converted_once, encodable, said_parts, schema_of, sendable
from loom.activities.adapters.models.wire import arguments_of, reasoning_of
from loom.activities.ports import ModelCall
from loom.domain.core.messages import Message, Part, ToolCall
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.core.tool_names import SEARCH_TOOLS
from loom.domain.tools.tool_search import loaded_by
from loom.domain.tools.wire_names import wire_id, wire_name

Item: TypeAlias = dict[str, Any]

SEARCH_CALL: Final = "tool_search_call"
NOTE: Final = "responses:{}"
"""The name of a model in the note about its reasoning. Only this API understands the note."""


class _Form(NamedTuple):
    """What the form of a reply depends on, beside the reply itself."""

    note: str
    """The name of the model in the note about its reasoning."""
    searches: frozenset[str]
    """The ids of calls that search for tools in the API's own form."""


def input_items(call: ModelCall) -> list[Item]:
    """Return all messages in order. The system prompt is a field of its own."""
    deferred = {tool.name: tool for tool in call.deferred}
    messages = sendable(call.messages)
    made = (each for message in messages for each in message.tool_calls) if deferred else ()
    form = _Form(NOTE.format(call.model), frozenset(each.id for each in made if each.name == SEARCH_TOOLS))
    items: list[Item] = []
    for message in messages:
        if message.role == "assistant":
            items.extend(converted_once(message, form, _assistant))
        else:
            items.extend(_items(message, deferred, form.searches))
    return items


def function_tool(tool: ToolSpec) -> Item:
    """Return the definition of a tool."""
    return {
        "type": "function",
        "name": wire_name(tool.name),
        "description": tool.description,
        "parameters": schema_of(tool),
        "strict": False,  # with true, the API rejects schemas that have optional fields
    }


def search_tool(tool: ToolSpec) -> Item:
    """Return the definition of `search_tools` in the API's own form. Loom carries out the searches."""
    return {
        "type": "tool_search",
        "execution": "client",
        "description": tool.description,
        "parameters": schema_of(tool),
    }


def _assistant(message: Message, form: _Form) -> list[Item]:
    text = message.text
    items: list[Item] = [{"role": "assistant", "content": text}] if text.strip() else []
    items.extend(_call(call, form.searches) for call in message.tool_calls)
    # The API rejects reasoning that nothing follows.
    return [*(reasoning_of(message, form.note) or ()), *items] if items else []


def _items(message: Message, deferred: Mapping[str, ToolSpec], searches: Collection[str | None]) -> Iterator[Item]:
    match message.role:
        case "tool" if message.tool_call_id in searches:
            yield from _found(message, deferred)
        case "tool":
            call_id, output = wire_id(message.tool_call_id or ""), _content(message.content)
            yield {"type": "function_call_output", "call_id": call_id, "output": output}
        case role:
            yield {"role": role, "content": _content(message.content)}


def _call(call: ToolCall, searches: Collection[str | None]) -> Item:
    if call.id in searches:
        return {**_searching(SEARCH_CALL, call.id), "arguments": arguments_of(call)}
    arguments = json.dumps(arguments_of(call), ensure_ascii=False)
    named = {"call_id": wire_id(call.id), "name": wire_name(call.name)}
    return {"type": "function_call", **named, "arguments": arguments}


def _found(message: Message, deferred: Mapping[str, ToolSpec]) -> Iterator[Item]:
    """Yield the result of a search. It can only contain tools, so what to try instead follows in a message."""
    found = [deferred[name] for name in loaded_by(message) if name in deferred]
    tools = [{**encodable(function_tool(tool)), "defer_loading": True} for tool in found]
    yield {**_searching("tool_search_output", message.tool_call_id), "tools": tools}
    if not found:
        yield {"role": "developer", "content": message.text if message.text.strip() else EMPTY}


def _searching(kind: str, call_id: str | None) -> Item:
    return {"type": kind, "call_id": wire_id(call_id or ""), "execution": "client", "status": "completed"}


def _content(content: str | Sequence[Part]) -> str | list[Item]:
    if isinstance(content, str):
        return content if content.strip() else EMPTY
    return [_part(part) for part in said_parts(content)] or EMPTY


def _part(part: Part) -> Item:
    if is_image(part):
        return {"type": "input_image", "image_url": part.url or _data_url(part), "detail": "auto"}
    if is_document(part):
        return {"type": "input_file", "filename": part.name or "file.pdf", "file_data": _data_url(part)}
    return {"type": "input_text", "text": in_words(part)}


def _data_url(part: Part) -> str:
    return f"data:{part.media_type};base64,{part.data}"
