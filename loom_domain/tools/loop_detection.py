"""Loops: the same calls with the same results, turn after turn.

A turn counts as repeated if each of its calls was made within the last few turns with the same outcome: a single call
again and again, two alternating ones (A, B, A, B), three in a row, also in parallel or in another order. A different
result is new, so polling a value that changes, or testing after each change, is no loop. After a few repeated turns in
a row the model is warned; after as many as the window has turns, the run is stopped.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from loom.domain.core.messages import ToolCall, canonical, short_digest
from loom.domain.core.tool_calls import OpenCall, ToolResult

WARN_AFTER: Final = 2
"""Repeated turns in a row after which the model is warned. The first occurrence does not count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """What the last turns did, and how many of them repeated earlier ones."""

    recent: tuple[tuple[str, ...], ...] = ()
    """The calls of the last turns, by digest."""
    turns: int = 0
    """Number of repeated turns in a row."""
    warned: bool = False
    """Whether the model was warned during these turns."""


def call_steps(calls: Iterable[OpenCall]) -> tuple[str, ...]:
    """Digests of finished calls with their results."""
    return tuple(_step(call.call, call.result) for call in calls if call.result is not None)


def _step(call: ToolCall, result: ToolResult) -> str:
    # A long output names its artifact, which differs every time.
    said = result.content.replace(result.artifact, "") if result.artifact else result.content
    return short_digest("\0".join((call.name, call.malformed or canonical(call.arguments), said)))


def text_step(text: str) -> tuple[str, ...]:
    """The digest of a turn without tool calls."""
    return (short_digest(text.strip()),)


def followed(before: Repetition, steps: tuple[str, ...], window: int) -> Repetition:
    """The repetition after one more turn with these calls. A window of 0 disables the check."""
    if window < 1 or not steps:
        return before
    seen = {step for turn in before.recent for step in turn}
    recent = (*before.recent, steps)[-window:]
    if seen.issuperset(steps):
        return replace(before, recent=recent, turns=before.turns + 1)
    return Repetition(recent=recent)


def circles(repetition: Repetition) -> str | None:
    """The warning for a model that repeats itself, once for each series; None: it does not."""
    if repetition.warned or repetition.turns < WARN_AFTER:
        return None
    return (
        f"For {repetition.turns} turns you have repeated calls that you had just made, with the same results. They will"
        " not come out differently. Try something else, or say what stands in the way; if this goes on, the run is"
        " stopped."
    )


def is_loop(repetition: Repetition, window: int) -> bool:
    """Whether the run has to be stopped: the series is as long as the window, and the model had a turn to leave it."""
    return window > 0 and repetition.warned and repetition.turns >= max(window - 1, WARN_AFTER + 1)
