"""Keep what runs have changed in their clones, so that workers on other machines can make the same clone.

There is one row for each tree of runs. A call holds it until its worker releases it or no longer renews it:

    hold ─▶ begin: adds to `changing` ─▶ save: sets `patch` and `version`, clears `changing` ─▶ release

If calls may have changed files in one clone (`generation`), and their changes were not saved, `changing` names them. As
long as calls begin in the same clone, its files contain the changes. When a call begins in another clone, the changes
are lost. The same statement adds the calls to `lost`, so that all machines know them, even if the worker doesn't get
the answer. It also raises the version, so that the first clone counts as old if its machine comes back.

Only the holder saves, so a patch never replaces another one that it doesn't contain.
"""

import asyncio
import json
import zlib
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from loom.activities.adapters.postgres.database import Database, storable
from loom.activities.ports import CloneKey, CloneRecord, StoredPatch

LEASE: Final = timedelta(seconds=10)
"""How long a call holds a clone without a renewal."""

_WITHIN: Final = 30.0
_FAST: Final = 1
_IS_HELD: Final = """known.holder IS NOT NULL AND (
    clock_timestamp() BETWEEN known.held_until - %(lease)s AND known.held_until -- a renewal may be later than now()
    OR now() < pg_postmaster_start_time() + %(lease)s -- after a restart, workers have time to renew
)"""
_COLUMNS: Final = "version, call, changing, generation, lost, told"
_SELECT: Final = f"""
SELECT {_COLUMNS}, {_IS_HELD} FROM loom_clones AS known
WHERE (run_id, execution) = (%(run_id)s, %(execution)s)
"""  # noqa: S608 - a constant
_PATCH: Final = "SELECT version, patch FROM loom_clones WHERE (run_id, execution) = (%(run_id)s, %(execution)s)"
_HOLD: Final = f"""
INSERT INTO loom_clones AS known (run_id, execution, holder, held_until)
VALUES (%(run_id)s, %(execution)s, %(holder)s, now() + %(lease)s)
ON CONFLICT (run_id, execution) DO UPDATE SET holder = excluded.holder, held_until = excluded.held_until
WHERE known.holder = excluded.holder OR NOT ({_IS_HELD})
RETURNING {_COLUMNS}, true
"""  # noqa: S608 - a constant
_RENEW: Final = """
UPDATE loom_clones SET held_until = now() + %(lease)s
WHERE (run_id, execution) = (%(run_id)s, %(execution)s) AND holder = %(holder)s
"""
_BEGIN: Final = f"""
UPDATE loom_clones SET generation = %(generation)s,
    changing = CASE WHEN generation <> %(generation)s THEN ARRAY[%(call)s::text]
        ELSE array_append(array_remove(changing, %(call)s::text), %(call)s::text) END,
    lost = CASE WHEN generation <> %(generation)s THEN lost || changing ELSE lost END,
    version = version + (generation <> %(generation)s AND changing <> '{{}}')::int
WHERE (run_id, execution) = (%(run_id)s, %(execution)s) AND holder = %(holder)s
RETURNING {_COLUMNS}, true
"""  # noqa: S608 - a constant
_TOLD: Final = """
UPDATE loom_clones
SET told = told || jsonb_build_object(%(run)s::text, greatest(%(losses)s, (told ->> %(run)s::text)::int))
WHERE (run_id, execution) = (%(run_id)s, %(execution)s)
"""
_SAVE: Final = """
UPDATE loom_clones
SET version = greatest(version, %(version)s) + 1, patch = %(patch)b, call = %(call)s, changing = '{}',
    created_at = now()
WHERE (run_id, execution) = (%(run_id)s, %(execution)s) AND holder = %(holder)s
RETURNING version
"""
_SETTLE: Final = """
UPDATE loom_clones SET changing = '{}'
WHERE (run_id, execution) = (%(run_id)s, %(execution)s) AND holder = %(holder)s
"""
_RELEASE: Final = """
UPDATE loom_clones SET holder = NULL, held_until = NULL
WHERE (run_id, execution) = (%(run_id)s, %(execution)s) AND holder = %(holder)s
"""


class PostgresClonePatches:
    """A `ClonePatches` that uses Loom's own database."""

    def __init__(self, database: Database) -> None:
        """Use the database. The caller must close it."""
        self._database = database

    async def record(self, key: CloneKey) -> CloneRecord:
        """See the port."""
        return await self._record(_SELECT, key) or CloneRecord()

    async def load(self, key: CloneKey) -> StoredPatch:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            row: tuple[int, bytes] | None = await (
                await connection.execute(_PATCH, _values(key), binary=True)
            ).fetchone()
        if row is None or not row[1]:
            return StoredPatch(version=row[0] if row else 0, patch=b"")
        packed = await self._database.cipher.open(row[1], _place(key))
        return StoredPatch(version=row[0], patch=await asyncio.to_thread(zlib.decompress, packed))

    async def hold(self, key: CloneKey, holder: UUID) -> CloneRecord | None:
        """See the port."""
        return await self._record(_HOLD, key, holder=holder)

    async def renew(self, key: CloneKey, holder: UUID) -> bool:
        """See the port."""
        return await self._updated(_RENEW, key, holder=holder, lease=LEASE)

    async def begin(self, key: CloneKey, holder: UUID, call: str, generation: str) -> CloneRecord | None:
        """See the port."""
        return await self._record(_BEGIN, key, holder=holder, call=storable(call), generation=generation)

    async def save(self, key: CloneKey, holder: UUID, patch: bytes, call: str, version: int) -> int | None:
        """See the port."""
        cipher = self._database.cipher
        packed = await asyncio.to_thread(zlib.compress, patch, _FAST)
        sealed = await cipher.seal(packed, _place(key), cipher.tenant_of(key.run_id))
        values = {"holder": holder, "patch": sealed, "call": storable(call), "version": version}
        async with self._database.connection(within=_WITHIN) as connection:
            row = await (await connection.execute(_SAVE, _values(key, **values))).fetchone()
        return int(row[0]) if row else None

    async def record_unchanged(self, key: CloneKey, holder: UUID) -> bool:
        """See the port."""
        return await self._updated(_SETTLE, key, holder=holder)

    async def told(self, key: CloneKey, run_id: str, losses: int) -> None:
        """See the port."""
        await self._updated(_TOLD, key, run=json.dumps(run_id), losses=losses)

    async def release(self, key: CloneKey, holder: UUID) -> None:
        """See the port."""
        await self._updated(_RELEASE, key, holder=holder)

    async def _record(self, statement: str, key: CloneKey, **values: Any) -> CloneRecord | None:
        async with self._database.connection() as connection:
            row = await (await connection.execute(statement, _values(key, lease=LEASE, **values))).fetchone()
        if row is None:
            return None
        version, call, changing, generation, lost, told, is_held = row
        return CloneRecord(
            version=version,
            call=call,
            changing=tuple(changing),
            generation=generation,
            is_held=is_held,
            lost=tuple(lost),
            told={json.loads(run): losses for run, losses in told.items()},
        )

    async def _updated(self, statement: str, key: CloneKey, **values: Any) -> bool:
        async with self._database.connection() as connection:
            return (await connection.execute(statement, _values(key, **values))).rowcount > 0


def _values(key: CloneKey, **more: Any) -> dict[str, Any]:
    return {"run_id": storable(key.run_id), "execution": storable(key.execution), **more}


def _place(key: CloneKey) -> str:
    return f"clone of {key.run_id}@{key.execution}"
