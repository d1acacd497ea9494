"""Payloads that are too large for history, in Postgres, under the hash of what they are.

This table holds truth: history has only the reference. So a store that is away is waited for, never worked around.
Both complaints below are retryable by intent: the SDK ends the run for one that is not, when it comes up in a workflow
task; a retryable one makes the server try the task again until it works.

    StorageUnavailable     Postgres does not answer
    StoragePayloadMissing  it answers, but the payload is not there, or not what it was
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
)
from temporalio.exceptions import ApplicationError

if TYPE_CHECKING:  # the driver takes a third of a second to import; most commands and workers never need it
    from psycopg import AsyncConnection
    from psycopg_pool import AsyncConnectionPool

T = TypeVar("T")

UNAVAILABLE: Final = "StorageUnavailable"
MISSING: Final = "StoragePayloadMissing"

_CONNECT_SECONDS: Final = 2.0
_ANSWER_SECONDS: Final = 4.0  # a workflow task has ten for everything
_LOCK: Final = 0x4C6F6F6D
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS loom_payloads (
    id bytea PRIMARY KEY,
    data bytea NOT NULL,
    size int NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
)
"""
_INSERT: Final = "INSERT INTO loom_payloads (id, data, size) VALUES (%b, %b, %s) ON CONFLICT DO NOTHING"
_SELECT: Final = "SELECT id, data FROM loom_payloads WHERE id = ANY(%b::bytea[])"

_Connection: TypeAlias = "AsyncConnection[Any]"


class PostgresPayloads(StorageDriver):
    """Temporal's port for external payloads on Postgres."""

    def __init__(self, url: str, *, max_connections: int = 4) -> None:
        """Connects, and creates its table, at the first use, in the event loop of that use."""
        self._url = url
        self._max_connections = max_connections
        self._pool: AsyncConnectionPool[_Connection] | None = None
        self._ready = False

    def name(self) -> str:
        """The name that references in history carry; it must never change."""
        return "loom-postgres"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        """Write payloads; those that are there already stay as they are."""
        del context
        written = [payload.SerializeToString(deterministic=True) for payload in payloads]
        ids = [sha256(data).digest() for data in written]
        # In one order for everybody: two writers of the same payloads would wait for each other.
        rows = sorted((id_, data, len(data)) for id_, data in dict(zip(ids, written, strict=True)).items())
        await self._do(lambda connection: _insert(connection, rows))
        return [StorageDriverClaim(claim_data={"id": id_.hex()}) for id_ in ids]

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Read payloads back, each checked against its hash."""
        del context
        ids = [bytes.fromhex(claim.claim_data["id"]) for claim in claims]
        found = await self._do(lambda connection: _select(connection, ids))
        return [_payload(id_, found.get(id_)) for id_ in ids]

    async def aclose(self) -> None:
        """Close every connection."""
        pool, self._pool, self._ready = self._pool, None, False
        if pool is not None:
            await pool.close()

    async def _do(self, work: "Callable[[_Connection], Awaitable[T]]") -> T:
        from psycopg import Error  # noqa: PLC0415
        from psycopg.errors import UndefinedTable  # noqa: PLC0415

        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                pool = await self._opened()
                async with pool.connection() as connection:
                    if not self._ready:
                        await _create(connection)
                        self._ready = True
                    return await work(connection)
        except (Error, OSError) as error:
            if isinstance(error, UndefinedTable):
                self._ready = False
            raise ApplicationError(
                f"The Postgres that keeps large payloads does not answer ({type(error).__name__}: {error});"
                " the work is tried again until it does. Check LOOM_DATABASE_URL.",
                type=UNAVAILABLE,
            ) from error

    async def _opened(self) -> "AsyncConnectionPool[_Connection]":
        from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415

        if self._pool is None:
            self._pool = AsyncConnectionPool(
                self._url,
                min_size=0,
                max_size=self._max_connections,
                timeout=_CONNECT_SECONDS,
                # No longer than one wait: a pool that backs off for minutes would miss the server's return.
                reconnect_timeout=_CONNECT_SECONDS,
                check=AsyncConnectionPool.check_connection,
                kwargs={"connect_timeout": round(_CONNECT_SECONDS), "autocommit": True, "prepare_threshold": None},
                open=False,
                name="loom-payloads",
            )
        await self._pool.open()  # does nothing when it is
        return self._pool


async def _create(connection: _Connection) -> None:
    async with connection.transaction():
        # IF NOT EXISTS alone lets two workers that start together collide.
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        await connection.execute(_CREATE)


async def _insert(connection: _Connection, rows: Sequence[tuple[bytes, bytes, int]]) -> None:
    async with connection.cursor() as cursor:
        await cursor.executemany(_INSERT, rows)


async def _select(connection: _Connection, ids: Sequence[bytes]) -> dict[bytes, bytes]:
    cursor = await connection.execute(_SELECT, (list(ids),), binary=True)
    return dict(await cursor.fetchall())


def _payload(id_: bytes, data: bytes | None) -> Payload:
    if data is None or sha256(data).digest() != id_:
        what = "is not in" if data is None else "was changed in"
        raise ApplicationError(
            f"Payload {id_.hex()} {what} loom_payloads. Bring the table back from a backup; the run then goes on.",
            type=MISSING,
        )
    return Payload.FromString(data)
