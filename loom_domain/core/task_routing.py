"""Task routing: match a subscriber's pattern against a task's action. This module also defines the handlers that user
modules register.

pattern        matches
`*`            everything
`node.*`       every action that starts with `node.`
`node.error`   this action
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from loom.domain.core.errors import BadRequest
from loom.domain.core.tasks import SHOWN_ONLY, Action

EVERYTHING: Final = "*"
_REST: Final = ".*"


def checked(pattern: str) -> str:
    """Return the pattern unchanged. Raises BadRequest if it is invalid."""
    named = pattern.removesuffix(_REST)
    if pattern != EVERYTHING and (not named or "*" in named or named.startswith(".") or named.endswith(".")):
        raise BadRequest(
            f"pattern {pattern!r} matches nothing; write an action ('node.error'), a group ('node.*'), or '*'",
            field="pattern",
        )
    return pattern


def takes(pattern: str, action: str) -> bool:
    """Whether a subscriber with this pattern receives the tasks that have this action."""
    if pattern.endswith(_REST):
        return action.startswith(pattern.removesuffix("*"))
    return pattern in (EVERYTHING, action)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskHandler:
    """A user's function, async or sync, that receives each task that matches its pattern."""

    name: str
    """The handler's name on the bus. Handlers with the same name share their tasks across workers."""
    pattern: str
    function: Callable[..., Any]
    origin: str = ""
    """The place where the handler is defined, for display."""


def check_arrives(pattern: str) -> None:
    """Raise BadRequest if the pattern can never match, either because no action has this name or because it matches
    only text fragments.
    """
    taken = [action for action in Action if takes(checked(pattern), action)]
    if not taken:
        known = ", ".join(action for action in Action if action not in SHOWN_ONLY)
        raise BadRequest(f"pattern {pattern!r} matches no known action: {known}", field="pattern")
    if SHOWN_ONLY.issuperset(taken):
        raise BadRequest(
            f"pattern {pattern!r} matches only text fragments, which are not on the bus: the full text is in"
            " the run's history",
            field="pattern",
        )
