"""How important a Task is, from 0 to 1: its own metadata decide, else its action and result."""

from collections.abc import Mapping
from typing import Final

from loom.domain.core.tasks import Action, Task

MISSING: Final = 0.5
"""The importance of a Task without metadata about it, whose action has no default."""

BY_ACTION: Final[Mapping[str, float]] = {
    Action.START: 0.8,
    Action.MESSAGE: 0.8,
    Action.APPROVAL_DECIDED: 0.8,
    Action.COMPLETE: 0.9,
    Action.ERROR: 0.9,
    Action.BUDGET: 0.65,
    Action.FALLBACK: 0.65,
    Action.APPROVAL_REQUESTED: 0.55,
    Action.TOOL_RESULT: 0.5,
    Action.TOOL_CALL: 0.4,
    Action.PAUSED: 0.4,
    Action.RESUMED: 0.4,
    Action.COMPRESSION: 0.4,
    Action.IGNORED: 0.3,
    Action.MODEL_CALL: 0.2,
    Action.TURN: 0.1,
}
"""Defaults by action. What people say, decide and receive ranks above the steps in between."""

FAILED: Final = 0.7
"""The least importance of a failure, so that it is not repeated in the same way."""


def judged_importance(task: Task) -> float:
    """The importance in the Task's metadata, else the default for its action and status."""
    said = _said(task)
    if said is not None:
        return said
    by_action = BY_ACTION.get(task.action, MISSING)
    return max(by_action, FAILED) if task.status in ("error", "failed") else by_action


def _said(task: Task) -> float | None:
    said = task.metadata.get("importance")
    if isinstance(said, bool) or not isinstance(said, int | float) or said != said:  # noqa: PLR0124 - not a number
        return None
    return min(1.0, max(0.0, float(said)))
