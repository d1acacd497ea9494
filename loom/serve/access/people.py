"""The names of callers, and which of them are the same person."""

import unicodedata
from collections.abc import Iterable
from typing import Final

LONGEST_NAME: Final = 255
_LOOKALIKES: Final = str.maketrans(
    "авгеіјкмнопрстухһѕԁԛԝӏαβγεηικμνορτυχζ",
    "abreijkmhonpctyxhsdqwlabyenikmvoptyxz",
)
"""Small letters of Cyrillic and Greek, and the Latin letters that they or their capitals look like."""


def is_valid_name(name: str) -> bool:
    """Return whether a caller may have this name. A comma separates the names of several approvers. Characters that
    nobody sees would let one name look like another.
    """
    return 0 < len(name) <= LONGEST_NAME and name == name.strip() and name.isprintable() and "," not in name


def person(name: str) -> str:
    """Return a form of the name that all names have in common that people would read as the same: without accents, in
    small Latin letters, and without spaces.
    """
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", name).casefold())
    letters = "".join(char for char in apart if not unicodedata.combining(char) and char.isprintable())
    return "".join(letters.translate(_LOOKALIKES).split())


def different_people(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names without those of people who are named before."""
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(person(name), name)
    return tuple(first.values())
