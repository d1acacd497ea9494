"""The skills whose instructions are in a conversation, as results of `load_skill`, which a compression keeps.

They are instructions, not observations, so they do not become outdated: they are never collapsed, and a compression
keeps them word for word, the newest first, as far as they fit. It names those that it removed, so that they can be
loaded again.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from loom.domain.core.messages import Group, Message
from loom.domain.core.tokens import conversation_tokens
from loom.domain.skills.catalog import ACTIVE_TOKENS, LOAD_SKILL

SHARE: Final = 0.3
"""Maximum share of a compressed conversation for active skills."""

_CONTENT: Final = re.compile(r'<skill_content name="([a-z0-9-]+)"')
_LISTED: Final = re.compile(r"^- ([a-z0-9-]+):", re.MULTILINE)


def skill_in(message: Message) -> str:
    """The name of the skill whose instructions this message contains; empty for any other message."""
    if message.role != "tool" or message.name != LOAD_SKILL or message.is_error:
        return ""
    match = _CONTENT.search(message.text)
    return match[1] if match else ""


def active_in(messages: Iterable[Message]) -> dict[str, int]:
    """The active skills with the position of the message that last loaded each, in the order of those messages."""
    found: dict[str, int] = {}
    for place, message in enumerate(messages):
        if name := skill_in(message):
            found.pop(name, None)
            found[name] = place
    return found


def staying_skills(messages: Sequence[Message], groups: Sequence[Group], room: int) -> set[Group]:
    """The message groups with active skills, the newest first, as far as they fit into their share."""
    left = min(ACTIVE_TOKENS, int(SHARE * room))
    stays: set[Group] = set()
    for place in reversed(active_in(messages).values()):
        group = next(((start, stop) for start, stop in groups if start <= place < stop), None)
        if group is None or group in stays:
            continue
        size = conversation_tokens(messages[group[0] : group[1]])
        if size <= left:
            left -= size
            stays.add(group)
    return stays


def told(earlier: str, before: Sequence[Message], after: Sequence[Message]) -> list[str]:
    """A line for each skill that was ever active, and whether its instructions are still there. `earlier` is such a
    list.
    """
    there = active_in(after)
    names = dict.fromkeys((*_LISTED.findall(earlier), *active_in(before)))
    gone = "no longer in the conversation; load it again when you need it"
    return [f"- {name}: {'its instructions stand in the conversation' if name in there else gone}" for name in names]
