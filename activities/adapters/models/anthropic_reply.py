"""Put a reply of Anthropic's Messages API together from its events."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from loom.activities.adapters.models.event_stream import DONE, Event, index_in, reading, text_in
from loom.activities.adapters.models.provider_state import OF_TOOL_USE, ProviderState, unknown_fields
from loom.activities.adapters.models.stop_reasons import ending_of, latest
from loom.activities.adapters.models.thinking import Said, ThinkTags
from loom.activities.adapters.models.wire import read_calls, reasoning_note, token_count
from loom.activities.ports import ModelAnswer, ModelCall
from loom.domain.core.messages import Message, Usage
from loom.domain.core.whole_characters import CharacterPieces, whole_characters, with_whole_characters
from loom.domain.run.activity_payloads import StopReason

_PAUSED: Final = "pause_turn"
"""The stop reason of a long turn that the server has paused. It goes on if the reply so far is sent back unchanged."""
MOST_PAUSES: Final = 10

_BLOCKS: Final = {
    "text_delta": "text",
    "citations_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
    "input_json_delta": "tool_use",
}
"""The types of the blocks to which deltas belong."""


def events_in(body: Any) -> Iterator[Event]:
    """Yield the events of a reply that the server sent as one body. A body that isn't a reply has none."""
    if not isinstance(body, Mapping) or not isinstance(body.get("content"), list):
        return
    yield Event("message_start", {"message": body})
    for index, block in enumerate(body["content"]):
        yield Event("content_block_start", {"index": index, "content_block": block})
    yield Event("message_delta", {"delta": body})
    yield Event("message_stop", {})


@dataclass(kw_only=True, slots=True)
class _PartialBlock:
    start: Mapping[str, Any]
    pieces: list[str] = field(default_factory=list)
    signature: str = ""
    citations: list[Any] = field(default_factory=list)
    is_open: bool = True

    @property
    def type(self) -> str:
        """The type of the block."""
        return text_in(self.start["type"])

    def is_begun_again_by(self, start: Mapping[str, Any]) -> bool:
        """Whether the server repeats the start of this block."""
        return self.is_open and all(self.start.get(name) == start.get(name) for name in ("type", "id", "name"))

    def arguments(self) -> str:
        """Return the text of the arguments, which the server sends in pieces, or as an object at the start."""
        text, given = "".join(self.pieces), self.start.get("input")
        return text if text.strip() or not given else json.dumps(given)

    def reasoning(self) -> Mapping[str, Any]:
        if self.type == "redacted_thinking":
            return self.start
        return {"type": "thinking", "thinking": "".join(self.pieces), "signature": self.signature}

    def content(self) -> Mapping[str, Any]:
        """Return the block as it must be sent back. Raises a ValueError if a server's call has no valid arguments."""
        match self.type:
            case "text":
                cited = {"citations": self.citations} if self.citations else {}
                return {"type": "text", "text": "".join(self.pieces), **cited}
            case "thinking" | "redacted_thinking":
                return self.reasoning()
            case "server_tool_use" | "tool_use":
                return {**self.start, "input": json.loads(self.arguments().strip() or "{}")}
            case _:
                return self.start


