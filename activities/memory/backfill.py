"""Activity `catch_up`: rebuild what the bus lost from Temporal's history and store it in memory."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

import structlog
from temporalio import activity

from loom.activities.memory.ports import MemoryStore, ScopedMemory
from loom.activities.memory.task_sharing import share_tasks
from loom.activities.publish import heartbeating
from loom.domain.core.tasks import Task
from loom.domain.history.facts import Fact
from loom.domain.history.task_rebuilding import Mask, tasks_of
from loom.domain.memory.backfill import CatchUpRequest, CaughtUp

_log = structlog.get_logger("loom.memory")

SETTLED_AFTER: Final = timedelta(seconds=30)
"""Younger tasks are left to the bus, which records more precisely when they were created and how long they took."""
AT_ONCE: Final = 200
"""Tasks in one transaction of the store."""
_SEEN: Final = 20_000
_TOLD: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """A run that may have tasks that memory does not have."""

    run_id: str
    events: int
    """Number of events of its last execution. If it has not grown since the last pass, there is nothing new."""


class UnreadableHistory(Exception):
    """The history is gone, or contains what this worker cannot decode."""


class Histories(Protocol):
    """The histories of runs on the Temporal server."""

    def moved(self, since: datetime | None, until: datetime) -> AsyncIterator[Moved]:
        """Runs that ended in this period, and all that have not ended."""
        ...

    async def facts(self, run_id: str) -> tuple[Fact, ...]:
        """The facts of the run's history, over all executions; raises UnreadableHistory."""
        ...


class CatchUp:
    """Fills gaps in memory."""

    def __init__(
        self,
        histories: Histories,
        store: MemoryStore,
        mask: Mask,
        *,
        scoped: ScopedMemory | None = None,
        settled_after: timedelta = SETTLED_AFTER,
    ) -> None:
        """The tasks of runs are shared in `scoped`, as the memory writer does it."""
        self._scoped = scoped
        self._histories = histories
        self._store = store
        self._mask = mask
        self._settled_after = settled_after
        self._seen: OrderedDict[str, int] = OrderedDict()
        """Number of events of each run when memory had all of it."""

    @activity.defn(name="catch_up")
    async def catch_up(self, request: CatchUpRequest) -> CaughtUp:
        """Store what memory has missed. Safe to repeat and to run concurrently."""
        async with heartbeating():
            return await self.until(datetime.now(UTC) - self._settled_after, request.since)

    async def until(self, until: datetime, since: datetime | None = None) -> CaughtUp:
        """The activity's work, for tasks that are not younger than `until`."""
        runs, tasks, unreadable = 0, 0, []
        async with aclosing(self._histories.moved(since, until)) as moved:  # type: ignore[type-var]
            async for run in moved:
                if self._seen.get(run.run_id) == run.events:
                    continue
                runs += 1
                try:
                    tasks += await self._complete(run, until)
                except UnreadableHistory as error:
                    _log.warning("history_unreadable", run_id=run.run_id, error=str(error))
                    unreadable.append(run.run_id)
        if tasks:
            _log.info("memory_caught_up", runs=runs, tasks=tasks)
        return CaughtUp(until=until, runs=runs, tasks=tasks, unreadable=tuple(unreadable[:_TOLD]))

    async def _complete(self, run: Moved, until: datetime) -> int:
        made = tasks_of(await self._histories.facts(run.run_id), self._mask)
        settled = [task for task in made if task.created_at <= until]
        added = await self._remember(settled)
        if len(settled) == len(made):
            self._seen[run.run_id] = run.events
            self._seen.move_to_end(run.run_id)
            if len(self._seen) > _SEEN:
                self._seen.popitem(last=False)
        await asyncio.sleep(0)  # rebuilding tasks is CPU-bound: let other activities of this worker run
        return added

    async def _remember(self, tasks: Sequence[Task]) -> int:
        missing = await self._store.missing(tasks)
        if self._scoped is not None:
            # First: once memory has them, they are no longer missing, and they would never be shared.
            await share_tasks(self._scoped, missing)
        pages = range(0, len(missing), AT_ONCE)
        return sum([await self._store.remember(missing[start : start + AT_ONCE]) for start in pages])
