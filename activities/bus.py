"""The bus carries tasks from whoever publishes them to whoever subscribed to their action, and keeps none.

    bus = Bus(InProcessBus())
    await bus.subscribe("tool.*", handler)
    answered = await bus.publish(task)

A handler gets the task as it was published and answers with a task of its own, or with None when it only looks on.
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
    """What one handler made of a task."""

    task: Task | None
    """None: it only looked on."""
    failed: bool = False
    """The handler raised; `task` says so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subscription:
    """A handler and what it is called for."""

    name: str
    """Subscribers of one name share the work: a task goes to one of them. It outlives the process."""
    pattern: str
    handler: Handler


class Transport(Protocol):
    """How tasks get from one place to another; all methods may raise StreamUnavailable."""

    async def attach(self, subscription: Subscription) -> None:
        """From now on its handler gets every task that its pattern takes."""
        ...

    async def detach(self, name: str) -> None:
        """The handlers of that name, here, get nothing more; what they have begun they end."""
        ...

    async def send(self, task: Task) -> None:
        """Hand the task over; who handles it, and when, is not waited for."""
        ...

    async def ask(self, task: Task) -> Sequence[Answer]:
        """Hand the task over and wait for what its handlers answer, always in the same order."""
        ...

    async def aclose(self) -> None:
        """Let what has begun end, and subscribe to nothing any more."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """One task on its way to one subscriber, who says when it is done."""

    entry: str
    task: Task | None
    """None: what lies there is no task that this version can read."""
    reply_to: str = ""


class Inbox(Protocol):
    """One consumer of a group that shares a subscription; what it takes stays its own until it is done or dead."""

    async def take(self) -> Sequence[Delivery]:
        """What came, oldest first; waits a little, and gives nothing when nothing came. Raises StreamUnavailable."""
        ...

    async def done(self, entries: Sequence[str]) -> None:
        """These are dealt with and never come again. Raises StreamUnavailable."""
        ...


class Bus:
    """Publishing and subscribing, whatever the transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def publish(self, task: Task, wait_result: bool = True) -> Task:
        """The task as its handler answered it; as it was, when nobody answers or nobody is waited for.

        Of several answers the first counts, and a failure only when there is nothing else.
        """
        if not wait_result:
            await self._transport.send(task)
            return task
        answers = [answer for answer in await self._transport.ask(task) if answer.task is not None]
        best = min(answers, key=lambda answer: answer.failed, default=None)
        return task if best is None or best.task is None else best.task

    async def subscribe(self, pattern: str, handler: Handler, *, name: str = "") -> str:
        """Call `handler` for every task that `pattern` takes; returns the subscription's name.

        Raises BadRequest for a pattern that is none. Without a name it is made of the handler's own and the pattern,
        so that it is the same after a restart.
        """
        given = name or f"{getattr(handler, '__module__', '')}.{getattr(handler, '__qualname__', 'handler')}:{pattern}"
        await self._transport.attach(Subscription(name=given, pattern=checked(pattern), handler=handler))
        return given

    async def unsubscribe(self, name: str) -> None:
        """End a subscription in this process."""
        await self._transport.detach(name)

    async def aclose(self) -> None:
        """Let what has begun end."""
        await self._transport.aclose()


async def answer_of(subscription: Subscription, task: Task) -> Answer:
    """What the handler makes of its own copy of the task; one that raises has failed, and hurts nobody else."""
    try:
        return Answer(task=await subscription.handler(deepcopy(task)))
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is its own failure
        _log.error("task_left_aside", handler=subscription.name, task_id=task.task_id, exc_info=error)
        told = {"error": type(error).__name__, "message": str(error)}
        return Answer(task=replace(task, status="failed", result=told), failed=True)
