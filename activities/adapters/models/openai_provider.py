"""Call OpenAI's Chat Completions API or a compatible server, such as Ollama, vLLM, llama.cpp, DeepSeek or Gemini."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from loom.activities.adapters.models.error_responses import (
    ended_early,
    quote,
    unreachable,
)
from loom.activities.adapters.models.model_options import CHAT, chat_fields, merged, refuse_unsupported
from loom.activities.adapters.models.openai_connection import OpenAIConnection
from loom.activities.adapters.models.openai_messages import THINK_TAGS, function_tool, wire_messages
from loom.activities.adapters.models.provider_state import (
    SIGNATURE,
    UNSIGNED,
    ProviderState,
    beside_call,
    beside_message,
    host_of,
    refused_fields,
)
from loom.activities.adapters.models.sendable import encodable
from loom.activities.adapters.models.thinking import Said, ThinkTags
from loom.activities.adapters.models.wire import (
    CONNECT_TIMEOUT,
    READ_TIMEOUT,
    distinct_ids,
    is_object,
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
from loom.domain.run.activity_payloads import StopReason

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from loom.activities.adapters.models.openai_stream import ReplyStream

_OLD_LIMIT: Final = "max_tokens"
_NEW_LIMIT: Final = "max_completion_tokens"

_BROKEN_OFF: Final = ("error", "insufficient_system_resource")
"""The finish reasons of compatible servers for a reply that they could not complete."""


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
        self._asks_usage = True
        self._host = host_of(self._server.url)
        self._not_taken_back: frozenset[str] = frozenset()
        """The fields that the server puts beside its replies, but rejects in requests."""
        self._beside_unsigned: Mapping[str, Any] | None = None
        self._begin_in_thinking: set[str] = set()
        """The models whose last reply began with thinking without an opening tag."""

    async def answer(self, call: ModelCall, on_delta: OnDelta) -> ModelAnswer:
        """Call the model, stream its text to `on_delta`, and return the whole reply."""
        refuse_unsupported(call, CHAT)
        text = ThinkTags(begins_in_thinking=call.model in self._begin_in_thinking)
        heard = _PartialReply(host=self._host, text=text)
        with usage_in_errors(call, heard):
            answer = await self._heard(call, on_delta, heard)
        if heard.text.lacks_opening_tag is not None:
            change = self._begin_in_thinking.add if heard.text.lacks_opening_tag else self._begin_in_thinking.discard
            change(call.model)
        return answer

    async def _heard(self, call: ModelCall, on_delta: OnDelta, heard: "_PartialReply") -> ModelAnswer:
        async with self._connection.calling(call.model, _NotAChunk) as client:
            stream = await self._open(client, call)
            async with stream:
                content_type = stream.response.headers.get("content-type", "")
                if is_one_body(content_type):
                    body = self._connection.not_an_error(await whole_body(stream.response), call.model)
                    heard.take_whole(body).tell(call, on_delta)
                else:
                    async for chunk in stream:
                        heard.take(chunk).tell(call, on_delta)
            heard.flush().tell(call, on_delta)
        if heard.finish in _BROKEN_OFF:
            raise unreachable(self._server, call.model, f"the server broke off the reply ({heard.finish})")
        if not heard.finish and not (stream.is_done and heard.said):
            raise ended_early(self._server, call.model, content_type, heard=heard.anything)
        if heard.refusal or heard.finish == "content_filter":
            said = quote(heard.refusal, self._server) or "its content filter stopped the answer"
            raise LLMRefusedError(f"{call.model} declined to answer: {said}", model=call.model)
        return heard.answer(call)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._connection.aclose()

    async def _open(self, client: "AsyncOpenAI", call: ModelCall) -> "ReplyStream":
        from openai import APIStatusError  # noqa: PLC0415

        try:
            return await self._post(client, call)
        except APIStatusError as error:
            if error.status_code not in (400, 422) or not self._adapts_to(error.message, call):
                raise
        return await self._post(client, call)

    async def _post(self, client: "AsyncOpenAI", call: ModelCall) -> "ReplyStream":
        return await self._connection.post(client, "/chat/completions", self._body(call), call)

    def _body(self, call: ModelCall) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": call.model,
            "messages": wire_messages(call, self._host, without=self._not_taken_back, otherwise=self._beside_unsigned),
            "stream": True,
            self._limit_names.get(call.model, self._usual_limit): call.max_output_tokens,
            **chat_fields(call),
        }
        if self._asks_usage:
            body["stream_options"] = {"include_usage": True}
        if call.temperature is not None:
            body["temperature"] = call.temperature
        if call.tools and call.may_call:
            body["tools"] = list(map(function_tool, call.tools))
        sent: dict[str, Any] = encodable(merged(body, call.options.extra_body))
        return sent

    def _adapts_to(self, error_response: str, call: ModelCall) -> bool:
        """If the server rejected a field that can be renamed or omitted, adapt later requests and return True. Models
        behind one server may differ in the name of the limit.
        """
        if "stream_options" in error_response and self._asks_usage:
            self._asks_usage = False
            return True
        name = self._limit_names.get(call.model, self._usual_limit)
        if name == _OLD_LIMIT and _OLD_LIMIT in error_response and _NEW_LIMIT in error_response:
            self._limit_names[call.model] = _NEW_LIMIT
            return True
        if SIGNATURE in error_response and not self._beside_unsigned:
            self._beside_unsigned = UNSIGNED
            return True
        refused = refused_fields(error_response, call.messages, self._host) - self._not_taken_back
        self._not_taken_back |= refused
        return bool(refused)


class _NotAChunk(Exception):
    """Raised when a chunk of the stream isn't a valid chat completion."""


