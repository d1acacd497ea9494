"""Split documents into chunks that a search can find and that a reader can locate in the document.

First, a document is split into sections according to its kind: at Markdown headings, at source code definitions, or at
page breaks. The splitter recognizes individual lines instead of parsing a grammar, so a line that isn't recognized
remains in the current section. Then each section is split into chunks. A chunk never spans several sections and ends at
a paragraph boundary if possible. Each chunk repeats the end of the previous chunk, so that every sentence has context.
Sizes are given in tokens, where one Chinese character or about four letters count as one token.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

from loom.domain.core.tokens import text_tokens

MOST: Final = 2_000
"""The maximum number of chunks in one document. Text beyond this limit is not searched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkSize:
    """The size of chunks, in tokens."""

    most: int = 320
    overlap: int = 40
    """The maximum overlap with the previous chunk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of a document, or part of a very long line."""

    number: int
    text: str
    opens: bool = False
    """Whether a paragraph, an item or a definition starts with this line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Lines that belong together, with their headings, outermost first."""

    lines: tuple[Line, ...]
    headings: tuple[str, ...] = ()
    page: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A chunk of a document, with its location."""

    text: str
    headings: tuple[str, ...] = ()
    first_line: int = 1
    last_line: int = 1
    page: int | None = None


def chunks_of(sections: Iterable[Section], size: ChunkSize = ChunkSize()) -> tuple[Chunk, ...]:
    """Return a document's chunks in order, without empty chunks."""
    found: list[Chunk] = []
    for section in sections:
        for chunk in _pieces(section, size):
            found.append(chunk)
            if len(found) == MOST:
                return tuple(found)
    return tuple(found)


def _pieces(section: Section, size: ChunkSize) -> Iterator[Chunk]:
    lines = [part for line in section.lines for part in _parts(line, size.most)]
    costs = [text_tokens(line.text + "\n") for line in lines]
    start = 0
    while start < len(lines):
        end = _end(lines, costs, start, size.most)
        if chunk := _chunk(section, lines[start:end]):
            yield chunk
        if end == len(lines):
            return
        start = _next(costs, end, size)


def _end(lines: Sequence[Line], costs: Sequence[int], start: int, most: int) -> int:
    """Return the end of the chunk that begins at `start`: either the last paragraph boundary in the chunk's second half
    or the point where the chunk is full.
    """
    end, cost, half, opening = start, 0, start, None
    while end < len(lines) and (end == start or cost + costs[end] <= most):
        cost += costs[end]
        end += 1
        half = end if cost <= most // 2 else half
        if end < len(lines) and lines[end].opens and end > half:
            opening = end
    return end if end == len(lines) or opening is None else opening


def _next(costs: Sequence[int], end: int, size: ChunkSize) -> int:
    """Return the start of the next chunk. The current chunk ends at `end`, and the two chunks overlap by at most the
    maximum overlap.
    """
    start, cost = end, 0
    most = min(size.overlap, size.most // 2)
    while start > 0 and cost + costs[start - 1] <= most:
        start -= 1
        cost += costs[start]
    return start if cost + costs[end] <= size.most else end


def _chunk(section: Section, lines: Sequence[Line]) -> Chunk | None:
    told = [line for line in lines if line.text.strip()]
    if not told:
        return None
    inside = lines[lines.index(told[0]) : len(lines) - list(reversed(lines)).index(told[-1])]
    return Chunk(
        text=_joined(inside),
        headings=section.headings,
        first_line=inside[0].number,
        last_line=inside[-1].number,
        page=section.page,
    )


def _joined(lines: Sequence[Line]) -> str:
    text = lines[0].text
    for before, line in pairwise(lines):
        text += line.text if line.number == before.number else "\n" + line.text
    return text


def _parts(line: Line, most: int) -> Iterator[Line]:
    """Return the line, or several parts of it if the line is too long. A part ends after a sentence or a word if
    possible.
    """
    at, end = 0, len(line.text)
    while (rest := end - at) > 4 * most or text_tokens(line.text[at:] + "\n") > most:
        cut = _cut(line.text[at : at + min(rest - 1, 4 * most)], most)
        yield Line(number=line.number, text=line.text[at : at + cut], opens=line.opens and at == 0)
        at += cut
    yield Line(number=line.number, text=line.text[at:], opens=line.opens and at == 0)


def _cut(text: str, most: int) -> int:
    """Return the number of characters that fit, counted from the beginning of the text."""
    length = len(text)
    while length > 1 and (size := text_tokens(text[:length] + "\n")) > most:
        length = max(1, min(length - 1, length * most // size))
    for ends in ("。！？；", ".!?;", " \t，、,"):
        if (found := max(text.rfind(end, length // 2, length) for end in ends)) > 0:
            return found + 1
    return length


class Kind(StrEnum):
    """A document's format."""

    MARKDOWN = "markdown"
    CODE = "code"
    TEXT = "text"
    PAGES = "pages"
    """Text with pages that are separated by form feeds."""


DEEPEST: Final = 3
"""The maximum number of headings that are shown with a definition."""

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
    """Return a document's sections in order. Every line belongs to one section."""
    if kind is Kind.PAGES:
        return tuple(_pages(text))
    lines = _lines(text)
    if kind is Kind.MARKDOWN:
        return tuple(_markdown(lines))
    return tuple(_code(lines)) if kind is Kind.CODE else (_plain(lines),)


def _lines(text: str) -> list[str]:
    """Split text into lines as editors do."""
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
        if _says(lines[start:at]):  # a heading directly after another heading stays in its section
            yield _plain(lines[start:at], start + 1, tuple(above.values()))
            start = at
        above = {depth: name for depth, name in above.items() if depth < level} | {level: heading}
    yield _plain(lines[start:], start + 1, tuple(above.values()))


def _says(lines: Sequence[str]) -> bool:
    """Whether these lines contain text after the headings at their start."""
    said = [line for line in lines if line.strip() and not _HEADING.match(line)]
    rules = sum(1 for line in said if _UNDERLINE.match(line))
    return len(said) > 2 * rules  # each underline belongs to the heading before it


def _headings(lines: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Return the index, level and words of each heading outside of fenced code."""
    fence = ""
    for at, line in enumerate(lines):
        if found := _FENCE.match(line):
            fence = _fenced(fence, found[1])
        elif not fence and (heading := _HEADING.match(line)):
            yield at, len(heading[1]), _short(heading[2].rstrip().rstrip("#").rstrip())
        elif not fence and at and (underline := _UNDERLINE.match(line)) and _is_title(lines, at - 1, line):
            yield at - 1, 1 if underline[1][0] == "=" else 2, _short(lines[at - 1].strip())


def _fenced(open_fence: str, found: str) -> str:
    """Return the fence that is open after this line. A fence is closed only by a fence of the same kind and at least
    the same length.
    """
    if not open_fence:
        return found
    return "" if found.startswith(open_fence) else open_fence


def _is_title(lines: Sequence[str], at: int, underline: str) -> bool:
    """Whether the line before an underline is a heading rather than text that precedes a rule or a table."""
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
    """Return the index, indentation and name of each definition that isn't deeply nested."""
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
    """Return the start of a definition, including its decorators and the preceding comment."""
    while at > least and _ATTACHED.match(lines[at - 1]):
        at -= 1
    return at


def _short(heading: str) -> str:
    words = " ".join(heading.split())
    return words if len(words) <= _LONGEST_HEADING else words[: _LONGEST_HEADING - 1] + "…"
