"""Split a document into chunks that a search can find and a person can look up.

A chunk is within one section: below one heading, within one definition of source code, on one page. It ends at the end
of a paragraph if possible, and repeats the end of the previous chunk, so that no sentence stands alone. Sizes are in
tokens: a Chinese character is one token, and so are four letters.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from loom.domain.core.tokens import text_tokens

MOST: Final = 2_000
"""Maximum chunks of one document. Further text is not searched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkSize:
    """The length of chunks in tokens."""

    most: int = 320
    overlap: int = 40
    """Maximum overlap with the previous chunk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of a document, or a piece of a very long one."""

    number: int
    text: str
    opens: bool = False
    """Whether a paragraph, an item or a definition starts here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Lines that belong together, under their headings, outermost first."""

    lines: tuple[Line, ...]
    headings: tuple[str, ...] = ()
    page: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A chunk of a document with its location."""

    text: str
    headings: tuple[str, ...] = ()
    first_line: int = 1
    last_line: int = 1
    page: int | None = None


def chunks_of(sections: Iterable[Section], size: ChunkSize = ChunkSize()) -> tuple[Chunk, ...]:
    """The chunks of a document in order, without empty ones."""
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
    """Where a chunk from `start` ends: at the last paragraph in its second half, else when it is full."""
    end, cost, half, opening = start, 0, start, None
    while end < len(lines) and (end == start or cost + costs[end] <= most):
        cost += costs[end]
        end += 1
        half = end if cost <= most // 2 else half
        if end < len(lines) and lines[end].opens and end > half:
            opening = end
    return end if end == len(lines) or opening is None else opening


def _next(costs: Sequence[int], end: int, size: ChunkSize) -> int:
    """Where the chunk after the one that ends at `end` starts: before that by at most the overlap."""
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
    """The line, or its pieces, which end after a sentence or a word if possible."""
    at, end = 0, len(line.text)
    while (rest := end - at) > 4 * most or text_tokens(line.text[at:] + "\n") > most:
        cut = _cut(line.text[at : at + min(rest - 1, 4 * most)], most)
        yield Line(number=line.number, text=line.text[at : at + cut], opens=line.opens and at == 0)
        at += cut
    yield Line(number=line.number, text=line.text[at:], opens=line.opens and at == 0)


def _cut(text: str, most: int) -> int:
    """How much of the text's beginning fits."""
    length = len(text)
    while length > 1 and (size := text_tokens(text[:length] + "\n")) > most:
        length = max(1, min(length - 1, length * most // size))
    for ends in ("。！？；", ".!?;", " \t，、,"):
        if (found := max(text.rfind(end, length // 2, length) for end in ends)) > 0:
            return found + 1
    return length
