"""Documents in pieces: nothing is lost, nothing is too long, and every piece says where it stands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.tokens import text_tokens
from loom.domain.memory.chunks import MOST, Chunk, ChunkSize, Kind, Section, chunks_of, sections_of
from loom.domain.memory.knowledge import KnowledgeHit, is_relevant, place_of, threshold_of

GUIDE = """\
# Loom

## Install

pip install loom

### Without a network

```
# not a heading
pip install ./wheels
```

Setext
------
The end.
"""
PROGRAM = """\
import os

# What it is about.
@frozen
class Store:
    '''Keeps things.'''

    def save(self):
        return 1

    async def load(self):
        def inside():
            pass
        return inside

def main():
    pass
"""

LINES = st.lists(
    st.one_of(
        st.sampled_from(["", "# One", "## Two", "```", "def f():", "    def g(self):", "- item", "===", "\f"]),
        st.text(st.characters(codec="utf-8", exclude_characters="\n\r\f"), max_size=60),
        st.text("词语和句子。a b", max_size=400),
    ),
    max_size=40,
)
SIZES = st.builds(ChunkSize, most=st.integers(8, 60), overlap=st.integers(0, 80))


def outline(text: str, kind: Kind) -> list[tuple[tuple[str, ...], int, int]]:
    return [(chunk.headings, chunk.first_line, chunk.last_line) for chunk in chunks_of(sections_of(text, kind))]


def test_markdown_is_cut_at_its_headings_and_not_at_signs_in_code() -> None:
    assert outline(GUIDE, Kind.MARKDOWN) == [
        (("Loom", "Install"), 1, 5),
        (("Loom", "Install", "Without a network"), 7, 12),
        (("Loom", "Setext"), 14, 16),
    ]


def test_source_code_is_cut_at_its_definitions_with_what_belongs_to_them() -> None:
    assert outline(PROGRAM, Kind.CODE) == [
        ((), 1, 1),
        (("Store",), 3, 6),
        (("Store", "save"), 8, 9),
        (("Store", "load"), 11, 14),
        (("main",), 16, 17),
    ]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("func (s *Server) Start() error {", "Start"),
        ("pub async fn run(&self) -> Result<()> {", "run"),
        ("export default function App() {", "App"),
        ("public final class Foo<T> {", "Foo"),
        ("CREATE TABLE public.users (", "public.users"),
    ],
)
def test_definitions_of_other_languages_are_known_by_their_words(line: str, name: str) -> None:
    assert [section.headings for section in sections_of(f"first\n\n{line}\n  body\n", Kind.CODE)] == [(), (name,)]


def test_pages_are_counted_and_lines_begin_anew_on_each() -> None:
    assert chunks_of(sections_of("one\ntwo\fthree", Kind.PAGES)) == (
        Chunk(text="one\ntwo", first_line=1, last_line=2, page=1),
        Chunk(text="three", first_line=1, last_line=1, page=2),
    )


def test_a_long_text_is_cut_between_paragraphs_and_its_pieces_overlap() -> None:
    paragraphs = "\n\n".join(f"Paragraph {number} says something of its own." for number in range(6))
    whole = chunks_of(sections_of(paragraphs, Kind.TEXT), ChunkSize(most=40, overlap=0))
    assert [chunk.text.count("Paragraph") for chunk in whole] == [3, 3]
    lines = "\n".join(f"line {number} of a list" for number in range(12))
    cut = chunks_of(sections_of(lines, Kind.TEXT), ChunkSize(most=40, overlap=8))
    assert [(chunk.first_line, chunk.last_line) for chunk in cut] == [(1, 8), (8, 12)]


def test_a_line_that_is_too_long_is_cut_after_a_sentence() -> None:
    chunks = chunks_of(
        sections_of("这是第一句话。这是第二句话。这是第三句话。", Kind.TEXT), ChunkSize(most=16, overlap=0)
    )
    assert [chunk.text for chunk in chunks] == ["这是第一句话。这是第二句话。", "这是第三句话。"]


def test_of_an_endless_document_the_beginning_is_kept() -> None:
    chunks = chunks_of(sections_of("word " * 400_000, Kind.TEXT), ChunkSize(most=40))
    assert len(chunks) == MOST


@given(lines=LINES, size=SIZES, kind=st.sampled_from(Kind))
def test_chunks_are_short_enough_and_together_say_everything(lines: list[str], size: ChunkSize, kind: Kind) -> None:
    sections = sections_of("\n".join(lines), kind)
    chunks = chunks_of(sections, size)
    assert [chunk for chunk in chunks if text_tokens(chunk.text) > size.most or not chunk.text.strip()] == []
    said = {(line.page, number) for line in chunks for number in range(line.first_line, line.last_line + 1)}
    assert {(s.page, line.number) for s in sections for line in s.lines if line.text.strip()} <= said


@given(lines=LINES, kind=st.sampled_from([Kind.MARKDOWN, Kind.CODE, Kind.TEXT]))
def test_every_line_is_in_exactly_one_section(lines: list[str], kind: Kind) -> None:
    text = "\n".join(lines)
    found = [(line.number, line.text) for section in sections_of(text, kind) for line in section.lines]
    assert found == list(enumerate(text.split("\n"), start=1))


@given(lines=LINES, size=SIZES)
def test_what_is_not_repeated_adds_up_to_the_text(lines: list[str], size: ChunkSize) -> None:
    text = "\n".join(lines)
    size = ChunkSize(most=size.most, overlap=0)
    sections = sections_of(text, Kind.MARKDOWN)
    assert "".join("".join(c.text for c in chunks_of(sections, size)).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("chunk", "place"),
    [
        (Chunk(text="x", first_line=3, last_line=3), "a.md:3"),
        (Chunk(text="x", headings=("A", "B"), first_line=3, last_line=9), "a.md:3-9 (A > B)"),
        (Chunk(text="x", page=7), "a.md, page 7"),
        (Chunk(text="x", headings=("A",), first_line=0, last_line=0), "a.md (A)"),
    ],
)
def test_a_place_is_what_a_person_looks_up(chunk: Chunk, place: str) -> None:
    assert place_of("a.md", chunk) == place


@pytest.mark.parametrize(
    ("similarity", "covered", "relevant"),
    [(0.83, 0.0, True), (0.81, 0.49, False), (None, 0.5, True), (None, 0.49, False)],
)
def test_a_hit_is_relevant_by_its_meaning_or_by_its_words(
    similarity: float | None, covered: float, *, relevant: bool
) -> None:
    hit = KnowledgeHit(base="b", path="p", chunk=Chunk(text="x"), score=1, similarity=similarity, covered=covered)
    assert is_relevant(hit, threshold_of("multilingual-e5-small-q4", None)) is relevant


def test_a_section_without_lines_gives_nothing() -> None:
    assert chunks_of([Section(lines=())]) == ()


def test_a_heading_with_a_thousand_spaces_takes_no_time_that_anybody_would_notice() -> None:
    (section, *_) = sections_of("# a" + " " * 20_000 + "b #\n\ntext\n", Kind.MARKDOWN)
    assert section.headings == ("a b",)
