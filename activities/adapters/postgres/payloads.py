"""Store payloads in Postgres if they are too large for history. A payload's key is the hash of its content.

A payload has one or more owners: the workflows whose histories refer to it. When all of them have left the server, the
payload is deleted (see `collection`). A trigger records the owners. Clients of earlier releases don't name one: the
owner is then '', and the payload is never deleted.

This table is a source of truth, because history contains only references to payloads. If the store is unavailable,
callers wait until it is available again. The following errors are deliberately retryable. If a workflow task fails with
a non-retryable error, the SDK fails the run. If a workflow task fails with a retryable error, the server retries the
task until it succeeds.

    StorageUnavailable     Postgres isn't responding
    StoragePayloadMissing  Postgres responds, but the payload is missing or has changed
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Final

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriver,
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)
from temporalio.exceptions import ApplicationError

from loom.activities.adapters.postgres.database import ANSWER_SECONDS, Connection, Database, storable
from loom.activities.ports import StoreUnavailable

UNAVAILABLE: Final = "StorageUnavailable"
MISSING: Final = "StoragePayloadMissing"

LOCK: Final = 0x4C6F6F6D
"""The advisory lock that is held exclusively while tables are created or payloads are deleted. A writer shares it."""
# These tables aren't part of a migration, because clients of all versions store payloads in them and need the same
# schema.
_CREATED: Final = """
SELECT to_regclass('loom_payload_owners') IS NOT NULL AND EXISTS (
    SELECT FROM pg_trigger WHERE tgname = 'loom_payload_owned' AND tgrelid = to_regclass('loom_payloads')
), EXISTS (
    SELECT FROM pg_attribute
    WHERE attrelid = to_regclass('loom_payload_owners') AND attname = 'offered' AND NOT attisdropped
)
"""
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS loom_payloads (
    id bytea PRIMARY KEY,
    data bytea NOT NULL,
    size int NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
ALTER TABLE loom_payloads ADD COLUMN IF NOT EXISTS owner text NOT NULL DEFAULT '';
CREATE TABLE IF NOT EXISTS loom_payload_owners (
    payload bytea NOT NULL,
    owner text NOT NULL,
    stored_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (payload, owner)
);
CREATE INDEX IF NOT EXISTS loom_payload_owners_owner ON loom_payload_owners (owner);
INSERT INTO loom_payload_owners (payload, owner) SELECT id, '' FROM loom_payloads ON CONFLICT DO NOTHING;
CREATE OR REPLACE FUNCTION loom_payload_owned() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1282371437); -- LOCK
    INSERT INTO loom_payload_owners (payload, owner) VALUES (NEW.id, NEW.owner)
    ON CONFLICT (payload, owner) DO UPDATE SET stored_at = now();
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER loom_payload_owned
    BEFORE INSERT ON loom_payloads FOR EACH ROW EXECUTE FUNCTION loom_payload_owned();
"""
# An owner's tenant is NULL if nobody has recorded it, as for payloads. What was stored before there were these columns
# belongs to runs without a tenant. Only the owners are locked: a writer that waits for the lock above has locked the
# payloads.
_ADD_TENANTS: Final = """
ALTER TABLE loom_payload_owners
    ADD COLUMN IF NOT EXISTS tenant text DEFAULT '',
    ADD COLUMN IF NOT EXISTS offered boolean NOT NULL DEFAULT true;
ALTER TABLE loom_payload_owners ALTER COLUMN tenant DROP DEFAULT, ALTER COLUMN offered SET DEFAULT false;
"""
# The trigger fires even if there is a conflict.
_INSERT: Final = "INSERT INTO loom_payloads (id, data, size, owner) VALUES (%b, %b, %s, %s) ON CONFLICT DO NOTHING"
_SELECT: Final = "SELECT id, data FROM loom_payloads WHERE id = ANY(%b::bytea[])"


class PostgresPayloads(StorageDriver):
    """A Temporal `StorageDriver` that stores external payloads in Postgres."""

    def __init__(self, url: str, *, max_connections: int = 4) -> None:
        """Connect and create the table on first use, in the event loop of the first caller."""
        self._database = Database(
            url,
            max_connections=max_connections,
            ensure=create_payload_tables,
            first_use_within=ANSWER_SECONDS,  # a workflow task times out after ten seconds
            name="loom-payloads",
        )

    def name(self) -> str:
        """Return the driver's name. The name must never change, because it is part of the references in history."""
        return "loom-postgres"

    async def store(self, context: StorageDriverStoreContext, payloads: Sequence[Payload]) -> list[StorageDriverClaim]:
        """Store payloads. Payloads that are already stored remain unchanged."""
        # The SDK names the workflow whose history will refer to the payloads: the child for a child's input, and the
        # parent for its result.
        target = context.target
        owner = storable(target.id or "") if isinstance(target, StorageDriverWorkflowInfo) else ""
        written = [payload.SerializeToString(deterministic=True) for payload in payloads]
        ids = [sha256(data).digest() for data in written]
        # Sort the payloads. Otherwise, two writers of the same payloads could deadlock.
        rows = sorted((id_, data, len(data), owner) for id_, data in dict(zip(ids, written, strict=True)).items())
        async with self._connection() as connection, connection.cursor() as cursor:
            await cursor.executemany(_INSERT, rows)
        return [StorageDriverClaim(claim_data={"id": id_.hex()}) for id_ in ids]

    async def retrieve(
        self, context: StorageDriverRetrieveContext, claims: Sequence[StorageDriverClaim]
    ) -> list[Payload]:
        """Load payloads and verify their hashes."""
        del context
        ids = [bytes.fromhex(claim.claim_data["id"]) for claim in claims]
        async with self._connection() as connection:
            cursor = await connection.execute(_SELECT, (ids,), binary=True)
            found: dict[bytes, bytes] = dict(await cursor.fetchall())
        return [_payload(id_, found.get(id_)) for id_ in ids]

    async def aclose(self) -> None:
        """Close all connections."""
        await self._database.aclose()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        from psycopg import Error  # noqa: PLC0415

        try:
            async with self._database.connection() as connection:
                yield connection
        except (StoreUnavailable, Error) as error:
            message = f"Large payloads are unavailable: {error}"
            raise ApplicationError(message, type=UNAVAILABLE) from error.__cause__ or error


async def create_payload_tables(connection: Connection) -> None:
    """Create the tables for payloads and their owners, unless they exist."""
    if all(await _exist(connection)):
        return  # without the locks that a change of a table takes
    async with connection.transaction():
        # Take a lock first, because IF NOT EXISTS alone fails if two workers start at the same time.
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        are_created, have_tenants = await _exist(connection)
        if not are_created:
            await connection.execute(_CREATE)
        if not have_tenants:
            await connection.execute(_ADD_TENANTS)


async def _exist(connection: Connection) -> tuple[bool, bool]:
    """Return whether the tables exist, and whether the owners have tenants."""
    row = await (await connection.execute(_CREATED)).fetchone()
    return (False, False) if row is None else (row[0], row[1])


def _payload(id_: bytes, data: bytes | None) -> Payload:
    if data is None or sha256(data).digest() != id_:
        what = "is missing from" if data is None else "was changed in"
        raise ApplicationError(
            f"Payload {id_.hex()} {what} loom_payloads. Restore the table from a backup; the run then continues.",
            type=MISSING,
        )
    return Payload.FromString(data)
