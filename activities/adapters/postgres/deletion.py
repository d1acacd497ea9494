"""Delete what a session, or a person's runs, have left in memory, and the data that the runs stored in other tables.

Effects of a run that is still running are kept, because the run would repeat them without the ledger. So are its
changes to a clone, without which no other worker can go on. Payloads are kept
too, because histories contain references to them and runs in several sessions can share a payload.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loom.activities.adapters.postgres.database import Connection, Database, storable
from loom.activities.adapters.postgres.memory_rows import (
    LOCK,
    OF_OWNER,
    filter_values,
    key_text,
    owner_digest,
    session_digest,
)
from loom.domain.core.tenants import Owner, OwnerFilter
from loom.domain.memory.layers import Forgotten

_WITHIN: Final = 60.0

_OF_SESSION: Final = f"session_id = %(session)s AND {OF_OWNER}"
_MARK: Final = f"""
INSERT INTO loom_memory_forgotten (session, until)
SELECT %(digest)s, greatest(clock_timestamp(), max(created_at)) FROM loom_memory_tasks WHERE {_OF_SESSION}
ON CONFLICT (session) DO UPDATE SET until = greatest(excluded.until, loom_memory_forgotten.until)
"""  # noqa: S608 - constants
_RUNS: Final = f"""
SELECT run_id, bool_or(action IN ('node.complete', 'node.error')) FROM loom_memory_tasks AS one
WHERE {_OF_SESSION} AND NOT EXISTS (
    SELECT FROM loom_memory_tasks AS other
    WHERE other.run_id = one.run_id AND NOT (other.session_id = %(session)s
        AND (%(tenant)s::text IS NULL OR other.tenant = %(tenant)s)
        AND (%(user_id)s::text IS NULL OR other.user_id = %(user_id)s))
)
GROUP BY run_id ORDER BY run_id
"""  # noqa: S608 - constants
"""Selects the session's runs, including sub-agents. For each run, a second column states whether the run has ended.
Runs that also have tasks in another session, or of another owner, are excluded.
"""
_MEMORIES: Final = f"DELETE FROM loom_memory WHERE {_OF_SESSION} RETURNING id"  # noqa: S608 - constants
_NOTES: Final = f"DELETE FROM loom_scoped_memory WHERE {_OF_SESSION}"  # noqa: S608 - constants
_TASKS: Final = f"DELETE FROM loom_memory_tasks WHERE {_OF_SESSION}"  # noqa: S608 - constants
_PERSON_FACTS: Final = f"DELETE FROM loom_person_facts WHERE {_OF_SESSION} AND source <> 'added'"  # noqa: S608
"""Deletes what people said about themselves in the session. Facts that somebody wrote down have no session."""

_SESSIONS_OF_OWNER: Final = """
SELECT session_id FROM loom_memory_tasks WHERE owner = %(owner)s OR (owner IS NULL AND run_id IN (
    SELECT run_id FROM loom_person_facts WHERE tenant = %(tenant)s AND user_id = %(user_id)s AND run_id <> ''
)) GROUP BY session_id
"""
_CLAIM_OLD: Final = """
UPDATE loom_memory_tasks SET owner = %(owner)s WHERE owner IS NULL AND run_id IN (
    SELECT run_id FROM loom_person_facts WHERE tenant = %(tenant)s AND user_id = %(user_id)s AND run_id <> ''
)
"""
"""Tasks from an earlier release don't name the owner. Their runs are known if a fact was learned in them."""
_MARK_OWNER: Final = """
INSERT INTO loom_person_facts_forgotten AS known (owner, fact, until)
SELECT %(owner)s, '', greatest(clock_timestamp(), max(created_at)) FROM loom_memory_tasks WHERE owner = %(owner)s
ON CONFLICT (owner, fact) DO UPDATE SET until = greatest(excluded.until, known.until)
"""
_RUNS_OF_OWNER: Final = """
SELECT run_id, bool_or(action IN ('node.complete', 'node.error')) FROM loom_memory_tasks AS one
WHERE owner = %(owner)s AND NOT EXISTS (
    SELECT FROM loom_memory_tasks AS other WHERE other.run_id = one.run_id AND other.owner <> one.owner
)
GROUP BY run_id ORDER BY run_id
"""
_MEMORIES_OF_OWNER: Final = """
DELETE FROM loom_memory USING loom_memory_tasks AS task
WHERE task.owner = %(owner)s AND (loom_memory.run_id, loom_memory.ordinal) = (task.run_id, task.ordinal)
RETURNING loom_memory.id
"""
_RESTORE: Final = "UPDATE loom_memory SET superseded_by = NULL, valid_to = NULL WHERE superseded_by = ANY(%s)"
"""Memories of other people's runs become valid again if only a deleted memory replaced them."""
_NOTES_OF_OWNER: Final = """
DELETE FROM loom_scoped_memory WHERE (tenant, user_id) = (%(tenant)s, %(user_id)s)
    OR ((tenant, user_id) = ('', '') AND updated_by = ANY(%(runs)s))
"""
"""Notes that an earlier release stored don't name the owner."""
_UNNAMED: Final = "SELECT EXISTS (SELECT FROM loom_memory_tasks WHERE owner IS NULL)"
_LEFT: Final = "SELECT count(*) FROM loom_effects WHERE run_id = ANY(%s)"