@dataclass(kw_only=True, slots=True)
class _PartialCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    beside: dict[str, Any] = field(default_factory=dict)
    """What the server puts beside the call and wants back."""

    def is_followed_by(self, call_id: str, name: str, arguments: object, *, has_index: bool) -> bool:
        """Whether a piece with the same index starts another call.

        Some servers send complete calls, either all with the same index or without an index. A new id or another name
        after the arguments therefore starts another call. Servers may also repeat the id and the name in each piece.
        """
        if not self.name or not name:
            return False
        if call_id:
            return call_id != self.id or not has_index
        if not has_index:
            return True
        return bool(self.arguments) and (name != self.name or (bool(arguments) and is_object("".join(self.arguments))))

    def take(self, call_id: str, name: str, arguments: object) -> None:
        """Add a piece of the call. A name may arrive in fragments, or again in each piece."""
        self.id = self.id or call_id
        if name.startswith(self.name):
            self.name = name
        elif not self.arguments:
            self.name += name
        if arguments:
            self.arguments.append(arguments if isinstance(arguments, str) else json.dumps(arguments))


_LEGACY: Final = "function_call"
"""Stands for the index of a call in the format that servers used before they could make several calls."""

_DETAILS: Final = "reasoning_details"
"""The field in which OpenRouter sends blocks of reasoning. Some models need them back with the results of tools."""

_THINKING: Final = ("reasoning_content", "reasoning")
"""The fields in which compatible servers send thinking. If a server sends both, they contain the same text."""


