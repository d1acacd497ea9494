"""The activity `keep_memories` maintains the memory layers outside of runs: it promotes, expires and embeds memories.

Each of these steps is idempotent, may run concurrently, and may fail at any point. The next pass continues any
unfinished work. The upkeep workflows that earlier releases started have an activity for each step.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from time import monotonic
from typing import Final

import structlog
from temporalio import activity

from loom.activities.memory.person_facts import PersonFactKeeper
from loom.activities.memory.ports import (
    Distiller,
    DistillerUnavailable,
    Due,
    Embedder,
    EmbedderUnavailable,
    MemoryUpkeepStore,
    TextRefused,
    VectorStore,
)
from loom.activities.publish import heartbeating
from loom.domain.core.tasks import Action
from loom.domain.core.tokens import text_tokens
from loom.domain.memory.backfill import KeptMemories
from loom.domain.memory.content import facts_from, is_small_talk, parts_of, summary_of, told_text
from loom.domain.memory.layers import MemorySettings

_log = structlog.get_logger("loom.memory")

MOST: Final = 1_000
"""Number of memories after which a step stops. The next round then starts at once and processes the remaining ones."""
FACT: Final = 200
"""Maximum number of characters in a distilled fact."""
REST: Final = 5.0
"""On a busy machine, the upkeep pauses between two batches of vectors for this many times the duration of a batch."""
LONGEST_REST: Final = 5.0
EXPIRE_EVERY: Final = 60.0
"""Minimum number of seconds between two searches for expired memories. Each search reads all recent memories."""
_AT_ONCE: Final = 50
_TAKEN_BY_ALL: Final = "hello"


class MemoryKeeper:
    """Promotes, expires and embeds memories. Without a store, the activities have no effect."""

    def __init__(
        self,
        store: MemoryUpkeepStore | None,
        *,
        embedder: Embedder | None = None,
        distiller: Distiller | None = None,
        people: PersonFactKeeper | None = None,
        settings: MemorySettings = MemorySettings(),  # noqa: B008 - frozen
    ) -> None:
        self._store = store
        self._people = people
        self._embedder = embedder
        self._distiller = distiller
        self._settings = settings
        self._expired_at = -inf

    @activity.defn(name="keep_memories")
    async def keep_memories(self) -> KeptMemories:
        """Promote, expire and embed memories. A failed step doesn't prevent the other steps from running."""
        steps = {"promote": self.promote_memories, "expire": self.expire_memories, "embed": self.embed_memories}
        done = {name: await _tried(name, step) for name, step in steps.items()}
        return KeptMemories(
            promoted=done["promote"] or 0,
            expired=done["expire"] or 0,
            embedded=done["embed"] or 0,
            has_more=any((done[name] or 0) >= MOST for name in ("promote", "embed")),
            failed=tuple(name for name, changed in done.items() if changed is None),
        )

    @activity.defn(name="promote_memories")
    async def promote_memories(self) -> int:
        """Summarize memories that are leaving L2 or whose run has ended. Move summaries that exceed the limits of L3
        to L4. Return the number of processed memories.
        """
        if self._store is None:
            return 0
        async with heartbeating():
            return await promote(self._store, self._distiller, self._settings, self._people)

    @activity.defn(name="expire_memories")
    async def expire_memories(self) -> int:
        """Delete memories that exceed the limits of L1 and L2, at most once a minute. Return the number of deleted
        memories.
        """
        if self._store is None or monotonic() - self._expired_at < EXPIRE_EVERY:
            return 0
        async with heartbeating():
            expired = await self._store.expire()
        self._expired_at = monotonic()
        return expired

    @activity.defn(name="embed_memories")
    async def embed_memories(self) -> int:
        """Compute missing vectors in batches. If the embedder is unavailable, postpone the work."""
        stores = (self._store, self._people.store if self._people is not None else None)
        if self._embedder is None:
            return 0
        async with heartbeating():
            try:
                batch = self._settings.batch
                done = [await embed(each, self._embedder, batch, most=MOST, rest=REST) for each in stores if each]
                return sum(done)
            except EmbedderUnavailable as error:
                _log.warning("embedder_away", error=str(error))
                return 0


