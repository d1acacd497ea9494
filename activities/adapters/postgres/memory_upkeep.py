"""Keep the memory layers in Postgres within their limits.

Each operation is a single transaction, and its condition is part of the statement. Concurrent or interrupted operations
therefore have the same result as a single operation.
"""

from collections.abc import Sequence
from typing import Any, Final, LiteralString

import structlog

from loom.activities.adapters.postgres.database import Connection, Database
from loom.activities.adapters.postgres.memory_rows import (
    LOCK,
    TOLD_FORM,
    as_sketch,
    as_tsvector,
    as_vector,
    is_vector,
    read_task,
)
from loom.activities.memory.ports import Due
from loom.domain.memory.content import SHORT, columns, fingerprint, is_trivial, says_the_same, told_text
from loom.domain.memory.layers import MemorySettings

_log = structlog.get_logger("loom.memory")

_WITHIN: Final = 60.0
_CANDIDATES: Final = 20
"""Number of nearest neighbors to check for duplicates."""

_DUE: Final = """
WITH important AS (
    SELECT id, run_id, content, task, created_at, summarised_at,
        row_number() OVER (PARTITION BY session_id, node ORDER BY created_at DESC, id DESC) AS rank
    FROM loom_memory WHERE layer = 'L2'
)
SELECT id, content, task FROM important
WHERE summarised_at IS NULL AND (rank > %(important)s OR created_at < now() - %(important_for)s OR EXISTS (
    SELECT FROM loom_memory_tasks AS ended
    WHERE ended.run_id = important.run_id AND ended.action IN ('node.complete', 'node.error')
))
ORDER BY id LIMIT %(limit)s
"""
_CLAIM: Final = """
UPDATE loom_memory SET summarised_at = clock_timestamp()
WHERE id = %s AND layer = 'L2' AND summarised_at IS NULL RETURNING session_id
"""
_SUPERSEDE_SAME: Final = """
UPDATE loom_memory SET valid_to = clock_timestamp(), superseded_by = %(new)s
WHERE session_id = %(session)s AND fingerprint = %(fingerprint)s AND layer IN ('L3', 'L4') AND superseded_by IS NULL
"""
_INSERT_FACT: Final = """
INSERT INTO loom_memory (
    id, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer,
    scope, importance, content, fingerprint, lexemes, length, telling, told_form, created_at
)
SELECT %(new)s, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status,
    'L3', scope, importance, %(content)s, %(fingerprint)s, %(lexemes)s::tsvector, %(length)s, %(telling)s,
    %(told_form)s, created_at
FROM loom_memory WHERE id = %(source)s
"""
_EXPIRE_RECENT: Final = """
WITH whole AS (
    SELECT id, layer, created_at,
        row_number() OVER (PARTITION BY session_id, node ORDER BY created_at DESC, id DESC) AS rank
    FROM loom_memory WHERE layer IN ('L1', 'L2')
)
DELETE FROM loom_memory USING whole
WHERE loom_memory.id = whole.id AND whole.layer = 'L1' AND loom_memory.layer = 'L1'
    AND (whole.rank > %(recent)s OR whole.created_at < now() - %(recent_for)s)
"""
_EXPIRE_IMPORTANT: Final = """
WITH important AS (
    SELECT id, created_at, row_number() OVER (PARTITION BY session_id, node ORDER BY created_at DESC, id DESC) AS rank
    FROM loom_memory WHERE layer = 'L2'
)
DELETE FROM loom_memory USING important
WHERE loom_memory.id = important.id AND loom_memory.summarised_at IS NOT NULL
    AND (important.rank > %(important)s OR important.created_at < now() - %(important_for)s)
"""
_ARCHIVE: Final = """
WITH summary AS (
    SELECT id, created_at, row_number() OVER (PARTITION BY session_id, node ORDER BY created_at DESC, id DESC) AS rank
    FROM loom_memory WHERE layer = 'L3' AND superseded_by IS NULL
)
UPDATE loom_memory SET layer = 'L4' FROM summary
WHERE loom_memory.id = summary.id AND loom_memory.layer = 'L3'
    AND (summary.rank > %(summaries)s OR summary.created_at < now() - %(summaries_for)s)
"""
_OLD_FORM: Final = f"""
SELECT id, content, layer IN ('L3', 'L4') FROM loom_memory
WHERE told_form < {TOLD_FORM} AND layer <> 'L1' AND superseded_by IS NULL
    AND (model IS NULL OR (model, dimension) = (%(model)s, %(dimension)s))
ORDER BY id LIMIT %(limit)s
"""  # noqa: S608 - a constant
_SETTLE: Final = """
UPDATE loom_memory SET told_form = %s, telling = false, sketch = NULL, model = NULL, dimension = NULL WHERE id = ANY(%s)
"""
_WITHOUT_VECTOR: Final = """
SELECT id, content, false FROM loom_memory
WHERE model IS NULL AND telling AND layer <> 'L1' AND superseded_by IS NULL ORDER BY id LIMIT %(limit)s
"""
_OTHER_VECTOR: Final = """
SELECT id, content, told_form = 0 AND layer IN ('L3', 'L4') FROM loom_memory
WHERE model IS NOT NULL AND (model, dimension) <> (%(model)s, %(dimension)s) AND telling AND superseded_by IS NULL
ORDER BY id LIMIT %(limit)s
"""
_KEEP: Final = """
WITH kept AS (
    UPDATE loom_memory SET sketch = %(sketch)s::halfvec, model = %(model)s, dimension = %(dimension)s,
        telling = true, told_form = %(told_form)s
    WHERE id = %(id)s RETURNING id
)
INSERT INTO loom_memory_vectors (id, embedding) SELECT id, %(vector)s::vector FROM kept
ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding
"""
_NEAR: Final = """
WITH one AS MATERIALIZED (
    SELECT * FROM loom_memory JOIN loom_memory_vectors USING (id)
    WHERE id = %(id)s AND layer IN ('L3', 'L4') AND superseded_by IS NULL
),
near AS MATERIALIZED (
    SELECT m.id FROM loom_memory AS m, one
    WHERE m.place = one.place AND m.model = one.model AND m.dimension = one.dimension AND m.layer IN ('L3', 'L4')
        AND m.superseded_by IS NULL AND m.id <> one.id
    ORDER BY m.sketch <#> one.sketch LIMIT %(candidates)s
)
SELECT m.id, m.created_at, m.content, one.created_at, one.content
FROM near JOIN loom_memory AS m USING (id) JOIN loom_memory_vectors AS v USING (id), one
WHERE m.session_id = one.session_id AND 1 - (v.embedding <=> one.embedding) >= %(same_from)s
"""
_SUPERSEDE: Final = """
UPDATE loom_memory SET valid_to = clock_timestamp(), superseded_by = %s WHERE id = %s AND superseded_by IS NULL
"""


