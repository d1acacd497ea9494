"""Knowledge bases: folders of documents that runs can search, and search results.

A knowledge base has documents, a document has chunks (`loom.domain.memory.chunks`), and every passage has a citation.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from loom.domain.core.errors import BadRequest
from loom.domain.memory.chunks import Chunk

NAME: Final = r"^[\w.-]{1,64}$"
"""Valid names of knowledge bases."""
MOST_HITS: Final = 5
RELEVANT: Final[Mapping[str, float]] = {"multilingual-e5-small-q4": 0.82}
"""For each model, the minimum cosine of a relevant chunk. E5 rarely gives less than 0.7 to anything."""
RELEVANT_OTHERWISE: Final = 0.25
COVERED: Final = 0.5
"""The share of a question's words, weighted by rarity, that makes a chunk relevant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnowledgeQuery:
    """A search in knowledge bases."""

    text: str
    bases: Sequence[str] = ()
    """Empty: all of them."""
    limit: int = MOST_HITS
    threshold: float | None = None
    """Minimum cosine of a chunk with fewer words than COVERED; None: the model's value in RELEVANT."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnowledgeHit:
    """A matching chunk and its location."""

    base: str
    path: str
    chunk: Chunk
    score: float
    """1: first by words and by meaning. Only comparable within one result."""
    similarity: float | None = None
    """Cosine similarity to the question; None: not found by meaning."""
    covered: float = 0.0
    """Share of the question's words that it contains, weighted by rarity."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnowledgeBase:
    """The content of a knowledge base."""

    name: str
    folder: str
    documents: int
    chunks: int
    vectors: Mapping[str, int] = field(default_factory=dict)
    """Number of chunks that have a vector, by model."""
    updated_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class KnowledgeFolder:
    """A folder that an app has registered as a knowledge base."""

    name: str
    path: str
    origin: str
    """Where it was registered, for error messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ingested:
    """The outcome of indexing a folder."""

    name: str
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    chunks: int = 0
    """Number of chunks of the documents that were added or changed."""
    embedded: int = 0
    waiting: int = 0
    """Number of chunks that have no vector yet and are found by words only."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Files that were skipped, and why."""
    without_vectors: str = ""
    """Why chunks wait for their vectors."""


def checked_name(name: str) -> str:
    """The name, if it is valid for a knowledge base; raises BadRequest."""
    if not re.fullmatch(NAME, name):
        raise BadRequest(f"{name!r} is no name: letters, digits, `.`, `_` and `-`, 64 at most", field="name")
    return name


def is_relevant(hit: KnowledgeHit, threshold: float) -> bool:
    """Whether a hit is related to the question at all."""
    return hit.covered >= COVERED or (hit.similarity is not None and hit.similarity >= threshold)


def threshold_of(model: str | None, asked: float | None) -> float:
    """The minimum cosine for vectors of this model."""
    return asked if asked is not None else RELEVANT.get(model or "", RELEVANT_OTHERWISE)


def place_of(path: str, chunk: Chunk) -> str:
    """The citation of a chunk: `guide.md:12-20 (Install > Linux)`, `paper.pdf, page 3`."""
    if chunk.page is not None:
        return f"{path}, page {chunk.page}"
    lines = str(chunk.first_line) if chunk.first_line == chunk.last_line else f"{chunk.first_line}-{chunk.last_line}"
    under = f" ({' > '.join(chunk.headings)})" if chunk.headings else ""
    return f"{path}:{lines}{under}" if chunk.first_line else f"{path}{under}"


def told_text(path: str, chunk: Chunk) -> str:
    """The searchable text of a chunk: its headings and its text."""
    return "\n".join((" > ".join((path, *chunk.headings)), chunk.text))


def knowledge_view(hit: KnowledgeHit) -> dict[str, Any]:
    """A hit with the keys of the public contract."""
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
