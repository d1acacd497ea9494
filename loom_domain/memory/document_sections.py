"""Split a document by its kind: at the headings of Markdown, the definitions of source code, pages, paragraphs.

Everything is based on lines, so that each section knows its location. No grammar is parsed: text that is not recognized
stays in the section that it is in.
"""

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

from loom.domain.memory.chunks import Line, Section


class Kind(StrEnum):
    """The format of a document."""

    MARKDOWN = "markdown"
    CODE = "code"
    TEXT = "text"
    PAGES = "pages"
    """Pages separated by form feeds."""


DEEPEST: Final = 3
"""Maximum headings that are shown above a definition."""

_FENCE: Final = re.compile(r"^ {0,3}(```+|~~~+)")
_HEADING: Final = re.compile(r"^ {0,3}(#{1,6})[ \t]+(\S.*)$")
_UNDERLINE: Final = re.compile(r"^ {0,3}(=+|-{2,}|~{3,}|\^{3,})[ \t]*$")
_ITEM: Final = re.compile(r"^ {0,3}(?:[-*+]|\d{1,3}[.)])[ \t]")
_DEFINITION: Final = re.compile(
    r"^(?P<indent>[ \t]*)"
    r"(?:(?:export|default|public|private|protected|internal|static|abstract|final|async|unsafe|pub(?:\([\w:]+\))?|inline"
    r"|virtual|override|data|sealed|open)\s+)*"
    r"(?:def|class|func|fn|function\*?|interface|trait|impl(?:<[^>]*>)?|struct|enum|module|namespace|object|type|protocol"
    r"|record|CREATE (?:OR REPLACE )?(?:TABLE|FUNCTION|VIEW|PROCEDURE))\b"
    r"\s*(?:\([^)]*\)\s*)?(?P<name>[A-Za-z_$][\w$]*(?:(?:\.|::)[\w$]+)*)",
)
_ATTACHED: Final = re.compile(r"^\s*(?:@|#|//|/\*|\*|--|\[)")
_LONGEST_HEADING: Final = 120


def sections_of(text: str, kind: Kind) -> tuple[Section, ...]:
    """The sections of a document in order. Every line is in one of them."""
    if kind is Kind.PAGES:
        return tuple(_pages(text))
    lines = _lines(text)
    if kind is Kind.MARKDOWN:
        return tuple(_markdown(lines))
    return tuple(_code(lines)) if kind is Kind.CODE else (_plain(lines),)


def _lines(text: str) -> list[str]:
    """Lines as editors count them."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _plain(lines: Sequence[str], first: int = 1, headings: tuple[str, ...] = (), page: int | None = None) -> Section:
    before = ["", *lines]
    return Section(
        lines=tuple(
            Line(number=number, text=line, opens=not before[number - first].strip() or bool(_ITEM.match(line)))
            for number, line in enumerate(lines, start=first)
        ),
        headings=headings,
        page=page,
    )


def _pages(text: str) -> Iterator[Section]:
    for page, part in enumerate(text.split("\f"), start=1):
        yield _plain(_lines(part), page=page)


def _markdown(lines: Sequence[str]) -> Iterator[Section]:
    above: dict[int, str] = {}
    start = 0
    for at, level, heading in _headings(lines):
        if _says(lines[start:at]):  # a heading right above another one stays with it
            yield _plain(lines[start:at], start + 1, tuple(above.values()))
            start = at
        above = {depth: name for depth, name in above.items() if depth < level} | {level: heading}
    yield _plain(lines[start:], start + 1, tuple(above.values()))


def _says(lines: Sequence[str]) -> bool:
    """Whether there is text below the headings at the start of these lines."""
    said = [line for line in lines if line.strip() and not _HEADING.match(line)]
    rules = sum(1 for line in said if _UNDERLINE.match(line))
    return len(said) > 2 * rules  # each underline has its heading above it


def _headings(lines: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Index, level and words of each heading outside of fenced code."""
    fence = ""
    for at, line in enumerate(lines):
        if found := _FENCE.match(line):
            fence = _fenced(fence, found[1])
        elif not fence and (heading := _HEADING.match(line)):
            yield at, len(heading[1]), _short(heading[2].rstrip().rstrip("#").rstrip())
        elif not fence and at and (underline := _UNDERLINE.match(line)) and _is_title(lines, at - 1, line):
            yield at - 1, 1 if underline[1][0] == "=" else 2, _short(lines[at - 1].strip())


def _fenced(open_fence: str, found: str) -> str:
    """The open fence after this line. Only an equally long one of the same kind closes it."""
    if not open_fence:
        return found
    return "" if found.startswith(open_fence) else open_fence


def _is_title(lines: Sequence[str], at: int, underline: str) -> bool:
    """Whether a line above an underline is a heading, and not the text above a rule or a table."""
    title = lines[at].strip()
    alone = at == 0 or not lines[at - 1].strip() or bool(_UNDERLINE.match(lines[at - 1]))
    return bool(title) and alone and not _HEADING.match(title) and "|" not in title and len(underline.strip()) >= 2


def _code(lines: Sequence[str]) -> Iterator[Section]:
    above: dict[int, str] = {}
    start = 0
    for at, indent, name in _definitions(lines):
        begin = _with_attached(lines, at, start)
        if begin > start:
            yield _plain(lines[start:begin], start + 1, tuple(above.values()))
        above = {depth: each for depth, each in above.items() if depth < indent} | {indent: name}
        start = begin
    yield _plain(lines[start:], start + 1, tuple(above.values()))


def _definitions(lines: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Index, indentation and name of each definition that is not deeply nested."""
    depths: list[int] = []
    for at, line in enumerate(lines):
        if not (found := _DEFINITION.match(line)):
            continue
        indent = len(found["indent"].expandtabs(4))
        depths = [depth for depth in depths if depth < indent]
        if len(depths) < DEEPEST - 1 and indent <= 8:
            yield at, indent, _short(found["name"])
        depths.append(indent)


def _with_attached(lines: Sequence[str], at: int, least: int) -> int:
    """Where a definition starts, including its decorators and the comment above it."""
    while at > least and _ATTACHED.match(lines[at - 1]):
        at -= 1
    return at


def _short(heading: str) -> str:
    words = " ".join(heading.split())
    return words if len(words) <= _LONGEST_HEADING else words[: _LONGEST_HEADING - 1] + "…"
