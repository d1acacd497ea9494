"""Detect loops: the model repeats the same calls and receives the same results turn after turn.

A turn counts as repeated if each of its calls was already made, with the same outcome, in the last few turns. Examples
are a single call made repeatedly, two alternating calls (A, B, A, B), and a cycle of three calls, even if the calls are
parallel or reordered. A call with a different result isn't a repetition, so polling a changing value or running tests
after each change isn't a loop. After a few consecutive repeated turns, the model receives a warning. When the number of
repeated turns reaches the window size, the run stops.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from loom.domain.core.messages import ToolCall, canonical, short_digest
from loom.domain.core.tool_calls import OpenCall, ToolResult

WARN_AFTER: Final = 2
"""The number of consecutive repeated turns after which the model is warned. The first occurrence does not count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repetition:
    """The calls of the last turns, and the number of turns that repeated earlier ones."""

    recent: tuple[tuple[str, ...], ...] = ()
    """The digests of the last turns' calls."""
    turns: int = 0
    """The number of consecutive repeated turns."""
    warned: bool = False
    """Whether the model has been warned since the first of these repeated turns."""


def call_steps(calls: Iterable[OpenCall]) -> tuple[str, ...]:
    """Return the digests of finished calls and their results."""
    return tuple(_step(call.call, call.result) for call in calls if call.result is not None)


def _step(call: ToolCall, result: ToolResult) -> str:
    # A long output contains the id of its artifact, which is different each time.
    said = result.content.replace(result.artifact, "") if result.artifact else result.content
    return short_digest("\0".join((call.name, call.malformed or canonical(call.arguments), said)))


def text_step(text: str) -> tuple[str, ...]:
    """Return the digest of a turn without tool calls."""
    return (short_digest(text.strip()),)


def followed(before: Repetition, steps: tuple[str, ...], window: int) -> Repetition:
    """Return the repetition after one more turn with these calls. A window of 0 disables the check."""
    if window < 1 or not steps:
        return before
    seen = {step for turn in before.recent for step in turn}
    recent = (*before.recent, steps)[-window:]
    if seen.issuperset(steps):
        return replace(before, recent=recent, turns=before.turns + 1)
    return Repetition(recent=recent)


def circles(repetition: Repetition) -> str | None:
    """Return the warning for a model that repeats itself, or None. The model is warned once per series of repeated
    turns.
    """
    if repetition.warned or repetition.turns < WARN_AFTER:
        return None
    return (
        f"For {repetition.turns} turns you have repeated calls that you had just made, with the same results. They will"
        " not come out differently. Try something else, or say what stands in the way; if this goes on, the run is"
        " stopped."
    )


def is_loop(repetition: Repetition, window: int) -> bool:
    """Whether to stop the run. The series of repeated turns must be as long as the window, and the model must have had
    a turn to respond to the warning.
    """
    return window > 0 and repetition.warned and repetition.turns >= max(window - 1, WARN_AFTER + 1)