class PostgresMemoryUpkeep:
    """A `MemoryUpkeepStore` that uses Loom's own database. It stores the vectors of one model."""

    def __init__(
        self,
        database: Database,
        *,
        model: str = "",
        dimension: int = 0,
        settings: MemorySettings = MemorySettings(),  # noqa: B008 - frozen
    ) -> None:
        """Use the database. `model` and `dimension` describe the vectors to store."""
        self._database = database
        self._model = model
        self._dimension = dimension
        self._settings = settings

    async def due_for_summary(self, limit: int) -> tuple[Due, ...]:
        """See the port."""
        rows = await self._rows(_DUE, limit)
        return tuple(Due(id=name, content=content, task=read_task(task)) for name, content, task in rows)

    async def summarise(self, memory_id: int, facts: Sequence[str]) -> bool:
        """See the port. A fact that the session already contains is replaced."""
        async with self._database.transaction(within=_WITHIN) as connection:
            found = await connection.execute("SELECT session_id FROM loom_memory WHERE id = %s", (memory_id,))
            if (row := await found.fetchone()) is None:
                return False
            await connection.execute(LOCK, ([row[0]],))
            if await (await connection.execute(_CLAIM, (memory_id,))).fetchone() is None:
                return False
            for fact in facts:
                await self._add_fact(connection, memory_id, row[0], fact)
        return True

    async def expire(self) -> int:
        """See the port."""
        return await self._changed(_EXPIRE_RECENT) + await self._changed(_EXPIRE_IMPORTANT)

    async def archive(self) -> int:
        """See the port."""
        return await self._changed(_ARCHIVE)

    async def due_for_vector(self, limit: int, *, other_models: bool = False) -> tuple[Due, ...]:
        """See the port."""
        rows = await self._rows(_OTHER_VECTOR if other_models else _WITHOUT_VECTOR, limit)
        if not rows and not other_models:
            rows = await self._in_an_old_form(limit)
        return tuple(
            Due(id=name, content=told_text(content, is_summary_of_old=is_old)) for name, content, is_old in rows
        )

    async def keep_vectors(self, vectors: Sequence[tuple[int, Sequence[float]]]) -> int:
        """See the port. An invalid vector is dropped, so its memory can be found only by words."""
        good = {name: vector for name, vector in vectors if is_vector(vector, self._dimension)}
        bad = [name for name, _ in vectors if name not in good]
        if bad:
            _log.error("vectors_dropped", model=self._model, memories=bad)
        async with self._database.transaction(within=_WITHIN) as connection:
            where = "SELECT DISTINCT session_id FROM loom_memory WHERE id = ANY(%s)"
            sessions = await (await connection.execute(where, (list(good),))).fetchall()
            await connection.execute(LOCK, (sorted(row[0] for row in sessions),))
            cursor = connection.cursor()
            await cursor.execute(_SETTLE, (TOLD_FORM, bad))
            await cursor.executemany(_KEEP, [self._kept(name, vector) for name, vector in good.items()])
            for name in sorted(good):
                await self._supersede_same(connection, name)
        return len(good)

    async def _add_fact(self, connection: Connection, source: int, session: str, fact: str) -> None:
        number = "SELECT nextval(pg_get_serial_sequence('loom_memory', 'id'))"
        row = await (await connection.execute(number)).fetchone()
        lexemes, length = as_tsvector(fact)
        values = {
            "new": row[0] if row else None,
            "source": source,
            "session": session,
            "content": fact,
            "fingerprint": fingerprint(fact),
            "lexemes": lexemes,
            "length": length,
            "telling": not is_trivial(fact, self._settings.trivial_below),
            "told_form": TOLD_FORM,
        }
        await connection.execute(_SUPERSEDE_SAME, values)
        await connection.execute(_INSERT_FACT, values)

    async def _supersede_same(self, connection: Connection, name: int) -> None:
        """If a session contains two equal facts, keep the later fact."""
        asked = {"id": name, "candidates": _CANDIDATES, "same_from": self._settings.same_from}
        for other, other_at, other_says, at, says in await (await connection.execute(_NEAR, asked)).fetchall():
            if min(columns(says), columns(other_says)) < SHORT or not says_the_same(says, other_says):
                continue
            if (other_at, other) > (at, name):
                await connection.execute(_SUPERSEDE, (other, name))
                return
            await connection.execute(_SUPERSEDE, (name, other))

    def _kept(self, name: int, vector: Sequence[float]) -> dict[str, Any]:
        return {
            "id": name,
            "vector": as_vector(vector),
            "sketch": as_sketch(vector),
            "model": self._model,
            "dimension": self._dimension,
            "told_form": TOLD_FORM,
        }

    async def _in_an_old_form(self, limit: int) -> list[Any]:
        """Return rows whose text an earlier release embedded in another form, or was too short for it."""
        while rows := await self._rows(_OLD_FORM, limit):
            trivial = [name for name, content, _ in rows if is_trivial(content, self._settings.trivial_below)]
            async with self._database.connection(within=_WITHIN) as connection:
                await connection.execute(_SETTLE, (TOLD_FORM, trivial))
            if len(trivial) < len(rows):
                return [row for row in rows if row[0] not in trivial]
        return []

    async def _rows(self, sql: LiteralString, limit: int) -> list[Any]:
        async with self._database.connection(within=_WITHIN) as connection:
            return await (await connection.execute(sql, self._values(limit))).fetchall()

    async def _changed(self, sql: LiteralString) -> int:
        async with self._database.connection(within=_WITHIN) as connection:
            return (await connection.execute(sql, self._values(0))).rowcount

    def _values(self, limit: int) -> dict[str, Any]:
        kept = self._settings
        named = ("recent", "recent_for", "important", "important_for", "summaries", "summaries_for")
        return {name: getattr(kept, name) for name in named} | {
            "model": self._model,
            "dimension": self._dimension,
            "limit": limit,
        }
