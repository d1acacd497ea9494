"""What edit_file says about an edit: why a text wasn't found, which lines have changed, and whether the file parses.

All functions are pure. The caller runs them in a thread, because a file may be large.
"""

import ast
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Final, TypeAlias

Parsers: TypeAlias = Mapping[str, tuple[str, Callable[[str], object]]]
"""For each file suffix, the language's name and a parser that raises a SyntaxError or ValueError."""

_NONE: Final[Parsers] = {}
_PARSED: Final = 512 * 1024
"""Maximum length of a text that is parsed. Longer texts take seconds."""
_COMPARED: Final = 50_000
"""Maximum number of lines in which similar lines are searched."""
_WANTED: Final = 1000
"""Maximum number of lines that are searched in other forms."""
_AROUND: Final = 2
_PLACES: Final = 3
_SHOWN: Final = 30
_LINE: Final = 300
_NUMBER: Final = re.compile(r"^ *\d+(?:\t|: ?|\| ?|→)")
"""A line number as read_file, grep or an editor shows it."""


def why_missed(text: str, old: str, new: str) -> str:
    """Return the reason why `old` isn't in the text, and the nearest lines of the text. All of them have newlines."""
    lines = text.split("\n")[:_COMPARED]
    wanted = old.strip("\n").split("\n")
    bare = [_NUMBER.sub("", line) for line in wanted]
    if all(map(_NUMBER.match, wanted)) and "\n".join(bare) in text:
        return "it has line numbers, which aren't part of the file: leave them out"
    if (plain := _unescaped(old)) != old and plain in text:
        return "its line breaks or quotes are escaped twice: send them as they are in the file"
    if new.strip() and new in text:
        return f"`new_string` is there already, at line {_line_at(text, new)}: perhaps this edit has been made"
    for form, reason in _FORMS.items() if len(wanted) <= _WANTED else ():
        if at := _windows(lines, wanted, form):
            return f"only {reason} differ. The file has{_or_more(at)}:\n{_numbered(lines, at[0], at[0] + len(wanted))}"
    return _nearest(lines, wanted)


def _spaces(line: str) -> str:
    return " ".join(line.split())


def _letters(line: str) -> str:
    return _spaces(line).casefold()


_FORMS: Final[Mapping[Callable[[str], str], str]] = {
    str.rstrip: "spaces at the ends of lines",
    str.strip: "the indentation or spaces at the ends of lines",
    _spaces: "spaces or tabs",
    _letters: "upper and lower case, or spaces,",
}
"""Ways in which lines may be the same, from the strictest to the loosest."""


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t").replace('\\"', '"')


def _line_at(text: str, part: str) -> int:
    return text.count("\n", 0, text.index(part)) + 1


def _windows(lines: Sequence[str], wanted: Sequence[str], form: Callable[[str], str]) -> list[int]:
    """Return the indices at which all wanted lines are, in this form."""
    sought = [form(line) for line in wanted]
    if not any(sought):
        return []
    given = [form(line) for line in lines]
    starts = (at for at, line in enumerate(given) if line == sought[0])
    return [at for at in starts if given[at : at + len(sought)] == sought]


def _or_more(at: Sequence[int]) -> str:
    others = ", ".join(str(each + 1) for each in at[1:6])
    return f" (also at line {others})" if others else ""


def _nearest(lines: Sequence[str], wanted: Sequence[str]) -> str:
    """Return the part of the file that has the most in common with the wanted lines."""
    at = _most_alike(lines, wanted)
    if at is None:
        return "nothing like it is there: read the file again"
    shown = _numbered(lines, at, at + len(wanted))
    here = lines[at : at + len(wanted)]
    differs = next((number for number, (a, b) in enumerate(zip(here, wanted, strict=False)) if a != b), len(here))
    said = f"The first different line is {at + differs + 1}" if differs < len(here) else "The file ends there"
    return f"the nearest lines differ. {said}:\n{shown}"


def _most_alike(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    index: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        if line.strip():
            index.setdefault(line.strip(), []).append(number)
    votes: dict[int, float] = {}
    for number, line in enumerate(wanted):
        found = index.get(line.strip(), ())
        for place in found[:100]:
            start = max(place - number, 0)
            votes[start] = votes.get(start, 0) + len(line.strip()) / len(found)
    if votes:
        return max(votes, key=lambda start: votes[start])
    return _like_longest(lines, wanted)


def _like_longest(lines: Sequence[str], wanted: Sequence[str]) -> int | None:
    """Return where a line is similar to the longest wanted line, which says most."""
    number = max(range(len(wanted)), key=lambda each: len(wanted[each].strip()))
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted[number].strip()[:_LINE])
    best, place = 0.6, None
    for at, line in enumerate(lines[:5000]):
        matcher.set_seq1(line.strip()[:_LINE])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and (alike := matcher.ratio()) > best:
            best, place = alike, at
    return None if place is None else max(place - number, 0)


def changed_lines(after: str, starts: Sequence[int], old: str, new: str) -> str:
    """Return the changed lines with their numbers and the lines around them. All texts have newlines. `starts` has the
    line of each occurrence of `old` in the text before the edit.
    """
    lines = after.split("\n")
    if lines[-1] == "":
        lines.pop()
    more = new.count("\n") - old.count("\n")
    length = new.rstrip("\n").count("\n") + 1 if new else 0
    firsts = [start - 1 + number * more for number, start in enumerate(starts[:_PLACES])]
    parts = [(max(first - _AROUND, 0), min(first + length + _AROUND, len(lines))) for first in firsts]
    shown = [_numbered(lines, first, last) for first, last in _joined(parts)]
    if len(starts) > _PLACES:
        shown.append(f"({len(starts) - _PLACES} more places)")
    return "\n…\n".join(part for part in shown if part) or "(the file is empty now)"


def _joined(parts: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join parts that overlap or touch."""
    joined = list(parts[:1])
    for _, (first, last) in pairwise(parts):
        if first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined


def _numbered(lines: Sequence[str], first: int, last: int) -> str:
    shown = [f"{number:6}\t{line[:_LINE]}" for number, line in enumerate(lines[first:last], start=first + 1)]
    if len(shown) > _SHOWN:
        half = _SHOWN // 2
        shown[half:-half] = [f"       … ({len(shown) - 2 * half} lines)"]
    return "\n".join(shown)


def parse_error(name: str, before: str, after: str, further: Parsers = _NONE) -> str:
    """Return a sentence if the file doesn't parse after the edit, or an empty string. `further` adds languages."""
    kind = name.rpartition(".")[2].lower()
    parsers = {**_PARSERS, **further}
    if kind not in parsers or max(len(before), len(after)) > _PARSED:
        return ""
    language, parse = parsers[kind]
    if not (error := _error(parse, after)):
        return ""
    if _error(parse, before):
        return f"The file does not parse as {language}, as before the edit: {error}"
    return f"The file no longer parses as {language}: {error}"


def _error(parse: Callable[[str], object], text: str) -> str:
    try:
        parse(text)
    except SyntaxError as error:
        return f"{error.msg}, line {error.lineno}"
    except (RecursionError, MemoryError):
        return ""  # too deep for this parser, which says nothing about the text
    except ValueError as error:
        return " ".join(str(error).split())[:_LINE]
    return ""


_PARSERS: Final[Parsers] = {
    **dict.fromkeys(("py", "pyi"), ("Python", ast.parse)),
    "json": ("JSON", json.loads),
    "toml": ("TOML", tomllib.loads),
}
