"""Call OpenAI's Chat Completions API or a compatible server, such as Ollama, vLLM, llama.cpp, DeepSeek or Gemini."""

import asyncio
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from loom.activities.adapters.models.openai_messages import wire_messages
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
    from openai import AsyncOpenAI, AsyncStream

OFFICIAL_URL: Final = "https://api.openai.com/v1"


class OpenAIProvider:
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
        official = self._url == OFFICIAL_URL
        self._server = Server(
            name="OpenAI" if official else "the OpenAI-compatible server",
            key_name="OPENAI_API_KEY",
            url_name="OPENAI_BASE_URL",
            url=shown(self._url),
            secret=api_key,
        )
        self._timeouts = (connect_timeout, read_timeout)
        # Most other servers support only the older name, which OpenAI's newer models reject.
        self._limit_name = "max_completion_tokens" if official else "max_tokens"
        self._asks_usage = True
        self._client: AsyncOpenAI | None = None

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """Call the model, stream its text to `on_delta`, and return the whole reply."""
        heard = _PartialReply()
        with usage_in_errors(call, heard):
            return await self._heard(call, on_delta, heard)

    async def _heard(self, call: ModelCall, on_delta: OnDelta, heard: "_PartialReply") -> ModelAnswer:
        client = await self._connected()
        import openai  # noqa: PLC0415  # importing the SDK takes a second

        try:
            stream = await self._open(client, call)
            async with stream:
                async for chunk in stream:
                    if text := heard.take(chunk):
                        on_delta(text)
        except (openai.OpenAIError, json.JSONDecodeError, UnicodeDecodeError, _NotAChunk) as error:
            raise self._translated(error, call.model) from None
        if not heard.finish:
            content_type = stream.response.headers.get("content-type", "")
            raise ended_early(self._server, call.model, content_type, heard=heard.anything)
        if heard.refusal or heard.finish == "content_filter":
            said = quote(heard.refusal, self._server) or "its content filter stopped the answer"
            raise LLMRefusedError(f"{call.model} declined to answer: {said}", model=call.model)
        return heard.answer(call)

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _connected(self) -> "AsyncOpenAI":
        if self._client is None:
            # Import the SDK in a thread, so that other activities can continue to heartbeat.
            await asyncio.to_thread(importlib.import_module, "openai")
        if self._client is None:
            from openai import AsyncOpenAI, Timeout  # noqa: PLC0415

            connect, read = self._timeouts
            timeout = Timeout(read, connect=connect)
            self._client = AsyncOpenAI(api_key=self._server.secret, base_url=self._url, timeout=timeout, max_retries=0)
        return self._client

    async def _open(self, client: "AsyncOpenAI", call: ModelCall) -> "AsyncStream[object]":
        from openai import APIStatusError  # noqa: PLC0415

        try:
            return await self._post(client, call)
        except APIStatusError as error:
            if error.status_code not in (400, 422) or not self._adapts_to(error.message):
                raise
        return await self._post(client, call)

    async def _post(self, client: "AsyncOpenAI", call: ModelCall) -> "AsyncStream[object]":
        from openai import AsyncStream  # noqa: PLC0415

        # Avoid `chat.completions.create`, which would traverse the whole conversation and build a pydantic model for
        # each chunk.
        return await client.post(
            "/chat/completions",
            body=self._body(call),
            cast_to=object,
            options={"security": {"bearer_auth": True}},
            stream=True,
            stream_cls=AsyncStream[object],
        )

    def _body(self, call: ModelCall) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": call.model,
            "messages": wire_messages(call),
            "stream": True,
            self._limit_name: call.max_output_tokens,
        }
        if self._asks_usage:
            body["stream_options"] = {"include_usage": True}
        if call.temperature is not None:
            body["temperature"] = call.temperature
        if call.tools and call.may_call:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": t.name, "description": t.description, "parameters": t.parameters},
                }
                for t in call.tools
            ]
        return body

    def _adapts_to(self, error_response: str) -> bool:
        """If the server rejected a field that can be renamed or omitted, adapt later requests and return True."""
        if "stream_options" in error_response and self._asks_usage:
            self._asks_usage = False
            return True
        if (
            "max_completion_tokens" in error_response
            and "max_tokens" in error_response
            and self._limit_name == "max_tokens"
        ):
            self._limit_name = "max_completion_tokens"
            return True
        return False

    def _translated(self, error: Exception, model: str) -> LoomError:
        """Translate an SDK error into a Loom error. Only this method translates SDK errors."""
        import openai  # noqa: PLC0415

        match error:
            case openai.APIStatusError():
                error_response = error_response_of(error.body, error.status_code, error.response.headers, error.message)
                return error_of(error_response, self._server, model)
            case openai.APITimeoutError():
                return unreachable(self._server, model, "no data within the time limit")
            case openai.APIConnectionError():
                return unreachable(self._server, model, f"no connection, or it was lost ({cause_of(error)})")
            case openai.APIResponseValidationError():
                return unreadable(self._server, model, "unexpected shape")
            case openai.APIError():
                return error_of(error_response_of(error.body, 200, {}, error.message), self._server, model)
            case openai.OpenAIError():
                return unreachable(self._server, model, type(error).__name__)
            case _:
                return unreadable(self._server, model, type(error).__name__)


