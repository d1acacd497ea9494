"""A bus within one process. Each handler runs in its own task, so a slow handler doesn't delay the others."""

import asyncio
from collections.abc import Sequence

from loom.activities.bus import Answer, Subscription, answer_of
from loom.domain.core.task_routing import takes
from loom.domain.core.tasks import Task


class InProcessBus:
    """A `Transport` that doesn't need a server. Pending tasks are lost when the process ends."""

    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []
        self._running: set[asyncio.Task[Answer]] = set()

    async def attach(self, subscription: Subscription) -> None:
        """See the port. A second handler with the same name replaces the first."""
        await self.detach(subscription.name)
        self._subscriptions.append(subscription)

    async def detach(self, name: str) -> None:
        """See the port."""
        self._subscriptions = [other for other in self._subscriptions if other.name != name]

    async def send(self, task: Task) -> None:
        """See the port."""
        self._begun(task)

    async def ask(self, task: Task, patience: float) -> Sequence[Answer]:
        """See the port. Handlers are called in subscription order, and late ones continue."""
        begun = self._begun(task)
        if begun:
            await asyncio.wait(begun, timeout=patience)
        return [one.result() for one in begun if one.done()]

    async def aclose(self) -> None:
        """See the port."""
        self._subscriptions = []
        while self._running:
            await asyncio.wait(self._running)

    def _begun(self, task: Task) -> list[asyncio.Task[Answer]]:
        meant = [subscription for subscription in self._subscriptions if takes(subscription.pattern, task.action)]
        begun = [asyncio.create_task(answer_of(subscription, task)) for subscription in meant]
        self._running.update(begun)
        for one in begun:
            one.add_done_callback(self._running.discard)
        return begun
