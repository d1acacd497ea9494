"""Find what a script of `sed` runs and writes, by the commands `e` and `w` or the flags of `s`.

The patterns follow GNU sed. Any script that they don't understand may run something.
"""

import re
from collections.abc import Sequence
from typing import Final

SED: Final = frozenset({"sed", "gsed"})


def _address(name: str) -> str:
    return (
        r"(?:\d+(?:~\d+)?|\$|/(?:\\.|[^\\/\n])*/[IM]*"
        rf"|\\(?P<{name}>[^\\\n])(?:\\.|(?!(?P={name}))[^\\\n])*(?P={name})[IM]*)"
    )


_PART: Final = r"(?:\\.|(?!(?P=by))[^\\\n])*(?P=by)"
"""Matches a part of `s` or `y`, and the character that ends it."""
_COMMAND: Final = re.compile(
    rf"""
    [\s;]+
    | \#[^\n]*
    | (?:{_address("from")} (?:[ \t]*,[ \t]*(?:{_address("to")}|[+~]\d+))? [ \t]* )? !?[ \t]*
      (?:
        [={{}}dDgGhHnNpPxzF]
        | [:btT][ \t]*\w*(?=[\s;}}]|\Z)
        | [aic](?:\\.|[^\\\n])+
        | [qQlL][ \t]*\d*
        | [rR][^\n]*
        | [wW](?P<file>[^\n]*)
        | v[ \t]*[\d.]*
        | y(?P<by>[^\\\n]){_PART}{_PART}
        | s(?P<by_>[^\\\n]){(_PART + _PART).replace("=by", "=by_")}[gpiIMm\d]*(?:w(?P<file_>[^\n]*))?
      )
    """,
    re.DOTALL | re.VERBOSE,
)
"""Matches one command that runs nothing, or what separates commands."""
_VALUES: Final = frozenset("efl")


def runs_something(script: str) -> bool:
    """Whether the script runs a program, or isn't understood."""
    at = 0
    while at < len(script):
        found = _COMMAND.match(script, at)
        if found is None:
            return True
        at = found.end()
    return False


def written_by(script: str) -> Sequence[str]:
    """Return the files that the script writes. The name of a file extends to the end of the line."""
    found, at = [], 0
    while match := _COMMAND.match(script, at):
        found += [name.strip() for name in (match["file"], match["file_"]) if name]
        at = match.end()
    return found


def scripts_in(values: Sequence[str | None]) -> Sequence[tuple[int, int]]:
    """Return the position of each word that contains a part of the script, and where in the word it starts."""
    scripts: list[tuple[int, int]] = []
    operands: list[int] = []
    has_file, at = False, 1
    while at < len(values):
        word = values[at] or ""
        if word == "--":
            operands += range(at + 1, len(values))
            break
        option, start = _option_with_value(word)
        if not option and (word[:1] != "-" or word == "-"):
            operands.append(at)
        elif option:
            at, start = (at, start) if start < len(word) else (at + 1, 0)
            has_file = has_file or option == "f"
            scripts += [(at, start)] * (option == "e" and at < len(values))
        at += 1
    return scripts or ([] if has_file else [(at, 0) for at in operands[:1]])


def _option_with_value(word: str) -> tuple[str, int]:
    """Return the letter of an option that takes a value, and where its value starts in the word."""
    if word.startswith("--"):
        name, equals, _ = word.partition("=")
        longs = ("--expression", "--file", "--line-length")
        letter = next((long[2] for long in longs if long.startswith(name)), "") if len(name) > 2 else ""
        return letter, len(name) + 1 if equals else len(word)
    for place, letter in enumerate(word[1:] if word[:1] == "-" else "", start=2):
        if letter in _VALUES:
            return letter, place
        if letter == "i":
            break
    return "", 0
