"""Activities `promote_memories`, `expire_memories`, `embed_memories`: they keep the layers, off any run's path.

Each may be repeated, run beside itself, and die at any point: what it had not finished is still due.
"""

from collections.abc import Sequence
from typing import Final

import structlog
from temporalio import activity

from loom.activities.memory.ports import (
    Distiller,
    DistillerUnavailable,
    Due,
    Embedder,
    EmbedderUnavailable,
    MemoryUpkeepStore,
    TextRefused,
)
from loom.activities.publish import heartbeating
from loom.domain.core.tokens import text_tokens
from loom.domain.memory.content import facts_from, is_small_talk, summary_of
from loom.domain.memory.layers import MemorySettings

_log = structlog.get_logger("loom.memory")

MOST: Final = 1_000
"""Memories of one activity; what is left is done a minute later."""
_AT_ONCE: Final = 50
_TAKEN_BY_ALL: Final = "hello"


class MemoryKeeper:
    """Promotes, expires and embeds; without a store there is nothing to do."""

    def __init__(
        self,
        store: MemoryUpkeepStore | None,
        *,
        embedder: Embedder | None = None,
        distiller: Distiller | None = None,
        settings: MemorySettings = MemorySettings(),  # noqa: B008 - frozen
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._distiller = distiller
        self._settings = settings

    @activity.defn(name="promote_memories")
    async def promote_memories(self) -> int:
        """Summarise what leaves L2 or whose run has ended, and move full L3 on to L4; returns how many moved."""
        if self._store is None:
            return 0
        async with heartbeating():
            return await promote(self._store, self._distiller, self._settings)

    @activity.defn(name="expire_memories")
    async def expire_memories(self) -> int:
        """Drop what is beyond the limits of L1 and L2; returns how many."""
        if self._store is None:
            return 0
        async with heartbeating():
            return await self._store.expire()

    @activity.defn(name="embed_memories")
    async def embed_memories(self) -> int:
        """Give vectors to what has none, in batches; an embedder that is away leaves them for later."""
        if self._store is None or self._embedder is None:
            return 0
        async with heartbeating():
            try:
                return await embed(self._store, self._embedder, self._settings.batch, most=MOST)
            except EmbedderUnavailable as error:
                _log.warning("embedder_away", error=str(error))
                return 0


async def promote(store: MemoryUpkeepStore, distiller: Distiller | None, settings: MemorySettings) -> int:
    """Everything that is due now, oldest first, up to `MOST`."""
    moved = 0
    while moved < MOST and (due := await store.due_for_summary(_AT_ONCE)):
        for memory in due:
            await store.summarise(memory.id, await _facts(memory, distiller, settings))
        moved += len(due)
    return moved + await store.archive()


async def embed(
    store: MemoryUpkeepStore, embedder: Embedder, batch: int, *, most: int | None = None, other_models: bool = False
) -> int:
    """Vectors for what has none, or with `other_models` for what has another model's; raises EmbedderUnavailable."""
    kept = 0
    while most is None or kept < most:
        due = await store.due_for_vector(batch, other_models=other_models)
        if not due:
            break
        vectors = await _vectors(embedder, [memory.content for memory in due])
        await store.keep_vectors([(memory.id, vector) for memory, vector in zip(due, vectors, strict=True)])
        kept += len(due)
    return kept


async def _vectors(embedder: Embedder, texts: Sequence[str]) -> list[list[float]]:
    """A vector for each text, an empty one for what the embedder does not take; raises EmbedderUnavailable."""
    try:
        return await embedder.embed(texts)
    except TextRefused:
        # One that is set up wrongly may refuse all texts: then it is away, and none of them is given up.
        await embedder.embed([_TAKEN_BY_ALL])
    if len(texts) == 1:
        return [[]]
    return [vector for text in texts for vector in await _vectors(embedder, [text])]


async def _facts(memory: Due, distiller: Distiller | None, settings: MemorySettings) -> tuple[str, ...]:
    """What is left of a whole Task: nothing of small talk, the facts of a long text, else its first sentences."""
    if is_small_talk(memory.content):
        return ()
    summary = (summary_of(memory.content, settings.summary_length),)
    if distiller is None or text_tokens(memory.content) <= settings.distill_over:
        return summary
    try:
        return facts_from(await distiller.facts(memory.content), settings.summary_length) or summary
    except DistillerUnavailable as error:
        _log.warning("not_distilled", memory=memory.id, error=str(error))
        return summary
