"""Search what was said and done in a run by words, in the records of its history.

The history contains each message, call and result of a run, also those that were compressed. Texts are divided into
passages, which are ranked by BM25. Summaries and memories aren't searched, because they only repeat other texts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from loom.domain.context.model_context import is_summary
from loom.domain.core.messages import AGENT, Message, ToolCall, is_from_person, message_digest
from loom.domain.core.tool_calls import tool_message
from loom.domain.core.tool_names import SEARCH_HISTORY
from loom.domain.core.word_ranking import scores_of
from loom.domain.history.past_turns import (
    ChildRun,
    CompressionAttempt,
    ModelAttempt,
    Record,
    ToolAttempt,
)
from loom.domain.run.activity_payloads import Prepared
from loom.domain.run.state import RunState

PASSAGE: Final = 400
"""The maximum number of characters in a passage."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Passage:
    """A part of a message, a call or a result."""

    turn: int
    """0 for what was said before the run's first turn, or in a turn that the history no longer contains."""
    by: str
    """Who said it: a person, `assistant`, a tool's name for its result, or `call of TOOL` for a call's arguments."""
    text: str


def passages_of(records: Sequence[Record]) -> tuple[Passage, ...]:
    """Return everything that was said and done, in order and without repetitions."""
    # If the server has deleted earlier executions, the first record is the state that they left.
    with_summaries = bool(records) and isinstance(records[0], RunState)
    seen: set[str] = set()
    passages: list[Passage] = []
    for turn, message in _messages(records):
        digest = message_digest(message)
        if digest not in seen:
            seen.add(digest)
            passages += _passages(turn, message, with_summaries=with_summaries)
    return tuple(passages)


def search_passages(passages: Sequence[Passage], query: str, limit: int) -> tuple[Passage, ...]:
    """Return the passages that fit the query's words best, best first. Of two that fit as well, the newer comes
    first.
    """
    scores = scores_of([passage.text for passage in passages], query)
    ranked = sorted(range(len(passages)), key=lambda place: (-scores[place], -place))
    return tuple(passages[place] for place in ranked[:limit] if scores[place] > 0)


def _messages(records: Iterable[Record]) -> Iterator[tuple[int, Message]]:
    for record in records:
        match record:
            case Prepared(earlier=earlier) if earlier is not None:
                yield from ((0, message) for message in earlier.messages)
            case RunState():
                yield from ((0, message) for message in record.transcript.messages)
            case ModelAttempt() | CompressionAttempt():
                yield from ((record.request.turn, message) for message in _exchanged(record))
            case ToolAttempt(request=request, result=result) if result is not None:
                yield request.turn, tool_message(ToolCall(id=request.call_id, name=request.tool), result)
            case ChildRun():
                yield 0, tool_message(ToolCall(id=record.call_id, name="sub-agent"), record.answer)


def _exchanged(attempt: ModelAttempt | CompressionAttempt) -> Iterator[Message]:
    """Yield the new messages that the request contains, and the model's reply."""
    yield from (item for item in attempt.request.tail.items if isinstance(item, Message))
    if isinstance(attempt, ModelAttempt) and attempt.reply is not None and attempt.reply.message is not None:
        yield attempt.reply.message


def _passages(turn: int, message: Message, *, with_summaries: bool) -> Iterator[Passage]:
    if is_summary(message):
        if with_summaries:
            yield from _divided(turn, "summary", message.text)
        return
    if message.role == "user" and not is_from_person(message) and message.metadata.get("kind") != AGENT:
        return
    if message.name != SEARCH_HISTORY:
        yield from _divided(turn, _who(message), message.text)
    for call in message.tool_calls:
        if call.name != SEARCH_HISTORY:
            given = "\n".join(f"{name}: {value}" for name, value in call.arguments.items())
            yield from _divided(turn, f"call of {call.name}", given)


def _who(message: Message) -> str:
    if message.role == "tool":
        return message.name or "tool"
    return str(message.metadata.get("by") or message.role)


def _divided(turn: int, by: str, text: str) -> Iterator[Passage]:
    """Divide a text into passages of whole lines. A line that is too long is divided with an overlap."""
    passage = ""
    for line in _lines(text):
        if passage and len(passage) + len(line) >= PASSAGE:
            yield Passage(turn=turn, by=by, text=passage)
            passage = ""
        passage = f"{passage}\n{line}" if passage else line
    if passage.strip():
        yield Passage(turn=turn, by=by, text=passage)


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if len(line) <= PASSAGE:
            yield line
        else:
            step = PASSAGE * 4 // 5
            yield from (line[at : at + PASSAGE] for at in range(0, len(line) - PASSAGE + step, step))
