"""A connection to Redis. The stream and the transcript cache share one. The permits of model calls have their own."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from hashlib import sha1
from time import monotonic
from typing import Any, Final, TypeVar

import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError
from redis.maint_notifications import MaintNotificationsConfig

from loom.activities.ports import StreamUnavailable

T = TypeVar("T")

ANSWER_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 1.0
_CONNECTIONS: Final = 16


class RedisConnection:
    """A connection to a Redis server that may be unavailable. Timeouts are short. After a failure, all calls fail
    immediately for one second.
    """

    def __init__(self, url: str, *, answer_within: float = ANSWER_SECONDS) -> None:
        """Connect on the first command. A failed command is never sent again, because it may have taken effect."""
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=answer_within,
            socket_connect_timeout=answer_within,
            socket_timeout=None,  # unlike the timeout in `call`, the client's timeout creates a task for each command
            retry=Retry(NoBackoff(), 0),
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
        self._redis = Redis.from_pool(pool)
        self._answer_within = answer_within
        self._log = structlog.get_logger("loom.redis")
        self._away_until: float | None = None

    async def call(self, command: Callable[[Redis], Awaitable[T]]) -> T:
        """Execute a command. Raises StreamUnavailable if the server can't be reached. If a recent attempt failed, the
        error is raised immediately.
        """
        if self._away_until is not None:
            if monotonic() < self._away_until:
                raise StreamUnavailable("Redis did not respond a moment ago")
            self._away_until = monotonic() + _PAUSE_SECONDS  # only one caller may try again
        try:
            async with asyncio.timeout(self._answer_within):
                answer = await command(self._redis)
        except (RedisError, OSError) as error:
            raise self._failed(error) from error
        if self._away_until is not None:
            self._away_until = None
            self._log.info("redis is available again")
        return answer

    async def script(self, source: str, keys: Sequence[str], arguments: Sequence[Any]) -> list[int]:
        """Run a Lua script that returns numbers. If the server has cached the script, only its hash is sent."""
        name = _sha(source)

        async def run(redis: Redis) -> list[int]:
            try:
                answer = await redis.evalsha(name, len(keys), *keys, *arguments)
            except NoScriptError:
                answer = await redis.eval(source, len(keys), *keys, *arguments)
            return [int(number) for number in (answer if isinstance(answer, list) else [answer])]

        return await self.call(run)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    def _failed(self, error: Exception) -> StreamUnavailable:
        if self._away_until is None:
            self._log.warning("redis is unavailable; runs continue without live events", error=str(error))
        self._away_until = monotonic() + _PAUSE_SECONDS
        return StreamUnavailable(f"Redis does not respond: {error}")


@cache
def _sha(source: str) -> str:
    return sha1(source.encode(), usedforsecurity=False).hexdigest()
