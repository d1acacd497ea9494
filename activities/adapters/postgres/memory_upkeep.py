"""Keep the memory layers in Postgres within their limits.

Each operation is a single transaction, and its condition is part of the statement. Concurrent or interrupted operations
therefore have the same result as a single operation.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, LiteralString, TypeVar

import structlog

from loom.activities.adapters.postgres.database import Connection, Database
from loom.activities.adapters.postgres.memory_rows import (
    LOCK,
    MEMORY,
    TOLD_FORM,
    as_sketch,
    as_vector,
    hidden_fingerprint,
    hidden_tsvector,
    is_vector,
    read_due,
    read_each,
    read_task,
)
from loom.activities.memory.ports import Due
from loom.domain.memory.content import SHORT, columns, is_trivial, says_the_same, told_text
from loom.domain.memory.layers import MemorySettings

T = TypeVar("T")

_log = structlog.get_logger("loom.memory")

_WITHIN: Final = 60.0
TEXTS: Final = 10
"""A person's texts in a run are summarized before they leave L2 if there are so many of them."""
_CANDIDATES: Final = 20
"""Number of nearest neighbors to check for duplicates."""

_DUE: Final = """
WITH important AS (
    SELECT id, run_id, content, task, created_at, summarised_at,
        row_number() OVER (PARTITION BY session_id, place, node ORDER BY created_at DESC, id DESC) AS rank,
        user_id <> '' AND action IN ('node.start', 'node.message') AS is_said
    FROM loom_memory WHERE layer = 'L2'
),
waiting AS (
    SELECT *, rank > %(important)s OR created_at < now() - %(important_for)s OR EXISTS (
        SELECT FROM loom_memory_tasks AS ended
        WHERE ended.run_id = important.run_id AND ended.action IN ('node.complete', 'node.error')
    ) AS is_due
    FROM important WHERE summarised_at IS NULL
),
together AS (
    SELECT *, bool_or(is_due) OVER texts OR count(*) OVER texts >= %(texts)s AS are_due
    FROM waiting WINDOW texts AS (PARTITION BY run_id, is_said)
)
SELECT id, content, task FROM together WHERE is_due OR is_said AND are_due ORDER BY id LIMIT %(limit)s
"""
"""What a person says in a run becomes due together, so that one model call reads all of it."""
_CLAIM: Final = """
UPDATE loom_memory SET summarised_at = clock_timestamp()
WHERE id = %s AND layer = 'L2' AND summarised_at IS NULL RETURNING session_id
"""
_SUPERSEDE_SAME: Final = """
UPDATE loom_memory SET valid_to = clock_timestamp(), superseded_by = %(new)s
WHERE (session_id, place) = (SELECT session_id, place FROM loom_memory WHERE id = %(source)s)
    AND fingerprint = %(fingerprint)s AND layer IN ('L3', 'L4') AND superseded_by IS NULL
"""
_INSERT_FACT: Final = """
INSERT INTO loom_memory (
    id, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer,
    scope, importance, content, fingerprint, lexemes, length, telling, told_form, created_at,
    tenant, user_id
)
SELECT %(new)s, place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status,
    'L3', scope, importance, %(content)s, %(fingerprint)s, %(lexemes)s::tsvector, %(length)s, %(telling)s,
    %(told_form)s, created_at, tenant, user_id
FROM loom_memory WHERE id = %(source)s
"""
_EXPIRE_RECENT: Final = """
WITH whole AS (
    SELECT id, layer, created_at,
        row_number() OVER (PARTITION BY session_id, place, node ORDER BY created_at DESC, id DESC) AS rank
    FROM loom_memory WHERE layer IN ('L1', 'L2')
)
DELETE FROM loom_memory USING whole
WHERE loom_memory.id = whole.id AND whole.layer = 'L1' AND loom_memory.layer = 'L1'
    AND (whole.rank > %(recent)s OR whole.created_at < now() - %(recent_for)s)
"""
_EXPIRE_IMPORTANT: Final = """
WITH important AS (
    SELECT id, created_at,
        row_number() OVER (PARTITION BY session_id, place, node ORDER BY created_at DESC, id DESC) AS rank
    FROM loom_memory WHERE layer = 'L2'
)
DELETE FROM loom_memory USING important
WHERE loom_memory.id = important.id AND loom_memory.summarised_at IS NOT NULL
    AND (important.rank > %(important)s OR important.created_at < now() - %(important_for)s)
"""
_ARCHIVE: Final = """
WITH summary AS (
    SELECT id, created_at,
        row_number() OVER (PARTITION BY session_id, place, node ORDER BY created_at DESC, id DESC) AS rank
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
_SAME_TASK: Final = f"""
SELECT due.id, other.content, embedding::real[] FROM loom_memory AS due
JOIN loom_memory AS other ON other.task_id = due.task_id AND other.id <> due.id
JOIN loom_memory_vectors AS vectors ON vectors.id = other.id
WHERE due.id = ANY(%(ids)s) AND (other.model, other.dimension) = (%(model)s, %(dimension)s)
    AND other.told_form = {TOLD_FORM}
