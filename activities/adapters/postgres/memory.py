"""Store and search memories in Postgres.

Each task is stored only once. `loom_memory_tasks` keeps a task's id even after the layers have dropped the task's
content. Transactions for the same session are serialized, so that tasks are numbered in order within a run and no task
is stored after `forget`.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, LiteralString

from loom.activities.adapters.postgres.database import Connection, Database
from loom.activities.adapters.postgres.deletion import forget
from loom.activities.adapters.postgres.memory_rows import (
    COLUMNS,
    LOCK,
    OF_OWNER,
    conditions,
    digest,
    filter_values,
    forgotten_as,
    key_text,
    read_memories,
    read_memory,
)
from loom.activities.adapters.postgres.memory_search import Effort, distinct, search
from loom.activities.adapters.postgres.memory_tasks import (
    INSERT_ROWS,
    memory_row,
    owner_of,
    session_of,
    written_rows,
)
from loom.activities.memory.ports import Embedder
from loom.activities.memory.question_vector import PATIENT
from loom.domain.core.tasks import Task
from loom.domain.core.tenants import EVERYBODY, OwnerFilter
from loom.domain.memory.content import is_remembered
from loom.domain.memory.importance import judged_importance
from loom.domain.memory.layers import Forgotten, Hit, Memory, MemorySettings, MemoryStats, Query, View, seen_in
from loom.domain.memory.people import task_owner

_WITHIN: Final = 15.0
_AT_ONCE: Final = 200
_PAGE: Final = 500

_KNOWN: Final = "SELECT id FROM loom_memory_tasks WHERE id = ANY(%s)"
_FORGOTTEN: Final = """
SELECT session, until FROM loom_memory_forgotten WHERE session = ANY(%(sessions)s)
UNION ALL SELECT owner, until FROM loom_person_facts_forgotten WHERE owner = ANY(%(owners)s) AND fact = ''
"""
_LAST: Final = """
SELECT run, coalesce((SELECT ordinal FROM loom_memory_tasks WHERE run_id = run ORDER BY ordinal DESC LIMIT 1), 0)
FROM unnest(%s::text[]) AS run
"""
_STATS: Final = """
SELECT layer, coalesce(model, ''), count(*), count(superseded_by),
    count(*) FILTER (WHERE telling AND layer <> 'L1' AND model IS NULL AND superseded_by IS NULL)
