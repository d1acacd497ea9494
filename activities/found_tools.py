"""Calls of found tools, for providers that can only call the tools that a request lists.

Such a provider gets one more tool, `call_tool`, whose arguments are a tool's name and that tool's arguments. The list
of tools therefore stays the same when the model finds more tools, and with it the beginning of each prompt, which
providers cache. Everywhere else in Loom, a call of a found tool is a call like any other.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from loom.activities.ports import LLMProvider, ModelAnswer, ModelCall, OnDelta
from loom.domain.core.errors import LLMConfigurationError
from loom.domain.core.json_text import NotJson, read_arguments
from loom.domain.core.messages import Message, ToolCall
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.core.tool_names import CALL_TOOL
from loom.domain.core.whole_characters import with_whole_characters
from loom.domain.tools.meant_names import with_meant_names
from loom.domain.tools.tool_search import CALL_TOOL_SPEC

_OWN_FORM: Final = re.compile(r"tool_search|tool search|defer_loading|tool_reference", re.IGNORECASE)
"""What a server names when it rejects its own form for tools on demand, because the model doesn't support it."""


@dataclass(frozen=True, slots=True)
class WithFoundTools:
    """A provider whose models can call the tools that they have found."""

    provider: LLMProvider
    rejecting: set[str] = field(default_factory=set)
    """The models that reject the provider's own form."""

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """Call the model, and return its reply with the calls that it means."""
        if not call.deferred:
            return await self.provider.answer(call, on_delta)
        if self._has_own_form(call):
            try:
                return await self.provider.answer(call, on_delta)
            except LLMConfigurationError as error:
                if not _OWN_FORM.search(error.message):
                    raise
            self.rejecting.add(call.model)
        return direct(await self.provider.answer(through_call_tool(call), on_delta), call.tools)

    def _has_own_form(self, call: ModelCall) -> bool:
        is_native = bool(getattr(self.provider, "loads_tools", False))
        return is_native and call.may_call and call.model not in self.rejecting


def through_call_tool(call: ModelCall) -> ModelCall:
    """Return the same request, in which calls of tools on demand go through `call_tool`."""
    shown = {tool.name for tool in call.tools}
    about = CALL_TOOL_SPEC if call.may_call else replace(CALL_TOOL_SPEC, description="", parameters={"type": "object"})
    messages = call.messages
    if call.called is None or not call.called <= shown:  # a long conversation has thousands of messages
        messages = tuple(_wrapped(message, shown) for message in messages)
    return replace(call, tools=(*call.tools, about), deferred=(), messages=messages)


def direct(answer: ModelAnswer, shown: Sequence[ToolSpec]) -> ModelAnswer:
    """Return the same reply, in which calls of `call_tool` are calls of the tools that they name."""
    message = with_meant_names(answer.message, (*shown, CALL_TOOL_SPEC))
    calls = tuple(map(_meant, message.tool_calls))
    return replace(answer, message=replace(message, tool_calls=calls))


def _wrapped(message: Message, shown: Collection[str]) -> Message:
    if all(call.name in shown for call in message.tool_calls):
        return message
    calls = (call if call.name in shown else _wrap(call) for call in message.tool_calls)
    return replace(message, tool_calls=tuple(calls))


def _wrap(call: ToolCall) -> ToolCall:
    if call.name == CALL_TOOL:
        return call
    arguments = call.arguments if call.malformed is None else call.malformed
    return replace(call, name=CALL_TOOL, arguments={"name": call.name, "arguments": arguments}, malformed=None)


def _meant(call: ToolCall) -> ToolCall:
    """Return the call that a call of `call_tool` means. Models sometimes encode the inner arguments once more, or write
    them beside the name.
    """
    name = call.arguments.get("name")
    if call.name != CALL_TOOL or call.malformed is not None or not isinstance(name, str) or not name:
        return call
    beside = {key: value for key, value in call.arguments.items() if key not in ("name", "arguments")}
    match call.arguments.get("arguments"):
        case dict() as inner:
            return replace(call, name=name, arguments=inner)
        case str() as text:
            return _decoded(replace(call, name=name, arguments={}), text)
        case None:
            return replace(call, name=name, arguments=beside)
        case other:
            return replace(call, name=name, arguments={}, malformed=json.dumps(other, ensure_ascii=False))


def _decoded(call: ToolCall, text: str) -> ToolCall:
    try:
        return replace(call, arguments=with_whole_characters(read_arguments(text)))
    except NotJson:
        return replace(call, malformed=text)
