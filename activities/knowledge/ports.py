"""The ports of knowledge bases, as protocols."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from loom.domain.memory.chunks import Chunk
from loom.domain.memory.knowledge import KnowledgeBase, KnowledgeHit, KnowledgeQuery


class UnreadableDocument(Exception):
    """A document cannot be read; the message says why."""


class UnreadableNow(UnreadableDocument):
    """It may be readable later, so what is stored of it stays."""


class DocumentReader(Protocol):
    """Converts a document in its own format to text, however hostile it is."""

    async def pdf(self, data: bytes) -> str:
        """The text of a PDF, with a form feed between its pages; raises UnreadableDocument."""
        ...

    async def html(self, text: str) -> str:
        """A page as Markdown; raises UnreadableDocument."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A document, split and without secrets."""

    path: str
    """Relative to its folder."""
    digest: str
    """If it changes, the document has to be read again."""
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unembedded:
    """A chunk that needs a vector."""

    id: int
    told: str


class KnowledgeStore(Protocol):
    """The indexed knowledge bases. All methods raise StoreUnavailable."""

    async def digests(self, base: str) -> Mapping[str, str]:
        """The documents of a knowledge base by path; empty if it does not exist."""
        ...

    async def begin(self, base: str, folder: str) -> None:
        """Record that a knowledge base is filled from this folder. Create it if it does not exist."""
        ...

    async def save(self, base: str, document: Document) -> None:
        """Replace the document at its path. Vectors of unchanged chunks stay.

        Nothing is stored if the knowledge base is gone.
        """
        ...

    async def remove(self, base: str, paths: Sequence[str]) -> None:
        """Delete documents. Repeating this has no effect."""
        ...

    async def drop(self, base: str) -> bool:
        """Delete a knowledge base with all of its documents; False if it does not exist."""
        ...

    async def bases(self) -> tuple[KnowledgeBase, ...]:
        """All knowledge bases by name."""
        ...

    async def missing(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names that no knowledge base has."""
        ...

    async def unembedded(self, base: str, limit: int) -> tuple[Unembedded, ...]:
        """Chunks without a vector, in order."""
        ...

    async def set_vectors(self, model: str, vectors: Mapping[int, Sequence[float]]) -> None:
        """Store vectors of chunks. Chunks that no longer exist are skipped."""
        ...

    async def drop_vectors(self, base: str) -> None:
        """Delete the vectors of all chunks, to replace them by those of another model."""
        ...

    async def search(self, query: KnowledgeQuery) -> tuple[KnowledgeHit, ...]:
        """The best matches for the question, by words and by meaning; by words only without an embedder."""
        ...