class _NotAChunk(Exception):
    """Raised when a chunk of the stream isn't a valid chat completion."""


@dataclass(kw_only=True, slots=True)
class _PartialCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


@dataclass(kw_only=True, slots=True)
class _PartialReply:
    """A reply that is still being received."""

    anything: bool = False
    model: str = ""
    finish: str = ""
    refusal: str = ""
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[_PartialCall] = field(default_factory=list)
    open: dict[int | None, _PartialCall] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)

    def take(self, chunk: Any) -> str:
        """Add one chunk and return the text that it contains."""
        try:
            self.anything = True
            self.model = chunk.get("model") or self.model
            if usage := chunk.get("usage"):
                self.usage = {**usage}
            choices = chunk.get("choices")
            return self._take_choice(choices[0]) if choices else ""
        except (AttributeError, KeyError, TypeError, IndexError) as error:
            raise _NotAChunk from error

    def _take_choice(self, choice: Mapping[str, Any]) -> str:
        self.finish = choice.get("finish_reason") or self.finish
        delta = choice.get("delta") or {}
        for piece in delta.get("tool_calls") or ():
            self._take_call(piece)
        if refused := delta.get("refusal"):
            self.refusal += refused
        if thought := delta.get("reasoning_content"):
            self.reasoning.append(thought + "")
        text = (delta.get("content") or "") + ""
        if text:
            self.text.append(text)
        return text

    def _take_call(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function") or {}
        index, call_id, name = piece.get("index"), piece.get("id") or "", function.get("name") or ""
        call = self.open.get(index)
        # Some servers send complete calls, either all with the same index or without an index. A new id or a second
        # name therefore starts another call.
        another = call is not None and call.name and name and (index is None or (call_id and call_id != call.id))
        if call is None or another:
            call = _PartialCall()
            self.calls.append(call)
            self.open[index] = call
        call.id = call.id or call_id
        call.name = call.name or name
        arguments = function.get("arguments")
        if arguments:
            call.arguments.append(arguments if isinstance(arguments, str) else json.dumps(arguments))

    @property
    def counted(self) -> Usage:
        """The provider's last count."""
        return _usage(self.usage)

    @property
    def said(self) -> str:
        """All that the model has written so far."""
        return "".join((*self.reasoning, *self.text, *(piece for call in self.calls for piece in call.arguments)))

    def answer(self, call: ModelCall) -> ModelAnswer:
        """Return the complete reply."""
        ids = distinct_ids([heard.id for heard in self.calls], call.messages) if self.calls else []
        calls = tuple(
            read_call(call_id, heard.name, "".join(heard.arguments))
            for call_id, heard in zip(ids, self.calls, strict=True)
        )
        stop: StopReason = "length" if self.finish == "length" else "tools" if calls else "end"
        note = reasoning_note(call.model, "".join(self.reasoning)) if calls else {}
        message = Message(role="assistant", content="".join(self.text), tool_calls=calls, metadata=note)
        return ModelAnswer(message=message, stop=stop, usage=self.counted, model=self.model)


def _usage(sent: Mapping[str, Any]) -> Usage:
    cached = token_count(sent.get("prompt_tokens_details"), "cached_tokens")
    return Usage(
        input_tokens=token_count(sent, "prompt_tokens"),
        output_tokens=token_count(sent, "completion_tokens"),
        cached_tokens=cached or token_count(sent, "prompt_cache_hit_tokens"),
        model_calls=1,
    )
