"""Connect to Loom's own Postgres database, with one connection pool for all tables.

    async with database.connection() as connection:    # each statement commits separately
    async with database.transaction() as connection:   # all or nothing

The pool is opened on first use, which also migrates the schema. If the server is unavailable, a call fails after two
seconds, and the next call tries again. Every error that means "unavailable" is raised as StoreUnavailable with a
message that tells the user what to do. An invalid statement raises psycopg's own error, because retrying the statement
wouldn't help.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from select import POLLIN, poll
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from loom.activities.adapters.postgres.schema_migrations import migrate
from loom.activities.encryption import PLAIN, Cipher
from loom.activities.ports import StoreUnavailable

if TYPE_CHECKING:  # importing the driver takes a third of a second, and most commands and workers don't need it
    from psycopg import AsyncConnection, Error
    from psycopg_pool import AsyncConnectionPool

Connection: TypeAlias = "AsyncConnection[Any]"

ANSWER_SECONDS: Final = 4.0
FIRST_USE_SECONDS: Final = 60.0
"""Timeout in seconds for a schema migration by this process or another one."""

_CONNECT_SECONDS: Final = 2.0
_UNDEFINED_TABLE: Final = "42P01"
# SQLSTATE codes and classes, in this order: connection, read-only standby, login, no such database, rolled back,
# permission, no such table, out of resources, locked, shut down, system error and internal error.
_AWAY: Final = ("08", "25006", "28", "3D", "40", "42501", _UNDEFINED_TABLE, "53", "55", "57", "58", "XX")
_AT_ONCE: Final = 1000


class Database:
    """Connections to Loom's own Postgres database, for use in one event loop."""

    def __init__(
        self,
        url: str,
        *,
        max_connections: int = 8,
        ensure: Callable[[Connection], Awaitable[None]] = migrate,
        first_use_within: float = FIRST_USE_SECONDS,
        name: str = "loom",
        cipher: Cipher = PLAIN,
    ) -> None:
        """Connect on first use, in the event loop of the first caller. `ensure` creates the tables that callers
        need. Stores encrypt with the cipher what they keep in the database.
        """
        self.cipher = cipher
        self._url = url
        self._max_connections = max_connections
        self._ensure = ensure
        self._first_use_within = first_use_within
        self._name = name
        self._pool: AsyncConnectionPool[Connection] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = False
        self._refusal: Exception | None = None
        """The error from the last connection attempt, or None if the attempt succeeded."""

    @asynccontextmanager
    async def connection(self, *, within: float = ANSWER_SECONDS) -> AsyncIterator[Connection]:
        """Open a connection. Each statement commits separately. Raises StoreUnavailable if the connection fails, even
        during the body.
        """
        from psycopg import Error  # noqa: PLC0415

        limit = asyncio.timeout(within)
        try:
            async with limit, (await self._opened()).connection() as connection:
                await self._prepare(connection, limit, within)
                yield connection
        except Error as error:
            if not _is_away(error):
                raise
            self._ready = self._ready and error.sqlstate != _UNDEFINED_TABLE
            raise self._unavailable(error) from error
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise self._unavailable(error) from error

    @asynccontextmanager
    async def transaction(self, *, within: float = ANSWER_SECONDS) -> AsyncIterator[Connection]:
        """Open a transaction. It commits when the body ends and rolls back if the body raises an error."""
        async with self.connection(within=within) as connection, connection.transaction():
            yield connection

    async def aclose(self) -> None:
        """Close all connections."""
        pool, self._pool, self._ready = self._pool, None, False
        if pool is not None:
            await pool.close()

    async def _prepare(self, connection: Connection, limit: asyncio.Timeout, within: float) -> None:
        if self._ready:
            return
        now = asyncio.get_running_loop().time
        limit.reschedule(now() + self._first_use_within)
        await self._ensure(connection)
        self._ready = True
        limit.reschedule(now() + within)

    async def _opened(self) -> "AsyncConnectionPool[Connection]":
        loop = asyncio.get_running_loop()
        if self._pool is None:
            self._pool, self._loop = self._made(), loop
        if self._loop is not loop:
            raise RuntimeError("this Database serves another event loop: create one for each, or close it first")
        await self._pool.open()  # has no effect if the pool is already open
        return self._pool

    def _made(self) -> "AsyncConnectionPool[Connection]":
        from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415

        return AsyncConnectionPool(
            self._url,
            connection_class=_connection_class(self._tried),
            min_size=0,
            max_size=self._max_connections,
            timeout=_CONNECT_SECONDS,
            # Keep this as short as the connection timeout. A pool that backs off for minutes wouldn't notice that the
            # server is available again.
            reconnect_timeout=_CONNECT_SECONDS,
            check=_checked,
            kwargs={
                "application_name": f"{self._name}-{os.getpid()}",  # shown in pg_stat_activity
                "connect_timeout": round(_CONNECT_SECONDS),
                "autocommit": True,
                "prepare_threshold": None,  # prepared statements don't work with a connection pooler
            },
            open=False,
            name=self._name,
        )

    def _tried(self, refusal: Exception | None) -> None:
        self._refusal = refusal

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        from psycopg_pool import PoolTimeout  # noqa: PLC0415

        seen = self._refusal if isinstance(error, PoolTimeout) and self._refusal is not None else error
        why = " ".join(str(seen).replace(self._url, "its URL").split()) or "no response in time"
        return StoreUnavailable(
            f"Loom's Postgres does not respond ({type(seen).__name__}: {why}). Start it, or correct LOOM_DATABASE_URL."
        )


async def _checked(connection: Connection) -> None:
    """Raise an error if the server has closed the connection. While a connection is idle, usually nothing arrives on it
    until the server closes it. In most cases, the check therefore needs no round trip.
    """
    from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415

    arrived = poll()  # `select` takes no descriptors above 1023
    arrived.register(connection.fileno(), POLLIN)
    if arrived.poll(0):
        await AsyncConnectionPool.check_connection(connection)


def storable(text: str) -> str:
    """Convert text for a Postgres column. The result contains neither NUL nor unpaired surrogates. Different texts
    always have different results.
    """
    escaped = text.replace("\\", "\\\\").replace("\0", "\\0")
    return escaped.encode("utf-8", "backslashreplace").decode()


def _is_away(error: "Error") -> bool:
    from psycopg import OperationalError  # noqa: PLC0415

    if error.sqlstate is None:  # the error isn't from the server: the server is unreachable, or the connection was lost
        return isinstance(error, OperationalError)
    return error.sqlstate.startswith(_AWAY)


def _connection_class(tried: Callable[[Exception | None], None]) -> "type[Connection]":
    """Return a connection class that sends pgvector's values, and reports why the connection failed. The pool itself
    reports only a timeout.
    """
    from pgvector import HalfVector, Vector  # noqa: PLC0415
    from pgvector.psycopg.halfvec import HalfVectorBinaryDumper  # noqa: PLC0415
    from pgvector.psycopg.vector import VectorBinaryDumper  # noqa: PLC0415
    from psycopg import AsyncConnection, Error  # noqa: PLC0415

    class Told(AsyncConnection[Any]):
        @classmethod
        async def connect(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                connection = await super().connect(*args, **kwargs)
            except (Error, OSError) as error:
                tried(error)
                raise
            tried(None)
            # `register_vector_async` sends four queries per connection to find the types' ids, and fails before the
            # migration has created the types. Loom's statements name the type instead, as in `%(vector)s::vector`.
            connection.adapters.register_dumper(Vector, VectorBinaryDumper)
            connection.adapters.register_dumper(HalfVector, HalfVectorBinaryDumper)
            return connection

    return Told
