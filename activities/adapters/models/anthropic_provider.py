"""Call Anthropic's Messages API or a compatible server."""

import asyncio
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from loom.activities.adapters.models.anthropic_messages import wire_messages, wire_system, wire_tools
from loom.activities.adapters.models.wire import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    Server,
    cause_of,
    distinct_ids,
    ended_early,
    error_of,
    error_response_of,
    quote,
    read_call,
    reasoning_note,
    shown,
    token_count,
    unreachable,
    unreadable,
    usage_in_errors,
)
from loom.activities.ports import ModelAnswer, ModelCall, OnDelta
from loom.domain.core.errors import LLMRefusedError, LoomError
from loom.domain.core.messages import Message, Usage
from loom.domain.run.activity_payloads import StopReason

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream

OFFICIAL_URL: Final = "https://api.anthropic.com"

_WITH_TEMPERATURE: Final = {"anthropic-version": "2023-06-01"}
"""Headers that select an older API version for requests with a temperature. The SDK's default API version accepts no
temperature, not even the default one.
"""

_CUT: Final = ("max_tokens", "model_context_window_exceeded")


class AnthropicProvider:
    """A provider for one account or server. It reuses its connections."""

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str | None = None,
        read_timeout: float = READ_TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
    ) -> None:
        self._url = (base_url or OFFICIAL_URL).rstrip("/")
        self._server = Server(
            name="Anthropic" if self._url == OFFICIAL_URL else "the Anthropic-compatible server",
            key_name="ANTHROPIC_API_KEY",
            url_name="ANTHROPIC_BASE_URL",
            url=shown(self._url),
            secret=api_key,
        )
        self._timeouts = (connect_timeout, read_timeout)
        self._client: AsyncAnthropic | None = None

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """Call the model, stream its text to `on_delta`, and return the whole reply."""
        heard = _PartialReply()
        with usage_in_errors(call, heard):
            return await self._heard(call, on_delta, heard)

    async def _heard(self, call: ModelCall, on_delta: OnDelta, heard: "_PartialReply") -> ModelAnswer:
        client = await self._connected()
        import anthropic  # noqa: PLC0415  # importing the SDK takes a second
        import httpx2  # noqa: PLC0415

        try:
            stream = await self._open(client, call)
            async with stream:
                async for event in stream:
                    if text := heard.take(event):
                        on_delta(text)
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
            content_type = stream.response.headers.get("content-type", "")
            raise ended_early(self._server, call.model, content_type, heard=heard.anything)
        return heard.answer(call)

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

    async def _open(self, client: "AsyncAnthropic", call: ModelCall) -> "AsyncStream[object]":
        from anthropic import AsyncStream  # noqa: PLC0415

        # `messages.create` would build a pydantic model for each event, but plain objects are enough.
        return await client.post(
            "/v1/messages",
            body=_body(call),
            cast_to=object,
            options={"headers": _WITH_TEMPERATURE} if call.temperature is not None else {},
            stream=True,
            stream_cls=AsyncStream[object],
        )

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


def _body(call: ModelCall) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": call.model,
        "max_tokens": call.max_output_tokens,
        "messages": wire_messages(call),
        "stream": True,
    }
    if system := wire_system(call.system):
        body["system"] = system
    if call.tools:
        body["tools"] = wire_tools(call.tools)
        if not call.may_call:  # the API requires this if the conversation contains tool calls
            body["tool_choice"] = {"type": "none"}
    if call.temperature is not None:
        body["temperature"] = call.temperature
    return body


class _NotAnEvent(Exception):
    """Raised when a chunk of the stream isn't a valid message event."""


@dataclass(kw_only=True, slots=True)
class _PartialBlock:
    start: Mapping[str, Any]
    pieces: list[str] = field(default_factory=list)
    signature: str = ""

    def arguments(self) -> str:
        given = self.start.get("input")
        return "".join(self.pieces) or (json.dumps(given) if given else "")

    def reasoning(self) -> Mapping[str, Any]:
        if self.start["type"] == "redacted_thinking":
            return self.start
        return {"type": "thinking", "thinking": "".join(self.pieces), "signature": self.signature}


@dataclass(kw_only=True, slots=True)
class _PartialReply:
    """A reply that is still being received."""

    anything: bool = False
    complete: bool = False
    model: str = ""
    stop: str = ""
    refusal: str = ""
    blocks: dict[int, _PartialBlock] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)

    def take(self, event: Any) -> str:
        """Add one event and return the text that it contains."""
        try:
            self.anything = True
            return self._take(event)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _NotAnEvent from error

    def _take(self, event: Mapping[str, Any]) -> str:
        match event["type"]:
            case "content_block_delta":
                return self._take_delta(self.blocks[event["index"]], event["delta"])
            case "content_block_start":
                block = event["content_block"]
                self.blocks[event["index"]] = _PartialBlock(start=block, pieces=[block.get("thinking") or ""])
                return self._take_delta(self.blocks[event["index"]], block)
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
        return ""

    def _take_delta(self, block: _PartialBlock, delta: Mapping[str, Any]) -> str:
        match delta["type"]:
            case "text_delta" | "text":
                text: str = delta["text"] + ""
                block.pieces.append(text)
                return text
            case "input_json_delta":
                block.pieces.append(delta["partial_json"] + "")
            case "thinking_delta":
                block.pieces.append(delta["thinking"] + "")
            case "signature_delta":
                block.signature += delta["signature"]
        return ""

    def _take_end(self, delta: Mapping[str, Any]) -> None:
        self.stop = delta.get("stop_reason") or self.stop
        details = delta.get("stop_details") or {}
        self.refusal = str(details.get("explanation") or details.get("category") or "")

    @property
    def counted(self) -> Usage:
        """The provider's last count."""
        return _usage(self.usage)

    @property
    def said(self) -> str:
        """All that the model has written so far."""
        return "".join(piece for block in self.blocks.values() for piece in block.pieces)

    def answer(self, call: ModelCall) -> ModelAnswer:
        """Return the complete reply."""
        blocks = list(self.blocks.values())
        uses = [block for block in blocks if block.start["type"] == "tool_use"]
        ids = distinct_ids([use.start.get("id") or "" for use in uses], call.messages) if uses else []
        calls = tuple(
            read_call(call_id, use.start.get("name") or "", use.arguments())
            for call_id, use in zip(ids, uses, strict=True)
        )
        text = "".join(piece for block in blocks if block.start["type"] == "text" for piece in block.pieces)
        thought = [dict(b.reasoning()) for b in blocks if b.start["type"] in ("thinking", "redacted_thinking")]
        note = reasoning_note(call.model, thought) if calls else {}
        stop: StopReason = "length" if self.stop in _CUT else "tools" if calls else "end"
        message = Message(role="assistant", content=text, tool_calls=calls, metadata=note)
        return ModelAnswer(message=message, stop=stop, usage=self.counted, model=self.model)


def _usage(sent: Mapping[str, Any]) -> Usage:
    cached = token_count(sent, "cache_read_input_tokens")
    written = token_count(sent, "cache_creation_input_tokens")
    return Usage(
        input_tokens=token_count(sent, "input_tokens") + cached + written,
        output_tokens=token_count(sent, "output_tokens"),
        cached_tokens=cached,
        model_calls=1,
    )