async def forget(database: Database, session_id: str, of: OwnerFilter) -> Forgotten:
    """Delete what these owners' sessions of this name have left, in one transaction. Their existing tasks are never
    stored again.
    """
    values = {"session": key_text(session_id), "digest": session_digest(session_id, of), **filter_values(of)}
    async with database.transaction(within=_WITHIN) as connection:
        await connection.execute(LOCK, ([values["session"]],))
        await connection.execute(_MARK, values)
        ended = dict(await (await connection.execute(_RUNS, values)).fetchall())
        memories = [row[0] for row in await (await connection.execute(_MEMORIES, values)).fetchall()]
        await connection.execute(_RESTORE, (memories,))
        notes = (await connection.execute(_NOTES, values)).rowcount
        facts = (await connection.execute(_PERSON_FACTS, values)).rowcount
        await connection.execute(_TASKS, values)
        of_runs = await _of_runs(connection, ended)
    return Forgotten(memories=len(memories), notes=notes, person_facts=facts, **of_runs)


async def forget_owner(connection: Connection, owner: Owner) -> Forgotten:
    """Delete what the person's runs have left, in any session, in the caller's transaction. Their existing tasks are
    never stored again. The owner and these sessions are locked until the transaction ends.
    """
    name = owner_digest(owner)
    values = {"owner": name, "tenant": storable(owner.tenant), "user_id": storable(owner.user_id)}
    sessions = await (await connection.execute(_SESSIONS_OF_OWNER, values)).fetchall()
    await connection.execute(LOCK, (sorted([name.hex(), *(row[0] for row in sessions)]),))
    await connection.execute(_CLAIM_OLD, values)
    await connection.execute(_MARK_OWNER, values)
    ended = dict(await (await connection.execute(_RUNS_OF_OWNER, values)).fetchall())
    memories = [row[0] for row in await (await connection.execute(_MEMORIES_OF_OWNER, values)).fetchall()]
    await connection.execute(_RESTORE, (memories,))
    await connection.execute("DELETE FROM loom_memory_tasks WHERE owner = %(owner)s", values)
    return Forgotten(
        memories=len(memories),
        notes=(await connection.execute(_NOTES_OF_OWNER, {**values, "runs": list(ended)})).rowcount,
        unnamed=(await (await connection.execute(_UNNAMED)).fetchone() or (False,))[0],
        **await _of_runs(connection, ended),
    )


async def _of_runs(connection: Connection, ended: Mapping[str, bool]) -> dict[str, Any]:
    """Delete what runs stored in other tables. `ended` states for each run whether it has ended."""
    runs, over = list(ended), [run for run in ended if ended[run]]
    await _gone(connection, "DELETE FROM loom_clones WHERE run_id = ANY(%s)", over)
    return {
        "artifacts": await _gone(connection, "DELETE FROM loom_artifacts WHERE run_id = ANY(%s)", runs),
        "effects": await _gone(connection, "DELETE FROM loom_effects WHERE run_id = ANY(%s)", over),
        "effects_left": (await (await connection.execute(_LEFT, (runs,))).fetchone() or (0,))[0],
        "runs": tuple(runs),
    }


async def _gone(connection: Connection, sql: str, of: Sequence[str]) -> int:
    cursor: Any = await connection.execute(sql.encode(), (of,))
    return int(cursor.rowcount)
