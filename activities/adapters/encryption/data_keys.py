"""The keys that encrypt data: one derived from each key of the stack, and one for each tenant.

The keys of tenants are in Postgres. Each is encrypted with a key of the stack, so the database alone reveals none.
Without a database, tenants share the stack's key. `forget` deletes a tenant's keys, and other processes notice it
within a minute.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from secrets import token_bytes, token_hex
from time import monotonic
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from loom.activities.adapters.encryption.key_ring import BYTES, KeyRing, StackKey
from loom.activities.adapters.postgres.database import Connection, Database, storable
from loom.activities.encryption import KEY_ID, NONCE, TEXT, missing
from loom.activities.ports import StoreUnavailable
from loom.domain.core.errors import BadRequest, EncryptionKeyError
from loom.domain.core.tenants import TENANT_NAME

WORDS: Final = "words"
"""The id of the key that hides the words of the search index."""
REMEMBERED: Final = 60.0
"""Seconds after which a process looks whether a key was forgotten, or replaced."""
LOOKING: Final = 5.0
"""Seconds for which a key stays in use while one caller looks. If Postgres is away, the others don't wait for it."""
_LOCK: Final = "SELECT pg_advisory_xact_lock(1280265070)"
_CURRENT: Final = """
SELECT id, tenant, wrapped, wrapped_by, forgotten_at FROM loom_data_keys WHERE tenant = %s AND wrapped IS NOT NULL
ORDER BY created_at DESC LIMIT 1
"""
_BY_ID: Final = "SELECT id, tenant, wrapped, wrapped_by, forgotten_at FROM loom_data_keys WHERE id = %s"
_ALL: Final = """
SELECT id, tenant, wrapped, wrapped_by, forgotten_at FROM loom_data_keys WHERE tenant <> '' ORDER BY tenant, created_at
"""
_INSERT: Final = "INSERT INTO loom_data_keys (id, tenant, wrapped, wrapped_by) VALUES (%s, %s, %b, %s)"
_OTHERS: Final = """
SELECT id, tenant, wrapped, wrapped_by, forgotten_at FROM loom_data_keys
WHERE wrapped IS NOT NULL AND wrapped_by <> %s FOR UPDATE
"""
_WRAP_AGAIN: Final = "UPDATE loom_data_keys SET wrapped = %b, wrapped_by = %s WHERE id = %s"
_FORGET: Final = """
UPDATE loom_data_keys SET wrapped = NULL, forgotten_at = coalesce(forgotten_at, clock_timestamp()) WHERE tenant = %s
RETURNING id
"""
"""Also returns the keys that were forgotten before: a process that still knew one may have stored memory since."""
_DELETE: Final = (
    "DELETE FROM loom_memory USING unnest(%s::text[]) AS beginning WHERE starts_with(content, beginning)",
    "DELETE FROM loom_scoped_memory USING unnest(%s::text[]) AS beginning WHERE starts_with(content, beginning)",
    "DELETE FROM loom_person_facts USING unnest(%s::text[]) AS beginning WHERE starts_with(content, beginning)",
)
_FORGET_WITHIN: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class DataKey:
    """A key that encrypts data."""

    id: str
    tenant: str
    secret: bytes
    aead: AESGCM

    def encrypt(self, data: bytes, bound_to: bytes) -> bytes:
        """Return a nonce and the ciphertext. Only `decrypt` with the same `bound_to` opens it."""
        nonce = token_bytes(NONCE)
        return nonce + self.aead.encrypt(nonce, data, bound_to)

    def decrypt(self, sealed: bytes, bound_to: bytes, where: str) -> bytes:
        """Return the plain data. Raises EncryptionKeyError if the data was changed or moved, or the key is wrong."""
        try:
            return self.aead.decrypt(sealed[:NONCE], sealed[NONCE:], bound_to)
        except (InvalidTag, ValueError):
            raise EncryptionKeyError(
                f"data in {where} can't be decrypted with the key {self.id}: the data was changed or moved, or the file"
                " in LOOM_ENCRYPTION_KEYS has another key under this id",
                key=self.id,
            ) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantKey:
    """A tenant's key, without its secret."""

    id: str
    tenant: str
    wrapped_by: str
    forgotten_at: datetime | None


