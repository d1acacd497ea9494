"""JSON text from outside, whose escapes may encode half a character."""

import re
from typing import Final

_HIGH: Final = r"u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = r"u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE: Final = re.compile(rf"\\(?:{_HIGH}\\{_LOW}|({_HIGH}|{_LOW})|.)", re.DOTALL)
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")


def with_whole_characters(text: str) -> str:
    r"""Return the JSON text with `\ufffd` instead of each escape of an unpaired surrogate. UTF-8 can't encode these, so
    no store and no provider accepts them.
    """
    if not _HALF.search(text):
        return text
    return _ESCAPE.sub(lambda escape: r"\ufffd" if escape[1] else escape[0], text)
