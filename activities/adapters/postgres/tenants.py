"""Tenants' queues and accounts in Postgres, so that all workers count together."""

from collections.abc import Collection, Sequence
from datetime import date
from typing import Final

from loom.activities.adapters.postgres.database import Database
from loom.activities.tenants.ports import QueueChange
from loom.domain.tree.budget import Spend

_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('loom tenant ' || %s, 0))"
_LEAVE: Final = "DELETE FROM loom_tenant_runs WHERE tenant = %s AND run_id = ANY(%s)"
_JOIN: Final = """
INSERT INTO loom_tenant_runs AS runs (tenant, run_id) VALUES (%s, %s)
ON CONFLICT (run_id) DO UPDATE SET tenant = excluded.tenant, checked_at = NULL, place = DEFAULT
WHERE runs.tenant <> excluded.tenant
"""
"""A row of another tenant was left behind by an ended run with the same id."""
_ADMIT: Final = """
UPDATE loom_tenant_runs SET checked_at = now() WHERE run_id IN (
    SELECT run_id FROM loom_tenant_runs WHERE tenant = %(tenant)s AND checked_at IS NULL ORDER BY place LIMIT greatest(
        0, %(most)s - (SELECT count(*) FROM loom_tenant_runs WHERE tenant = %(tenant)s AND checked_at IS NOT NULL)
    )
)
RETURNING run_id
"""
_ADMITTED: Final = "SELECT run_id FROM loom_tenant_runs WHERE tenant = %s AND checked_at IS NOT NULL"
_UNCHECKED: Final = """
UPDATE loom_tenant_runs SET checked_at = now() WHERE tenant = %s AND checked_at < now() - interval '30 seconds'
RETURNING run_id
"""
_USED: Final = "SELECT tokens, micros FROM loom_tenant_days WHERE tenant = %s AND day = %s"
_CHARGE: Final = """
INSERT INTO loom_tenant_days AS days (tenant, day, tokens, micros) VALUES (%s, %s, %s, %s)
ON CONFLICT (tenant, day) DO UPDATE
SET tokens = days.tokens + excluded.tokens, micros = days.micros + excluded.micros
RETURNING tokens, micros
"""


class PostgresTenants:
    """A `TenantQueue` and `TenantAccounts` in Loom's own database."""

    def __init__(self, database: Database) -> None:
        """Use the database. The caller must close it."""
        self._database = database

    async def advance(
        self, tenant: str, most: int, *, joins: str | None = None, leaves: Collection[str] = ()
    ) -> QueueChange:
        """See the port."""
        async with self._database.transaction() as connection:
            await connection.execute(_LOCK, (tenant,))
            if leaves:
                await connection.execute(_LEAVE, (tenant, list(leaves)))
            if joins is not None:
                await connection.execute(_JOIN, (tenant, joins))
            newly = await (await connection.execute(_ADMIT, {"tenant": tenant, "most": most})).fetchall()
            admitted = await (await connection.execute(_ADMITTED, (tenant,))).fetchall()
        return QueueChange(admitted=frozenset(run for (run,) in admitted), newly=tuple(run for (run,) in newly))

    async def unchecked(self, tenant: str) -> Sequence[str]:
        """See the port."""
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_UNCHECKED, (tenant,))).fetchall()
        return [run for (run,) in rows]

    async def used(self, tenant: str, day: date) -> Spend:
        """See the port."""
        async with self._database.connection() as connection:
            row = await (await connection.execute(_USED, (tenant, day))).fetchone()
        tokens, micros = row or (0, 0)
        return Spend(tokens=tokens, micros=micros)

    async def charge(self, tenant: str, day: date, amounts: Spend) -> Spend:
        """See the port."""
        async with self._database.connection() as connection:
            cursor = await connection.execute(_CHARGE, (tenant, day, amounts.tokens, amounts.micros))
            row = await cursor.fetchone()
        assert row is not None  # noqa: S101 - an upsert without WHERE always returns its row
        tokens, micros = row
        return Spend(tokens=tokens, micros=micros)
