"""Delete a session's memories and notes, and the data that its runs stored in other tables.

Effects of a run that is still running are kept, because the run would repeat them without the ledger. Payloads are kept
too, because histories contain references to them and runs in several sessions can share a payload.
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
"""Selects the session's runs, including sub-agents. For each run, a second column states whether the run has ended.
Runs that also have tasks in another session are excluded.
"""
_PERSON_FACTS: Final = "DELETE FROM loom_person_facts WHERE session_id = %s AND source <> 'added'"
"""Deletes what people said about themselves in the session. Facts that somebody wrote down have no session."""
_LEFT: Final = "SELECT count(*) FROM loom_effects WHERE run_id = ANY(%s)"


async def forget(database: Database, session_id: str) -> Forgotten:
    """Delete the session's data in one transaction. The session's existing tasks are never stored again."""
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
            person_facts=await _gone(connection, _PERSON_FACTS, session),
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
