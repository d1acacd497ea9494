"""Active skills, whose instructions are in a conversation as `load_skill` results.

Skill instructions don't become outdated, unlike observations, so they are never collapsed. A compression keeps the
instructions word for word, newest first, as long as they fit. The summary names the skills whose instructions were
removed, so that the model can load them again.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from loom.domain.core.messages import Group, Message, groups_that_fit
from loom.domain.skills.catalog import ACTIVE_TOKENS, LOAD_SKILL

SHARE: Final = 0.3
"""The maximum share of a compressed conversation that active skills may use."""

_CONTENT: Final = re.compile(r'<skill_content name="([a-z0-9-]+)"')
_LISTED: Final = re.compile(r"^- ([a-z0-9-]+):", re.MULTILINE)


def skill_in(message: Message) -> str:
    """Return the name of the skill whose instructions this message contains, or an empty string."""
    if message.role != "tool" or message.name != LOAD_SKILL or message.is_error:
        return ""
    match = _CONTENT.search(message.text)
    return match[1] if match else ""


def active_in(messages: Iterable[Message]) -> dict[str, int]:
    """Return the active skills in message order. Each skill has the position of the message that last loaded it."""
    found: dict[str, int] = {}
    for place, message in enumerate(messages):
        if name := skill_in(message):
            found.pop(name, None)
            found[name] = place
    return found


def staying_skills(messages: Sequence[Message], groups: Sequence[Group], room: int) -> set[Group]:
    """Return the message groups of the active skills that fit into the skills' share, newest first."""
    places = reversed(active_in(messages).values())
    return groups_that_fit(messages, groups, places, min(ACTIVE_TOKENS, int(SHARE * room)))


def told(earlier: str, before: Sequence[Message], after: Sequence[Message]) -> list[str]:
    """Return a line for each skill that was ever active. The line says whether the skill's instructions are still in
    the conversation. `earlier` is such a list from a previous compression.
    """
    there = active_in(after)
    names = dict.fromkeys((*_LISTED.findall(earlier), *active_in(before)))
    gone = "no longer in the conversation; load it again when you need it"
    return [f"- {name}: {'its instructions stand in the conversation' if name in there else gone}" for name in names]