@dataclass(kw_only=True, slots=True)
class _PartialReply:
    """A reply that is still being received."""

    host: str = ""
    """The server that sends the reply."""
    beside: dict[str, Any] = field(default_factory=dict)
    """What it puts beside the reply's text and wants back."""
    anything: bool = False
    model: str = ""
    finish: str = ""
    refusal: str = ""
    text: ThinkTags = field(default_factory=ThinkTags)
    reasoning: dict[str, list[str]] = field(default_factory=dict)
    """The thinking that arrived in fields of its own, by the name of the field."""
    details: list[dict[str, Any]] = field(default_factory=list)
    """The blocks of thinking that the server wants back unchanged."""
    calls: list[_PartialCall] = field(default_factory=list)
    open: dict[int | str | None, _PartialCall] = field(default_factory=dict)
    usage: Mapping[str, Any] = field(default_factory=dict)

    def take(self, chunk: Any) -> Said:
        """Add one chunk and return the text that it contains."""
        try:
            self.anything = True
            self.model = chunk.get("model") or self.model
            if usage := chunk.get("usage"):
                self.usage = {**usage}
            choices = chunk.get("choices")
            return self._take_choice(choices[0]) if choices else Said()
        except (AttributeError, KeyError, TypeError, IndexError) as error:
            raise _NotAChunk from error

    def take_whole(self, body: Any) -> Said:
        """Add a reply that the server sent as one body, and return its text."""
        said = self.take(body)
        self.anything = bool(self.said or self.finish)
        # A body is complete, even if it gives no reason.
        self.finish = self.finish or ("stop" if self.anything else "")
        return said

    def flush(self) -> Said:
        """Return the text that was held back until the end of the reply."""
        return self.text.flush()

    def _take_choice(self, choice: Mapping[str, Any]) -> Said:
        self.finish = choice.get("finish_reason") or self.finish
        # A message is complete. Some servers send one after its deltas.
        delta = choice.get("delta") or (None if self.said else choice.get("message")) or {}
        self.beside = merged(self.beside, beside_message(delta))
        for piece in delta.get("tool_calls") or ():
            self._take_call(piece, piece.get("index"))
        if legacy := delta.get("function_call"):
            self._take_call({"function": legacy}, _LEGACY)
        if refused := delta.get("refusal"):
            self.refusal += refused
        thought = self._take_reasoning(delta)
        content = delta.get("content") or ""
        if not isinstance(content, list):
            said = self.text.feed(content + "")
            return replace(said, thinking=thought + said.thinking)
        inner = "".join(_text_in(part["thinking"]) for part in content if part["type"] == "thinking")
        said = self.text.feed("".join(part["text"] for part in content if part["type"] == "text"))
        self.reasoning.setdefault(_THINKING[0], []).extend([inner] if inner else ())
        return replace(said, thinking=thought + inner + said.thinking)

    def _take_reasoning(self, delta: Mapping[str, Any]) -> str:
        given = delta.get(_DETAILS) or ()
        for detail in given:
            self._take_detail(detail)
        name = next((name for name in _THINKING if delta.get(name)), None)
        if name is None:
            return "".join(detail.get("text") or detail.get("summary") or "" for detail in given)
        thought: str = delta[name] + ""
        self.reasoning.setdefault(name, []).append(thought)
        return thought

    def _take_detail(self, piece: Mapping[str, Any]) -> None:
        """Add a piece of a block of reasoning. Consecutive pieces with the same index and type belong to one block."""
        last = self.details[-1] if self.details else {}
        if piece.get("index") is None or any(last.get(name) != piece.get(name) for name in ("index", "type")):
            self.details.append({**piece})
            return
        for name, value in piece.items():
            is_text = name in ("text", "summary", "data") and isinstance(value, str)
            if value is not None:
                last[name] = (last.get(name) or "") + value if is_text else value

    def _take_call(self, piece: Mapping[str, Any], index: int | str | None) -> None:
        function = piece.get("function") or {}
        call_id, name, arguments = piece.get("id") or "", function.get("name") or "", function.get("arguments")
        call = self.open.get(index)
        if call is None or call.is_followed_by(call_id, name, arguments, has_index=index is not None):
            call = _PartialCall()
            self.calls.append(call)
            self.open[index] = call
        call.take(call_id, name, arguments)
        call.beside = merged(call.beside, beside_call(piece))

    @property
    def counted(self) -> Usage:
        """The provider's last count."""
        return _usage(self.usage)

    @property
    def said(self) -> str:
        """All that the model has written so far."""
        thought = (piece for pieces in self.reasoning.values() for piece in pieces)
        blocks = (each.get("text") or each.get("summary") or "" for each in self.details)
        called = (piece for call in self.calls for piece in (call.name, *call.arguments))
        return "".join((*thought, *blocks, *self.text.thinking, *self.text.answer, *called))

    def answer(self, call: ModelCall) -> ModelAnswer:
        """Return the complete reply."""
        ids = distinct_ids([heard.id for heard in self.calls], call.messages) if self.calls else []
        calls = tuple(
            read_call(call_id, heard.name, "".join(heard.arguments))
            for call_id, heard in zip(ids, self.calls, strict=True)
        )
        stop: StopReason = "length" if self.finish == "length" else "tools" if calls else "end"
        state = ProviderState(message=self.beside, calls=[heard.beside for heard in self.calls])
        note = {**reasoning_note(call.model, self._thought()), **state.note(self.host)} if calls else {}
        message = Message(role="assistant", content="".join(self.text.answer), tool_calls=calls, metadata=note)
        return ModelAnswer(message=message, stop=stop, usage=self.counted, model=self.model)

    def _thought(self) -> str | Mapping[str, Any]:
        """Return the thinking as it must be returned to the server: the text of `reasoning_content`, or texts and
        blocks by the names of their fields.
        """
        thought: dict[str, Any] = {name: "".join(pieces) for name, pieces in self.reasoning.items()}
        if self.details:
            # The blocks contain the same thinking as the texts, with signatures.
            return {_DETAILS: self.details}
        if self.text.thinking:
            thought[THINK_TAGS] = "".join(self.text.thinking)
        return thought[_THINKING[0]] if set(thought) == {_THINKING[0]} else thought


def _text_in(thinking: Any) -> str:
    """Return the text of a thinking part, which is a text or a list of text parts."""
    return thinking if isinstance(thinking, str) else "".join(part["text"] for part in thinking)


def _usage(sent: Mapping[str, Any]) -> Usage:
    cached = token_count(sent.get("prompt_tokens_details"), "cached_tokens")
    return Usage(
        input_tokens=token_count(sent, "prompt_tokens"),
        output_tokens=token_count(sent, "completion_tokens"),
        cached_tokens=cached or token_count(sent, "prompt_cache_hit_tokens"),
        cache_write_tokens=token_count(sent.get("prompt_tokens_details"), "cache_write_tokens"),
        model_calls=1,
    )
