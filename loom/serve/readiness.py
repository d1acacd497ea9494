"""Ask the servers behind the service whether they respond."""

import asyncio
from collections.abc import Awaitable
from contextlib import aclosing
from datetime import timedelta
from time import monotonic
from typing import Final

from temporalio.api.workflowservice.v1 import GetSystemInfoRequest
from temporalio.service import RPCError

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.ports import StoreUnavailable, StreamUnavailable
from loom.client import LoomClient
from loom.composition.settings import Settings

ANSWER_WITHIN: Final = 2.0
KEPT: Final = 1.0
"""Seconds for which an answer is given again."""


class Readiness:
    """Whether the servers respond. Anybody may ask without a token, and each look at the servers takes new connections,
    so there is one look at a time.
    """

    def __init__(self, client: LoomClient, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._looking = asyncio.Lock()
        self._looked_at = -KEPT
        self._parts: dict[str, bool] = {}

    async def parts(self) -> dict[str, bool]:
        """Return whether each configured server responds."""
        async with self._looking:
            if monotonic() - self._looked_at >= KEPT:
                self._parts = await _look(self._client, self._settings)
                self._looked_at = monotonic()
            return self._parts


async def _look(client: LoomClient, settings: Settings) -> dict[str, bool]:
    asked: dict[str, Awaitable[object]] = {"temporal": _temporal(client)}
    if settings.redis_url:
        asked["redis"] = _redis(settings.redis_url)
    if settings.database_url:
        asked["postgres"] = _postgres(settings.database_url)
    return dict(zip(asked, await asyncio.gather(*map(_answers, asked.values())), strict=True))


async def _answers(answer: Awaitable[object]) -> bool:
    try:
        async with asyncio.timeout(ANSWER_WITHIN):
            await answer
    except (RPCError, StreamUnavailable, StoreUnavailable, TimeoutError):
        return False
    return True


async def _temporal(client: LoomClient) -> None:
    await client.temporal.workflow_service.get_system_info(
        GetSystemInfoRequest(), timeout=timedelta(seconds=ANSWER_WITHIN)
    )


async def _redis(url: str) -> None:
    async with aclosing(RedisConnection(url)) as link:
        await link.call(lambda redis: redis.ping())


async def _postgres(url: str) -> None:
    async with (
        aclosing(Database(url, max_connections=1, name="loom-ready")) as database,
        database.connection(within=ANSWER_WITHIN) as connection,
    ):
        await connection.execute("SELECT 1")
