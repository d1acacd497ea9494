"""Find calls of Bash builtins that run text as code, evaluate text as a variable's name, or assign variables.

A variable's name may have a subscript, which Bash evaluates: `read 'a[$(id)]'` runs `id`. A variable such as `PATH`
decides what later commands run. A builtin that isn't listed here does none of this, whatever its arguments are.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from loom.activities.adapters.shell.transparent import is_harmless
from loom.activities.adapters.shell.words import Word
from loom.activities.adapters.shell.wrappers import Unclear, Wrapper, after

CODE: Final = frozenset({"eval", "trap", "alias"})
"""Builtins whose arguments contain commands."""

_NEVER: Final = CODE | frozenset(
    """
    bind builtin compgen complete compopt coproc declare enable export fc getopts hash history jobs let local mapfile
    readarray readonly select typeset unalias unset wait
    """.split()  # noqa: SIM905 - as a list it would take half a screen
)
"""Builtins whose effect is known only if they have no arguments."""

_READ: Final = Wrapper(flags="rs", values="pntdu")
_SET_OPTION: Final = re.compile(r"[-+](?:[euxvf]+o?|o)")
_SET_NAMES: Final = frozenset({"pipefail", "errexit", "nounset", "xtrace", "verbose", "noglob"})
_SHOPT: Final = frozenset({"-s", "-u", "-q", "nullglob", "globstar", "dotglob", "failglob", "inherit_errexit"})
_SCRIPT_FROM_ELSEWHERE: Final = re.compile(r"-|/dev/.*|/proc/.*")


def unclear_argument(name: str, words: Sequence[Word]) -> str:
    """Return the argument that makes a builtin's effect unknown, or an empty string."""
    if name in _NEVER:
        return words[1].text if len(words) > 1 else ""
    return _CHECKS[name](words[1:]) if name in _CHECKS else ""


def reads_elsewhere(word: str | None) -> bool:
    """Whether a shell that runs this script reads its commands from somewhere other than a file of this name."""
    return word is None or _SCRIPT_FROM_ELSEWHERE.fullmatch(word) is not None


def _of_printf(words: Sequence[Word]) -> str:
    """Check `printf`. `-v` assigns a variable, and so does `%n` in the format."""
    values = [word.fixed for word in words]
    rest = words[1:] if values[:1] == ["--"] else words
    if not rest or (len(words) == 1 and words[0].is_one):
        return ""
    form = rest[0].fixed
    is_clear = form is not None and not re.search(r"%[^%a-zA-Z\\]*[hlLjztq]*n", form)
    return "" if is_clear and (rest is not words or not (form or "").startswith("-")) else rest[0].text


def _of_test(words: Sequence[Word]) -> str:
    """Check `test`. `-v` and `-R` evaluate the following word."""
    for word in words:
        if not word.is_one:
            return word.text
    for one, other in pairwise(words):
        if one.fixed in (None, "-v", "-R") and (other.fixed is None or "[" in other.fixed):
            return one.text
    return ""


def _of_read(words: Sequence[Word]) -> str:
    try:
        names = words[after(_READ, ["read", *(word.fixed for word in words)]) - 1 :]
    except Unclear as unclear:
        return str(unclear) or "a computed name"
    return next((word.text for word in names if word.fixed is None or not is_harmless(word.fixed)), "")


def _of_set(words: Sequence[Word]) -> str:
    is_name = False
    for word in words:
        value = word.fixed
        if value in ("--", "-") or (value is not None and value[:1] not in ("-", "+") and not is_name):
            return ""
        if value is None or not (value in _SET_NAMES if is_name else _SET_OPTION.fullmatch(value)):
            return word.text
        is_name = not is_name and value.endswith("o")
    return ""


def _of_shopt(words: Sequence[Word]) -> str:
    return next((word.text for word in words if word.fixed not in _SHOPT), "")


def _of_source(words: Sequence[Word]) -> str:
    return words[0].text if words and reads_elsewhere(words[0].fixed) else ""


_CHECKS: Final[Mapping[str, Callable[[Sequence[Word]], str]]] = {
    "printf": _of_printf,
    "test": _of_test,
    "[": _of_test,
    "read": _of_read,
    "set": _of_set,
    "shopt": _of_shopt,
    "source": _of_source,
    ".": _of_source,
}
