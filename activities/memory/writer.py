"""The memory writer moves every task from the bus to memory.

    take ─▶ remember ─▶ done

A task is acknowledged only after memory has stored it, and memory stores each task once. A writer can therefore crash
at any point, and several writers can run in parallel. While Postgres is unavailable, the writer keeps the tasks that it
has read and doesn't read any others. The other tasks wait on the bus. If the bus loses tasks, `backfill` rebuilds them
from history.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from time import monotonic
from typing import Final, TypeAlias, TypeVar

import structlog

from loom.activities.bus import Delivery, Inbox
from loom.activities.memory.ports import MemoryStore, ScopedMemory
from loom.activities.ports import StoreUnavailable, StreamUnavailable
from loom.domain.core.tasks import SHOWN_ONLY, Action, Task
from loom.domain.memory.layers import MemoryScope
from loom.domain.memory.people import task_owner
from loom.domain.memory.scopes import TASK_NOTE, ScopedWrite, path_of

T = TypeVar("T")
After: TypeAlias = Callable[[Sequence[Task]], Awaitable[None]]

_log = structlog.get_logger("loom.memory")

GROUP: Final = "memory"
"""The consumer group whose members write to memory together."""
GATHER: Final = 0.25
"""Seconds in which tasks gather on the bus before they are stored together."""
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0


class MemoryWriter:
    """One consumer in the group that writes to memory."""

    def __init__(self, inbox: Inbox, store: MemoryStore, after: After | None = None) -> None:
        """`after` is called with the tasks that memory has stored, and may be called more than once with the same
        tasks.
        """
        self._inbox = inbox
        self._store = store
        self._after = after

    async def run(self, *, idle: float = inf) -> None:
        """Write tasks until cancelled, or until none has arrived for `idle` seconds."""
        latest = monotonic()
        while monotonic() - latest < idle:
            if taken := await patiently(self._inbox.take):
                await self._deal_with(taken)
                await asyncio.sleep(GATHER)
                latest = monotonic()

    async def _deal_with(self, taken: Sequence[Delivery]) -> None:
        _tell_unreadable(taken)
        tasks = [one.task for one in taken if one.task is not None and one.task.action not in SHOWN_ONLY]
        if tasks:
            await self._remember(tasks)
            if (after := self._after) is not None:
                await patiently(lambda: after(tasks))
        await patiently(lambda: self._inbox.done([delivery.entry for delivery in taken]))

    async def _remember(self, tasks: Sequence[Task]) -> None:
        """Store all tasks together. If that fails, store each task separately, so that one invalid task doesn't block
        the others.
        """
        try:
            await patiently(lambda: self._store.remember(tasks))
        except Exception as error:  # noqa: BLE001 - a task that can't be stored must not block the others
            if len(tasks) == 1:
                _log.error("task_not_kept", task_id=tasks[0].task_id, exc_info=error)
                return
            for task in tasks:
                await self._remember([task])


def _tell_unreadable(taken: Sequence[Delivery]) -> None:
    for delivery in taken:
        if delivery.task is None:
            _log.warning("unreadable_task", entry=delivery.entry)


async def patiently(step: Callable[[], Awaitable[T]]) -> T:
    """Repeat the operation until its store responds, and return the result."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await step()
        except (StoreUnavailable, StreamUnavailable) as error:
            _log.debug("waiting", error=str(error), pause=pause)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)


async def share_tasks(store: ScopedMemory, tasks: Sequence[Task]) -> None:
    """Whenever a run has started, share its task with the other runs in its tree. Share each task only once. Raises
    StoreUnavailable if the store isn't responding.
    """
    for begun in tasks:
        words = begun.parameters.get("task")
        if begun.action is not Action.START or not isinstance(words, str):
            continue
        name, path = f"{TASK_NOTE}{begun.run_id}", path_of(begun.run_id, begun.root_run_id)
        if await store.read(name, path, owner := task_owner(begun)) is None:
            await store.write(
                ScopedWrite(
                    id=name,
                    content=words,
                    scope=MemoryScope.SHARED,
                    by=path,
                    written_for=owner,
                    session_id=begun.session_id,
                )
            )
