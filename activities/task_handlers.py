"""Run a user's task handlers alongside a worker. Handlers subscribe to the bus under their own names, and each task is
retried a few times.

If a handler raises an exception, the error is logged with the task's id. After the last retry, the task is skipped. If
a worker stops before it finishes a task, the task isn't acknowledged, so another worker in the group receives it.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from functools import partial
from typing import Final

import structlog

from loom.activities.bus import Bus
from loom.activities.memory.writer import patiently
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
async def handling(bus: Bus, handlers: Sequence[TaskHandler], pauses: Sequence[float] = PAUSES) -> AsyncIterator[None]:
    """Subscribe the handlers while the body is running. If the bus is unavailable, subscribe as soon as it recovers."""
    subscribing = asyncio.gather(*(_subscribed(bus, handler, pauses) for handler in handlers))
    try:
        await asyncio.wait({subscribing}, timeout=_AT_START)
        if not subscribing.done():
            _log.warning("handlers_wait_for_redis", handlers=[handler.name for handler in handlers])
        yield
    finally:
        subscribing.cancel()
        await asyncio.wait({subscribing})
        await bus.aclose()


async def _subscribed(bus: Bus, handler: TaskHandler, pauses: Sequence[float]) -> None:
    tried = partial(_tried, handler, pauses)
    await patiently(lambda: bus.subscribe(handler.pattern, tried, name=f"{GROUP}{handler.name}"))
    _log.info("handler_ready", handler=handler.name, pattern=handler.pattern, origin=handler.origin)


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
