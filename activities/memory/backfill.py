"""The `catch_up` activity: use Temporal's history to rebuild tasks that the bus lost, and store them in memory."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from temporalio import activity

from loom.activities.memory.histories import Histories, Moved, UnreadableHistory
from loom.activities.memory.person_facts import learn_by_rule
from loom.activities.memory.ports import MemoryStore, PersonFactStore, ScopedMemory
from loom.activities.memory.writer import share_tasks
from loom.activities.publish import heartbeating
from loom.domain.core.tasks import Task
from loom.domain.history.task_rebuilding import Mask, tasks_of
from loom.domain.memory.backfill import CatchUpRequest, CaughtUp

_log = structlog.get_logger("loom.memory")

SETTLED_AFTER: Final = timedelta(seconds=30)
"""Minimum age of a rebuilt task. Newer tasks are left to the bus, which records creation times and durations more
precisely.
"""
AT_ONCE: Final = 200
"""Number of tasks per store transaction."""
_SEEN: Final = 20_000
_TOLD: Final = 100


class CatchUp:
    """Adds missing tasks to memory."""

    def __init__(
        self,
        histories: Histories,
        store: MemoryStore,
        mask: Mask,
        *,
        scoped: ScopedMemory | None = None,
        people: PersonFactStore | None = None,
        settled_after: timedelta = SETTLED_AFTER,
    ) -> None:
        """Like the memory writer, this class also shares runs' tasks in `scoped` and learns facts about `people`."""
        self._people = people
        self._scoped = scoped
        self._histories = histories
        self._store = store
        self._mask = mask
        self._settled_after = settled_after
        self._seen: OrderedDict[str, int] = OrderedDict()
        """The number of events that each run had when memory last had all of its tasks."""
        self._unread: set[str] = set()
        """The runs whose history could not be read. Memory may lack any of their tasks."""

    @activity.defn(name="catch_up")
    async def catch_up(self, request: CatchUpRequest) -> CaughtUp:
        """Store the tasks that are missing from memory. This activity is idempotent and safe to run concurrently."""
        async with heartbeating():
            return await self.until(datetime.now(UTC) - self._settled_after, request.since)

    async def until(self, until: datetime, since: datetime | None = None) -> CaughtUp:
        """Perform the activity's work for tasks that were created before `until`."""
        runs, tasks, unreadable = 0, 0, []
        async with aclosing(self._histories.moved(since, until)) as moved:  # type: ignore[type-var]
            async for run in moved:
                if self._seen.get(run.run_id) == run.events:
                    continue
                runs += 1
                try:
                    tasks += await self._complete(run, until, None if run.run_id in self._unread else since)
                    self._unread.discard(run.run_id)
                except UnreadableHistory as error:
                    _log.warning("history_unreadable", run_id=run.run_id, error=str(error))
                    unreadable.append(run.run_id)
                    self._unread.add(run.run_id)
        if tasks:
            _log.info("memory_caught_up", runs=runs, tasks=tasks)
        return CaughtUp(until=until, runs=runs, tasks=tasks, unreadable=tuple(unreadable[:_TOLD]))

    async def _complete(self, run: Moved, until: datetime, since: datetime | None) -> int:
        added, is_complete = 0, True
        async with aclosing(self._histories.executions(run.run_id, since)) as executions:  # type: ignore[type-var]
            async for execution in executions:  # one at a time, because a very long run has many
                made = tasks_of(execution.facts, self._mask, earlier=execution.earlier)
                settled = [task for task in made if task.created_at <= until]
                added += await self._remember(settled)
                is_complete = is_complete and len(settled) == len(made)
        if is_complete:
            self._seen[run.run_id] = run.events
            self._seen.move_to_end(run.run_id)
            if len(self._seen) > _SEEN:
                self._seen.popitem(last=False)
        await asyncio.sleep(0)  # rebuilding tasks is CPU-bound, so let the worker's other activities run
        return added

    async def _remember(self, tasks: Sequence[Task]) -> int:
        missing = await self._store.missing(tasks)
        if self._scoped is not None:
            # Share the tasks first. Once memory has stored them, they are no longer missing and would never be shared.
            await share_tasks(self._scoped, missing)
        if self._people is not None:
            await learn_by_rule(self._people, missing)
        pages = range(0, len(missing), AT_ONCE)
        return sum([await self._store.remember(missing[start : start + AT_ONCE]) for start in pages])
