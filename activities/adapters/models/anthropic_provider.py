"""Call Anthropic's Messages API or a compatible server."""

import asyncio
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from loom.activities.adapters.models.anthropic_messages import wire_messages, wire_system, wire_tools
from loom.activities.adapters.models.error_responses import (
    Server,
    ended_early,
    error_of,
    error_response_of,
    quote,
    unreachable,
    unreadable,
)
from loom.activities.adapters.models.model_options import MESSAGES, merged, message_fields, refuse_unsupported
from loom.activities.adapters.models.provider_state import OF_TOOL_USE, ProviderState, host_of, unknown_fields
from loom.activities.adapters.models.sendable import encodable
from loom.activities.adapters.models.thinking import Said, ThinkTags
from loom.activities.adapters.models.wire import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    cause_of,
    distinct_ids,
    is_one_body,
    read_call,
    reasoning_note,
    shown,
    token_count,
    usage_in_errors,
    whole_body,
)
from loom.activities.ports import ModelAnswer, ModelCall, OnDelta
from loom.domain.core.errors import LLMRefusedError, LoomError
from loom.domain.core.messages import Message, Usage
from loom.domain.run.activity_payloads import StopReason

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream
    from anthropic._types import RequestOptions

OFFICIAL_URL: Final = "https://api.anthropic.com"

_WITH_TEMPERATURE: Final = {"anthropic-version": "2023-06-01"}
"""Headers that select an older API version for requests with a temperature or `top_p`. The SDK's default API version
accepts neither, not even the default ones.
"""

_PAUSED: Final = "pause_turn"
"""The stop reason of a long turn that the server has paused. It goes on if the reply so far is sent back unchanged."""
MOST_PAUSES: Final = 10

_CUT: Final = ("max_tokens", "model_context_window_exceeded")


