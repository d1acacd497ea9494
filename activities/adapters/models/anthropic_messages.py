"""Convert a conversation to Anthropic messages. User and assistant messages alternate strictly. In a user message, tool
results come first. The conversion also sets cache breakpoints.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, TypeAlias

from loom.activities.adapters.models.media_parts import in_words, is_image
from loom.activities.adapters.models.wire import arguments_of, reasoning_of
from loom.activities.ports import ModelCall
from loom.domain.core.media import PDF
from loom.domain.core.messages import Message, Part
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.tools.tool_search import loaded_by

Wire: TypeAlias = dict[str, Any]

_CACHE: Final[Wire] = {"type": "ephemeral"}
_NOT_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


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
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def wire_messages(call: ModelCall) -> list[Wire]:
    """Return the messages, starting with a user message. Adjacent messages of the same role are merged. All content is
    cached except for messages that are marked as late.
    """
    wire: list[Wire] = []
    deferred = {tool.name for tool in call.deferred}
    for message in call.messages:
        if not _is_late(message):
            _add(wire, message, call.model, deferred)
    if not wire or wire[0]["role"] == "assistant":
        wire.insert(0, {"role": "user", "content": [_text("(earlier messages were left out)")]})
    _mark_for_cache(wire)
    # Content that changes with every call comes after the breakpoints. If it were part of the cached prefix, the prefix
    # would never match again.
    for message in filter(_is_late, call.messages):
        _add(wire, message, call.model, deferred)
    return wire


def _add(wire: list[Wire], message: Message, model: str, deferred: Collection[str]) -> None:
    role = "assistant" if message.role == "assistant" else "user"
    blocks = _assistant(message, model) if role == "assistant" else _user(message, deferred)
    if not blocks:
        return
    if wire and wire[-1]["role"] == role:
        wire[-1]["content"] = _results_first(wire[-1]["content"] + blocks)
    else:
        wire.append({"role": role, "content": blocks})


def _is_late(message: Message) -> bool:
    return bool(message.metadata.get("late"))


def _mark_for_cache(wire: Sequence[Wire]) -> None:
    # Set breakpoints at the last message and at the end of the previous call, because a turn with many calls is longer
    # than the provider's lookback. Together with the system prompt and the tools, a request then has four breakpoints,
    # which is the maximum.
    for message in [message for message in wire if message["role"] == "user"][-2:]:
        message["content"][-1]["cache_control"] = _CACHE


def _results_first(blocks: list[Wire]) -> list[Wire]:
    # Results must directly follow their calls, even if a person sent a message in between.
    return sorted(blocks, key=lambda block: block["type"] != "tool_result")


def _assistant(message: Message, model: str) -> list[Wire]:
    blocks: list[Wire] = list(reasoning_of(message, model) or ())
    if text := message.text.rstrip():
        blocks.append(_text(text))
    blocks.extend(
        {"type": "tool_use", "id": _safe_id(call.id), "name": call.name, "input": arguments_of(call)}
        for call in message.tool_calls
    )
    return blocks


def _user(message: Message, deferred: Collection[str]) -> list[Wire]:
    if message.role != "tool":
        return list(_blocks(message.content)) or [_text("(empty)")]
    # If a call failed, the provider accepts only text as its result.
    is_text = isinstance(message.content, str) or message.is_error
    content = message.text if is_text else list(_blocks(message.content))
    if deferred and (found := [name for name in loaded_by(message) if name in deferred]):
        content = [{"type": "tool_reference", "tool_name": name} for name in found]
    block: Wire = {"type": "tool_result", "tool_use_id": _safe_id(message.tool_call_id or ""), "content": content}
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


def _safe_id(call_id: str) -> str:
    # Ids from another provider may contain characters that this provider rejects.
    return _NOT_IN_ID.sub("_", call_id) or "call"
