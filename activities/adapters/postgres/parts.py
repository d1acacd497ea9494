"""Store images, recordings and files in Postgres, in the table of the payloads that are too large for history.

Both are stored under the hash of their content, both belong to workflows, and both are deleted when all of their owners
have left the server (see `payloads` and `collection`).

The hash of a content gives no right to read it. Each owner of a part has a tenant, and a run may adopt the parts of its
tenant:

    stored by a client   offered to the run that it is for, whose tenant only the run's worker knows for sure
    adopted by that run  owned by the run's tenant, and no longer offered: a later run with its id may have another one
    stored by a worker   owned by the run's tenant
"""

from collections.abc import Iterable
from datetime import datetime
from hashlib import sha256
from typing import Final

from loom.activities.adapters.postgres.database import Connection, Database, storable
from loom.activities.adapters.postgres.payloads import LOCK, create_payload_tables
from loom.activities.encryption import key_prefix
from loom.domain.core.errors import EncryptionKeyError

_WITHIN: Final = 15.0

_INSERT: Final = "INSERT INTO loom_payloads (id, data, size, owner) VALUES (%b, %b, %s, %s) ON CONFLICT DO NOTHING"
"""The table's trigger records the owner, also of a content that is already stored."""
_OWN: Final = """
INSERT INTO loom_payload_owners AS known (payload, owner, tenant, offered)
VALUES (%(id)b, %(owner)s, %(tenant)s, %(tenant)s::text IS NULL)
ON CONFLICT (payload, owner) DO UPDATE SET stored_at = now(), tenant = coalesce(excluded.tenant, known.tenant),
    offered = known.offered OR excluded.offered
"""
"""What is offered to a run stays what its tenant owns: a client may send a run the same content again."""
_ADOPT: Final = """
INSERT INTO loom_payload_owners (payload, owner, tenant, offered)
SELECT id, %(owner)s, %(tenant)s, false FROM loom_payloads
WHERE id = %(id)b AND EXISTS (
    SELECT FROM loom_payload_owners AS known
    WHERE known.payload = id AND (known.tenant = %(tenant)s OR (known.owner = %(owner)s AND known.offered))
)
ON CONFLICT (payload, owner) DO UPDATE SET stored_at = now(), tenant = excluded.tenant, offered = false
"""
_HEAD: Final = "SELECT substr(data, 1, 64) FROM loom_payloads WHERE id = %b FOR UPDATE"
"""Selects the beginning of a content, which has the id of the key that has sealed it."""
_OTHERS: Final = """
SELECT EXISTS (SELECT FROM loom_payload_owners WHERE payload = %b AND tenant IS DISTINCT FROM %s)
"""
_SEAL_AGAIN: Final = "UPDATE loom_payloads SET data = %b WHERE id = %b"
_SELECT: Final = "SELECT data FROM loom_payloads WHERE id = %b"
_OWNED: Final = "SELECT payload, stored_at FROM loom_payload_owners WHERE owner = %s AND payload = ANY(%b)"


class PostgresParts:
    """A `PartStore` that uses Loom's own database."""

    def __init__(self, database: Database) -> None:
        """Use the database. The caller must close it."""
        self._database = database

    async def save(self, run_id: str, data: bytes, tenant: str | None) -> str:
        """See the port."""
        digest, cipher = sha256(data), self._database.cipher
        whose = storable(cipher.tenant_of(run_id)) if tenant is None else tenant
        sealed = await cipher.seal(data, _place(digest.hexdigest()), whose)
        async with self._database.connection(within=_WITHIN) as connection:
            await create_payload_tables(connection)
            owned = {"id": digest.digest(), "owner": storable(run_id), "tenant": tenant}
            async with connection.transaction():
                cursor = await connection.execute(_INSERT, (digest.digest(), sealed, len(data), storable(run_id)))
                await connection.execute(_OWN, owned)
            if cipher.is_on and cursor.rowcount == 0:
                await self._share(connection, whose, data, sealed)
        return digest.hexdigest()

    async def adopt(self, run_id: str, digest: str, tenant: str) -> bool:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            await create_payload_tables(connection)
        async with self._database.transaction(within=_WITHIN) as connection:
            # A content that is about to be deleted must not get another owner.
            await connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", (LOCK,))
            owned = {"id": bytes.fromhex(digest), "owner": storable(run_id), "tenant": tenant}
            cursor = await connection.execute(_ADOPT, owned)
            return cursor.rowcount > 0

    async def _share(self, connection: Connection, tenant: str, data: bytes, sealed: bytes) -> None:
        """Let the tenant read a content that is already stored. `sealed` is the content under the tenant's newest key.

        If another tenant has stored it, it must stay readable without the key of either. If only this tenant has, it
        must be forgotten with the tenant, also if a client that didn't know the tenant has stored it first.
        """
        digest, cipher = sha256(data), self._database.cipher
        async with connection.transaction():
            row = await (await connection.execute(_HEAD, (digest.digest(),), binary=True)).fetchone()
            if row is None or row[0].startswith(key_prefix(sealed)):
                return
            owner = await self._owner(row[0], tenant)
            if owner != tenant and (owner or await self._others(connection, digest.digest(), tenant)):
                sealed = await cipher.seal(data, _place(digest.hexdigest()), "")
            await connection.execute(_SEAL_AGAIN, (sealed, digest.digest()))

    async def _others(self, connection: Connection, id_: bytes, tenant: str) -> bool:
        """Whether anybody but this tenant may own the content."""
        row: tuple[bool] | None = await (await connection.execute(_OTHERS, (id_, tenant))).fetchone()
        return row is None or row[0]

    async def _owner(self, stored: bytes, tenant: str) -> str:
        """Return the tenant that has stored a content, or an empty string if nobody knows. What only a forgotten tenant
        has stored belongs to `tenant`.
        """
        try:
            return await self._database.cipher.owner(stored)
        except EncryptionKeyError as error:
            return tenant if error.is_forgotten else str(error.context.get("tenant", ""))

    async def owned(self, run_id: str, digests: Iterable[str]) -> dict[str, datetime]:
        """Return those of the contents that the run owns, and when it last stored or adopted them."""
        ids = [bytes.fromhex(digest) for digest in digests]
        async with self._database.connection(within=_WITHIN) as connection:
            await create_payload_tables(connection)
            cursor = await connection.execute(_OWNED, (storable(run_id), ids), binary=True)
            rows: list[tuple[bytes, datetime]] = await cursor.fetchall()
        return {id_.hex(): at for id_, at in rows}

    async def load(self, digest: str) -> bytes | None:
        """See the port."""
        id_ = bytes.fromhex(digest)
        async with self._database.connection(within=_WITHIN) as connection:
            await create_payload_tables(connection)
            row: tuple[bytes] | None = await (await connection.execute(_SELECT, (id_,), binary=True)).fetchone()
        data = b"" if row is None else await self._database.cipher.open(row[0], _place(digest))
        return data if row is not None and sha256(data).digest() == id_ else None


def _place(digest: str) -> str:
    return f"part {digest}"
