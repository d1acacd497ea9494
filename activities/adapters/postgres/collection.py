"""Keep track of runs that have stored data, and delete the data of those that have left the server.

    unknown ── looked up ──▶ seen, or not seen ── its tree has left the server ──▶ deleted, if the tree was seen

An entry belongs to one server. Another server that uses the same database has its own entries, and its workers never
delete data of runs that it never had.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from loom.activities.adapters.postgres.database import Database, storable
from loom.activities.adapters.postgres.payloads import LOCK, create_payload_tables
from loom.domain.core.stored_data import Collected, StoredTree, tree_of

_WITHIN: Final = 60.0

_UNKNOWN: Final = """
SELECT run_id FROM (
    SELECT run_id, created_at FROM loom_artifacts
    UNION ALL SELECT run_id, created_at FROM loom_effects
    UNION ALL SELECT owner, stored_at FROM loom_payload_owners WHERE owner <> ''
    UNION ALL SELECT run_id, used_at FROM loom_used_starts
    UNION ALL SELECT run_id, created_at FROM loom_clones
) AS stored
WHERE created_at < %(before)s AND NOT EXISTS (
    SELECT FROM loom_stored_runs AS known WHERE known.server = %(server)s AND known.run_id = stored.run_id
)
GROUP BY run_id ORDER BY min(created_at) LIMIT %(limit)s
"""
_LOOK_UP: Final = """
INSERT INTO loom_stored_runs (server, run_id, tree, parent, seen)
VALUES (%(server)s, %(run_id)s, %(tree)s, %(parent)s, %(seen)s) ON CONFLICT DO NOTHING
"""
_DUE: Final = """
WITH fresh AS (
    SELECT run_id FROM loom_artifacts WHERE created_at >= %(before)s
    UNION SELECT run_id FROM loom_effects WHERE greatest(created_at, ended_at) >= %(before)s
    UNION SELECT owner FROM loom_payload_owners WHERE stored_at >= %(before)s
    UNION SELECT run_id FROM loom_clones WHERE created_at >= %(before)s
)
SELECT tree, array_agg(run_id), array_agg(DISTINCT parent) FILTER (WHERE parent <> '') FROM loom_stored_runs
WHERE server = %(server)s
GROUP BY tree
HAVING bool_or(seen) AND NOT bool_or(run_id IN (SELECT run_id FROM fresh))
    AND coalesce(max(checked_at) < now() - interval '1 hour', true)
ORDER BY max(checked_at) NULLS FIRST LIMIT %(limit)s
"""
_KEEP: Final = "UPDATE loom_stored_runs SET checked_at = now() WHERE server = %s AND tree = %s"
_DELETE_ARTIFACTS: Final = "DELETE FROM loom_artifacts WHERE run_id = ANY(%s) AND created_at < %s"
_DELETE_EFFECTS: Final = "DELETE FROM loom_effects WHERE run_id = ANY(%s) AND created_at < %s"
_DELETE_STARTS: Final = "DELETE FROM loom_used_starts WHERE run_id = ANY(%s) AND used_at < %s"
_DELETE_CLONES: Final = "DELETE FROM loom_clones WHERE run_id = ANY(%s) AND created_at < %s"
_DISOWN: Final = "DELETE FROM loom_payload_owners WHERE owner = ANY(%s) AND stored_at < %s RETURNING payload"
_DELETE_PAYLOADS: Final = """
DELETE FROM loom_payloads
WHERE id = ANY(%s) AND NOT EXISTS (SELECT FROM loom_payload_owners WHERE payload = loom_payloads.id)
"""
_FORGET: Final = "DELETE FROM loom_stored_runs WHERE server = %s AND tree = %s"
_STORED: Final = """
SELECT 'artifacts', count(*), coalesce(sum(octet_length(data)), 0)::bigint FROM loom_artifacts
UNION ALL SELECT 'effects', count(*), coalesce(sum(octet_length(result::text)), 0)::bigint FROM loom_effects
UNION ALL SELECT 'clones', count(*), coalesce(sum(octet_length(patch)), 0)::bigint FROM loom_clones
UNION ALL SELECT 'payloads', count(*), coalesce(sum(size), 0)::bigint FROM loom_payloads
UNION ALL SELECT 'payloads without a known run', count(*), coalesce(sum(size), 0)::bigint FROM loom_payloads
    WHERE EXISTS (SELECT FROM loom_payload_owners WHERE payload = id AND loom_payload_owners.owner = '')
"""


class PostgresStoredData:
    """A `StoredData` that uses Loom's own database."""

    def __init__(self, database: Database) -> None:
        """Use the database. The caller must close it."""
        self._database = database

    async def unknown(self, server: str, before: datetime, limit: int) -> Sequence[str]:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            await create_payload_tables(connection)
            values = {"server": server, "before": before, "limit": limit}
            return [run_id for (run_id,) in await (await connection.execute(_UNKNOWN, values)).fetchall()]

    async def look_up(self, server: str, run_id: str, parent: str | None) -> None:
        """See the port."""
        values = {
            "server": server,
            "run_id": run_id,
            "tree": tree_of(run_id),
            "parent": storable(parent or ""),
            "seen": parent is not None,
        }
        async with self._database.connection(within=_WITHIN) as connection:
            await connection.execute(_LOOK_UP, values)

    async def due(self, server: str, before: datetime, limit: int) -> Sequence[StoredTree]:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            values = {"server": server, "before": before, "limit": limit}
            found = await (await connection.execute(_DUE, values)).fetchall()
        return [StoredTree(root=tree, runs=tuple(runs), parents=tuple(parents or ())) for tree, runs, parents in found]

    async def keep(self, server: str, tree: StoredTree) -> None:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            await connection.execute(_KEEP, (server, tree.root))

    async def delete(self, server: str, tree: StoredTree, before: datetime) -> Collected:
        """See the port."""
        of = (list(tree.runs), before)
        async with self._database.transaction(within=_WITHIN) as connection:
            # A writer that refers to a payload that is already stored must not lose it.
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
            artifacts = (await connection.execute(_DELETE_ARTIFACTS, of)).rowcount
            effects = (await connection.execute(_DELETE_EFFECTS, of)).rowcount
            await connection.execute(_DELETE_STARTS, of)
            await connection.execute(_DELETE_CLONES, of)
            disowned = [payload for (payload,) in await (await connection.execute(_DISOWN, of)).fetchall()]
            payloads = (await connection.execute(_DELETE_PAYLOADS, (disowned,))).rowcount
            await connection.execute(_FORGET, (server, tree.root))
        return Collected(artifacts=artifacts, effects=effects, payloads=payloads)

    async def sizes(self) -> dict[str, tuple[int, int]]:
        """Return the number of entries of each kind that runs have stored, and their size in bytes."""
        async with self._database.connection(within=_WITHIN) as connection:
            await create_payload_tables(connection)
            found = await (await connection.execute(_STORED)).fetchall()
        return {kind: (count, size) for kind, count, size in found}
