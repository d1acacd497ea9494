"""Knowledge bases: folders of documents that runs can search, and the results of a search.

A base has documents, a document has chunks (`loom.domain.memory.chunks`), and every quotation names its location.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from loom.domain.core.errors import BadRequest
from loom.domain.memory.chunks import Chunk

NAME: Final = r"^[\w.-]{1,64}$"
"""Valid names of a base."""
MOST_HITS: Final = 5
RELEVANT: Final[Mapping[str, float]] = {"multilingual-e5-small-q4": 0.82}
"""Least cosine similarity of a relevant chunk, by embedding model. E5 rarely gives less than 0.7 to any text."""
RELEVANT_OTHERWISE: Final = 0.25
COVERED: Final = 0.5
"""The share of a question's words, weighted by rarity, that makes a chunk relevant on its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnowledgeQuery:
    """A search in knowledge bases."""

    text: str
    bases: Sequence[str] = ()
    """Names of bases; empty: all bases."""
    limit: int = MOST_HITS
    threshold: float | None = None
    """Least cosine similarity of chunks that cover less than COVERED; None: the value in RELEVANT for the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnowledgeHit:
    """A chunk that was found, and its location."""

    base: str
    path: str
    chunk: Chunk
    score: float
    """1 if it ranks first both by words and by meaning. Comparable only within one result."""
    similarity: float | None = None
    """Cosine similarity to the question; None: not found by meaning."""
    covered: float = 0.0
    """Share of the question's words that it contains, weighted by rarity."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnowledgeBase:
    """A knowledge base and its size."""

    name: str
    folder: str
    documents: int
    chunks: int
    vectors: Mapping[str, int] = field(default_factory=dict)
    """Number of chunks that have a vector, by embedding model."""
    updated_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class KnowledgeFolder:
    """A folder that an app registered as a base."""

    name: str
    path: str
    origin: str
    """Where it was registered, for error messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ingested:
    """The result of ingesting a folder."""

    name: str
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    chunks: int = 0
    """Chunks of the documents that were added or changed."""
    embedded: int = 0
    waiting: int = 0
    """Chunks that have no vector yet; only a search by words finds them."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Files that were skipped, and why."""
    without_vectors: str = ""
    """Why chunks wait for their vectors."""


def checked_name(name: str) -> str:
    """Validate the name of a base. Raises BadRequest."""
    if not re.fullmatch(NAME, name):
        raise BadRequest(f"{name!r} is no name: letters, digits, `.`, `_` and `-`, 64 at most", field="name")
    return name


def is_relevant(hit: KnowledgeHit, threshold: float) -> bool:
    """Whether a hit is relevant to the question."""
    return hit.covered >= COVERED or (hit.similarity is not None and hit.similarity >= threshold)


def threshold_of(model: str | None, asked: float | None) -> float:
    """The least cosine similarity for vectors of this model."""
    return asked if asked is not None else RELEVANT.get(model or "", RELEVANT_OTHERWISE)


def place_of(path: str, chunk: Chunk) -> str:
    """The location of a chunk, for people: `guide.md:12-20 (Install > Linux)`, `paper.pdf, page 3`."""
    if chunk.page is not None:
        return f"{path}, page {chunk.page}"
    lines = str(chunk.first_line) if chunk.first_line == chunk.last_line else f"{chunk.first_line}-{chunk.last_line}"
    under = f" ({' > '.join(chunk.headings)})" if chunk.headings else ""
    return f"{path}:{lines}{under}" if chunk.first_line else f"{path}{under}"


def told_text(path: str, chunk: Chunk) -> str:
    """The searched text of a chunk: its path and headings, then its text."""
    return "\n".join((" > ".join((path, *chunk.headings)), chunk.text))


def knowledge_view(hit: KnowledgeHit) -> dict[str, Any]:
    """A hit in the form of the public contract."""
    return {
        "base": hit.base,
        "path": hit.path,
        "place": place_of(hit.path, hit.chunk),
        "headings": list(hit.chunk.headings),
        "first_line": hit.chunk.first_line,
        "last_line": hit.chunk.last_line,
        "page": hit.chunk.page,
        "text": hit.chunk.text,
        "score": round(hit.score, 4),
        "similarity": None if hit.similarity is None else round(hit.similarity, 4),
    }
