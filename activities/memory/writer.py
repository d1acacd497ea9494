"""The memory writer: it moves every task from the bus to memory, for as long as the worker lives.

    take ─▶ remember ─▶ done

A task is acknowledged only when memory has stored it, and memory stores a task once. A writer may therefore die at any
point, several may work in parallel, and each task is stored exactly once. While Postgres is unavailable, the writer
holds the tasks that it has read and reads no more; the others wait on the bus. What the bus itself loses is rebuilt
from history (`backfill`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias, TypeVar

import structlog

from loom.activities.bus import Delivery, Inbox
from loom.activities.memory.ports import MemoryStore
from loom.activities.ports import StoreUnavailable, StreamUnavailable
from loom.domain.core.tasks import SHOWN_ONLY, Task

T = TypeVar("T")
After: TypeAlias = Callable[[Sequence[Task]], Awaitable[None]]

_log = structlog.get_logger("loom.memory")

GROUP: Final = "memory"
"""The consumer group whose members write memory together."""
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0


class MemoryWriter:
    """One consumer of the group that writes memory."""

    def __init__(self, inbox: Inbox, store: MemoryStore, after: After | None = None) -> None:
        """`after` is called with what memory has stored, sometimes twice."""
        self._inbox = inbox
        self._store = store
        self._after = after

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            taken = await patiently(self._inbox.take)
            if taken:
                await self._deal_with(taken)

    async def _deal_with(self, taken: Sequence[Delivery]) -> None:
        _tell_unreadable(taken)
        tasks = [one.task for one in taken if one.task is not None and one.task.action not in SHOWN_ONLY]
        if tasks:
            await self._remember(tasks)
            if (after := self._after) is not None:
                await patiently(lambda: after(tasks))
        await patiently(lambda: self._inbox.done([delivery.entry for delivery in taken]))

    async def _remember(self, tasks: Sequence[Task]) -> None:
        """Store all tasks together. If that fails, store each alone, so that one invalid task does not block the
        others.
        """
        try:
            await patiently(lambda: self._store.remember(tasks))
        except Exception as error:  # noqa: BLE001 - a task that cannot be stored must not stop the others
            if len(tasks) == 1:
                _log.error("task_not_kept", task_id=tasks[0].task_id, exc_info=error)
                return
            for task in tasks:
                await self._remember([task])


@asynccontextmanager
async def writing(inbox: Inbox, store: MemoryStore, after: After | None = None) -> AsyncIterator[None]:
    """Run a memory writer beside the body. What it has not finished at the end is left to the next one."""
    task = asyncio.create_task(MemoryWriter(inbox, store, after).run())
    task.add_done_callback(_tell_end)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


def _tell_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("memory_writer_ended", exc_info=error)


def _tell_unreadable(taken: Sequence[Delivery]) -> None:
    for delivery in taken:
        if delivery.task is None:
            _log.warning("unreadable_task", entry=delivery.entry)


async def patiently(step: Callable[[], Awaitable[T]]) -> T:
    """Return the result of the operation, as soon as its store responds."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await step()
        except (StoreUnavailable, StreamUnavailable) as error:
            _log.debug("waiting", error=str(error), pause=pause)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)
