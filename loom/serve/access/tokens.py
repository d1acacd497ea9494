"""Bearer tokens: `loom_` and 256 random bits. Only a token's hash is stored, so it is shown once, when it is made.

A token has as much entropy as its hash has bits, so a plain SHA-256 suffices: there is nothing to guess.
"""

import asyncio
import re
import secrets
from collections import OrderedDict
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from time import monotonic
from typing import Final

from loom.activities.adapters.postgres.access import PostgresTokens, StoredToken
from loom.domain.core.errors import BadRequest, NotAuthenticatedError
from loom.domain.core.tenants import TENANT_NAME
from loom.serve.access.people import LONGEST_NAME, is_valid_name
from loom.serve.access.roles import Caller, Role

PREFIX: Final = "loom_"
KEPT: Final = 2.5
"""Seconds for which a service relies on what it has read about a token."""
MOST_KEPT: Final = 10_000
INVALID: Final = "the token is unknown, has expired, or was revoked"


class AccessTokens:
    """The tokens in Loom's database."""

    def __init__(self, store: PostgresTokens) -> None:
        self._store = store
        self._known: OrderedDict[bytes, tuple[float, StoredToken | None]] = OrderedDict()
        self._reading: dict[bytes, asyncio.Task[StoredToken | None]] = {}
        self._exist = False

    async def add(
        self, name: str, role: Role, *, tenant: str | None, expires_at: datetime | None, created_by: str
    ) -> tuple[str, str]:
        """Make a token, and return its ID and the token. Raises BadRequest if a value is invalid."""
        if not is_valid_name(name) or " " in name:
            raise BadRequest(
                f"{name!r} is not a valid name: use 1 to {LONGEST_NAME} visible characters, no spaces or commas",
                field="name",
            )
        if tenant is not None and not re.fullmatch(TENANT_NAME, tenant):
            raise BadRequest(
                f"{tenant!r} is not a valid name for a tenant: use letters, digits, dots, hyphens and underscores",
                field="tenant",
            )
        if expires_at is not None and expires_at <= datetime.now(UTC):
            raise BadRequest("the token would have expired already", field="expires")
        id_, token = secrets.token_hex(4), PREFIX + secrets.token_urlsafe(32)
        await self._store.add(
            id_,
            hash_of(token),
            name=name,
            role=role.value,
            tenant=tenant,
            created_by=created_by,
            expires_at=expires_at,
        )
        return id_, token

    async def caller(self, token: str) -> Caller:
        """Return who has this token. Raises NotAuthenticatedError if it isn't valid, and StoreUnavailable."""
        stored = await self._stored(hash_of(token))
        if stored is None or stored.revoked_at is not None or _has_passed(stored.expires_at):
            raise NotAuthenticatedError(INVALID)
        return Caller(name=stored.name, role=Role(stored.role), tenant=stored.tenant)

    async def revoke(self, id_: str) -> bool:
        """Revoke a token. Return False if there is no token with this ID."""
        return await self._store.revoke(id_)

    async def exist(self) -> bool:
        """Return whether a token was ever added. Raises StoreUnavailable."""
        self._exist = self._exist or await self._store.exist()
        return self._exist

    async def _stored(self, hash_: bytes) -> StoredToken | None:
        read_at, stored = self._known.get(hash_, (-KEPT, None))
        if monotonic() - read_at < KEPT:
            return stored
        # Hundreds of requests with the same token may arrive at once, and the database has few connections.
        if (reading := self._reading.get(hash_)) is None:
            reading = self._reading[hash_] = asyncio.create_task(self._read(hash_))
            reading.add_done_callback(partial(self._has_read, hash_))
        return await asyncio.shield(reading)

    def _has_read(self, hash_: bytes, reading: asyncio.Task[StoredToken | None]) -> None:
        del self._reading[hash_]
        if not reading.cancelled():
            reading.exception()  # perhaps nobody waits for it anymore

    async def _read(self, hash_: bytes) -> StoredToken | None:
        stored = await self._store.with_hash(hash_)
        self._known[hash_] = monotonic(), stored
        self._known.move_to_end(hash_)
        if len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)
        return stored


def hash_of(token: str) -> bytes:
    """Return the hash under which a token is stored."""
    return sha256(token.encode("utf-8", "replace")).digest()


def _has_passed(time: datetime | None) -> bool:
    return time is not None and time <= datetime.now(UTC)
