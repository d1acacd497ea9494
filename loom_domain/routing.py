"""Which tasks a subscriber gets: its pattern held against a task's action.

pattern        takes
`*`            everything
`node.*`       every action that begins with `node.`
`node.error`   this one
"""

from typing import Final

from loom_domain.errors import BadRequest

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
