"""Index a folder into a knowledge base. Only files that have changed since the last pass are indexed, and secrets are
never stored.

Documents are stored first, so that they can be found by words. Their vectors are computed afterward. If indexing is
interrupted, index the folder again to continue where it stopped.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from loom.activities.knowledge.files import LeftOut, document_paths, is_html, kind_of, read_file, text_of
from loom.activities.knowledge.ports import Document, DocumentReader, KnowledgeStore, UnreadableDocument, UnreadableNow
from loom.activities.memory.ports import Embedder, EmbedderUnavailable
from loom.domain.core.errors import RefusedError
from loom.domain.memory.chunks import Chunk, ChunkSize, chunks_of, sections_of
from loom.domain.memory.knowledge import Ingested, KnowledgeBase

BATCH: Final = 64
"""Number of chunks to embed and store together."""


@dataclass(kw_only=True, slots=True)
class _Round:
    """One pass over a folder."""

    folder: Path
    base: str
    tenant: str
    known: Mapping[str, str]
    """Digests from the previous pass."""
    seen: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)
    """Files that are currently unreadable. Their stored content is kept."""
    added: int = 0
    changed: int = 0
    chunks: int = 0
    skipped: dict[str, str] = field(default_factory=dict)

    def told(self, removed: int) -> Ingested:
        """Return the outcome of the pass."""
        return Ingested(
            name=self.base,
            tenant=self.tenant,
            added=self.added,
            changed=self.changed,
            unchanged=len(self.seen) - self.added - self.changed,
            removed=removed,
            chunks=self.chunks,
            skipped=self.skipped,
        )


class Ingestion:
    """Indexes folders."""

    def __init__(
        self,
        store: KnowledgeStore,
        *,
        reader: DocumentReader,
        redact: Callable[[str], str],
        embedder: Embedder | None,
        size: ChunkSize = ChunkSize(),  # noqa: B008 - frozen
        tell: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """`tell` is called with messages about the progress."""
        self._store = store
        self._reader = reader
        self._redact = redact
        self._embedder = embedder
        self._size = size
        self._tell = tell

    async def take_in(self, folder: Path, base: str, *, tenant: str = "", reembed: bool = False) -> Ingested:
        """Update a knowledge base of the tenant, or of the operator without one, from the folder.

        Raises StoreUnavailable if the store isn't responding, BadRequest if the folder contains too many documents, and
        RefusedError if the update would lose documents or mix vectors from different models.
        """
        there = await self._stored(base, tenant)
        if there is not None:
            self._refuse(there, folder, reembed=reembed)
        await self._store.begin(base, self._shown(str(folder)), tenant=tenant)
        if reembed:
            await self._store.drop_vectors(base, tenant=tenant)
        known = await self._store.digests(base, tenant=tenant)
        this = _Round(folder=folder, base=base, tenant=tenant, known=known)
        for path in await asyncio.to_thread(document_paths, folder):
            await self._take(this, path)
        if gone := sorted(this.known.keys() - this.seen - this.kept):
            await self._store.remove(base, gone, tenant=tenant)
        return await self._embedded(this.told(len(gone)))

    async def _stored(self, base: str, tenant: str) -> KnowledgeBase | None:
        """Return the knowledge base as it is stored. The operator's base with the same name isn't the tenant's."""
        found = await self._store.bases(tenant=tenant)
        return next((each for each in found if (each.name, each.tenant) == (base, tenant)), None)

    def _refuse(self, there: KnowledgeBase, folder: Path, *, reembed: bool) -> None:
        """Reject folders and settings that would lose documents or mix vectors from different models."""
        if there.folder != self._shown(str(folder)):
            whose = f" --tenant {there.tenant}" if there.tenant else ""
            raise RefusedError(
                f"{there.name} contains the documents of {there.folder} and would lose all of them: choose another"
                f" --name, or run `loom knowledge remove {there.name}{whose}` first"
            )
        others = [] if self._embedder is None else sorted(there.vectors.keys() - {self._embedder.model})
        if others and self._embedder is not None and not reembed:
            raise RefusedError(
                f"{there.name} has vectors from {', '.join(others)}, but the embedder here is {self._embedder.model}:"
                " vectors from two models cannot be compared. Add it with --reembed, or restore LOOM_EMBEDDER."
            )

    async def _take(self, this: _Round, path: str) -> None:
        """Update one document, or record the reason why it is skipped."""
        shown = self._shown(path)
        if shown in this.seen:
            this.skipped[f"{shown} (again)"] = "another file has the same name once secrets and odd bytes are removed"
            return
        try:
            file = await asyncio.to_thread(read_file, this.folder, path)
            is_new = this.known.get(shown) != file.digest
            chunks = await self._cut(file.data, file.suffix) if is_new else ()
        except UnreadableNow as error:
            this.skipped[shown] = str(error)
            if shown in this.known:  # its stored content is kept
                this.kept.add(shown)
            return
        except (LeftOut, UnreadableDocument) as error:
            this.skipped[shown] = str(error)
            return
        this.seen.add(shown)
        if not is_new:
            return
        document = Document(path=shown, digest=file.digest, chunks=chunks)
        await self._store.save(this.base, document, tenant=this.tenant)
        this.changed += shown in this.known
        this.added += shown not in this.known
        this.chunks += len(chunks)
        self._tell(f"{shown}: {len(chunks)} chunk{'' if len(chunks) == 1 else 's'}")

    async def _cut(self, data: bytes, suffix: str) -> tuple[Chunk, ...]:
        if suffix == "pdf":
            text = await self._reader.pdf(data)
        else:
            text = text_of(data)
        if is_html(suffix):
            text = await self._reader.html(text)
        chunks = await asyncio.to_thread(self._chunks, text, suffix)
        # The line numbers of converted pages don't correspond to the original.
        return tuple(replace(c, first_line=0, last_line=0) for c in chunks) if is_html(suffix) else chunks

    def _chunks(self, text: str, suffix: str) -> tuple[Chunk, ...]:
        # Redact before splitting: a secret that spans two chunks wouldn't be found in either of them.
        return chunks_of(sections_of(self._redact(_clean(text)), kind_of(suffix)), self._size)

    async def _embedded(self, done: Ingested) -> Ingested:
        """Compute the chunks' missing vectors."""
        embedded, why = 0, "" if self._embedder is not None else "no embedder is configured"
        while self._embedder is not None:
            waiting = await self._store.unembedded(done.name, BATCH, tenant=done.tenant)
            if not waiting:
                break
            try:
                vectors = await self._embedder.embed([chunk.told for chunk in waiting])
            except EmbedderUnavailable as error:
                why = str(error)
                break
            ids = [chunk.id for chunk in waiting]
            await self._store.set_vectors(self._embedder.model, dict(zip(ids, vectors, strict=True)))
            embedded += len(vectors)
            self._tell(f"{embedded} vectors")
        there = await self._stored(done.name, done.tenant)
        left = there.chunks - sum(there.vectors.values()) if there is not None else 0
        return replace(done, embedded=embedded, waiting=left, without_vectors=why if left else "")

    def _shown(self, path: str) -> str:
        """Return the path as text without secrets, even if the path contains arbitrary bytes."""
        return self._redact(_clean(path))


def _clean(text: str) -> str:
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