async def _tried(name: str, step: Callable[[], Awaitable[int]]) -> int | None:
    try:
        return await step()
    except Exception as error:  # noqa: BLE001 - the result says that it failed, and the next round repeats it
        _log.error("upkeep_step_failed", step=name, exc_info=error)
        return None


async def promote(
    store: MemoryUpkeepStore,
    distiller: Distiller | None,
    settings: MemorySettings,
    people: PersonFactKeeper | None = None,
) -> int:
    """Promote all memories that are due, oldest first, up to `MOST`. What they say about people is learned before, and
    compared with what is known. After a crash in between, it is learned again, which has no effect.
    """
    moved = 0
    while moved < MOST and (due := await store.due_for_summary(_AT_ONCE)):
        if people is not None:
            await people.distill([memory.task for memory in due if memory.task is not None])
        for memory in due:
            await store.summarise(memory.id, await _facts(memory, distiller, settings))
        moved += len(due)
        if len(due) < _AT_ONCE:
            break
    if people is not None:
        await people.compare()
    return moved + await store.archive()


async def embed(
    store: VectorStore,
    embedder: Embedder,
    batch: int,
    *,
    most: int | None = None,
    other_models: bool = False,
    rest: float = 0.0,
) -> int:
    """Compute missing vectors. With `other_models`, replace vectors from other models instead. On a busy machine, pause
    after each batch for `rest` times its duration. Raises EmbedderUnavailable if the embedder isn't responding.
    """
    kept = 0
    while most is None or kept < most:
        due = await store.due_for_vector(batch, other_models=other_models)
        if not due:
            break
        begun = monotonic()
        texts = list(dict.fromkeys(memory.content for memory in due if memory.vector is None))
        vectors = dict(zip(texts, await _vectors(embedder, texts) if texts else (), strict=True))
        await store.keep_vectors([(each.id, each.vector or vectors[each.content]) for each in due])
        kept += len(due)
        if rest and len(due) == batch and _is_busy():
            await asyncio.sleep(min(LONGEST_REST, rest * (monotonic() - begun)))
    return kept


def _is_busy() -> bool:
    """Whether programs have waited for a processor in the last minute."""
    return os.getloadavg()[0] > (os.cpu_count() or 1)


async def _vectors(embedder: Embedder, texts: Sequence[str]) -> list[list[float]]:
    """Return a vector for each text, or an empty vector if the embedder rejects the text. Raises EmbedderUnavailable if
    the embedder isn't responding.
    """
    try:
        return await embedder.embed(texts)
    except TextRefused:
        # A misconfigured embedder may reject all texts. It is then treated as unavailable, and all texts are retried.
        await embedder.embed([_TAKEN_BY_ALL])
    if len(texts) == 1:
        return [[]]
    return [vector for text in texts for vector in await _vectors(embedder, [text])]


async def _facts(memory: Due, distiller: Distiller | None, settings: MemorySettings) -> tuple[str, ...]:
    """Return the facts to keep from a full task: none for small talk, the whole text of a model's answer, the facts
    from another long text, or otherwise its first sentences.
    """
    if is_small_talk(memory.content):
        return ()
    if (
        memory.task is not None and memory.task.action == Action.MODEL_CALL
    ):  # a run has many of them, so the model isn't called for each
        return parts_of(memory.content, settings.summary_length)
    text = told_text(memory.content)
    summary = (summary_of(text, settings.summary_length),)
    if distiller is None or text_tokens(text) <= settings.distill_over:
        return summary
    try:
        return facts_from(await distiller.facts(text), min(FACT, settings.summary_length)) or summary
    except DistillerUnavailable as error:
        _log.warning("not_distilled", memory=memory.id, error=str(error))
        return summary
