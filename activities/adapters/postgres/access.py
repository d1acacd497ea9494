"""The HTTP service's tokens, and approvals of calls that need several of them, in Postgres."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from loom.activities.adapters.postgres.database import Database, storable

_COLUMNS: Final = "id, name, role, tenant, created_at, created_by, expires_at, revoked_at"
_ADD: Final = """
INSERT INTO loom_access_tokens (id, hash, name, role, tenant, created_by, expires_at)
VALUES (%s, %s, %s, %s, %s, %s, %s)
"""
_ALL: Final = f"SELECT {_COLUMNS} FROM loom_access_tokens ORDER BY created_at, id"  # noqa: S608 - a constant
_WITH_HASH: Final = f"SELECT {_COLUMNS} FROM loom_access_tokens WHERE hash = %s"  # noqa: S608 - a constant
_ANY: Final = "SELECT EXISTS (SELECT FROM loom_access_tokens)"
_REVOKE: Final = "UPDATE loom_access_tokens SET revoked_at = now() WHERE id = %s AND revoked_at IS NULL"
_KNOWN: Final = "SELECT EXISTS (SELECT FROM loom_access_tokens WHERE id = %s)"

_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('loom approvals ' || %s, 0))"
"""Takes the run's lock until the transaction ends."""
_APPROVE: Final = """
INSERT INTO loom_call_approvals (run_id, call_id, asked_at, decision, approver) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT DO NOTHING
"""
_APPROVERS: Final = """
SELECT approver FROM loom_call_approvals WHERE run_id = %s AND call_id = %s AND asked_at = %s AND decision = %s
ORDER BY approved_at, approver
"""
_OF_RUNS: Final = """
SELECT run_id, call_id, asked_at, approver FROM loom_call_approvals WHERE run_id = ANY(%s)
GROUP BY run_id, call_id, asked_at, approver ORDER BY min(approved_at), approver
"""
_FORGET: Final = "DELETE FROM loom_call_approvals WHERE run_id = %s AND call_id = %s AND decision = %s"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredToken:
    """A bearer token, without the token itself."""

    id: str
    name: str
    role: str
    tenant: str | None
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None


class PostgresTokens:
    """The tokens of all services that use this database. All methods raise StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        """Use the database. The caller must close it."""
        self._database = database

    async def add(
        self,
        id_: str,
        hash_: bytes,
        *,
        name: str,
        role: str,
        tenant: str | None,
        created_by: str,
        expires_at: datetime | None,
    ) -> None:
        """Store a new token."""
        async with self._database.connection() as connection:
            await connection.execute(_ADD, (id_, hash_, name, role, tenant, storable(created_by), expires_at))

    async def all(self) -> tuple[StoredToken, ...]:
        """Return all tokens, oldest first, including those that are no longer valid."""
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_ALL)).fetchall()
        return tuple(_token(row) for row in rows)

    async def with_hash(self, hash_: bytes) -> StoredToken | None:
        """Return the token with this hash, or None."""
        async with self._database.connection() as connection:
            row = await (await connection.execute(_WITH_HASH, (hash_,))).fetchone()
        return None if row is None else _token(row)

    async def exist(self) -> bool:
        """Return whether a token was ever added."""
        async with self._database.connection() as connection:
            row = await (await connection.execute(_ANY)).fetchone()
        return bool(row and row[0])

    async def revoke(self, id_: str) -> bool:
        """Revoke a token. Return False if there is no token with this ID. A revoked token stays revoked."""
        async with self._database.connection() as connection:
            await connection.execute(_REVOKE, (id_,))
            row = await (await connection.execute(_KNOWN, (id_,))).fetchone()
        return bool(row and row[0])


class PostgresCallApprovals:
    """Approvals of calls that need more than one. All methods raise StoreUnavailable."""

    def __init__(self, database: Database) -> None:
        """Use the database. The caller must close it."""
        self._database = database

    async def add(self, run_id: str, call_id: str, asked_at: str, decision: bytes, approver: str) -> tuple[str, ...]:
        """Record a person's approval, once, and return everybody who has approved exactly this, in order."""
        of = (storable(run_id), storable(call_id), asked_at, decision)
        async with self._database.transaction() as connection:
            # Otherwise, two people who approve at the same time wouldn't see each other's approval.
            await connection.execute(_LOCK, (of[0],))
            await connection.execute(_APPROVE, (*of, storable(approver)))
            rows = await (await connection.execute(_APPROVERS, of)).fetchall()
        return tuple(name for (name,) in rows)

    async def of_runs(self, run_ids: Collection[str]) -> dict[tuple[str, str, str], tuple[str, ...]]:
        """Return who has approved which calls of these runs, by the run, the call, and when it was asked for."""
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_OF_RUNS, ([storable(each) for each in run_ids],))).fetchall()
        found: dict[tuple[str, str, str], tuple[str, ...]] = {}
        for run_id, call_id, asked_at, approver in rows:
            call = (run_id, call_id, asked_at)
            found[call] = (*found.get(call, ()), approver)
        return found

    async def approvers(self, run_id: str, call_id: str, asked_at: str, decision: bytes) -> tuple[str, ...]:
        """Return everybody who has approved exactly this, in order."""
        of = (storable(run_id), storable(call_id), asked_at, decision)
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_APPROVERS, of)).fetchall()
        return tuple(name for (name,) in rows)

    async def forget(self, run_id: str, call_id: str, decision: bytes) -> None:
        """Delete the approvals that the run has accepted."""
        async with self._database.connection() as connection:
            await connection.execute(_FORGET, (storable(run_id), storable(call_id), decision))


def _token(row: tuple[object, ...]) -> StoredToken:
    names = ("id", "name", "role", "tenant", "created_at", "created_by", "expires_at", "revoked_at")
    return StoredToken(**dict(zip(names, row, strict=True)))  # type: ignore[arg-type]  # as the columns are declared