FROM loom_memory WHERE %(session)s::text IS NULL OR session_id = %(session)s GROUP BY 1, 2
"""
_EXPORT: Final = f"""
SELECT {COLUMNS} FROM loom_memory WHERE session_id = %(session)s AND {OF_OWNER} AND id > %(after)s
ORDER BY id LIMIT {_PAGE}
"""  # noqa: S608 - constants
_COUNTS: Final = """
SELECT count(DISTINCT session_id), count(*), (
    SELECT count(*) FROM loom_scoped_memory WHERE %(session)s::text IS NULL OR session_id = %(session)s
)
FROM loom_memory_tasks WHERE %(session)s::text IS NULL OR session_id = %(session)s
"""


class PostgresMemory:
    """A `MemoryStore` that uses Loom's own database. Each session can see its own memories and global memories."""

    def __init__(
        self,
        database: Database,
        *,
        embedder: Embedder | None = None,
        settings: MemorySettings = MemorySettings(),  # noqa: B008 - frozen
        importance: Callable[[Task], float] = judged_importance,
        effort: Effort = Effort(),  # noqa: B008 - frozen
        question_within: float = PATIENT,
    ) -> None:
        """Use the database and the embedder. The caller must close both. Without an embedder, search uses only words.

        If the embedder doesn't return the question's vector within `question_within` seconds, this search uses only
        words, too.
        """
        self._database = database
        self._embedder = embedder
        self._settings = settings
        self._importance = importance
        self._effort = effort
        self._question_within = question_within

    async def remember(self, tasks: Sequence[Task]) -> int:
        """See the port."""
        once = tuple({task.task_id: task for task in tasks if is_remembered(task)}.values())
        new = 0
        for start in range(0, len(once), _AT_ONCE):
            async with self._database.transaction(within=_WITHIN) as connection:
                new += await self._take_in(connection, once[start : start + _AT_ONCE])
        return new

    async def missing(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            return await _missing(connection, [task for task in tasks if is_remembered(task)])

    async def recall(self, query: Query) -> tuple[Hit, ...]:
        """See the port. A question without words returns the newest memories."""
        if not query.text.strip():
            return await self.recent(query.view)
        return await search(
            self._database, self._embedder, self._settings, self._effort, query, within=self._question_within
        )

    async def recent(self, view: View) -> tuple[Hit, ...]:
        """See the port."""
        return await self._listed(view, "created_at DESC, id DESC")

    async def important(self, view: View) -> tuple[Hit, ...]:
        """See the port."""
        return await self._listed(view, "importance DESC, created_at DESC, id DESC")

    async def by_action(self, view: View, action: str) -> tuple[Hit, ...]:
        """See the port."""
        return await self.recent(replace(view, actions=frozenset({action})))

    async def by_node(self, view: View, node: str) -> tuple[Hit, ...]:
        """See the port."""
        return await self.recent(replace(view, nodes=frozenset({node})))

    async def by_id(self, memory_id: int) -> Memory | None:
        """See the port."""
        sql = f"SELECT {COLUMNS} FROM loom_memory WHERE id = %s"  # noqa: S608
        async with self._database.connection() as connection:
            row = await (await connection.execute(sql, (memory_id,))).fetchone()
        return None if row is None else await read_memory(self._database.cipher, row)

    async def export(self, session_id: str, of: OwnerFilter = EVERYBODY) -> AsyncIterator[Memory]:
        """See the port. With a filter, yield only memories of these owners."""
        last = 0
        while True:
            asked = {"session": key_text(session_id), **filter_values(of), "after": last}
            async with self._database.connection(within=_WITHIN) as connection:
                rows = await (await connection.execute(_EXPORT, asked)).fetchall()
            for row in rows:
                yield await read_memory(self._database.cipher, row)
            if len(rows) < _PAGE:
                return
            last = rows[-1][0]

    async def forget(self, session_id: str, of: OwnerFilter = EVERYBODY) -> Forgotten:
        """See the port. With a filter, delete only the data of these owners."""
        return await forget(self._database, session_id, of)

    async def stats(self, session_id: str | None = None) -> MemoryStats:
        """See the port."""
        asked = {"session": None if session_id is None else key_text(session_id)}
        async with self._database.connection(within=_WITHIN) as connection:
            found = await (await connection.execute(_STATS, asked)).fetchall()
            counted = await (await connection.execute(_COUNTS, asked)).fetchone()
        sessions, tasks, notes = counted or (0, 0, 0)
        return MemoryStats(
            sessions=sessions,
            tasks=tasks,
            layers=_summed((layer, count) for layer, _, count, _, _ in found),
            superseded=sum(row[3] for row in found),
            vectors=_summed((model, count) for _, model, count, _, _ in found if model),
            waiting=sum(row[4] for row in found),
            notes=notes,
        )

    async def _take_in(self, connection: Connection, tasks: Sequence[Task]) -> int:
        """Store the new tasks in the caller's transaction, and number each task within its run."""
        runs = sorted({key_text(task.run_id) for task in tasks})
        sessions = {key_text(session_of(task)) for task in tasks}
        owners = {owner.hex() for task in tasks if (owner := owner_of(task))}
        async with connection.pipeline():
            await connection.execute(LOCK, (sorted(sessions.union(runs, owners)),))
            last = await connection.execute(_LAST, (runs,))
            fresh = await _missing(connection, tasks)
        if not fresh:
            return 0
        numbers: dict[str, int] = dict(await last.fetchall())
        rows = []
        for task in fresh:
            numbers[key_text(task.run_id)] = ordinal = numbers[key_text(task.run_id)] + 1
            importance = self._importance(task)
            rows.append(await memory_row(self._database.cipher, task, ordinal, importance, self._settings))
        await connection.execute(INSERT_ROWS, (written_rows(rows),))
        return len(fresh)

    async def _listed(self, view: View, order: LiteralString) -> tuple[Hit, ...]:
        where, values = conditions(view, self._settings)
        # Fetch twice as many rows as requested. A task and its summary count as one result, and so do repeated texts.
        sql = f"SELECT {COLUMNS} FROM loom_memory WHERE {where} ORDER BY {order} LIMIT 2 * %(limit)s"  # noqa: S608
        async with self._database.connection() as connection:
            rows = await (await connection.execute(sql, values)).fetchall()
        memories = distinct(await read_memories(self._database.cipher, rows))[: view.limit]
        return tuple(Hit(memory=m, layer=seen_in(m.layer, view.layers), score=m.importance) for m in memories)


async def _missing(connection: Connection, tasks: Sequence[Task]) -> tuple[Task, ...]:
    ids = [digest(task.task_id) for task in tasks]
    found = await connection.execute(_KNOWN, (ids,))
    kept_by = [(*forgotten_as(session_of(task), task_owner(task)), owner_of(task)) for task in tasks]
    asked = {
        "sessions": [session for *sessions, _ in kept_by for session in sessions],
        "owners": [owner for *_, owner in kept_by if owner],
    }
    marks = await connection.execute(_FORGOTTEN, asked)
    known = {bytes(row[0]) for row in await found.fetchall()}
    forgotten: dict[bytes, datetime] = {bytes(name): until for name, until in await marks.fetchall()}
    return tuple(
        task
        for task, name, names in zip(tasks, ids, kept_by, strict=True)
        if name not in known and not any(each in forgotten and task.created_at <= forgotten[each] for each in names)
    )


def _summed(counted: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for name, count in counted:
        total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))