"""  # noqa: S608 - a constant
"""Selects the vectors of other memories of the same tasks. The summary of a short text is the text itself."""
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
_DELETE: Final = "DELETE FROM loom_memory WHERE id = ANY(%s)"


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
        cipher = self._database.cipher

        async def read(row: Any) -> Due:
            name, content, task = row
            return Due(id=name, content=await cipher.open_text(content, MEMORY), task=await read_task(cipher, task))

        return tuple(await self._due(_DUE, limit, read))

    async def summarise(self, memory_id: int, facts: Sequence[str]) -> bool:
        """See the port. A fact that the session already contains is replaced."""
        async with self._database.transaction(within=_WITHIN) as connection:
            found = await connection.execute("SELECT session_id, content FROM loom_memory WHERE id = %s", (memory_id,))
            if (row := await found.fetchone()) is None:
                return False
            await connection.execute(LOCK, ([row[0]],))
            if await (await connection.execute(_CLAIM, (memory_id,))).fetchone() is None:
                return False
            tenant = await self._database.cipher.owner(row[1])
            for fact in facts:
                await self._add_fact(connection, memory_id, fact, tenant)
        return True

    async def expire(self) -> int:
        """See the port."""
        return await self._changed(_EXPIRE_RECENT) + await self._changed(_EXPIRE_IMPORTANT)

    async def archive(self) -> int:
        """See the port."""
        return await self._changed(_ARCHIVE)

    async def due_for_vector(self, limit: int, *, other_models: bool = False) -> tuple[Due, ...]:
        """See the port."""
        rows = await self._due(_OTHER_VECTOR if other_models else _WITHOUT_VECTOR, limit, self._opened)
        if not rows and not other_models:
            rows = await self._in_an_old_form(limit)
        due = {name: _line(told_text(content, is_summary_of_old=is_old)) for name, content, is_old in rows}
        known = await self._known_vectors(due) if due else {}
        return tuple(Due(id=name, content=content, vector=known.get(name)) for name, content in due.items())

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

    async def _add_fact(self, connection: Connection, source: int, fact: str, tenant: str) -> None:
        number = "SELECT nextval(pg_get_serial_sequence('loom_memory', 'id'))"
        row = await (await connection.execute(number)).fetchone()
        cipher = self._database.cipher
        lexemes, length = await hidden_tsvector(cipher, fact)
        values = {
            "new": row[0] if row else None,
            "source": source,
            "content": await cipher.seal_text(fact, MEMORY, tenant),
            "fingerprint": await hidden_fingerprint(cipher, fact),
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
        cipher = self._database.cipher

        async def read(row: Any) -> tuple[Any, ...]:
            other, other_at, other_sealed, at, sealed = row
            other_says, says = await cipher.open_text(other_sealed, MEMORY), await cipher.open_text(sealed, MEMORY)
            return other, other_at, other_says, at, says

        near, _ = await read_each(await (await connection.execute(_NEAR, asked)).fetchall(), read)
        for other, other_at, other_says, at, says in near:
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

    async def _known_vectors(self, due: Mapping[int, str]) -> dict[int, Sequence[float]]:
        """Return the vectors of texts that have already been embedded for another memory of the same task."""
        asked = {"ids": list(due), "model": self._model, "dimension": self._dimension}
        async with self._database.connection(within=_WITHIN) as connection:
            rows = await (await connection.execute(_SAME_TASK, asked)).fetchall()
        known, _ = await read_each(rows, self._opened)
        return {name: vector for name, content, vector in known if _line(told_text(content)) == due[name]}

    async def _in_an_old_form(self, limit: int) -> list[Any]:
        """Return rows whose text an earlier release embedded in another form, or was too short for it."""
        while rows := await self._due(_OLD_FORM, limit, self._opened):
            trivial = [name for name, content, _ in rows if is_trivial(content, self._settings.trivial_below)]
            async with self._database.connection(within=_WITHIN) as connection:
                await connection.execute(_SETTLE, (TOLD_FORM, trivial))
            if len(trivial) < len(rows):
                return [row for row in rows if row[0] not in trivial]
        return []

    async def _opened(self, row: Any) -> tuple[int, str, Any]:
        """Decrypt the content of a row, which is its second column."""
        name, content, last = row
        return name, await self._database.cipher.open_text(content, MEMORY), last

    async def _due(self, sql: LiteralString, limit: int, read: Callable[[Any], Awaitable[T]]) -> list[T]:
        async with self._database.connection(within=_WITHIN) as connection:
            return await read_due(connection, sql, self._values(limit), read, delete=_DELETE)

    async def _changed(self, sql: LiteralString) -> int:
        async with self._database.connection(within=_WITHIN) as connection:
            return (await connection.execute(sql, self._values(0))).rowcount

    def _values(self, limit: int) -> dict[str, Any]:
        kept = self._settings
        named = ("recent", "recent_for", "important", "important_for", "summaries", "summaries_for")
        return {name: getattr(kept, name) for name in named} | {
            "model": self._model,
            "dimension": self._dimension,
            "texts": TEXTS,
            "limit": limit,
        }


def _line(text: str) -> str:
    """Return the text on one line, as in a summary, so that a text and its summary share a vector."""
    return " ".join(text.split())