class DataKeys:
    """Finds the keys that encrypt and decrypt data. It remembers them for a minute.

    If Postgres doesn't respond, keys that this process remembers stay usable.
    """

    def __init__(self, ring: KeyRing, database: Database | None) -> None:
        """`ring` has the stack's keys. The caller must close the database."""
        self._ring = ring
        self._database = database
        self._of_stack: dict[str, DataKey] = {}
        self._found: dict[str, tuple[float, DataKey]] = {}
        self._current: dict[str, tuple[float, DataKey]] = {}

    @property
    def has_tenants(self) -> bool:
        """Whether each tenant has a key of its own."""
        return self._database is not None

    async def current(self, tenant: str) -> DataKey:
        """Return the key that encrypts the tenant's data. The first call for a tenant creates it.

        Raises StoreUnavailable and EncryptionKeyError.
        """
        if not tenant or self._database is None:
            return self._derived(self._ring.newest)
        return await self._remembered(self._current, tenant, self._current_of)

    async def find(self, key: str, where: str) -> DataKey:
        """Return the key with this id. `where` names the encrypted data in errors.

        Raises StoreUnavailable if the key may be in a database that doesn't respond, and EncryptionKeyError if there is
        no such key or it was forgotten.
        """
        if key in self._of_stack:
            return self._of_stack[key]
        if key not in self._found and (stack := self._ring.find(key)) is not None:
            return self._derived(stack)
        if self._database is None or not KEY_ID.fullmatch(key):
            raise missing(key, where)
        try:
            return await self._remembered(self._found, key, self._find)
        except LookupError:
            raise missing(key, where) from None

    async def words(self) -> bytes:
        """Return the secret that hides the words of the search index. Without a database, there is no such index."""
        return (await self._remembered(self._current, "", self._current_of)).secret

    async def listed(self) -> Sequence[TenantKey]:
        """Return the keys of all tenants, forgotten ones included. Raises StoreUnavailable."""
        if self._database is None:
            return ()
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_ALL)).fetchall()
        return [TenantKey(id=row[0], tenant=row[1], wrapped_by=row[3], forgotten_at=row[4]) for row in rows]

    async def rotate(self, tenant: str) -> str:
        """Give the tenant a new key, which encrypts from now on, and return its id. The older keys still decrypt.

        Raises BadRequest if a tenant can't have this name.
        """
        assert self._database is not None  # noqa: S101 - callers check `has_tenants`
        _refuse_no_name(tenant)
        self._current.pop(tenant, None)
        async with self._database.transaction() as connection:
            return (await self._create(connection, tenant)).id

    async def wrap_again(self) -> int:
        """Encrypt the keys that older keys of the stack have encrypted with the newest one. Return their number."""
        if self._database is None:
            return 0
        async with self._database.transaction() as connection:
            newest = self._ring.newest
            rows = await (await connection.execute(_OTHERS, (newest.id,))).fetchall()
            for row in rows:
                key = self._unwrapped(row)
                await connection.execute(_WRAP_AGAIN, (_wrapped(key, newest), newest.id, key.id))
        return len(rows)

    async def forget(self, tenant: str) -> Sequence[str]:
        """Delete the tenant's keys and return their ids, also those of keys that were deleted before. What they have
        encrypted can never be read again.

        What they have encrypted in memory is deleted as well, because its search index doesn't depend on these keys.
        Raises BadRequest if a tenant can't have this name.
        """
        assert self._database is not None  # noqa: S101 - callers check `has_tenants`
        _refuse_no_name(tenant)
        async with self._database.transaction(within=_FORGET_WITHIN) as connection:
            rows = await (await connection.execute(_FORGET, (storable(tenant),))).fetchall()
            names = [row[0] for row in rows]
            for statement in _DELETE:
                await connection.execute(statement, ([f"{TEXT}{name}:" for name in names],))
        self._current.clear()
        self._found.clear()
        return names

    async def _remembered(self, known: dict[str, tuple[float, DataKey]], name: str, load: Any) -> DataKey:
        until, key = known.get(name, (0.0, None))
        if key is not None and monotonic() < until:
            return key
        if key is not None:
            known[name] = (monotonic() + LOOKING, key)
        try:
            loaded: DataKey = await load(name)
        except StoreUnavailable:
            if key is None:
                raise
            return key
        except (EncryptionKeyError, LookupError):
            known.pop(name, None)
            raise
        known[name] = (monotonic() + REMEMBERED, loaded)
        return loaded

    async def _current_of(self, tenant: str) -> DataKey:
        assert self._database is not None  # noqa: S101 - there are no other callers
        async with self._database.transaction() as connection:
            row = await (await connection.execute(_CURRENT, (storable(tenant),))).fetchone()
            if row is None:
                await connection.execute(_LOCK)  # two processes must not create two keys
                row = await (await connection.execute(_CURRENT, (storable(tenant),))).fetchone()
            return await self._create(connection, tenant) if row is None else self._unwrapped(row)

    async def _find(self, key: str) -> DataKey:
        assert self._database is not None  # noqa: S101 - there are no other callers
        async with self._database.connection() as connection:
            row = await (await connection.execute(_BY_ID, (key,))).fetchone()
        if row is None:
            raise LookupError
        return self._unwrapped(row)

    async def _create(self, connection: Connection, tenant: str) -> DataKey:
        name = f"t-{token_hex(8)}" if tenant else WORDS
        key = _data_key(name, storable(tenant), token_bytes(BYTES))
        newest = self._ring.newest
        await connection.execute(_INSERT, (key.id, key.tenant, _wrapped(key, newest), newest.id))
        return key

    def _derived(self, stack: StackKey) -> DataKey:
        key = self._of_stack.get(stack.id)
        if key is None:
            key = self._of_stack[stack.id] = _data_key(stack.id, "", stack.derived("data"))
        return key

    def _unwrapped(self, row: Sequence[Any]) -> DataKey:
        name, tenant, wrapped, wrapped_by, forgotten_at = row
        if wrapped is None:
            raise EncryptionKeyError(
                f"data of the tenant {tenant!r} was encrypted with the key {name}, which was deleted at"
                f" {forgotten_at:%Y-%m-%d %H:%M} UTC with `loom tenants forget`: the data can't be read any more",
                key=name,
                tenant=tenant,
                is_forgotten=True,
            )
        if (stack := self._ring.find(wrapped_by)) is None:
            raise missing(wrapped_by, f"loom_data_keys (the key {name})", tenant=tenant)
        try:
            secret = _wrapping(stack).decrypt(wrapped[:NONCE], wrapped[NONCE:], _bound(name, tenant))
        except InvalidTag:
            raise EncryptionKeyError(
                f"the key {name} in loom_data_keys can't be decrypted with the key {wrapped_by}: the file in"
                " LOOM_ENCRYPTION_KEYS has another key under this id, or the row was changed",
                key=wrapped_by,
                tenant=tenant,
            ) from None
        return _data_key(name, tenant, secret)


def _wrapped(key: DataKey, stack: StackKey) -> bytes:
    nonce = token_bytes(NONCE)
    return nonce + _wrapping(stack).encrypt(nonce, key.secret, _bound(key.id, key.tenant))


def _data_key(name: str, tenant: str, secret: bytes) -> DataKey:
    return DataKey(id=name, tenant=tenant, secret=secret, aead=AESGCM(secret))


def _wrapping(stack: StackKey) -> AESGCM:
    return AESGCM(stack.derived("wrap"))


def _bound(name: str, tenant: str) -> bytes:
    return f"{name}\0{tenant}".encode("utf-8", "surrogatepass")


def _refuse_no_name(tenant: str) -> None:
    """Refuse a name that no tenant can have. The key of the search index belongs to none, so its tenant is empty."""
    if not re.fullmatch(TENANT_NAME, tenant):
        raise BadRequest(f"no tenant can have the name {tenant!r}", field="tenant")
