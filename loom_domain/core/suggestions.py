"""What to say of a name that is not there."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """The known name that was probably meant, or what helps where none is like it."""
    near = get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise
