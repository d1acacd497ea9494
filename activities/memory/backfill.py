"""Activity `catch_up`: what the bus lost, Redis and all, is made again from Temporal's history and given to memory."""

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
"""Younger tasks are left to the bus, which says more exactly when they were made and how long they took."""
AT_ONCE: Final = 200
"""Tasks in one transaction of the store."""
_SEEN: Final = 20_000
_TOLD: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """A run that may have tasks which memory has not."""

    run_id: str
    events: int
    """Of its last execution: more than at the last look, or there is nothing new."""


class UnreadableHistory(Exception):
    """The history is gone, or holds what this worker cannot decode."""


class Histories(Protocol):
    """The histories of runs on the Temporal server."""

    def moved(self, since: datetime | None, until: datetime) -> AsyncIterator[Moved]:
        """Runs that ended in between, and all that have not ended."""
        ...

    async def facts(self, run_id: str) -> tuple[Fact, ...]:
        """What the run's history says, all its executions; raises UnreadableHistory."""
        ...


class CatchUp:
    """Fills memory's gaps."""

    def __init__(
        self,
        histories: Histories,
        store: MemoryStore,
        mask: Mask,
        *,
        scoped: ScopedMemory | None = None,
        settled_after: timedelta = SETTLED_AFTER,
    ) -> None:
        """What runs were to do is shared in `scoped`, as the memory writer does it."""
        self._scoped = scoped
        self._histories = histories
        self._store = store
        self._mask = mask
        self._settled_after = settled_after
        self._seen: OrderedDict[str, int] = OrderedDict()
        """Events of each run when memory had all of it."""

    @activity.defn(name="catch_up")
    async def catch_up(self, request: CatchUpRequest) -> CaughtUp:
        """Give memory what it has missed; safe to repeat, and to run beside itself."""
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
        await asyncio.sleep(0)  # making tasks is computing: let others of this worker have their turn
        return added

    async def _remember(self, tasks: Sequence[Task]) -> int:
        missing = await self._store.missing(tasks)
        if self._scoped is not None:
            # First: once memory has them they are not missing any more, and nobody would share them.
            await share_tasks(self._scoped, missing)
        pages = range(0, len(missing), AT_ONCE)
        return sum([await self._store.remember(missing[start : start + AT_ONCE]) for start in pages])
