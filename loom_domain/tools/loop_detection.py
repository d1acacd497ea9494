"""Loop detection: a run that repeats the same calls with the same results, turn after turn.

A turn repeats if the last few turns contain each of its calls with the same result. This finds one call that is made
again and again, two or three calls in alternation, and parallel calls in another order. A different result is new, so
polling a changing value, or testing after each change, is no loop. After a few such turns in a row the model is warned;
after as many as the window has turns, the run is stopped.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from loom.domain.core.messages import ToolCall, canonical, short_digest
from loom.domain.core.tool_calls import OpenCall, ToolResult

WARN_AFTER: Final = 2
"""Turns in a row without anything new after which the model is warned. The first occurrence does not count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """What the last turns did, and how many of them repeated earlier ones."""

    recent: tuple[tuple[str, ...], ...] = ()
    """The steps of the last turns, by digest."""
    turns: int = 0
    """Turns in a row that brought nothing new."""
    warned: bool = False
    """The model has been warned about this series of turns."""


def call_steps(calls: Iterable[OpenCall]) -> tuple[str, ...]:
    """A digest of each finished call and its result."""
    return tuple(_step(call.call, call.result) for call in calls if call.result is not None)


def _step(call: ToolCall, result: ToolResult) -> str:
    # A long output names the artifact that holds it, which is a different one each time.
    said = result.content.replace(result.artifact, "") if result.artifact else result.content
    return short_digest("\0".join((call.name, call.malformed or canonical(call.arguments), said)))


def text_step(text: str) -> tuple[str, ...]:
    """The digest that stands for a turn without tool calls."""
    return (short_digest(text.strip()),)


def followed(before: Repetition, steps: tuple[str, ...], window: int) -> Repetition:
    """The repetition after one more turn with these digests; a window of 0 turns detection off."""
    if window < 1 or not steps:
        return before
    seen = {step for turn in before.recent for step in turn}
    recent = (*before.recent, steps)[-window:]
    if seen.issuperset(steps):
        return replace(before, recent=recent, turns=before.turns + 1)
    return Repetition(recent=recent)


def circles(repetition: Repetition) -> str | None:
    """The warning for a model that repeats itself, once for each series of turns; else None."""
    if repetition.warned or repetition.turns < WARN_AFTER:
        return None
    return (
        f"For {repetition.turns} turns you have repeated calls that you had just made, with the same results. They will"
        " not come out differently. Try something else, or say what stands in the way; if this goes on, the run is"
        " stopped."
    )


def is_loop(repetition: Repetition, window: int) -> bool:
    """Whether to stop the run: the series is as long as the window, and the model had a turn after the warning."""
    return window > 0 and repetition.warned and repetition.turns >= max(window - 1, WARN_AFTER + 1)
