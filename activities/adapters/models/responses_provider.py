"""Call OpenAI's Responses API, or a server that is compatible with it.

The conversation stays with Loom: the API stores nothing (`store: false`). The model's reasoning goes back to it in the
next calls, encrypted by OpenAI. See https://platform.openai.com/docs/guides/reasoning.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from loom.activities.adapters.models.error_responses import (
    ended_early,
    error_of,
    error_response_of,
    quote,
    unreachable,
)
from loom.activities.adapters.models.model_options import RESPONSES, merged, refuse_unsupported
from loom.activities.adapters.models.openai_connection import OpenAIConnection
from loom.activities.adapters.models.responses_input import (
    NOTE,
    SEARCH_CALL,
    function_tool,
    input_items,
    search_tool,
)
from loom.activities.adapters.models.sendable import encodable
from loom.activities.adapters.models.thinking import Said
from loom.activities.adapters.models.wire import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    distinct_ids,
    is_one_body,
    read_call,
    reasoning_note,
    token_count,
    usage_in_errors,
    whole_body,
)
from loom.activities.ports import ModelAnswer, ModelCall, OnDelta
from loom.domain.core.errors import LLMRefusedError
from loom.domain.core.messages import Message, Usage
from loom.domain.core.tool_names import SEARCH_TOOLS
from loom.domain.run.activity_payloads import StopReason

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from loom.activities.adapters.models.openai_stream import ReplyStream

_ENCRYPTED: Final = "reasoning.encrypted_content"
_LEAST_OUTPUT: Final = 16
"""The smallest `max_output_tokens` that the API accepts."""


class ResponsesProvider:
    """A provider for one account or server. It reuses its connections."""

    supported_options = RESPONSES

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str | None = None,
        read_timeout: float = READ_TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
        loads_tools: bool | None = None,
    ) -> None:
        """`loads_tools` says whether the server has the API's form for tools on demand. By default, only OpenAI's own
        server has it.
        """
        self._connection = OpenAIConnection(api_key, base_url, (connect_timeout, read_timeout))
        self._server = self._connection.server
        self.loads_tools = self._connection.is_official if loads_tools is None else loads_tools
        self._without_reasoning: set[str] = set()
        """The models that reject a request for encrypted reasoning."""

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """Call the model, stream its text to `on_delta`, and return the whole reply."""
        refuse_unsupported(call, RESPONSES)
        heard = _PartialResponse()
        with usage_in_errors(call, heard):
            return await self._heard(call, on_delta, heard)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connection.aclose()

    async def _heard(self, call: ModelCall, on_delta: OnDelta, heard: "_PartialResponse") -> ModelAnswer:
        async with self._connection.calling(call.model, _NotAnEvent) as client:
            stream = await self._open(client, call)
            async with stream:
                content_type = stream.response.headers.get("content-type", "")
                if is_one_body(content_type):
                    body = self._connection.not_an_error(await whole_body(stream.response), call.model)
                    heard.take({"type": "response.completed", "response": body}).tell(call, on_delta)
                else:
                    async for event in stream:
                        heard.take(event).tell(call, on_delta)
        if heard.error is not None:
            raise error_of(error_response_of(heard.error, 200, {}, "no reason given"), self._server, call.model)
        if not heard.status:
            raise ended_early(self._server, call.model, content_type, heard=heard.anything)
        return self._answer(call, heard)

    def _answer(self, call: ModelCall, heard: "_PartialResponse") -> ModelAnswer:
        if heard.refusal or heard.cut == "content_filter":
            said = quote(heard.refusal, self._server) or "its content filter stopped the answer"
            raise LLMRefusedError(f"{call.model} declined to answer: {said}", model=call.model)
        if heard.status not in ("completed", "incomplete"):
            raise unreachable(self._server, call.model, f"the server broke off the reply ({heard.status})")
        return heard.answer(call)

    async def _open(self, client: "AsyncOpenAI", call: ModelCall) -> "ReplyStream":
        from openai import APIStatusError  # noqa: PLC0415

        try:
            return await self._post(client, call)
        except APIStatusError as error:
            is_about_reasoning = error.status_code == 400 and "ncrypted" in error.message
            if not is_about_reasoning or call.model in self._without_reasoning:
                raise
            self._without_reasoning.add(call.model)
        return await self._post(client, call)

    async def _post(self, client: "AsyncOpenAI", call: ModelCall) -> "ReplyStream":
        return await self._connection.post(client, "/responses", self._body(call), call)

    def _body(self, call: ModelCall) -> dict[str, Any]:
        options = call.options
        body: dict[str, Any] = {
            "model": call.model,
            "input": input_items(call),
            "stream": True,
            "store": False,
            "max_output_tokens": max(_LEAST_OUTPUT, call.max_output_tokens),
        }
        if call.system.strip():
            body["instructions"] = call.system
        if call.model not in self._without_reasoning:
            body["include"] = [_ENCRYPTED]
        if options.reasoning_effort is not None:
            body["reasoning"] = {"effort": options.reasoning_effort}
        if options.top_p is not None:
            body["top_p"] = options.top_p
        if call.temperature is not None:
            body["temperature"] = call.temperature
        if call.tools and call.may_call:
            body["tools"] = [
                search_tool(tool) if call.deferred and tool.name == SEARCH_TOOLS else function_tool(tool)
                for tool in call.tools
            ]
            if options.parallel_tool_calls is not None:
                body["parallel_tool_calls"] = options.parallel_tool_calls
        sent: dict[str, Any] = encodable(merged(body, options.extra_body))
        return sent


class _NotAnEvent(Exception):
    """Raised when a part of the stream isn't a valid event of a response."""


