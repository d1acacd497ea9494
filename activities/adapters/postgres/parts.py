"""Store images, recordings and files in Postgres, in the table of the payloads that are too large for history.

Both are stored under the hash of their content, both belong to workflows, and both are deleted when all of their owners
have left the server (see `payloads` and `collection`).
"""

from hashlib import sha256
from typing import Final

from loom.activities.adapters.postgres.database import Connection, Database, storable
from loom.activities.adapters.postgres.payloads import LOCK, create_payload_tables
from loom.activities.encryption import key_prefix
from loom.domain.core.errors import EncryptionKeyError

_WITHIN: Final = 15.0

_INSERT: Final = "INSERT INTO loom_payloads (id, data, size, owner) VALUES (%b, %b, %s, %s) ON CONFLICT DO NOTHING"
"""The table's trigger records the owner, also of a content that is already stored."""
_ADOPT: Final = """
INSERT INTO loom_payload_owners (payload, owner) SELECT id, %s FROM loom_payloads WHERE id = %b
ON CONFLICT (payload, owner) DO UPDATE SET stored_at = now()
"""
_HEAD: Final = "SELECT substr(data, 1, 64) FROM loom_payloads WHERE id = %b FOR UPDATE"
"""Selects the beginning of a content, which has the id of the key that has sealed it."""
_SEAL_AGAIN: Final = "UPDATE loom_payloads SET data = %b WHERE id = %b"
_SELECT: Final = "SELECT data FROM loom_payloads WHERE id = %b"


class PostgresParts:
    """A `PartStore` that uses Loom's own database."""

    def __init__(self, database: Database) -> None:
        """Use the database. The caller must close it."""
        self._database = database

    async def save(self, run_id: str, data: bytes) -> str:
        """See the port."""
        digest, cipher = sha256(data), self._database.cipher
        sealed = await cipher.seal(data, _place(digest.hexdigest()), cipher.tenant_of(run_id))
        async with self._database.connection(within=_WITHIN) as connection:
            await create_payload_tables(connection)
            cursor = await connection.execute(_INSERT, (digest.digest(), sealed, len(data), storable(run_id)))
            if cipher.is_on and cursor.rowcount == 0:
                await self._share(connection, storable(cipher.tenant_of(run_id)), data, sealed)
        return digest.hexdigest()

    async def adopt(self, run_id: str, digest: str) -> bool:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            await create_payload_tables(connection)
        async with self._database.transaction(within=_WITHIN) as connection:
            # A content that is about to be deleted must not get another owner.
            await connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", (LOCK,))
            cursor = await connection.execute(_ADOPT, (storable(run_id), bytes.fromhex(digest)))
            return cursor.rowcount > 0

    async def _share(self, connection: Connection, tenant: str, data: bytes, sealed: bytes) -> None:
        """Let the tenant read a content that is already stored. `sealed` is the content under the tenant's newest key.

        If another tenant has stored it, it must stay readable without the key of either. If only this tenant has, it
        must be forgotten with the tenant.
        """
        digest, cipher = sha256(data), self._database.cipher
        async with connection.transaction():
            row = await (await connection.execute(_HEAD, (digest.digest(),), binary=True)).fetchone()
            if row is None or row[0].startswith(key_prefix(sealed)):
                return
            if await self._owner(row[0], tenant) != tenant:
                sealed = await cipher.seal(data, _place(digest.hexdigest()), "")
            await connection.execute(_SEAL_AGAIN, (sealed, digest.digest()))

    async def _owner(self, stored: bytes, tenant: str) -> str:
        """Return the tenant that has stored a content, or an empty string if nobody knows. What only a forgotten tenant
        has stored belongs to `tenant`.
        """
        try:
            return await self._database.cipher.owner(stored)
        except EncryptionKeyError as error:
            return tenant if error.is_forgotten else str(error.context.get("tenant", ""))

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
