"""Forgetting a session: its memories, its notes, and what its runs left in other tables.

What a run that still goes on has done outside is not forgotten: without its account it would do that again. Payloads
stay, too: histories have only references to them, and runs of several sessions may have the same one.
"""

from collections.abc import Sequence
from typing import Any, Final

from loom.activities.adapters.postgres.database import Connection, Database
from loom.activities.adapters.postgres.memory_rows import LOCK, digest, key_text
from loom.domain.memory.layers import Forgotten

_WITHIN: Final = 60.0

_MARK: Final = """
INSERT INTO loom_memory_forgotten (session, until)
SELECT %(digest)s, greatest(clock_timestamp(), max(created_at)) FROM loom_memory_tasks WHERE session_id = %(session)s
ON CONFLICT (session) DO UPDATE SET until = greatest(excluded.until, loom_memory_forgotten.until)
"""
_RUNS: Final = """
SELECT run_id, bool_or(action IN ('node.complete', 'node.error')) FROM loom_memory_tasks AS one
WHERE session_id = %(session)s AND NOT EXISTS (
    SELECT FROM loom_memory_tasks AS other WHERE other.run_id = one.run_id AND other.session_id <> one.session_id
)
GROUP BY run_id ORDER BY run_id
"""
"""Its runs, sub-agents as well, and whether each has ended; not those that another session has said something in."""
_LEFT: Final = "SELECT count(*) FROM loom_effects WHERE run_id = ANY(%s)"


async def forget(database: Database, session_id: str) -> Forgotten:
    """Delete what is of the session, all or nothing; its Tasks of until now are never taken in again."""
    session = key_text(session_id)
    async with database.transaction(within=_WITHIN) as connection:
        await connection.execute(LOCK, ([session],))
        values = {"digest": digest(session_id), "session": session}
        await connection.execute(_MARK, values)
        ended = dict(await (await connection.execute(_RUNS, values)).fetchall())
        runs = list(ended)
        await connection.execute("DELETE FROM loom_memory_tasks WHERE session_id = %s", (session,))
        return Forgotten(
            memories=await _gone(connection, "DELETE FROM loom_memory WHERE session_id = %s", session),
            notes=await _gone(connection, "DELETE FROM loom_scoped_memory WHERE session_id = %s", session),
            artifacts=await _gone(connection, "DELETE FROM loom_artifacts WHERE run_id = ANY(%s)", runs),
            effects=await _gone(
                connection, "DELETE FROM loom_effects WHERE run_id = ANY(%s)", [run for run in runs if ended[run]]
            ),
            effects_left=(await (await connection.execute(_LEFT, (runs,))).fetchone() or (0,))[0],
            runs=tuple(runs),
        )


async def _gone(connection: Connection, sql: str, of: str | Sequence[str]) -> int:
    cursor: Any = await connection.execute(sql.encode(), (of,))
    return int(cursor.rowcount)
