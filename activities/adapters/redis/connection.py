"""A connection to Redis. The stream and the transcript cache share one. The permits of model calls have their own.

Scripts and writes of the whole worker share round trips: what comes up during one is sent with the next one.
"""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from functools import cache, partial
from hashlib import sha1
from time import monotonic
from typing import Any, Final, TypeAlias, TypeVar

from hiredis import pack_command
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    ClusterDownError,
    DataError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.maint_notifications import MaintNotificationsConfig

from loom.activities.encryption import PLAIN, Cipher
from loom.activities.ports import StreamUnavailable

_log = logging.getLogger("loom.redis")

T = TypeVar("T")

ANSWER_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 1.0
_CONNECTIONS: Final = 17
"""One of them sends batches."""
LINGER: Final = 0.1
"""Seconds that a write without an answer waits for a script that it can be sent with."""
_WRITES_WAITING: Final = 256

_REFUSAL: Final = re.compile(r"\b(OOM|READONLY|MISCONF|NOREPLICAS)\b")
"""The codes of the replies of a server that takes writes from nobody."""

Write: TypeAlias = Callable[[Pipeline], object]
"""Adds commands to a pipeline."""
_Command: TypeAlias = tuple[Any, ...]
"""The name of a command, and its arguments."""


class RedisConnection:
    """A connection to a Redis server that may be unavailable. Timeouts are short. After a failure, all calls fail
    immediately for one second.
    """

    def __init__(self, url: str, *, answer_within: float = ANSWER_SECONDS, cipher: Cipher = PLAIN) -> None:
        """Connect on the first command. A failed command is never sent again, because it may have taken effect. Stores
        encrypt with the cipher what they keep in Redis.
        """
        self.cipher = cipher
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
        self._batch_connection: AbstractConnection | None = None
        """Sends everything that shares round trips. Borrowing it from the pool each time costs as much as a batch."""
        self._answer_within = answer_within
        self._away_until: float | None = None
        self._writes: deque[Write] = deque(maxlen=_WRITES_WAITING)
        self._scripts: list[_Script] = []
        self._lingering: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def call(self, command: Callable[[Redis], Awaitable[T]]) -> T:
        """Execute a command. Raises StreamUnavailable if the server can't be reached, or if it refuses the command. If
        a recent attempt to reach the server failed, the error is raised immediately.
        """
        answer = await self._answer(command)
        self._answered()
        return answer

    async def script(self, source: str, keys: Sequence[str], arguments: Sequence[Any]) -> list[int]:
        """Run a Lua script that returns numbers. If the server has cached the script, only its hash is sent.

        Raises StreamUnavailable if the server can't be reached.
        """
        came = asyncio.get_running_loop().create_future()
        self._scripts.append(_Script(source=source, keys=keys, arguments=arguments, answer=came))
        self._send()
        answer = await came
        return [int(number) for number in (answer if isinstance(answer, list) else [answer])]

    def script_later(self, source: str, keys: Sequence[str], arguments: Sequence[Any]) -> None:
        """Run a Lua script together with the next one, or soon alone. If the server is unavailable, it doesn't run."""
        self._scripts.append(_Script(source=source, keys=keys, arguments=arguments))
        self._send_soon()

    def write_later(self, write: Write) -> None:
        """Send commands together with the next script, or soon alone. If the server is unavailable, they are lost."""
        self._writes.append(write)
        self._send_soon()

    async def flush(self) -> None:
        """Wait until all writes are sent."""
        self._send()
        while self._sending is not None and not self._sending.done():  # canceled before it began, it stays set
            await asyncio.wait({self._sending})

    async def aclose(self) -> None:
        """Send pending writes, and close all connections. All later calls raise StreamUnavailable."""
        try:
            await self.flush()
        finally:
            await self._close()

    async def _close(self) -> None:
        """Close all connections, also if the caller is canceled again and again, as in a canceled scope of AnyIO."""
        self._closing = asyncio.create_task(self._redis.aclose())
        await asyncio.shield(self._closing)

    def _send_soon(self) -> None:
        if self._lingering is None and self._sending is None:
            self._lingering = asyncio.get_running_loop().call_later(LINGER, self._send)

    def _send(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        if self._sending is None and (self._writes or self._scripts):
            # In a context of its own, because the task serves all runs, and not only this one.
            self._sending = asyncio.create_task(self._send_all(), context=Context())

    async def _send_all(self) -> None:
        try:
            while self._writes or self._scripts:
                writes, scripts = tuple(self._writes), tuple(self._scripts)
                self._writes.clear()
                self._scripts.clear()
                try:
                    answers = await self._answers(writes, scripts)
                except asyncio.CancelledError:
                    for script in scripts:
                        self._settle(script, StreamUnavailable("the worker stops"))
                    raise
                for script, answer in zip(scripts, answers, strict=True):
                    self._settle(script, answer)
        finally:
            self._sending = None

    async def _answers(self, writes: Sequence[Write], scripts: Sequence["_Script"]) -> Sequence[Any]:
        """Send everything in one round trip, and return the scripts' answers. An error is an answer, too."""
        try:
            answers = await self._answer(partial(self._execute, writes, scripts))
        except StreamUnavailable as error:
            return [error] * len(scripts)
        except Exception as error:  # noqa: BLE001 - each caller gets it
            _log.exception("redis_batch_failed", extra={"writes": len(writes), "scripts": len(scripts)})
            return [error] * len(scripts)
        refusal = next(filter(_is_refusal, answers), None)
        if refusal is not None:
            self._failed(refusal)
        elif any(isinstance(each, ResponseError) or not isinstance(each, Exception) for each in answers):
            self._answered()  # otherwise, nothing could be sent
        for lost in answers[: len(writes)]:
            if isinstance(lost, Exception) and not _is_refusal(lost):
                _log.warning("redis_write_failed", extra={"error": str(lost)})
        return answers[len(writes) :]

    async def _execute(self, writes: Sequence[Write], scripts: Sequence["_Script"], redis: Redis) -> list[Any]:
        """Send everything, and return an answer for each: its first error, or its last reply.

        The client's own pipeline uses twice as much processor time, and sends no command at all if it can't encode one.
        """
        packed = [_packed(partial(_commands_of, write, redis)) for write in writes]
        packed += (_packed(script.commands) for script in scripts)
        connection = await self._connected(redis)
        sent = [command for each in packed if not isinstance(each, Exception) for command in each]
        try:
            await connection.send_packed_command([b"".join(sent)])
            return [each if isinstance(each, Exception) else await _outcome(connection, len(each)) for each in packed]
        except BaseException:
            await connection.disconnect(nowait=True)  # otherwise, the next batch would read these replies
            raise

    async def _connected(self, redis: Redis) -> AbstractConnection:
        pool = redis.connection_pool
        if self._batch_connection is None:
            self._batch_connection = await pool.get_connection()  # type: ignore[no-untyped-call]
        else:
            await pool.ensure_connection(self._batch_connection)  # the server may have closed it
        return self._batch_connection

    def _settle(self, script: "_Script", answer: Any) -> None:
        """Give a script's caller its answer. A script that the server doesn't know yet is sent again in full."""
        if isinstance(answer, NoScriptError):
            self._scripts.append(replace(script, is_known=False))
            return
        failed = self._failed(answer) if isinstance(answer, RedisError) else answer
        if script.answer is None or script.answer.done():
            return  # nobody waits, or the caller was canceled
        if isinstance(failed, Exception):
            script.answer.set_exception(failed)
        else:
            script.answer.set_result(answer)

    async def _answer(self, command: Callable[[Redis], Awaitable[T]]) -> T:
        """Execute a command. Whoever looks at the answer decides whether the server is available."""
        if self._closing is not None:
            raise StreamUnavailable("the connection to Redis is closed")
        if self._away_until is not None:
            if monotonic() < self._away_until:
                raise StreamUnavailable("Redis did not respond a moment ago")
            self._away_until = monotonic() + _PAUSE_SECONDS  # only one caller may try again
        try:
            async with asyncio.timeout(self._answer_within):
                return await command(self._redis)
        except (RedisError, OSError) as error:
            raise self._failed(error) from error
        finally:
            if self._closing is not None:  # this command may have connected after all connections were closed
                await self._close()

    def _answered(self) -> None:
        if self._away_until is not None:
            self._away_until = None
            _log.info("redis is available again")

    def _failed(self, error: Exception) -> StreamUnavailable:
        """Return the error for a caller. If the server takes nothing from anybody, it is unavailable for a second."""
        if isinstance(error, ResponseError | DataError) and not _is_refusal(error):
            return StreamUnavailable(f"Redis refused a command: {error}")
        if self._away_until is None:
            _log.warning("redis is unavailable; runs continue without live events", extra={"error": str(error)})
        self._away_until = monotonic() + _PAUSE_SECONDS
        return StreamUnavailable(f"Redis does not respond: {str(error) or 'no answer in time'}")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Script:
    """A script to run."""

    source: str
    keys: Sequence[str]
    arguments: Sequence[Any]
    answer: asyncio.Future[Any] | None = None
    """Receives the answer. None if nobody waits for it."""
    is_known: bool = True
    """Whether the server may have cached the script."""

    def commands(self) -> Sequence[_Command]:
        """Return the command that runs the script."""
        name, source = ("EVALSHA", _sha(self.source)) if self.is_known else ("EVAL", self.source)
        return ((name, source, len(self.keys), *self.keys, *self.arguments),)


def _commands_of(write: Write, redis: Redis) -> Sequence[_Command]:
    pipe = redis.pipeline(transaction=False)
    write(pipe)
    return [arguments for arguments, _ in pipe.command_stack]


def _packed(commands: Callable[[], Sequence[_Command]]) -> list[bytes] | Exception:
    """Return the encoded commands, or the error if they can't be built or encoded."""
    try:
        return [pack_command(arguments) for arguments in commands()]
    except TypeError as error:
        return DataError(str(error))
    except Exception as error:  # noqa: BLE001 - it is the answer
        return error


async def _outcome(connection: AbstractConnection, commands: int) -> Any:
    """Read the replies to these commands. Return the first error, or the last reply."""
    replies = [await _reply(connection) for _ in range(commands)]
    return next((each for each in replies if isinstance(each, RedisError)), replies[-1] if replies else None)


async def _reply(connection: AbstractConnection) -> Any:
    try:
        return await connection.read_response()
    except ResponseError as error:
        return error


def _is_refusal(answer: object) -> bool:
    """Return whether the server takes writes from nobody. Other error replies are about one command."""
    if isinstance(answer, OutOfMemoryError | ReadOnlyError | ClusterDownError):
        return True
    return isinstance(answer, ResponseError) and _REFUSAL.search(str(answer)) is not None


@cache
def _sha(source: str) -> str:
    return sha1(source.encode(), usedforsecurity=False).hexdigest()