class AnthropicProvider:
    """A provider for one account or server. It reuses its connections."""

    supported_options = MESSAGES

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str | None = None,
        read_timeout: float = READ_TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
        loads_tools: bool | None = None,
    ) -> None:
        """`loads_tools` says whether the server has the API's form for tools on demand. By default, only Anthropic's
        own server has it.
        """
        self._url = (base_url or OFFICIAL_URL).rstrip("/")
        self._server = Server(
            name="Anthropic" if self._url == OFFICIAL_URL else "the Anthropic-compatible server",
            key_name="ANTHROPIC_API_KEY",
            url_name="ANTHROPIC_BASE_URL",
            url=shown(self._url),
            secret=api_key,
        )
        self.loads_tools = self._url == OFFICIAL_URL if loads_tools is None else loads_tools
        # Anthropic's own server defines all its fields, and rejects others.
        self._host = "" if self._url == OFFICIAL_URL else host_of(self._url)
        self._timeouts = (connect_timeout, read_timeout)
        self._client: AsyncAnthropic | None = None

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """Call the model, stream its text to `on_delta`, and return the whole reply."""
        refuse_unsupported(call, MESSAGES)
        heard = _PartialReply(host=self._host)
        with usage_in_errors(call, heard):
            return await self._heard(call, on_delta, heard)

    async def _heard(self, call: ModelCall, on_delta: OnDelta, heard: "_PartialReply") -> ModelAnswer:
        client = await self._connected()
        import anthropic  # noqa: PLC0415  # importing the SDK takes a second
        import httpx2  # noqa: PLC0415

        try:
            content_type = await self._part(client, call, on_delta, heard)
            while heard.goes_on():
                content_type = await self._part(client, call, on_delta, heard)
            heard.flush().tell(call, on_delta)
        # The SDK doesn't wrap connection errors after a stream has been opened.
        except (
            anthropic.AnthropicError,
            httpx2.RequestError,
            json.JSONDecodeError,
            UnicodeDecodeError,
            _NotAnEvent,
        ) as error:
            raise self._translated(error, call.model) from None
        if heard.stop == "refusal":
            said = quote(heard.refusal, self._server) or "no reason given"
            raise LLMRefusedError(f"{call.model} declined to answer: {said}", model=call.model)
        if not heard.complete:
            raise ended_early(self._server, call.model, content_type, heard=heard.anything)
        if heard.is_paused:
            raise unreadable(self._server, call.model, f"it paused its turn {heard.pauses} times")
        return heard.answer(call)

    async def _part(self, client: "AsyncAnthropic", call: ModelCall, on_delta: OnDelta, heard: "_PartialReply") -> str:
        """Receive a reply up to its end, or up to a pause after which it goes on. Return the content type."""
        stream = await self._open(client, call, heard.content)
        async with stream:
            content_type: str = stream.response.headers.get("content-type", "")
            if not is_one_body(content_type):
                async for event in stream:
                    heard.take(event).tell(call, on_delta)
                return content_type
            body = await whole_body(stream.response)
            if isinstance(body, Mapping) and body.get("error"):
                raise error_of(error_response_of(body, 200, {}, "no reason given"), self._server, call.model)
            for event in _events_of(body):
                heard.take(event).tell(call, on_delta)
            return content_type

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _connected(self) -> "AsyncAnthropic":
        if self._client is None:
            # Import the SDK in a thread, so that other activities can continue to heartbeat.
            await asyncio.to_thread(importlib.import_module, "anthropic")
        if self._client is None:
            from anthropic import AsyncAnthropic, Timeout  # noqa: PLC0415

            connect, read = self._timeouts
            timeout = Timeout(read, connect=connect)
            self._client = AsyncAnthropic(
                api_key=self._server.secret, base_url=self._url, timeout=timeout, max_retries=0
            )
        return self._client

    async def _open(
        self, client: "AsyncAnthropic", call: ModelCall, begun: Sequence[Mapping[str, Any]]
    ) -> "AsyncStream[object]":
        from anthropic import AsyncStream  # noqa: PLC0415

        # `messages.create` would build a pydantic model for each event, but plain objects are enough.
        return await client.post(
            "/v1/messages",
            body=_body(call, begun, self._host),
            cast_to=object,
            options={"headers": _headers(call), **self._limit(call)},
            stream=True,
            stream_cls=AsyncStream[object],
        )

    def _limit(self, call: ModelCall) -> "RequestOptions":
        """Return the agent's own timeout, if it has one."""
        from anthropic import Timeout  # noqa: PLC0415

        connect, _ = self._timeouts
        return {} if call.timeout is None else {"timeout": Timeout(call.timeout, connect=connect)}

    def _translated(self, error: Exception, model: str) -> LoomError:
        """Translate an SDK error into a Loom error. Only this method translates SDK errors."""
        import anthropic  # noqa: PLC0415
        import httpx2  # noqa: PLC0415

        match error:
            case anthropic.APIStatusError():
                error_response = error_response_of(error.body, error.status_code, error.response.headers, error.message)
                return error_of(error_response, self._server, model)
            case anthropic.APITimeoutError() | httpx2.TimeoutException():
                return unreachable(self._server, model, "no data within the time limit")
            case anthropic.APIConnectionError() | httpx2.RequestError():
                return unreachable(self._server, model, f"no connection, or it was lost ({cause_of(error)})")
            case anthropic.APIResponseValidationError():
                return unreadable(self._server, model, "unexpected shape")
            case anthropic.AnthropicError():
                return unreachable(self._server, model, type(error).__name__)
            case _:
                return unreadable(self._server, model, type(error).__name__)


