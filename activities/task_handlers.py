"""Run a user's task handlers alongside a worker. Handlers subscribe to the bus under their own names, and each task is
retried a few times.

If a handler raises an exception, the error is logged with the task's id. After the last retry, the task is skipped. If
a worker stops before it finishes a task, the task isn't acknowledged, so another worker in the group receives it.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from functools import partial
from typing import Final

import structlog

from loom.activities.bus import AT_ONCE, Bus, Handler
from loom.activities.memory.writer import patiently
from loom.activities.ports import StreamUnavailable
from loom.activities.toolbox.hooks import answer_of
from loom.domain.core.errors import HookFailedError
from loom.domain.core.task_routing import TaskHandler
from loom.domain.core.tasks import Task

_log = structlog.get_logger("loom.handler")

GROUP: Final = "handler:"
"""Prefix of the handlers' consumer groups. It ensures that no handler's group conflicts with the memory group."""
PAUSES: Final = (0.5, 2.0, 8.0)
"""Seconds before each retry."""
_AT_START: Final = 5.0
"""Maximum number of seconds that a worker waits for its handlers to subscribe. After that, the worker starts without
them.
"""


@asynccontextmanager
async def subscribed(
    bus: Bus, subscriptions: Mapping[str, tuple[str, Handler]], *, at_once: int = AT_ONCE
) -> AsyncIterator[None]:
    """Subscribe handlers, by name with their patterns, while the body is running. If the bus is unavailable, subscribe
    as soon as it recovers.
    """
    subscribing = asyncio.gather(
        *(_subscribed(bus, name, pattern, handler, at_once) for name, (pattern, handler) in subscriptions.items())
    )
    try:
        await asyncio.wait({subscribing}, timeout=_AT_START)
        if not subscribing.done():
            _log.warning("handlers_wait_for_the_bus", handlers=list(subscriptions))
        yield
    finally:
        subscribing.cancel()
        await asyncio.wait({subscribing})
        await asyncio.gather(*(_unsubscribed(bus, name) for name in subscriptions))


@asynccontextmanager
async def handling(bus: Bus, handlers: Sequence[TaskHandler], pauses: Sequence[float] = PAUSES) -> AsyncIterator[None]:
    """Subscribe a user's handlers while the body is running."""
    named = {f"{GROUP}{handler.name}": (handler.pattern, partial(_tried, handler, pauses)) for handler in handlers}
    async with subscribed(bus, named):
        yield


async def _subscribed(bus: Bus, name: str, pattern: str, handler: Handler, at_once: int) -> None:
    await patiently(lambda: bus.subscribe(pattern, handler, name=name, at_once=at_once))
    _log.info("handler_ready", handler=name, pattern=pattern)


async def _unsubscribed(bus: Bus, name: str) -> None:
    try:
        await bus.unsubscribe(name)
    except StreamUnavailable as error:
        _log.debug("handler_not_signed_off", handler=name, error=str(error))


async def _tried(handler: TaskHandler, pauses: Sequence[float], task: Task) -> Task | None:
    """Return the handler's result. Raises the error from the last attempt."""
    with structlog.contextvars.bound_contextvars(task_id=task.task_id, action=task.action.value):
        for attempt, pause in enumerate(pauses, start=1):
            try:
                return await _answer(handler, task)
            except HookFailedError as error:
                _log.warning("handler_failed", handler=handler.name, attempt=attempt, error=error.message, pause=pause)
                await asyncio.sleep(pause)
        return await _answer(handler, task)


async def _answer(handler: TaskHandler, task: Task) -> Task | None:
    answer = await answer_of(handler.name, handler.function, deepcopy(task), patience=None)
    return answer if isinstance(answer, Task) else None
