"""Which tasks a subscriber gets: its pattern held against a task's action; and handlers as a module registers them.

pattern        takes
`*`            everything
`node.*`       every action that begins with `node.`
`node.error`   this one
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from loom.domain.core.errors import BadRequest
from loom.domain.core.tasks import SHOWN_ONLY, Action

EVERYTHING: Final = "*"
_REST: Final = ".*"


def checked(pattern: str) -> str:
    """The pattern, if it is one; raises BadRequest."""
    named = pattern.removesuffix(_REST)
    if pattern != EVERYTHING and (not named or "*" in named or named.startswith(".") or named.endswith(".")):
        raise BadRequest(
            f"pattern {pattern!r} takes nothing; write an action ('node.error'), a group ('node.*'), or '*'",
            field="pattern",
        )
    return pattern


def takes(pattern: str, action: str) -> bool:
    """Whether a subscriber with this pattern gets tasks of this action."""
    if pattern.endswith(_REST):
        return action.startswith(pattern.removesuffix("*"))
    return pattern in (EVERYTHING, action)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskHandler:
    """A user's function, async or not, that gets each task that its pattern takes."""

    name: str
    """Workers share the tasks of one name, and it is what the bus knows the handler by after a restart."""
    pattern: str
    function: Callable[..., Any]
    origin: str = ""
    """Where it was defined, for people."""


def check_arrives(pattern: str) -> None:
    """Refuse a pattern by which nothing would ever come: no action is called so, or only pieces of text are."""
    taken = [action for action in Action if takes(checked(pattern), action)]
    if not taken:
        known = ", ".join(action for action in Action if action not in SHOWN_ONLY)
        raise BadRequest(f"pattern {pattern!r} takes no action that there is: {known}", field="pattern")
    if SHOWN_ONLY.issuperset(taken):
        raise BadRequest(
            f"pattern {pattern!r} takes pieces of text only, which are not on the bus: the whole text is in"
            " the run's history",
            field="pattern",
        )
