"""Take the tasks of a subscription in batches."""

import asyncio
from collections.abc import Sequence
from itertools import count

from loom.activities.bus import Delivery
from loom.domain.core.tasks import Task

WITHIN = 2.0
"""Seconds that `take` waits for a task."""


class SubscribedInbox:
    """An `Inbox` for any transport: `handle` is the handler of a subscription, and returns once the task is done."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[Delivery] = asyncio.Queue()
        self._open: dict[str, asyncio.Future[None]] = {}
        self._numbers = count(1)

    async def handle(self, task: Task) -> None:
        """Wait until the task is done."""
        entry = str(next(self._numbers))
        done = self._open[entry] = asyncio.get_running_loop().create_future()
        self._arrived.put_nowait(Delivery(entry=entry, task=task))
        try:
            await done
        finally:
            del self._open[entry]

    async def take(self) -> Sequence[Delivery]:
        """See the port."""
        try:
            async with asyncio.timeout(WITHIN):
                taken = [await self._arrived.get()]
        except TimeoutError:
            return ()
        while not self._arrived.empty():
            taken.append(self._arrived.get_nowait())
        return taken

    async def done(self, entries: Sequence[str]) -> None:
        """See the port."""
        for entry in entries:
            if (waiting := self._open.get(entry)) is not None and not waiting.done():
                waiting.set_result(None)
