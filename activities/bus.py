"""The bus routes tasks from publishers to the subscribers of their action. It doesn't store tasks.

    bus = Bus(InProcessBus())
    await bus.subscribe("tool.*", handler)
    answered = await bus.publish(task)

A handler receives the published task. It returns a task of its own, or None if it only observes.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

from loom.domain.core.task_routing import checked
from loom.domain.core.tasks import Task

_log = logging.getLogger("loom.bus")

Handler: TypeAlias = Callable[[Task], Awaitable[Task | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The result of one handler for a task."""

    task: Task | None
    """The handler's task, or None if the handler only observed the published task."""
    failed: bool = False
    """Whether the handler raised an exception. In that case, `task` contains the error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subscription:
    """A handler and its pattern."""

    name: str
    """Subscribers with the same name share the work, so each task is delivered to only one of them. The name stays the
    same after a restart of the process.
    """
    pattern: str
    """The actions whose tasks the handler receives: one (`node.error`), a group (`node.*`) or all (`*`)."""
    handler: Handler
    """Receives each task. It returns the task to publish in return, or None."""
    at_once: int
    """Maximum number of tasks that the handler has at the same time in one process. The others wait on the bus."""


class Transport(Protocol):
    """Delivers tasks from publishers to handlers. All methods raise StreamUnavailable if the bus isn't responding."""

    async def attach(self, subscription: Subscription) -> None:
        """Start calling the handler with every task that matches its pattern."""
        ...

    async def detach(self, name: str) -> None:
        """Stop delivering tasks to this process's handlers with that name. Handlers finish the tasks that they have
        started.
        """
        ...

    async def send(self, task: Task) -> None:
        """Publish the task without waiting for its handlers."""
        ...

    async def ask(self, task: Task, patience: float) -> Sequence[Answer]:
        """Publish the task, wait for its handlers for at most `patience` seconds, and return their results in a stable
        order. Results that come later are ignored.
        """
        ...

    async def aclose(self) -> None:
        """Wait for started tasks to finish, and end all subscriptions."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """A task that was delivered to a subscriber. The subscriber must acknowledge it."""

    entry: str
    task: Task | None
    """The task, or None if this version of Loom can't read the entry."""
    reply_to: str = ""


class Inbox(Protocol):
    """One consumer in a group that shares a subscription. A task that the consumer has read stays assigned to it until
    it acknowledges the task or stops working. All methods raise StreamUnavailable if the bus isn't responding.
    """

    async def take(self) -> Sequence[Delivery]:
        """Return new tasks, oldest first. If there are none, wait briefly, and return an empty sequence if no task
        arrives.
        """
        ...

    async def done(self, entries: Sequence[str]) -> None:
        """Acknowledge these tasks so that they aren't delivered again."""
        ...


PATIENCE: Final = 30.0
"""Seconds that a publisher waits for its handlers by default."""
AT_ONCE: Final = 32
"""The default of `Subscription.at_once`."""


class Bus:
    """Publishes tasks and manages subscriptions over any transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def publish(self, task: Task, wait_result: bool = True, *, patience: float = PATIENCE) -> Task:
        """Publish the task, and return the task that its handler returns.

        If no handler responds within `patience` seconds, or none is awaited, return the published task unchanged. If
        several handlers return a task, return the first of these tasks. Return a failure only if no handler returned a
        task.
        """
        if not wait_result:
            await self._transport.send(task)
            return task
        answers = [answer for answer in await self._transport.ask(task, patience) if answer.task is not None]
        best = min(answers, key=lambda answer: answer.failed, default=None)
        return task if best is None or best.task is None else best.task

    async def subscribe(self, pattern: str, handler: Handler, *, name: str = "", at_once: int = AT_ONCE) -> str:
        """Call `handler` for every task that matches `pattern`. Return the subscription's name.

        One process has at most `at_once` tasks in hand. Raises BadRequest if the pattern is invalid. The default name
        consists of the handler's name and the pattern, so it stays the same after a restart.
        """
        given = name or f"{getattr(handler, '__module__', '')}.{getattr(handler, '__qualname__', 'handler')}:{pattern}"
        await self._transport.attach(
            Subscription(name=given, pattern=checked(pattern), handler=handler, at_once=at_once)
        )
        return given

    async def unsubscribe(self, name: str) -> None:
        """End a subscription in this process."""
        await self._transport.detach(name)

    async def aclose(self) -> None:
        """Wait for started tasks to finish."""
        await self._transport.aclose()


async def answer_of(subscription: Subscription, task: Task) -> Answer:
    """Call the handler with its own copy of the task. If the handler raises an exception, other handlers aren't
    affected.
    """
    try:
        return Answer(task=await subscription.handler(deepcopy(task)))
    except Exception as error:  # noqa: BLE001 - a handler's error affects only that handler
        _log.error("task_left_aside", extra={"handler": subscription.name, "task_id": task.task_id}, exc_info=error)
        told = {"error": type(error).__name__, "message": str(error)}
        return Answer(task=replace(task, status="failed", result=told), failed=True)
