"""Call Anthropic's Messages API or a compatible server."""

import asyncio
import importlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from loom.activities.adapters.models.anthropic_messages import wire_messages, wire_system, wire_tools
from loom.activities.adapters.models.anthropic_reply import PartialReply, events_in
from loom.activities.adapters.models.error_responses import (
    Server,
    ended_early,
    error_of,
    error_response_of,
    unreachable,
    unreadable,
)
from loom.activities.adapters.models.event_stream import (
    Event,
    NotAReply,
    content_type_of,
    events_of,
    is_one_body,
    whole_body,
)
from loom.activities.adapters.models.model_options import MESSAGES, merged, message_fields, refuse_unsupported
from loom.activities.adapters.models.provider_state import host_of
from loom.activities.adapters.models.sendable import encodable
from loom.activities.adapters.models.sent_errors import not_an_error
from loom.activities.adapters.models.stop_reasons import check_stop_reason
from loom.activities.adapters.models.wire import CONNECT_TIMEOUT, READ_TIMEOUT, cause_of, shown, usage_in_errors
from loom.activities.ports import ModelAnswer, ModelCall, OnDelta
from loom.domain.core.errors import LoomError

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic, AsyncStream
    from anthropic._types import RequestOptions

OFFICIAL_URL: Final = "https://api.anthropic.com"

_WITH_TEMPERATURE: Final = {"anthropic-version": "2023-06-01"}
"""Headers that select an older API version for requests with a temperature or `top_p`. The SDK's default API version
accepts neither, not even the default ones.
"""


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
        heard = PartialReply(host=self._host)
        with usage_in_errors(call, heard):
            return await self._heard(call, on_delta, heard)

    async def _heard(self, call: ModelCall, on_delta: OnDelta, heard: PartialReply) -> ModelAnswer:
        client = await self._connected()
        import anthropic  # noqa: PLC0415  # importing the SDK takes a second
        import httpx2  # noqa: PLC0415

        try:
            content_type = await self._part(client, call, on_delta, heard)
            while heard.goes_on():
                content_type = await self._part(client, call, on_delta, heard)
            heard.flush().tell(call, on_delta)
            self._check_end(call, heard, content_type)
            return heard.answer(call)
        # The SDK doesn't wrap connection errors after a stream has been opened.
        except (anthropic.AnthropicError, httpx2.RequestError, NotAReply) as error:
            raise self._translated(error, call.model) from None

    def _check_end(self, call: ModelCall, heard: PartialReply, content_type: str) -> None:
        """Raise the error of a reply that isn't complete or that the model has refused."""
        check_stop_reason(heard.stop, heard.refusal, self._server, call.model)
        if not (heard.complete or heard.stop):  # some servers end the stream after the reason
            raise ended_early(self._server, call.model, content_type, heard=heard.anything)
        if heard.is_paused:
            raise unreadable(self._server, call.model, f"it paused its turn {heard.pauses} times")

    async def _part(self, client: "AsyncAnthropic", call: ModelCall, on_delta: OnDelta, heard: PartialReply) -> str:
        """Receive a reply up to its end, or up to a pause after which it goes on. Return the content type."""
        stream = await self._open(client, call, heard.content)
        async with stream:
            response = stream.response
            if is_one_body(response):
                body = Event("message", await whole_body(response))
                for event in events_in(not_an_error(body, response.headers, self._server, call.model)):
                    heard.take(event).tell(call, on_delta)
            else:
                async for event in events_of(response, lambda: heard.complete):
                    not_an_error(event, response.headers, self._server, call.model)
                    heard.take(event).tell(call, on_delta)
            return content_type_of(response)

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
                return unreadable(self._server, model, str(error))


def _body(call: ModelCall, begun: Sequence[Mapping[str, Any]] = (), host: str = "") -> dict[str, Any]:
    """Return the body of a request. `begun` contains the blocks of a reply that has paused and now goes on. `host` gets
    back the fields that it put beside its calls.
    """
    body: dict[str, Any] = {
        "model": call.model,
        "max_tokens": call.max_output_tokens,
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
    messages = [*wire_messages(call, host), *([{"role": "assistant", "content": encodable(begun)}] if begun else ())]
    return {"messages": messages, **encodable(merged(body, call.options.extra_body))}


def _headers(call: ModelCall) -> Mapping[str, str]:
    samples = call.temperature is not None or call.options.top_p is not None
    return {**(_WITH_TEMPERATURE if samples else {}), **call.options.extra_headers}
