"""A worker's memory: the store, the memories that runs read from it, and its background maintenance."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import structlog
from temporalio.client import Client
from temporalio.service import RPCError

from loom.activities.adapters.postgres.collection import PostgresStoredData
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.memory_upkeep import PostgresMemoryUpkeep
from loom.activities.adapters.postgres.person_facts import PostgresPersonFacts
from loom.activities.adapters.postgres.scoped_memory import PostgresScopedMemory
from loom.activities.adapters.redis.bus import RedisBus
from loom.activities.adapters.temporal.history_facts import TemporalHistories
from loom.activities.adapters.temporal.run_index import TemporalRunIndex
from loom.activities.bus import Bus, Transport
from loom.activities.bus_inbox import SubscribedInbox
from loom.activities.collection import Collection
from loom.activities.memory.backfill import CatchUp
from loom.activities.memory.distiller import ModelDistiller
from loom.activities.memory.person_facts import PersonFactKeeper
from loom.activities.memory.ports import Embedder, MemoryStore, PersonFactStore, ScopedMemory
from loom.activities.memory.question_vector import IN_A_RUN
from loom.activities.memory.upkeep import MemoryKeeper
from loom.activities.memory.writer import GROUP, MemoryWriter
from loom.activities.ports import Providers, StoredData
from loom.activities.task_handlers import subscribed
from loom.composition.memory_process import MemoryProcess, after_storing, memory_process
from loom.composition.settings import Settings
from loom.domain.core.task_routing import EVERYTHING
from loom.domain.history.task_rebuilding import Mask
from loom.domain.memory.backfill import UpkeepRequest
from loom.domain.memory.layers import MemorySettings
from loom.workflows.memory_upkeep import MemoryUpkeep, upkeep_id

_log = structlog.get_logger("loom.memory")

_ANSWER: Final = timedelta(seconds=5)
_SETTLED: Final = 2.0
"""Seconds between the end of a run and the Signal to the upkeep workflow. Runs that end in between share the Signal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerMemory:
    """A worker's memory."""

    store: MemoryStore
    scoped: ScopedMemory
    people: PersonFactStore
    keeper: MemoryKeeper
    limits: MemorySettings
    stored: StoredData
    is_own: bool = False
    """Whether the app has registered the store."""

    def activities(self, client: Client, task_queue: str, mask: Mask) -> Sequence[Any]:
        """Return the activities that maintain the memory layers independently of runs."""
        catch_up = CatchUp(
            TemporalHistories(client, task_queue), self.store, mask, scoped=self.scoped, people=self.people
        )
        collection = Collection(self.stored, TemporalRunIndex(client))
        return [
            catch_up.catch_up,
            self.keeper.keep_memories,
            self.keeper.promote_memories,
            self.keeper.expire_memories,
            self.keeper.embed_memories,
            collection.collect_stored_data,
        ]


def memory_from(
    settings: Settings,
    database: Database | None,
    embedder: Embedder | None,
    providers: Providers,
    own: MemoryStore | None = None,
) -> WorkerMemory | None:
    """Return the memory for these settings, or None if there is no database or memory is off.

    `own` is the app's own store, which maintains itself. Notes and facts about people stay in the database.
    """
    if database is None or settings.memory == "off":
        if own is not None and database is None:
            _log.warning("memory_store_unused", why="notes and facts are kept in Postgres: set LOOM_DATABASE_URL")
        return None
    limits = settings.memory_limits
    upkeep = PostgresMemoryUpkeep(
        database,
        model=embedder.model if embedder else "",
        dimension=embedder.dimension if embedder else 0,
        settings=limits,
    )
    people = PostgresPersonFacts(database, embedder=embedder, settings=limits)
    distiller = _distiller(settings, providers)
    return WorkerMemory(
        store=own or PostgresMemory(database, embedder=embedder, settings=limits, question_within=IN_A_RUN),
        is_own=own is not None,
        scoped=PostgresScopedMemory(database),
        people=people,
        keeper=MemoryKeeper(
            upkeep if own is None else None,
            embedder=embedder,
            distiller=distiller,
            people=PersonFactKeeper(store=people, distiller=distiller),
            settings=limits,
        ),
        limits=limits,
        stored=PostgresStoredData(database),
    )


@asynccontextmanager
async def memory_running(
    memory: WorkerMemory | None, transport: Transport | None, settings: Settings, client: Client, task_queue: str
) -> AsyncIterator[None]:
    """Store memories of the tasks on the bus while the worker is running.

    When a run ends, the task queue's upkeep workflow receives a Signal.
    """
    if memory is None:
        yield
        return
    ended = asyncio.Event()
    upkeep = asyncio.create_task(_signal_upkeep(client, task_queue, ended))
    try:
        async with _written(memory, transport, settings, ended.set):
            yield
    finally:
        upkeep.cancel()
        await asyncio.wait({upkeep})


@asynccontextmanager
async def _written(
    memory: WorkerMemory, transport: Transport | None, settings: Settings, run_ended: Callable[[], None]
) -> AsyncIterator[None]:
    """Write memory in a process of its own, or in this one if it can't reach the bus or the app's store."""
    if transport is None:
        yield  # only the upkeep workflow writes memories; it reads them from histories
    elif isinstance(transport, RedisBus) and not memory.is_own:
        process = MemoryProcess(
            redis_url=settings.redis_url or "",
            database_url=settings.database_url or "",
            encryption_keys=settings.encryption_keys,
            limits=memory.limits,
            log_level=settings.log_level,
        )
        async with memory_process(process, run_ended):
            yield
    else:
        inbox = SubscribedInbox()
        writer = MemoryWriter(inbox, memory.store, after_storing(memory.scoped, memory.people, run_ended))
        writing = asyncio.create_task(writer.run())
        try:
            async with subscribed(Bus(transport), {GROUP: (EVERYTHING, inbox.handle)}):
                yield
        finally:
            writing.cancel()
            await asyncio.wait({writing})


async def _signal_upkeep(client: Client, task_queue: str, ended: asyncio.Event) -> None:
    """Send a Signal after runs have ended, and one at the start: a previous worker may have crashed before it sent its
    own.
    """
    while True:
        try:
            await client.start_workflow(
                MemoryUpkeep.run,
                UpkeepRequest(),
                id=upkeep_id(task_queue),
                task_queue=task_queue,
                start_signal="runs_ended",
                static_summary="memory upkeep",
                rpc_timeout=_ANSWER,
            )
        except RPCError as error:
            _log.warning("upkeep_not_told", error=error.message)
        await ended.wait()
        await asyncio.sleep(_SETTLED)
        ended.clear()


def _distiller(settings: Settings, providers: Providers) -> ModelDistiller | None:
    model = settings.memory_model or settings.model
    # The demo model supports only the demo's task, so its summaries would be made up.
    return None if model in (None, "off", "demo") else ModelDistiller(providers, str(model))
