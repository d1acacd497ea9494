"""Call OpenAI's Chat Completions API or a compatible server, such as Ollama, vLLM, llama.cpp, DeepSeek or Gemini."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from loom.activities.adapters.models.error_responses import ended_early
from loom.activities.adapters.models.event_stream import Event, content_type_of, events_of, is_one_body, whole_body
from loom.activities.adapters.models.model_options import CHAT, chat_fields, merged, refuse_unsupported
from loom.activities.adapters.models.openai_connection import OpenAIConnection
from loom.activities.adapters.models.openai_messages import function_tool, wire_messages
from loom.activities.adapters.models.openai_reply import PartialReply
from loom.activities.adapters.models.provider_state import SIGNATURE, UNSIGNED, host_of, refused_fields
from loom.activities.adapters.models.sendable import encodable
from loom.activities.adapters.models.sent_errors import not_an_error
from loom.activities.adapters.models.stop_reasons import REFUSAL, check_stop_reason
from loom.activities.adapters.models.thinking import ThinkTags
from loom.activities.adapters.models.wire import CONNECT_TIMEOUT, READ_TIMEOUT, usage_in_errors
from loom.activities.ports import ModelAnswer, ModelCall, OnDelta

if TYPE_CHECKING:
    from openai import AsyncOpenAI, AsyncStream

_OLD_LIMIT: Final = "max_tokens"
_NEW_LIMIT: Final = "max_completion_tokens"


class OpenAIProvider:
    """A provider for one account or server. It reuses its connections."""

    supported_options = CHAT

    def __init__(
        self,
        *,
        api_key: str,
        base_url: str | None = None,
        read_timeout: float = READ_TIMEOUT,
        connect_timeout: float = CONNECT_TIMEOUT,
    ) -> None:
        self._connection = OpenAIConnection(api_key, base_url, (connect_timeout, read_timeout))
        self._server = self._connection.server
        # Most other servers support only the older name, which OpenAI's newer models reject.
        self._usual_limit = _NEW_LIMIT if self._connection.is_official else _OLD_LIMIT
        self._limit_names: dict[str, str] = {}
        self._without_usage: set[str] = set()
        """The models that reject a request for their usage."""
        self._host = host_of(self._server.url)
        self._refused_fields: dict[str, frozenset[str]] = {}
        """By model, the fields that the server puts beside replies, but rejects in requests."""
        self._need_signatures: set[str] = set()
        """The models that reject calls without a signature, such as those that another model has made."""
        self._begin_in_thinking: set[str] = set()
        """The models whose last reply began with thinking without an opening tag."""

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """Call the model, stream its text to `on_delta`, and return the whole reply."""
        refuse_unsupported(call, CHAT)
        text = ThinkTags(begins_in_thinking=call.model in self._begin_in_thinking)
        heard = PartialReply(host=self._host, text=text)
        with usage_in_errors(call, heard):
            answer = await self._heard(call, on_delta, heard)
        if heard.text.lacks_opening_tag is not None:
            change = self._begin_in_thinking.add if heard.text.lacks_opening_tag else self._begin_in_thinking.discard
            change(call.model)
        return answer

    async def _heard(self, call: ModelCall, on_delta: OnDelta, heard: PartialReply) -> ModelAnswer:
        async with self._connection.calling(call.model) as client:
            stream = await self._open(client, call)
            response = stream.response
            async with stream:
                if is_one_body(response):
                    body = Event("message", await whole_body(response))
                    heard.take_whole(self._value(body, response.headers, call)).tell(call, on_delta)
                else:
                    async for event in events_of(response, lambda: False):
                        heard.take(self._value(event, response.headers, call)).tell(call, on_delta)
            heard.flush().tell(call, on_delta)
            self._check_end(call, heard, content_type_of(response))
            return heard.answer(call)

    def _value(self, event: Event, headers: Mapping[str, str], call: ModelCall) -> Any:
        return not_an_error(event, headers, self._server, call.model)

    def _check_end(self, call: ModelCall, heard: PartialReply, content_type: str) -> None:
        """Raise the error of a reply that isn't complete or that the model has refused."""
        if not heard.finish and not (heard.is_done and heard.said and not heard.has_unknown):
            raise ended_early(self._server, call.model, content_type, heard=heard.anything)
        check_stop_reason(REFUSAL if heard.refusal else heard.finish, heard.refusal, self._server, call.model)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connection.aclose()

    async def _open(self, client: "AsyncOpenAI", call: ModelCall) -> "AsyncStream[object]":
        from openai import APIStatusError  # noqa: PLC0415

        try:
            return await self._post(client, call)
        except APIStatusError as error:
            if error.status_code not in (400, 422) or not self._adapts_to(error.message, call):
                raise
        return await self._post(client, call)

    async def _post(self, client: "AsyncOpenAI", call: ModelCall) -> "AsyncStream[object]":
        return await self._connection.post(client, "/chat/completions", self._body(call), call)

    def _body(self, call: ModelCall) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": call.model,
            "stream": True,
            self._limit_names.get(call.model, self._usual_limit): call.max_output_tokens,
            **chat_fields(call),
        }
        if call.model not in self._without_usage:
            body["stream_options"] = {"include_usage": True}
        if call.temperature is not None:
            body["temperature"] = call.temperature
        if call.tools and call.may_call:
            body["tools"] = list(map(function_tool, call.tools))
        without = self._refused_fields.get(call.model, frozenset())
        messages = wire_messages(
            call, self._host, without=without, needs_signatures=call.model in self._need_signatures
        )
        return {"messages": messages, **encodable(merged(body, call.options.extra_body))}

    def _adapts_to(self, error_response: str, call: ModelCall) -> bool:
        """If the server rejected a field that can be renamed or omitted, adapt later requests to the same model and
        return True. Models behind one server may differ in what they accept.
        """
        if "stream_options" in error_response and call.model not in self._without_usage:
            self._without_usage.add(call.model)
            return True
        name = self._limit_names.get(call.model, self._usual_limit)
        if name == _OLD_LIMIT and _OLD_LIMIT in error_response and _NEW_LIMIT in error_response:
            self._limit_names[call.model] = _NEW_LIMIT
            return True
        before = self._refused_fields.get(call.model, frozenset())
        otherwise = UNSIGNED if call.model in self._need_signatures else {}
        if refused := refused_fields(error_response, call.messages, self._host, otherwise) - before:
            self._refused_fields[call.model] = before | refused
            return True
        if SIGNATURE in error_response and call.model not in self._need_signatures:
            self._need_signatures.add(call.model)
            return True
        return False
