"""Put a reply of OpenAI's Chat Completions API together from its chunks, also those of compatible servers."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from loom.activities.adapters.models.event_stream import DONE, PINGS, index_in, reading, text_in
from loom.activities.adapters.models.openai_messages import THINK_TAGS
from loom.activities.adapters.models.provider_state import (
    ProviderState,
    extra_fields_of_call,
    extra_fields_of_message,
    joined,
)
from loom.activities.adapters.models.stop_reasons import ending_of, latest
from loom.activities.adapters.models.thinking import Said, ThinkTags
from loom.activities.adapters.models.wire import read_calls, reasoning_note, token_count
from loom.activities.ports import ModelAnswer, ModelCall
from loom.domain.core.messages import Message, Usage
from loom.domain.core.whole_characters import CharacterPieces, whole_characters, with_whole_characters
from loom.domain.run.activity_payloads import StopReason

_NOTHING: Final = "{}"
"""The arguments with which some servers begin each call, before they send the real ones."""


@dataclass(kw_only=True, slots=True)
class _PartialCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """What the server puts beside the call and wants back."""

    def is_followed_by(self, call_id: str, name: str, arguments: object, *, has_index: bool) -> bool:
        """Whether a piece that seems to belong to this call starts another one.

        Some servers send complete calls, either all with the same index or without an index. A new id or another name
        after the arguments therefore starts another call. Servers may also repeat the id, the name and even all
        arguments in each piece, or make up an id for each piece.
        """
        if not self.name or not name:
            return False
        if call_id and self.id and call_id != self.id and not (has_index and self._lacks(name, arguments)):
            return True
        is_other = bool(arguments) and self.arguments != [_NOTHING] and self._is_whole and not self._has(arguments)
        if call_id and call_id == self.id:
            return is_other and _object_in(arguments) is not None
        if not has_index:
            return name != self.name or self._is_whole or not arguments
        return bool(self.arguments) and (name != self.name or is_other)

    def take(self, call_id: str, name: str, arguments: object) -> None:
        """Add a piece of the call. A name may arrive in fragments, or again in each piece."""
        self.id = self.id or call_id
        if name.startswith(self.name):
            self.name = name
        elif not self.arguments:
            self.name += name
        if arguments in (None, "") or self._has(arguments):
            return
        if self.arguments == [_NOTHING] or self._begins(arguments):
            self.arguments.clear()
        self.arguments.append(arguments if isinstance(arguments, str) else json.dumps(arguments))

    def _lacks(self, name: str, arguments: object) -> bool:
        """Whether a piece with this name goes on with arguments that are incomplete."""
        if name != self.name or not self.arguments or self._is_whole:
            return False
        return _object_in(arguments) is None or self._begins(arguments)

    def _begins(self, arguments: object) -> bool:
        """Whether a piece begins with all arguments so far. Some servers send them again in each piece."""
        if not isinstance(arguments, str) or not arguments.lstrip().startswith("{"):
            return False
        # Joining all pieces for each piece would be slow.
        return len(arguments) >= sum(map(len, self.arguments)) and arguments.startswith("".join(self.arguments))

    @property
    def _is_whole(self) -> bool:
        last = next((piece for piece in reversed(self.arguments) if piece.strip()), "")
        # Parsing each prefix of long arguments would be slow.
        return last.rstrip().endswith("}") and _object_in("".join(self.arguments)) is not None

    def _has(self, arguments: object) -> bool:
        """Whether these are all arguments of the call, again."""
        given = _object_in(arguments)
        return given is not None and self._is_whole and given == _object_in("".join(self.arguments))


def _object_in(arguments: object) -> Any:
    """Return the object if a piece contains all arguments of a call, or None."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, strict=False) if arguments.lstrip().startswith("{") else None
        except (ValueError, RecursionError):
            return None
    return with_whole_characters(arguments) if isinstance(arguments, dict) else None


_LEGACY: Final = "function_call"
"""Stands for the index of a call in the format that servers used before they could make several calls."""

_DETAILS: Final = "reasoning_details"
"""The field in which OpenRouter sends blocks of reasoning. Some models need them back with the results of tools."""

_TAKEN_BACK: Final = ("reasoning_content", "reasoning")
_THINKING: Final = (*_TAKEN_BACK, "reasoning_text", "thinking")
"""The fields in which compatible servers send thinking. If a server sends several, they contain the same text."""

_PARTS: Final = {"text": "text", "output_text": "text", "thinking": "thinking"}
"""The types of the parts of a message that are read, and the field with their text."""


@dataclass(kw_only=True, slots=True)
class PartialReply:
    """A reply that is still being received."""

    host: str = ""
    """The server that sends the reply."""
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """What it puts beside the reply's text and wants back."""
    anything: bool = False
    is_done: bool = False
    """Whether the server has ended the stream with `[DONE]`, and not only closed it."""
    has_unknown: bool = False
    """Whether there were chunks that aren't parts of a reply. They may be errors of an unknown shape."""
    model: str = ""
    finish: str = ""
    refusal: str = ""
    text: ThinkTags = field(default_factory=ThinkTags)
    reasoning: dict[str, list[str]] = field(default_factory=dict)
    """The thinking that arrived in fields of its own, by the name of the field."""
    details: list[dict[str, Any]] = field(default_factory=list)
    """The blocks of thinking that the server wants back unchanged."""
    thought: CharacterPieces = field(default_factory=CharacterPieces)
    """The thinking as it is streamed."""
    calls: list[_PartialCall] = field(default_factory=list)
    open: dict[int | str, _PartialCall] = field(default_factory=dict)
    counted: Usage = field(default_factory=lambda: Usage(model_calls=1))
    """The provider's last count."""

    def take(self, chunk: Any) -> Said:
        """Add one chunk and return the text that it contains."""
        if chunk == DONE:
            self.is_done = True
            return Said()
        with reading():
            self.anything = True
            self.model = str(chunk.get("model") or self.model)
            self.has_unknown |= _is_unknown(chunk)
            for holder in (chunk, chunk.get("x_groq")):
                self._count(holder)
            # Loom asks for one choice only.
            choices = (choice for choice in chunk.get("choices") or () if choice and not index_in(choice.get("index")))
            return self._take_choice(next(choices, {}))

    def take_whole(self, body: Any) -> Said:
        """Add a reply that the server sent as one body, and return its text."""
        said = self.take(body)
        self.anything = bool(self.said or self.finish)
        # A body is complete, even if it gives no reason.
        self.finish = self.finish or ("stop" if self.anything else "")
        return said

    def flush(self) -> Said:
        """Return the text that was held back until the end of the reply."""
        rest = self.thought.flush()
        said = self.text.flush()
        return replace(said, thinking=rest + said.thinking)

    def _count(self, holder: Any) -> None:
        """Add the counts in an object. They are cumulative, and a missing count or a zero means no news."""
        if isinstance(holder, Mapping) and isinstance(sent := holder.get("usage"), Mapping):
            self.counted = _usage(sent, self.counted)

    def _take_choice(self, choice: Mapping[str, Any]) -> Said:
        self._count(choice)
        self.finish = latest(self.finish, text_in(choice.get("finish_reason")))
        # A message is complete. Some servers send one after its deltas.
        delta = choice.get("delta") or (None if self.said else choice.get("message")) or {}
        if choice.get("delta") is None and choice.get("message") is None:
            delta = {"content": choice.get("text")}  # from the API before chat completions
        self.extra_fields = joined(self.extra_fields, extra_fields_of_message(delta))
        pieces = delta.get("tool_calls") or ()
        for piece in [pieces] if isinstance(pieces, Mapping) else filter(None, pieces):
            self._take_call(piece, index_in(piece.get("index")))
        if legacy := delta.get("function_call"):
            self._take_call({"function": legacy}, _LEGACY)
        self.refusal += text_in(delta.get("refusal"))
        thought = self._take_reasoning(delta)
        parts = list(_parts(delta.get("content")))
        inner = "".join(text for kind, text in parts if kind == "thinking")
        if inner:
            self.reasoning.setdefault(_THINKING[0], []).append(inner)
        said = self.text.feed("".join(text for kind, text in parts if kind == "text"))
        return replace(said, thinking=self.thought.feed(thought + inner) + said.thinking)

    def _take_reasoning(self, delta: Mapping[str, Any]) -> str:
        details = delta.get(_DETAILS) or ()
        given = [detail for detail in ([details] if isinstance(details, Mapping) else details) if detail]
        in_details = "".join(text_in(detail.get("text")) or text_in(detail.get("summary")) for detail in given)
        for detail in given:
            self._take_detail(detail)
        name = next(
            (name for name in _THINKING if isinstance(delta.get(name), str | list | Mapping) and delta[name]), None
        )
        if name is None:
            return in_details
        thought = _text_in(delta[name])
        self.reasoning.setdefault(name, []).append(thought)
        return thought

    def _take_detail(self, piece: Mapping[str, Any]) -> None:
        """Add a piece of a block of reasoning. Consecutive pieces with the same index and type belong to one block,
        unless their ids differ.
        """
        last = self.details[-1] if self.details else {}
        is_other = any(last.get(name) != piece.get(name) for name in ("index", "type"))
        has_other_id = piece.get("id") is not None and last.get("id") not in (None, piece["id"])
        if piece.get("index") is None or is_other or has_other_id:
            self.details.append({**piece})
            return
        for name, value in piece.items():
            is_text = name in ("text", "summary", "data") and isinstance(value, str)
            if value is not None:
                last[name] = (last.get(name) or "") + value if is_text else value

    def _take_call(self, piece: Mapping[str, Any], index: int | str | None) -> None:
        function = piece.get("function") or {}
        call_id, name = str(piece.get("id") or ""), text_in(function.get("name"))
        arguments = function.get("arguments")
        call = self._continued(call_id, name, index)
        if call is None or call.is_followed_by(call_id, name, arguments, has_index=index is not None):
            call = _PartialCall()
            self.calls.append(call)
        if index is not None:
            self.open[index] = call
        call.take(call_id, name, arguments)
        call.extra_fields = joined(call.extra_fields, extra_fields_of_call(piece))

    def _continued(self, call_id: str, name: str, index: int | str | None) -> _PartialCall | None:
        """Return the call to which a piece seems to belong: the one with the same index, else the one with the same id,
        else the last one.
        """
        if index is not None and index in self.open:
            return self.open[index]
        if name and index is not None:
            return None
        same = (call for call in reversed(self.calls) if call_id and call.id == call_id)
        return next(same, self.calls[-1] if self.calls else None)

    @property
    def said(self) -> str:
        """All that the model has written so far."""
        thought = (piece for pieces in self.reasoning.values() for piece in pieces)
        blocks = (each.get("text") or each.get("summary") or "" for each in self.details)
        called = (piece for call in self.calls for piece in (call.name, *call.arguments))
        return "".join((*thought, *blocks, *self.text.thinking, *self.text.answer, *called))

    def answer(self, call: ModelCall) -> ModelAnswer:
        """Return the complete reply."""
        with reading():
            return self._answer(call)

    def _answer(self, call: ModelCall) -> ModelAnswer:
        calls = read_calls([(heard.id, heard.name, "".join(heard.arguments)) for heard in self.calls], call.messages)
        stop: StopReason = "length" if ending_of(self.finish) == "cut" else "tools" if calls else "end"
        state = ProviderState(message=self.extra_fields, calls=[heard.extra_fields for heard in self.calls])
        note = {**reasoning_note(call.model, self._thought()), **state.note(self.host)} if calls else {}
        message = Message(role="assistant", content="".join(self.text.answer), tool_calls=calls, metadata=note)
        return ModelAnswer(message=message, stop=stop, usage=self.counted, model=whole_characters(self.model))

    def _thought(self) -> str | Mapping[str, Any]:
        """Return the thinking as it must be returned to the server: the text of `reasoning_content`, or texts and
        blocks by the names of their fields.
        """
        thought: dict[str, Any] = {
            name: "".join(pieces) for name, pieces in self.reasoning.items() if name in _TAKEN_BACK
        }
        if self.details:
            # The blocks contain the same thinking as the texts, with signatures.
            return {_DETAILS: self.details}
        if self.text.thinking:
            thought[THINK_TAGS] = "".join(self.text.thinking)
        return thought[_THINKING[0]] if set(thought) == {_THINKING[0]} else thought


def _is_unknown(chunk: Mapping[str, Any]) -> bool:
    is_known = chunk.get("object") == "chat.completion.chunk" or chunk.get("type") in PINGS
    return bool(chunk) and not is_known and chunk.keys().isdisjoint(("choices", "usage"))


def _parts(content: Any) -> Iterator[tuple[str, str]]:
    """Yield the kind, `text` or `thinking`, and the text of each part of a message."""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, str):
            yield "text", part
        elif part and (kind := _PARTS.get(part.get("type", "text"))):
            yield kind, _text_in(part[kind])


def _text_in(value: Any) -> str:
    """Return the text in a value, which is a text, an object that contains it, or a list of these."""
    if isinstance(value, list):
        return "".join(map(_text_in, value))
    return _text_in(value["text" if "text" in value else "value"]) if isinstance(value, Mapping) else text_in(value)


def _usage(sent: Mapping[str, Any], before: Usage) -> Usage:
    """Return the counts that a server has sent now or before."""
    details = sent.get("prompt_tokens_details")
    cached = token_count(details, "cached_tokens") or token_count(sent, "prompt_cache_hit_tokens")
    return Usage(
        input_tokens=token_count(sent, "prompt_tokens") or token_count(sent, "input_tokens") or before.input_tokens,
        output_tokens=token_count(sent, "completion_tokens")
        or token_count(sent, "output_tokens")
        or before.output_tokens,
        cached_tokens=cached or before.cached_tokens,
        cache_write_tokens=token_count(details, "cache_write_tokens") or before.cache_write_tokens,
        model_calls=1,
    )
