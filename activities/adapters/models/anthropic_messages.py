"""Convert a conversation to Anthropic messages. User and assistant messages alternate strictly. In a user message, tool
results come first. The conversion also sets cache breakpoints.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from loom.activities.adapters.models.media_parts import in_words, is_image
from loom.activities.adapters.models.provider_state import ProviderState
from loom.activities.adapters.models.sendable import EMPTY, converted_once, schema_of, sendable
from loom.activities.adapters.models.wire import arguments_of, reasoning_of
from loom.activities.ports import ModelCall
from loom.domain.core.media import PDF
from loom.domain.core.messages import JsonObject, Message, Part, ToolCall
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.tools.tool_search import loaded_by
from loom.domain.tools.wire_names import wire_id, wire_name

Wire: TypeAlias = dict[str, Any]

_CACHE: Final[Wire] = {"type": "ephemeral"}


def wire_system(system: str) -> list[Wire]:
    """Return the system prompt with a cache breakpoint."""
    return [{"type": "text", "text": system, "cache_control": _CACHE}] if system.strip() else []


def wire_tools(tools: Sequence[ToolSpec], deferred: Sequence[ToolSpec] = ()) -> list[Wire]:
    """Return the tools with a cache breakpoint after the last one. The API shows deferred tools to the model only where
    a result refers to them, so they aren't part of the cached prompt.
    """
    wire = list(map(_tool, tools))
    if wire:
        wire[-1]["cache_control"] = _CACHE
    return [*wire, *({**_tool(tool), "defer_loading": True} for tool in deferred)]


def _tool(tool: ToolSpec) -> Wire:
    return {"name": wire_name(tool.name), "description": tool.description, "input_schema": schema_of(tool)}


class _Form(NamedTuple):
    """What the form of a reply depends on, beside the reply itself."""

    model: str
    host: str


def wire_messages(call: ModelCall, host: str = "") -> list[Wire]:
    """Return the messages, starting with a user message. Adjacent messages of the same role are merged. All content is
    cached except for messages that are marked as late. `host` gets back the fields that it put beside its calls.
    """
    wire: list[Wire] = []
    add = partial(_add, wire, form=_Form(call.model, host), deferred={tool.name for tool in call.deferred})
    late: list[Message] = []
    for message in sendable(call.messages):
        if message.metadata.get("late"):
            late.append(message)
        else:
            add(message)
    if not wire or wire[0]["role"] == "assistant":
        wire.insert(0, {"role": "user", "content": [_text("(earlier messages were left out)")]})
    _mark_for_cache(wire)
    # Content that changes with every call comes after the breakpoints. If it were part of the cached prefix, the prefix
    # would never match again.
    for message in late:
        add(message)
    return wire


def _add(wire: list[Wire], message: Message, *, form: _Form, deferred: Collection[str]) -> None:
    role = "assistant" if message.role == "assistant" else "user"
    # Only results depend on the deferred tools.
    may_refer = deferred and message.role == "tool"
    blocks = _user(message, deferred) if may_refer else converted_once(message, form, _converted)
    if not blocks:
        return
    if wire and wire[-1]["role"] == role:
        wire[-1]["content"] = _results_first(wire[-1]["content"] + blocks)
    else:
        wire.append({"role": role, "content": blocks})


def _mark_for_cache(wire: Sequence[Wire]) -> None:
    # Set breakpoints at the last message and at the end of the previous call, because a turn with many calls is longer
    # than the provider's lookback. Together with the system prompt and the tools, a request then has four breakpoints,
    # which is the maximum.
    for message in [message for message in wire if message["role"] == "user"][-2:]:
        *before, last = message["content"]
        message["content"] = [*before, {**last, "cache_control": _CACHE}]


def _results_first(blocks: list[Wire]) -> list[Wire]:
    # Results must directly follow their calls, even if a person sent a message in between.
    return sorted(blocks, key=lambda block: block["type"] != "tool_result")


def _converted(message: Message, form: _Form) -> list[Wire]:
    return _assistant(message, form) if message.role == "assistant" else _user(message, ())


def _assistant(message: Message, form: _Form) -> list[Wire]:
    text = message.text.rstrip()
    if not text and not message.tool_calls:
        return []
    blocks: list[Wire] = list(reasoning_of(message, form.model) or ())
    if text:
        blocks.append(_text(text))
    if message.tool_calls:
        state = ProviderState.of(message, form.host)
        blocks.extend(_tool_use(call, state.fields_of_call(place)) for place, call in enumerate(message.tool_calls))
    return blocks


def _tool_use(call: ToolCall, extra_fields: JsonObject) -> Wire:
    return {
        **extra_fields,
        "type": "tool_use",
        "id": wire_id(call.id),
        "name": wire_name(call.name),
        "input": arguments_of(call),
    }


def _user(message: Message, deferred: Collection[str]) -> list[Wire]:
    if message.role != "tool":
        return list(_blocks(message.content)) or [_text(EMPTY)]
    content: str | list[Wire]
    if isinstance(message.content, str) or message.is_error:  # the result of a call that failed must be a text
        text = message.text
        content = text if text.strip() else EMPTY
    else:
        content = list(_blocks(message.content)) or EMPTY
    if deferred and (found := [name for name in loaded_by(message) if name in deferred]):
        content = [{"type": "tool_reference", "tool_name": wire_name(name)} for name in found]
    block: Wire = {"type": "tool_result", "tool_use_id": wire_id(message.tool_call_id or ""), "content": content}
    if message.is_error:
        block["is_error"] = True
    return [block]


def _blocks(content: str | Sequence[Part]) -> Iterator[Wire]:
    if isinstance(content, str):
        if content.strip():
            yield _text(content)
        return
    for part in content:
        if is_image(part):
            yield {"type": "image", "source": _source(part)}
        elif part.type == "file" and part.media_type == PDF and (part.data or part.url):
            yield {"type": "document", "source": _source(part)}
        elif text := in_words(part).strip():
            yield _text(text if part.type != "text" else part.text)


def _source(part: Part) -> Wire:
    if part.url:
        return {"type": "url", "url": part.url}
    return {"type": "base64", "media_type": part.media_type, "data": part.data}


def _text(text: str) -> Wire:
    return {"type": "text", "text": text}
