"""The names of tools' arguments, in a form that every provider accepts."""

import re
from typing import Final

from loom.domain.core.messages import short_digest

LONGEST: Final = 64
"""Maximum number of characters in an argument's name. Anthropic rejects a request with a longer one."""

_ACCEPTED: Final = re.compile(rf"[a-zA-Z0-9_.-]{{1,{LONGEST}}}", re.ASCII)
_OTHERS: Final = re.compile(r"[^a-zA-Z0-9_.-]", re.ASCII)


def argument_name(name: str) -> str:
    """Return the name under which models see an argument.

    If the name isn't accepted, the new name includes a digest of it. It depends on nothing else, so it stays the same
    on every worker, and when the tool gets more arguments.
    """
    if _ACCEPTED.fullmatch(name):
        return name
    digest = short_digest(name)
    return f"{_OTHERS.sub('_', name)[: LONGEST - len(digest) - 1]}_{digest}"
