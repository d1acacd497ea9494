"""Run an app's task handlers alongside a worker. The handlers receive tasks from the bus."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import structlog

from loom.activities.bus import Bus, Transport
from loom.activities.task_handlers import handling
from loom.domain.core.task_routing import TaskHandler

_log = structlog.get_logger("loom.handler")


@asynccontextmanager
async def task_handlers_running(handlers: Sequence[TaskHandler], transport: Transport | None) -> AsyncIterator[None]:
    """Deliver the tasks on the bus to the handlers while the worker is running.

    Without a bus, no handlers run, and a message is logged.
    """
    if not handlers or transport is None:
        if handlers:
            names = [handler.name for handler in handlers]
            _log.warning(
                "handlers_do_not_run", handlers=names, why="there is no bus: set LOOM_REDIS_URL or LOOM_BUS_URL"
            )
        yield
        return
    async with handling(Bus(transport), handlers):
        yield
