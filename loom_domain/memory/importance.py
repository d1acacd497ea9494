"""Determine a task's importance, from 0 to 1, from its metadata or its action."""

from collections.abc import Mapping
from typing import Final

from loom.domain.core.tasks import Action, Task
from loom.domain.memory.content import SAYS_SOMETHING, columns, is_small_talk, model_text

MISSING: Final = 0.5
"""The importance of a task if neither its metadata nor its action determines it."""

BY_ACTION: Final[Mapping[str, float]] = {
    Action.START: 0.8,
    Action.MESSAGE: 0.8,
    Action.ANSWER: 0.8,
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
    Action.PARKED: 0.4,
    Action.UNPARKED: 0.4,
    Action.RETRIED: 0.4,
    Action.COMPRESSION: 0.4,
    Action.IGNORED: 0.3,
    Action.MODEL_CALL: 0.2,
    Action.TURN: 0.1,
}
"""The importance of each action. Messages, decisions and results are more important than intermediate actions."""

SAID: Final = 0.65
"""The importance of a model call whose answer has a text that says something."""
FAILED: Final = 0.7
"""The minimum importance of a failure. Failures are important because they help agents avoid repeating mistakes."""


def judged_importance(task: Task) -> float:
    """Return the importance from the task's metadata, or else from its action and outcome."""
    said = _said(task)
    if said is not None:
        return said
    by_action = SAID if _says_something(model_text(task)) else BY_ACTION.get(task.action, MISSING)
    return max(by_action, FAILED) if task.status in ("error", "failed") else by_action


def _says_something(text: str) -> bool:
    return columns(text) >= SAYS_SOMETHING and not is_small_talk(text)


def _said(task: Task) -> float | None:
    said = task.metadata.get("importance")
    if isinstance(said, bool) or not isinstance(said, int | float) or said != said:  # noqa: PLR0124 - not a number
        return None
    return min(1.0, max(0.0, float(said)))
