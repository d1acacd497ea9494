"""The bus routes tasks from publishers to the subscribers of their action. It stores none.

    bus = Bus(InProcessBus())
    await bus.subscribe("tool.*", handler)
    answered = await bus.publish(task)

A handler gets the task as it was published and returns a task of its own, or None if it only observes.
"""

from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import structlog

from loom.domain.core.task_routing import checked
from loom.domain.core.tasks import Task

_log = structlog.get_logger("loom.bus")

Handler: TypeAlias = Callable[[Task], Awaitable[Task | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The result of one handler for a task."""

    task: Task | None
    """None: it only observed."""
    failed: bool = False
    """The handler raised, and `task` contains the error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subscription:
    """A handler and its pattern."""

    name: str
    """Subscribers with one name share the work: each task goes to one of them. The name outlives the process."""
    pattern: str
    handler: Handler


class Transport(Protocol):
    """How tasks get from publishers to handlers. All methods may raise StreamUnavailable."""

    async def attach(self, subscription: Subscription) -> None:
        """From now on, call the handler with every task that matches its pattern."""
        ...

    async def detach(self, name: str) -> None:
        """Send nothing more to the handlers of that name in this process. They finish what they have started."""
        ...

    async def send(self, task: Task) -> None:
        """Publish the task without waiting for its handlers."""
        ...

    async def ask(self, task: Task) -> Sequence[Answer]:
        """Publish the task and wait for the results of its handlers, always in the same order."""
        ...

    async def aclose(self) -> None:
        """Finish what has started, and end all subscriptions."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """One task for one subscriber, who acknowledges it."""

    entry: str
    task: Task | None
    """None: this version cannot read the entry."""
    reply_to: str = ""


class Inbox(Protocol):
    """One consumer of a group that shares a subscription. What it reads stays assigned to it until it acknowledges or
    dies.
    """

    async def take(self) -> Sequence[Delivery]:
        """New tasks, oldest first. Waits briefly and may return nothing. Raises StreamUnavailable."""
        ...

    async def done(self, entries: Sequence[str]) -> None:
        """Acknowledge these tasks, so that they are not delivered again. Raises StreamUnavailable."""
        ...


class Bus:
    """Publish and subscribe with any transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def publish(self, task: Task, wait_result: bool = True) -> Task:
        """Return the task as its handler returned it, or unchanged if no handler responds or none is awaited.

        If several handlers return a task, the first one wins. A failure is used only if there is nothing else.
        """
        if not wait_result:
            await self._transport.send(task)
            return task
        answers = [answer for answer in await self._transport.ask(task) if answer.task is not None]
        best = min(answers, key=lambda answer: answer.failed, default=None)
        return task if best is None or best.task is None else best.task

    async def subscribe(self, pattern: str, handler: Handler, *, name: str = "") -> str:
        """Call `handler` for every task that matches `pattern`. Return the subscription's name.

        Raises BadRequest for an invalid pattern. The default name consists of the handler's name and the pattern, so
        that it is the same after a restart.
        """
        given = name or f"{getattr(handler, '__module__', '')}.{getattr(handler, '__qualname__', 'handler')}:{pattern}"
        await self._transport.attach(Subscription(name=given, pattern=checked(pattern), handler=handler))
        return given

    async def unsubscribe(self, name: str) -> None:
        """End a subscription in this process."""
        await self._transport.detach(name)

    async def aclose(self) -> None:
        """Finish what has started."""
        await self._transport.aclose()


async def answer_of(subscription: Subscription, task: Task) -> Answer:
    """Call the handler with its own copy of the task. If it raises, only this handler has failed."""
    try:
        return Answer(task=await subscription.handler(deepcopy(task)))
    except Exception as error:  # noqa: BLE001 - an error of a handler is its own failure
        _log.error("task_left_aside", handler=subscription.name, task_id=task.task_id, exc_info=error)
        told = {"error": type(error).__name__, "message": str(error)}
        return Answer(task=replace(task, status="failed", result=told), failed=True)
