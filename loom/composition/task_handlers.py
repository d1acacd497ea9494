"""Run an app's task handlers alongside a worker. The handlers receive tasks from the bus."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import structlog

from loom.activities.adapters.redis.bus import RedisBus
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.consumer import ANSWER_SECONDS
from loom.activities.bus import Bus
from loom.activities.task_handlers import handling
from loom.composition.settings import Settings
from loom.domain.core.task_routing import TaskHandler

_log = structlog.get_logger("loom.handler")


@asynccontextmanager
async def task_handlers_running(handlers: Sequence[TaskHandler], settings: Settings) -> AsyncIterator[None]:
    """Deliver the tasks on the bus to the handlers while the worker is running.

    Without Redis, no handlers run, and a message is logged.
    """
    url = settings.redis_url
    if not handlers or url is None:
        if handlers:
            names = [handler.name for handler in handlers]
            _log.warning("handlers_do_not_run", handlers=names, why="the bus needs Redis: set LOOM_REDIS_URL")
        yield
        return
    async with handling(Bus(RedisBus(lambda: RedisConnection(url, answer_within=ANSWER_SECONDS))), handlers):
        yield
