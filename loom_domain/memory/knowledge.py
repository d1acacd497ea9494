"""Knowledge bases, which are folders of documents that runs can search, and their search results.

A knowledge base contains documents, a document consists of chunks (`loom.domain.memory.chunks`), and every passage has
a citation.

A knowledge base belongs to a tenant, or to the operator if it has no tenant. Runs can search the bases of their own
tenant and those of the operator. If both have a base with the same name, runs of the tenant search only the tenant's.
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
"""For each embedding model, the minimum cosine similarity of a relevant chunk. The E5 models rarely score a chunk below
0.7.
"""
RELEVANT_OTHERWISE: Final = 0.25
COVERED: Final = 0.5
"""The share of a question's words, weighted by rarity, that a chunk must contain to be relevant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnowledgeQuery:
    """A query that searches the knowledge bases of one tenant and those of the operator."""

    text: str
    tenant: str = ""
    """The tenant that searches. If empty, only the operator's bases are searched."""
    bases: Sequence[str] = ()
    """The names of the knowledge bases to search. If empty, all bases that the tenant can search are searched."""
    limit: int = MOST_HITS
    threshold: float | None = None
    """The minimum cosine similarity of a chunk whose share of the question's words is smaller than COVERED. If None,
    the model's value in RELEVANT is used.
    """
    floor: float | None = None
    """The minimum of a chunk's cosine similarity or of its share of the question's words, whichever is larger. It
    replaces `threshold` and COVERED.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class KnowledgeHit:
    """A matching chunk and its location."""

    base: str
    """The name of the knowledge base."""
    tenant: str = ""
    """The tenant that the knowledge base belongs to. Empty if it's the operator's."""
    path: str
    """The document's path below the folder of the knowledge base."""
    chunk: Chunk
    """The text, with its headings and its lines or page."""
    score: float
    """The score, from 0 to 1. It combines the share of the question's words that the chunk contains with the nearness
    of its meaning. Scores are comparable only within one result.
    """
    similarity: float | None = None
    """The cosine similarity to the question, or None if the chunk wasn't found by meaning."""
    covered: float = 0.0
    """The share of the question's words, weighted by rarity, that the chunk contains."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnowledgeBase:
    """A knowledge base's content."""

    name: str
    """What agents and `loom knowledge` call the base."""
    tenant: str = ""
    """The tenant that the knowledge base belongs to. Empty if it's the operator's."""
    folder: str
    """The folder from which the documents were read."""
    documents: int
    """The number of documents."""
    chunks: int
    """The number of chunks in all documents."""
    vectors: Mapping[str, int] = field(default_factory=dict)
    """The number of chunks with a vector, for each model."""
    updated_at: datetime | None = None
    """When documents were last indexed, in UTC. None if they never were."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnowledgeFolder:
    """A folder that an app has registered as a knowledge base of the operator."""

    name: str
    path: str
    origin: str
    """The place where the folder was registered, for error messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ingested:
    """The result of indexing a folder."""

    name: str
    tenant: str = ""
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    chunks: int = 0
    """The number of chunks in the documents that were added or updated."""
    embedded: int = 0
    waiting: int = 0
    """The number of chunks that have no vector yet and can only be found by words."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """The files that were skipped, with the reason for each."""
    without_vectors: str = ""
    """The reason why chunks are waiting for their vectors."""


def checked_name(name: str) -> str:
    """Return the name of a knowledge base. Raises BadRequest if the name is invalid."""
    if not re.fullmatch(NAME, name):
        raise BadRequest(
            f"{name!r} is not a valid name: use at most 64 letters, digits, `.`, `_` and `-`", field="name"
        )
    return name


def is_relevant(hit: KnowledgeHit, threshold: float, floor: float | None = None) -> bool:
    """Whether a hit is relevant to the question."""
    if floor is not None:
        return max(hit.covered, hit.similarity or 0.0) >= floor
    return hit.covered >= COVERED or (hit.similarity is not None and hit.similarity >= threshold)


def threshold_of(model: str | None, asked: float | None) -> float:
    """Return the minimum cosine similarity for this model's vectors."""
    return asked if asked is not None else RELEVANT.get(model or "", RELEVANT_OTHERWISE)


def place_of(path: str, chunk: Chunk) -> str:
    """Return a chunk's citation: `guide.md:12-20 (Install > Linux)`, `paper.pdf, page 3`."""
    if chunk.page is not None:
        return f"{path}, page {chunk.page}"
    lines = str(chunk.first_line) if chunk.first_line == chunk.last_line else f"{chunk.first_line}-{chunk.last_line}"
    under = f" ({' > '.join(chunk.headings)})" if chunk.headings else ""
    return f"{path}:{lines}{under}" if chunk.first_line else f"{path}{under}"


def told_text(path: str, chunk: Chunk) -> str:
    """Return a chunk's searchable text: its headings and its text."""
    return "\n".join((" > ".join((path, *chunk.headings)), chunk.text))


def knowledge_view(hit: KnowledgeHit) -> dict[str, Any]:
    """Return a hit under the public contract's keys."""
    return {
        "base": hit.base,
        "tenant": hit.tenant,
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
