"""Call OpenAI's Responses API, or a server that is compatible with it.

The conversation stays with Loom: the API stores nothing (`store: false`). The model's reasoning goes back to it in the
next calls, encrypted by OpenAI. See https://platform.openai.com/docs/guides/reasoning.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from loom.activities.adapters.models.error_responses import ended_early, unreachable
from loom.activities.adapters.models.event_stream import (
    DONE,
    Event,
    content_type_of,
    events_of,
    index_in,
    is_one_body,
    reading,
    text_in,
    whole_body,
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
from loom.activities.adapters.models.sent_errors import not_an_error
from loom.activities.adapters.models.stop_reasons import REFUSAL, check_stop_reason
from loom.activities.adapters.models.thinking import Said, ThinkTags
from loom.activities.adapters.models.wire import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    read_calls,
    reasoning_note,
    token_count,
    usage_in_errors,
)
from loom.activities.ports import ModelAnswer, ModelCall, OnDelta
from loom.domain.core.messages import Message, Usage
from loom.domain.core.tool_names import SEARCH_TOOLS
from loom.domain.core.whole_characters import CharacterPieces, whole_characters
from loom.domain.run.activity_payloads import StopReason

if TYPE_CHECKING:
    from openai import AsyncOpenAI, AsyncStream

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
        async with self._connection.calling(call.model) as client:
            stream = await self._open(client, call)
            response = stream.response
            async with stream:
                if is_one_body(response):
                    body = Event("response.completed", {"response": await whole_body(response)})
                    not_an_error(Event("message", body.value["response"]), response.headers, self._server, call.model)
                    heard.take(body).tell(call, on_delta)
                else:
                    async for event in events_of(response, lambda: bool(heard.status)):
                        not_an_error(event, response.headers, self._server, call.model)
                        heard.take(event).tell(call, on_delta)
            heard.flush().tell(call, on_delta)
            self._check_end(call, heard, content_type_of(response))
            return heard.answer(call)

    def _check_end(self, call: ModelCall, heard: "_PartialResponse", content_type: str) -> None:
        """Raise the error of a reply that isn't complete or that the model has refused."""
        if heard.error:
            not_an_error(Event("error", heard.error), {}, self._server, call.model)
        if not heard.status:
            raise ended_early(self._server, call.model, content_type, heard=heard.anything)
        check_stop_reason(REFUSAL if heard.refusal else heard.cut, heard.refusal, self._server, call.model)
        if heard.status not in ("completed", "incomplete"):
            raise unreachable(self._server, call.model, f"the server broke off the reply ({heard.status})")

    async def _open(self, client: "AsyncOpenAI", call: ModelCall) -> "AsyncStream[object]":
        from openai import APIStatusError  # noqa: PLC0415

        try:
            return await self._post(client, call)
        except APIStatusError as error:
            is_about_reasoning = error.status_code == 400 and "ncrypted" in error.message
            if not is_about_reasoning or call.model in self._without_reasoning:
                raise
            self._without_reasoning.add(call.model)
        return await self._post(client, call)

    async def _post(self, client: "AsyncOpenAI", call: ModelCall) -> "AsyncStream[object]":
        return await self._connection.post(client, "/responses", self._body(call), call)

    def _body(self, call: ModelCall) -> dict[str, Any]:
        options = call.options
        body: dict[str, Any] = {
            "model": call.model,
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
        return {"input": input_items(call), **encodable(merged(body, options.extra_body))}


@dataclass(kw_only=True, slots=True)
class _PartialResponse:
    """A response that is still being received."""

    anything: bool = False
    model: str = ""
    status: str = ""
    """Empty until the response has ended."""
    cut: str = ""
    """Why the response is incomplete."""
    error: Any = None
    refusal: str = ""
    text: ThinkTags = field(default_factory=ThinkTags)
    has_streamed: bool = False
    """Whether the server has streamed text, and not only sends it in the whole response."""
    thinking: list[str] = field(default_factory=list)
    thought: CharacterPieces = field(default_factory=CharacterPieces)
    """The thinking as it is streamed."""
    items: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    """The complete items of the output by their position."""
    begun: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    """The items that the server has begun. Some servers don't send the complete ones."""
    arguments: dict[int, list[str]] = field(default_factory=dict)
    """The pieces of the calls' arguments by the position of the call."""
    usage: Mapping[str, Any] = field(default_factory=dict)

    def take(self, event: Event) -> Said:
        """Add an event, and return the text that it contains."""
        if event.value == DONE:
            return Said()
        self.anything = True
        with reading():
            return self._take(text_in(event.value.get("type")) or event.name, event.value)

    def flush(self) -> Said:
        """Return the text that was held back until the end of the reply."""
        rest = self.thought.flush()
        said = self.text.flush()
        return Said(said.answer, rest + said.thinking, said.takes_back)

    def _take(self, kind: str, value: Mapping[str, Any]) -> Said:
        """Add an event. Those that Loom doesn't need are ignored."""
        position = index_in(value.get("output_index"))
        match kind:
            case "response.output_text.delta":
                said = text_in(value["delta"])
                self.has_streamed |= bool(said)
                return self.text.feed(said)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                thought = text_in(value["delta"])
                self.thinking.append(thought)
                return Said(thinking=self.thought.feed(thought))
            case "response.refusal.delta":
                self.refusal += text_in(value["delta"])
            case "response.output_item.added" if position is not None:
                self.begun[position] = _item(value["item"])
            case "response.function_call_arguments.delta" if position is not None:
                self.arguments.setdefault(position, []).append(text_in(value["delta"]))
            case "response.output_item.done":
                self.items[len(self.items) if position is None else position] = _item(value["item"])
            case "response.completed" | "response.incomplete" | "response.failed":
                return self._end(kind.removeprefix("response."), value.get("response") or {})
        return Said()

    def _end(self, status: str, response: Mapping[str, Any]) -> Said:
        """Add the whole response, and return text that has not been streamed."""
        self.model = str(response.get("model") or "")
        self.error = response.get("error")
        self.cut = text_in((response.get("incomplete_details") or {}).get("reason"))
        if isinstance(usage := response.get("usage"), Mapping):
            self.usage = usage
        for position, item in enumerate(response.get("output") or ()):
            self.items.setdefault(position, _item(item))
        for position, pieces in self.arguments.items():
            begun = self.begun.get(position)
            if begun is not None and begun["type"] == "function_call":
                self.items.setdefault(position, {**begun, "arguments": "".join(pieces)})
        parts = [part for item in self._of("message") for part in item.get("content") or () if part]
        refused = "".join(text_in(part["refusal"]) for part in parts if part["type"] == "refusal")
        self.refusal = self.refusal or refused
        # The response is over only now, because it could be read.
        self.status = text_in(response.get("status")) or status
        if self.has_streamed:
            return Said()
        return self.text.feed("".join(text_in(part["text"]) for part in parts if part["type"] == "output_text"))

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
        return "".join((*self.thinking, *self.text.thinking, *self.text.answer, *called))

    def answer(self, call: ModelCall) -> ModelAnswer:
        """Return the complete reply."""
        with reading():
            made = [
                (str(item.get("call_id") or ""), text_in(item.get("name")) or SEARCH_TOOLS, _arguments(item))
                for item in self._calls()
            ]
            calls = read_calls(made, call.messages)
            note = reasoning_note(NOTE.format(call.model), self._of("reasoning")) if calls else {}
        stop: StopReason = "length" if self.cut or self.status == "incomplete" else "tools" if calls else "end"
        message = Message(role="assistant", content="".join(self.text.answer), tool_calls=calls, metadata=note)
        return ModelAnswer(message=message, stop=stop, usage=self.counted, model=whole_characters(self.model))

    def _calls(self) -> list[Mapping[str, Any]]:
        return self._of("function_call", SEARCH_CALL)

    def _of(self, *kinds: str) -> list[Mapping[str, Any]]:
        return [item for _, item in sorted(self.items.items()) if item["type"] in kinds]


def _item(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an item that has a type. Raises a TypeError for other values."""
    if not isinstance(item, Mapping) or not isinstance(item.get("type"), str):
        raise TypeError
    return item


def _arguments(item: Mapping[str, Any]) -> str:
    """Return a call's arguments as text. Those of a search are an object."""
    given = item.get("arguments")
    if given is None:
        return ""
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