@dataclass(kw_only=True, slots=True)
class _PartialResponse:
    """A response that is still being received."""

    anything: bool = False
    model: str = ""
    status: str = ""
    """Empty until the response has ended."""
    cut: str = ""
    """Why the response is incomplete."""
    error: Mapping[str, Any] | None = None
    refusal: str = ""
    text: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    items: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    """The complete items of the output by their position."""
    usage: Mapping[str, Any] = field(default_factory=dict)

    def take(self, event: Any) -> Said:
        """Add an event, and return the text that it contains."""
        self.anything = True
        try:
            return self._take(event)
        except (AttributeError, KeyError, TypeError) as error:
            raise _NotAnEvent from error

    def _take(self, event: Mapping[str, Any]) -> Said:
        """Add an event. Those that Loom doesn't need are ignored."""
        match event["type"]:
            case "response.output_text.delta":
                self.text.append(event["delta"] + "")
                return Said(answer=event["delta"])
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self.thinking.append(event["delta"] + "")
                return Said(thinking=event["delta"])
            case "response.refusal.delta":
                self.refusal += event["delta"]
            case "response.output_item.done":
                self.items[event["output_index"]] = event["item"]
            case "response.completed" | "response.incomplete" | "response.failed":
                return self._end(event["response"])
            case "error":
                self.error = event
        return Said()

    def _end(self, response: Mapping[str, Any]) -> Said:
        """Add the whole response, and return text that has not been streamed."""
        self.model = response.get("model") or self.model
        self.status = response.get("status") or "completed"
        self.error = response.get("error")
        self.cut = (response.get("incomplete_details") or {}).get("reason") or ""
        self.usage = response.get("usage") or {}
        for position, item in enumerate(response.get("output") or ()):
            self.items.setdefault(position, item)
        parts = [part for item in self._of("message") for part in item["content"]]
        self.refusal = self.refusal or "".join(part["refusal"] for part in parts if part["type"] == "refusal")
        if self.text:
            return Said()
        self.text += [part["text"] for part in parts if part["type"] == "output_text"]
        return Said(answer="".join(self.text))

    @property
    def counted(self) -> Usage:
        """The provider's last count."""
        return Usage(
            input_tokens=token_count(self.usage, "input_tokens"),
            output_tokens=token_count(self.usage, "output_tokens"),
            cached_tokens=token_count(self.usage.get("input_tokens_details"), "cached_tokens"),
            model_calls=1,
        )

    @property
    def said(self) -> str:
        """All that the model has written so far."""
        called = map(_arguments, self._calls())
        return "".join((*self.thinking, *self.text, *called))

    def answer(self, call: ModelCall) -> ModelAnswer:
        """Return the complete reply."""
        made = self._calls()
        ids = distinct_ids([item.get("call_id") or "" for item in made], call.messages) if made else []
        calls = tuple(
            read_call(call_id, item.get("name") or SEARCH_TOOLS, _arguments(item))
            for call_id, item in zip(ids, made, strict=True)
        )
        stop: StopReason = "length" if self.cut else "tools" if calls else "end"
        note = reasoning_note(NOTE.format(call.model), self._of("reasoning")) if calls else {}
        message = Message(role="assistant", content="".join(self.text), tool_calls=calls, metadata=note)
        return ModelAnswer(message=message, stop=stop, usage=self.counted, model=self.model)

    def _calls(self) -> list[Mapping[str, Any]]:
        return self._of("function_call", SEARCH_CALL)

    def _of(self, *kinds: str) -> list[Mapping[str, Any]]:
        return [item for _, item in sorted(self.items.items()) if item["type"] in kinds]


def _arguments(item: Mapping[str, Any]) -> str:
    """Return a call's arguments as text. Those of a search are an object."""
    given = item["arguments"]
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
