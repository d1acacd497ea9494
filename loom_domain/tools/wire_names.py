"""The names and ids of calls as model servers accept them.

A name or an id that every server accepts stays as it is. Any other one gets its accepted characters and a digest of the
whole. The form depends only on the text itself: it is the same in a tool's definition, in calls and in results, in each
attempt, and on each worker.
"""

import re
from functools import lru_cache
from typing import Final

from loom.domain.core.messages import short_digest

# A text that ends like a digest gets one of its own, so that it can't equal the form of another text.
_ACCEPTED: Final = re.compile(r"(?!.*_x[0-9a-f]{12}\Z)[a-zA-Z0-9_-]{1,64}")
_ACCEPTED_IN_CHAT: Final = re.compile(r"(?!.*_x[0-9a-f]{12}\Z)[a-zA-Z0-9_.:-]{1,40}")
_OTHERS: Final = re.compile(r"[^a-zA-Z0-9_-]+")


@lru_cache(maxsize=4096)
def wire_name(name: str) -> str:
    """Return the name under which servers see a tool. Different names stay different."""
    return name if _ACCEPTED.fullmatch(name) else _digested(name, 64, "tool")


def wire_id(call_id: str) -> str:
    """Return the id under which servers see a call. Different ids stay different."""
    return call_id if _ACCEPTED.fullmatch(call_id) else _digested(call_id, 64, "call")


def chat_id(call_id: str) -> str:
    """Return the id under which servers of OpenAI's chat completions see a call. They accept shorter ids, and more
    characters: some models read the tool's name and a number from ids such as `functions.read_file:0`.
    """
    return call_id if _ACCEPTED_IN_CHAT.fullmatch(call_id) else _digested(call_id, 40, "call")


def _digested(text: str, longest: int, otherwise: str) -> str:
    digest = f"_x{short_digest(text)}"
    return f"{_OTHERS.sub('_', text)[: longest - len(digest)].strip('_') or otherwise}{digest}"