def _body(call: ModelCall, begun: Sequence[Mapping[str, Any]] = (), host: str = "") -> dict[str, Any]:
    """Return the body of a request. `begun` contains the blocks of a reply that has paused and now goes on. `host` gets
    back the fields that it put beside its calls.
    """
    body: dict[str, Any] = {
        "model": call.model,
        "max_tokens": call.max_output_tokens,
        "messages": [*wire_messages(call, host), *([{"role": "assistant", "content": begun}] if begun else ())],
        "stream": True,
        **message_fields(call),
    }
    if system := wire_system(call.system):
        body["system"] = system
    if call.tools:
        body["tools"] = wire_tools(call.tools, call.deferred)
        if not call.may_call:  # the API requires this if the conversation contains tool calls
            body["tool_choice"] = {"type": "none"}
    if call.temperature is not None:
        body["temperature"] = call.temperature
    sent: dict[str, Any] = encodable(merged(body, call.options.extra_body))
    return sent


def _headers(call: ModelCall) -> Mapping[str, str]:
    samples = call.temperature is not None or call.options.top_p is not None
    return {**(_WITH_TEMPERATURE if samples else {}), **call.options.extra_headers}


class _NotAnEvent(Exception):
    """Raised when a chunk of the stream isn't a valid message event."""


