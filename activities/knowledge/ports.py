"""The ports of knowledge bases, as protocols."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from loom.domain.memory.chunks import Chunk
from loom.domain.memory.knowledge import KnowledgeBase, KnowledgeHit, KnowledgeQuery


class UnreadableDocument(Exception):
    """Raised if a document can't be read. The message explains the reason."""


class UnreadableNow(UnreadableDocument):
    """Raised if the document may become readable later. Its stored content is kept."""


class DocumentReader(Protocol):
    """Converts documents of a specific format to text. Documents may be malicious. Methods raise UnreadableDocument if
    a document can't be read.
    """

    async def pdf(self, data: bytes) -> str:
        """Return the text of a PDF, with a form feed between pages."""
        ...

    async def html(self, text: str) -> str:
        """Return a page as Markdown."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """A document that has been split into chunks, with secrets removed."""

    path: str
    """Path relative to the knowledge base's folder."""
    digest: str
    """Digest of the document. If the digest changes, the document must be read again."""
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unembedded:
    """A chunk that needs a vector."""

    id: int
    told: str


class KnowledgeStore(Protocol):
    """The indexed knowledge bases. All methods raise StoreUnavailable if the store isn't responding.

    The name of a base and its tenant identify the base together. If `tenant` is empty, the base is the operator's. Two
    tenants can have bases with the same name, and neither of them ever sees the other's.
    """

    async def digests(self, base: str, *, tenant: str = "") -> Mapping[str, str]:
        """Return the digests of a knowledge base's documents by path. If the knowledge base doesn't exist, the result
        is empty.
        """
        ...

    async def begin(self, base: str, folder: str, *, tenant: str = "") -> None:
        """Record that a knowledge base is built from this folder. Create the knowledge base if it doesn't exist."""
        ...

    async def save(self, base: str, document: Document, *, tenant: str = "") -> None:
        """Replace the document at its path. Keep the vectors of unchanged chunks.

        If the knowledge base no longer exists, the document isn't stored.
        """
        ...

    async def remove(self, base: str, paths: Sequence[str], *, tenant: str = "") -> None:
        """Delete documents. Deleting them again has no effect."""
        ...

    async def drop(self, base: str, *, tenant: str = "") -> bool:
        """Delete a knowledge base and all of its documents. Return False if it doesn't exist."""
        ...

    async def bases(self, *, tenant: str | None = None) -> tuple[KnowledgeBase, ...]:
        """Return the knowledge bases that runs of this tenant can search, sorted by tenant and name.

        These are the tenant's own bases, and the operator's bases with other names. If `tenant` is empty, these are the
        operator's bases. If it's None, return the bases of the operator and of all tenants.
        """
        ...

    async def missing(self, names: Sequence[str], *, tenant: str | None = None) -> tuple[str, ...]:
        """Return the names that don't belong to any of the bases that `bases(tenant=tenant)` returns."""
        ...

    async def unembedded(self, base: str, limit: int, *, tenant: str = "") -> tuple[Unembedded, ...]:
        """Return chunks without a vector, in order."""
        ...

    async def set_vectors(self, model: str, vectors: Mapping[int, Sequence[float]]) -> None:
        """Store chunk vectors. Chunks that no longer exist are skipped."""
        ...

    async def drop_vectors(self, base: str, *, tenant: str = "") -> None:
        """Delete the vectors of all chunks, so that another model's vectors can replace them."""
        ...

    async def search(self, query: KnowledgeQuery) -> tuple[KnowledgeHit, ...]:
        """Return the best matches for the question, by words and by meaning. Without an embedder, search by
        words only.

        Search only bases that `bases(tenant=query.tenant)` returns. No other base may influence the result.
        """
        ...
