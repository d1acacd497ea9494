"""Compare two runs to show where they diverge and how each of them ended.

Two turns are the same if the model's texts, the tool calls with their arguments, and the results are the same. The
first turn of a fork is aligned with the other run's turn after the fork point.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, TypeAlias

from loom.domain.core.messages import Message, canonical
from loom.domain.core.requests import ForkedFrom
from loom.domain.history.past_turns import PastTurn

Aspect: TypeAlias = Literal["model", "text", "calls", "results"]
"""The aspects in which two turns can differ. A missing turn differs in all of them."""

_ASPECTS: tuple[Aspect, ...] = ("model", "text", "calls", "results")


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnSeen:
    """The parts of a turn that the comparison considers."""

    number: int
    """The turn's number in its own run."""
    model: str
    text: str
    calls: tuple[str, ...]
    """The calls' names and arguments."""
    results: tuple[str, ...]
    """The results, in call order, with an empty string for each call without a result."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnPair:
    """A turn from each of the two runs. None means that the run has no corresponding turn."""

    a: TurnSeen | None
    b: TurnSeen | None

    @property
    def differs(self) -> tuple[Aspect, ...]:
        """The aspects in which the turns differ, or an empty tuple if they're the same. Different models with the same
        output don't count as a difference.
        """
        a, b = self.a, self.b
        if a is None or b is None:
            return _ASPECTS[1:]
        found = tuple(aspect for aspect in _ASPECTS[1:] if getattr(a, aspect) != getattr(b, aspect))
        return (*(("model",) if a.model != b.model else ()), *found) if found else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the two compared runs."""

    run_id: str
    turns: Sequence[PastTurn]
    forked_from: ForkedFrom | None = None


def paired(a: Side, b: Side) -> tuple[TurnPair, ...]:
    """Return pairs of corresponding turns, starting with the first turn that the runs don't share."""
    skip_a, skip_b = _shared(a, b)
    ours = [_seen(turn) for turn in a.turns if turn.number > skip_a]
    theirs = [_seen(turn) for turn in b.turns if turn.number > skip_b]
    return tuple(TurnPair(a=one, b=other) for one, other in zip_longest(ours, theirs))


def first_difference(pairs: Sequence[TurnPair]) -> TurnPair | None:
    """Return the first turn that differs, or None if all turns are the same."""
    return next((pair for pair in pairs if pair.differs), None)


def tools_used(turns: Sequence[PastTurn]) -> Mapping[str, int]:
    """Return the number of results that each tool has returned."""
    done = {(tool.request.call_id, tool.request.tool) for turn in turns for tool in turn.tools if tool.result}
    for turn in turns:
        handed_on = {child.call_id for child in turn.children}
        done |= {(call.id, call.name) for call in _answer(turn).tool_calls if call.id in handed_on}
    return Counter(sorted(tool for _, tool in done))


def _shared(a: Side, b: Side) -> tuple[int, int]:
    """For each run, return the number of turns at its beginning that both runs share. Runs share turns if one is a fork
    of the other or both are forks of a third run.
    """
    at_a, at_b = a.forked_from, b.forked_from
    if at_b is not None and at_b.run_id == a.run_id:
        return at_b.turn, 0
    if at_a is not None and at_a.run_id == b.run_id:
        return 0, at_a.turn
    if at_a is not None and at_b is not None and at_a.run_id == at_b.run_id:
        return max(0, at_b.turn - at_a.turn), max(0, at_a.turn - at_b.turn)
    return 0, 0


def _seen(turn: PastTurn) -> TurnSeen:
    message = _answer(turn)
    results = {child.call_id: child.answer.content for child in turn.children}
    results |= {tool.request.call_id: tool.result.content for tool in turn.tools if tool.result}
    spec = turn.calls[-1].spec if turn.calls else None
    return TurnSeen(
        number=turn.number,
        model=spec.model if spec else "",
        text=message.text.strip(),
        calls=tuple(f"{call.name} {canonical(call.arguments)}" for call in message.tool_calls),
        results=tuple(results.get(call.id, "") for call in message.tool_calls),
    )


def _answer(turn: PastTurn) -> Message:
    return turn.answer or Message(role="assistant")