def _events_of(body: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the events of a reply that the server sent as one body. A body that isn't a reply has none."""
    if not isinstance(body, Mapping) or not isinstance(body.get("content"), list):
        return
    yield {"type": "message_start", "message": body}
    for index, block in enumerate(body["content"]):
        yield {"type": "content_block_start", "index": index, "content_block": block}
    yield {"type": "message_delta", "delta": body}
    yield {"type": "message_stop"}


@dataclass(kw_only=True, slots=True)
class _PartialBlock:
    start: Mapping[str, Any]
    pieces: list[str] = field(default_factory=list)
    signature: str = ""
    citations: list[Any] = field(default_factory=list)

    @property
    def type(self) -> str:
        """The type of the block."""
        name: str = self.start["type"]
        return name

    def arguments(self) -> str:
        given = self.start.get("input")
        return "".join(self.pieces) or (json.dumps(given) if given else "")

    def reasoning(self) -> Mapping[str, Any]:
        if self.type == "redacted_thinking":
            return self.start
        return {"type": "thinking", "thinking": "".join(self.pieces), "signature": self.signature}

    def content(self) -> Mapping[str, Any]:
        """Return the block as it must be sent back."""
        match self.type:
            case "text":
                cited = {"citations": self.citations} if self.citations else {}
                return {"type": "text", "text": "".join(self.pieces), **cited}
            case "thinking" | "redacted_thinking":
                return self.reasoning()
            case "server_tool_use" | "tool_use":
                return {**self.start, "input": json.loads(self.arguments() or "{}")}
            case _:
                return self.start


@dataclass(kw_only=True, slots=True)
class _PartialReply:
    """A reply that is still being received. A reply that pauses consists of several messages."""

    host: str = ""
    """The server that sends the reply, if it gets its own fields back."""
    anything: bool = False
    complete: bool = False
    model: str = ""
    stop: str = ""
    refusal: str = ""
    text: ThinkTags = field(default_factory=ThinkTags)
    blocks: dict[tuple[int, int], _PartialBlock] = field(default_factory=dict)
    """The blocks by message and index."""
    usage: dict[str, Any] = field(default_factory=dict)
    pauses: int = 0
    before_pause: Usage = field(default_factory=Usage)

    def take(self, event: Any) -> Said:
        """Add one event and return the text that it contains."""
        try:
            self.anything = True
            return self._take(event)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _NotAnEvent from error

    def flush(self) -> Said:
        """Return the text that was held back until the end of the reply."""
        return self.text.flush()

    @property
    def is_paused(self) -> bool:
        """Whether the reply has paused. A reply with tool calls waits for their results instead."""
        return self.complete and self.stop == _PAUSED and not any(b.type == "tool_use" for b in self.blocks.values())

    def goes_on(self) -> bool:
        """Whether the reply has paused. If so, prepare for its next message."""
        if not self.is_paused or self.pauses == MOST_PAUSES:
            return False
        self.before_pause, self.usage = self.counted, {}
        self.pauses, self.complete, self.stop = self.pauses + 1, False, ""
        return True

    @property
    def content(self) -> Sequence[Mapping[str, Any]]:
        """The blocks of the messages before the last pause."""
        blocks = (block.content() for (message, _), block in self.blocks.items() if message < self.pauses)
        return [block for block in blocks if block["type"] != "text" or block["text"]]  # empty texts are rejected

    def _take(self, event: Mapping[str, Any]) -> Said:
        match event["type"]:
            case "content_block_delta":
                return self._take_delta(self.blocks[self.pauses, event["index"]], event["delta"])
            case "content_block_start":
                start = event["content_block"]
                block = _PartialBlock(start=start, signature=start.get("signature") or "")
                self.blocks[self.pauses, event["index"]] = block
                return self._take_delta(block, start)
            case "message_start":
                self.model = event["message"].get("model") or ""
                self.usage.update(event["message"].get("usage") or {})
            case "message_delta":
                self._take_end(event["delta"])
                # The counts are cumulative. A null value means that the count is unchanged.
                told = event.get("usage") or {}
                self.usage.update({name: value for name, value in told.items() if value is not None})
            case "message_stop":
                self.complete = True
        return Said()

    def _take_delta(self, block: _PartialBlock, delta: Mapping[str, Any]) -> Said:
        match delta["type"]:
            case "text_delta" | "text":
                block.pieces.append(delta["text"] + "")
                block.citations.extend(delta.get("citations") or ())
                return self.text.feed(delta["text"])
            case "input_json_delta":
                block.pieces.append(delta["partial_json"] + "")
            case "thinking_delta" | "thinking":
                thought: str = (delta.get("thinking") or "") + ""
                block.pieces.append(thought)
                return Said(thinking=thought)
            case "signature_delta":
                block.signature += delta["signature"]
            case "citations_delta":
                block.citations.append(delta["citation"])
        return Said()

    def _take_end(self, delta: Mapping[str, Any]) -> None:
        self.stop = delta.get("stop_reason") or self.stop
        details = delta.get("stop_details") or {}
        self.refusal = str(details.get("explanation") or details.get("category") or "")

    @property
    def counted(self) -> Usage:
        """The provider's last count."""
        return self.before_pause + _usage(self.usage)

    @property
    def said(self) -> str:
        """All that the model has written so far."""
        return "".join(piece for block in self.blocks.values() for piece in block.pieces)

    def answer(self, call: ModelCall) -> ModelAnswer:
        """Return the complete reply."""
        blocks = list(self.blocks.values())
        uses = [block for block in blocks if block.type == "tool_use"]
        ids = distinct_ids([use.start.get("id") or "" for use in uses], call.messages) if uses else []
        calls = tuple(
            read_call(call_id, use.start.get("name") or "", use.arguments())
            for call_id, use in zip(ids, uses, strict=True)
        )
        # Besides thinking, these are the calls that the server made itself, with their results.
        thought = [dict(block.content()) for block in blocks if block.type not in ("text", "tool_use")]
        state = ProviderState(calls=[unknown_fields(use.start, OF_TOOL_USE) for use in uses])
        note = {**reasoning_note(call.model, thought), **state.note(self.host)} if calls else {}
        stop: StopReason = "length" if self.stop in _CUT else "tools" if calls else "end"
        message = Message(role="assistant", content="".join(self.text.answer), tool_calls=calls, metadata=note)
        return ModelAnswer(message=message, stop=stop, usage=self.counted, model=self.model)


def _usage(sent: Mapping[str, Any]) -> Usage:
    cached = token_count(sent, "cache_read_input_tokens")
    written = token_count(sent, "cache_creation_input_tokens")
    return Usage(
        input_tokens=token_count(sent, "input_tokens") + cached + written,
        output_tokens=token_count(sent, "output_tokens"),
        cached_tokens=cached,
        cache_write_tokens=written,
        model_calls=1,
    )