@dataclass(kw_only=True, slots=True)
class PartialReply:
    """A reply that is still being received. A reply that pauses consists of several messages."""

    host: str = ""
    """The server that sends the reply, if it gets its own fields back."""
    anything: bool = False
    complete: bool = False
    """Whether the server has ended the message, and not only closed the stream."""
    model: str = ""
    stop: str = ""
    refusal: str = ""
    text: ThinkTags = field(default_factory=ThinkTags)
    thought: CharacterPieces = field(default_factory=CharacterPieces)
    """The thinking as it is streamed."""
    blocks: list[_PartialBlock] = field(default_factory=list)
    """The blocks of all messages, in order."""
    indexes: dict[int | None, _PartialBlock] = field(default_factory=dict)
    """The blocks of the current message by their index."""
    before: int = 0
    """The number of blocks before the last pause."""
    usage: dict[str, Any] = field(default_factory=dict)
    pauses: int = 0
    before_pause: Usage = field(default_factory=Usage)

    def take(self, event: Event) -> Said:
        """Add one event and return the text that it contains."""
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

    @property
    def is_paused(self) -> bool:
        """Whether the reply has paused. A reply with tool calls waits for their results instead."""
        return self.stop == _PAUSED and not any(b.type == "tool_use" for b in self.blocks)

    def goes_on(self) -> bool:
        """Whether the reply has paused. If so, prepare for its next message."""
        if not self.is_paused or self.pauses == MOST_PAUSES:
            return False
        self.before_pause, self.usage = self.counted, {}
        self.pauses, self.complete, self.stop = self.pauses + 1, False, ""
        self.before, self.indexes = len(self.blocks), {}
        return True

    @property
    def content(self) -> Sequence[Mapping[str, Any]]:
        """The blocks of the messages before the last pause."""
        with reading():
            blocks = [with_whole_characters(block.content()) for block in self.blocks[: self.before]]
            return [block for block in blocks if block["type"] != "text" or block["text"]]  # empty texts are rejected

    def _take(self, kind: str, value: Mapping[str, Any]) -> Said:
        """Add an event. Those that Loom doesn't know are ignored."""
        match kind:
            case "content_block_delta":
                delta = value.get("delta") or {}
                block = self._block_of(index_in(value.get("index")), delta)
                return Said() if block is None else self._take_delta(block, delta)
            case "content_block_start":
                return self._take_start(index_in(value.get("index")), value["content_block"])
            case "content_block_stop":
                if block := self.indexes.get(index_in(value.get("index"))):
                    block.is_open = False
            case "message_start":
                message = value["message"] or {}
                self.model = str(message.get("model") or self.model)
                self._count(message.get("usage"))
            case "message_delta":
                self._take_end(value.get("delta") or {})
                self._count(value.get("usage"))
            case "message_stop":
                self.complete = True
        return Said()

    def _count(self, usage: Any) -> None:
        """Add counts, which are cumulative. A null value means that the count is unchanged."""
        if isinstance(usage, Mapping):
            self.usage.update({name: value for name, value in usage.items() if value is not None})

    def _take_start(self, index: int | None, start: Mapping[str, Any]) -> Said:
        block = self.indexes.get(index)
        if block is not None and block.is_begun_again_by(start):
            return Said() if block.pieces else self._take_delta(block, start)
        return self._take_delta(self._added(index, start), start)

    def _added(self, index: int | None, start: Mapping[str, Any]) -> _PartialBlock:
        block = _PartialBlock(start=start, signature=text_in(start.get("signature")))
        self.blocks.append(block)
        self.indexes[index] = block
        return block

    def _block_of(self, index: int | None, delta: Mapping[str, Any]) -> _PartialBlock | None:
        """Return the block of a delta. Some servers send deltas without the start of their block or without its index.
        Return None if Loom doesn't know the type of the delta. Raises a ValueError if the block can't be found.
        """
        if (block := self.indexes.get(index)) is not None:
            return block
        if (kind := _BLOCKS.get(delta["type"])) is None:
            return None
        last = self.blocks[-1] if len(self.blocks) > self.before else None
        if last is not None and last.type == kind and (last.is_open or index is None):
            return last
        if kind == "tool_use":
            raise ValueError("arguments without a call")
        return self._added(index, {"type": kind})

    def _take_delta(self, block: _PartialBlock, delta: Mapping[str, Any]) -> Said:
        match delta["type"]:
            case "text_delta" | "text":
                said = text_in(delta.get("text"))
                block.pieces.append(said)
                block.citations.extend(delta.get("citations") or ())
                return self.text.feed(said)
            case "input_json_delta":
                block.pieces.append(text_in(delta.get("partial_json")))
            case "thinking_delta" | "thinking":
                thought = text_in(delta.get("thinking"))
                block.pieces.append(thought)
                return Said(thinking=self.thought.feed(thought))
            case "signature_delta":
                block.signature += text_in(delta.get("signature"))
            case "citations_delta":
                block.citations.append(delta["citation"])
        return Said()

    def _take_end(self, delta: Mapping[str, Any]) -> None:
        self.stop = latest(self.stop, text_in(delta.get("stop_reason")))
        details = delta.get("stop_details") or {}
        self.refusal = str(details.get("explanation") or details.get("category") or "")

    @property
    def counted(self) -> Usage:
        """The provider's last count."""
        return self.before_pause + _usage(self.usage)

    @property
    def said(self) -> str:
        """All that the model has written so far."""
        return "".join(piece for block in self.blocks for piece in block.pieces)

    def answer(self, call: ModelCall) -> ModelAnswer:
        """Return the complete reply."""
        with reading():
            uses = [block for block in self.blocks if block.type == "tool_use"]
            made = [(str(use.start.get("id") or ""), text_in(use.start.get("name")), use.arguments()) for use in uses]
            calls = read_calls(made, call.messages)
            # Besides thinking, these are the calls that the server made itself, with their results.
            thought = [dict(block.content()) for block in self.blocks if block.type not in ("text", "tool_use")]
            state = ProviderState(calls=[unknown_fields(use.start, OF_TOOL_USE) for use in uses])
            note = {**reasoning_note(call.model, thought), **state.note(self.host)} if calls else {}
        stop: StopReason = "length" if ending_of(self.stop) == "cut" else "tools" if calls else "end"
        message = Message(role="assistant", content="".join(self.text.answer), tool_calls=calls, metadata=note)
        return ModelAnswer(message=message, stop=stop, usage=self.counted, model=whole_characters(self.model))


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
