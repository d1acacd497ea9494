"""Going round in circles: the same calls with the same results, turn after turn.

A turn brings nothing new when every step of it has been seen within the last few turns with the same outcome: one
call again and again, two by turns (A, B, A, B), three in a row, also side by side in another order. A result that
differs is new, so polling something that moves, or testing after each change, is no loop. After a few such turns in a
row the model is warned; after as many as the window has turns the run is stopped.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from loom.domain.core.messages import ToolCall, canonical, short_digest
from loom.domain.core.tool_calls import OpenCall, ToolResult

WARN_AFTER: Final = 2
"""Turns in a row without anything new after which the model is warned; the first that is seen counts for none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """What the last turns did, and for how long nothing of it has been new."""

    recent: tuple[tuple[str, ...], ...] = ()
    """The steps of the last turns, by digest."""
    turns: int = 0
    """Turns in a row that brought nothing new."""
    warned: bool = False
    """The model has been told of this row."""


def call_steps(calls: Iterable[OpenCall]) -> tuple[str, ...]:
    """What finished calls did and what came of it, by digest."""
    return tuple(_step(call.call, call.result) for call in calls if call.result is not None)


def _step(call: ToolCall, result: ToolResult) -> str:
    # A long output names the artifact that holds all of it, each time another.
    said = result.content.replace(result.artifact, "") if result.artifact else result.content
    return short_digest("\0".join((call.name, call.malformed or canonical(call.arguments), said)))


def text_step(text: str) -> tuple[str, ...]:
    """The only step of a turn that called no tool."""
    return (short_digest(text.strip()),)


def followed(before: Repetition, steps: tuple[str, ...], window: int) -> Repetition:
    """The repetition after one more turn with these steps; a window of 0 sees none."""
    if window < 1 or not steps:
        return before
    seen = {step for turn in before.recent for step in turn}
    recent = (*before.recent, steps)[-window:]
    if seen.issuperset(steps):
        return replace(before, recent=recent, turns=before.turns + 1)
    return Repetition(recent=recent)


def circles(repetition: Repetition) -> str | None:
    """What a model has to be told that goes round in circles, once for each row; None: it does not."""
    if repetition.warned or repetition.turns < WARN_AFTER:
        return None
    return (
        f"For {repetition.turns} turns you have repeated calls that you had just made, with the same results. They will"
        " not come out differently. Try something else, or say what stands in the way; if this goes on, the run is"
        " stopped."
    )


def is_loop(repetition: Repetition, window: int) -> bool:
    """Whether the run has to be stopped: the row is as long as the window, and the model had a turn to leave it."""
    return window > 0 and repetition.warned and repetition.turns >= max(window - 1, WARN_AFTER + 1)
