"""What knowledge bases need from the world, as protocols."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from loom.domain.memory.chunks import Chunk
from loom.domain.memory.knowledge import KnowledgeBase, KnowledgeHit, KnowledgeQuery


class UnreadableDocument(Exception):
    """A document cannot be read; the message says why."""


class UnreadableNow(UnreadableDocument):
    """It may be readable later: what is known of it stays."""


class DocumentReader(Protocol):
    """Turns a document in a format of its own into text, however hostile it is."""

    async def pdf(self, data: bytes) -> str:
        """The text of a PDF, a form feed between its pages; raises UnreadableDocument."""
        ...

    async def html(self, text: str) -> str:
        """A page as Markdown; raises UnreadableDocument."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A document, cut and without secrets."""

    path: str
    """Within its folder."""
    digest: str
    """Another one means that it has to be read again."""
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unembedded:
    """A chunk that is to get a vector."""

    id: int
    told: str


class KnowledgeStore(Protocol):
    """Knowledge bases, as they were taken in. All methods raise StoreUnavailable."""

    async def digests(self, base: str) -> Mapping[str, str]:
        """The documents of a base by their paths; none when there is no such base."""
        ...

    async def begin(self, base: str, folder: str) -> None:
        """Note that a base is filled from this folder, and make the base when there is none."""
        ...

    async def save(self, base: str, document: Document) -> None:
        """Keep a document instead of what was kept under its path; vectors of what it still says stay.

        Nothing is kept when the base is gone.
        """
        ...

    async def remove(self, base: str, paths: Sequence[str]) -> None:
        """Forget documents; the same again changes nothing."""
        ...

    async def drop(self, base: str) -> bool:
        """Forget a base with all of its documents; False when there was none."""
        ...

    async def bases(self) -> tuple[KnowledgeBase, ...]:
        """All bases by name."""
        ...

    async def missing(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of the names that no base has."""
        ...

    async def unembedded(self, base: str, limit: int) -> tuple[Unembedded, ...]:
        """Chunks without a vector, in their order."""
        ...

    async def set_vectors(self, model: str, vectors: Mapping[int, Sequence[float]]) -> None:
        """Give chunks their vectors; chunks that are gone by now are passed over."""
        ...

    async def drop_vectors(self, base: str) -> None:
        """Take the vectors of all chunks away, to give them those of another model."""
        ...

    async def search(self, query: KnowledgeQuery) -> tuple[KnowledgeHit, ...]:
        """What answers the question best, by words and by meaning; by words alone while the embedder is away."""
        ...
