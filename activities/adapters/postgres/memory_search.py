"""Search memory by words and by meaning, and combine both searches.

The search by meaning first compares sketches. A sketch contains a vector's first components in half precision. Only the
nearest memories are then compared by their full vectors. The size of the view determines which of two indexes is used.
The first index contains the sketches and every filter column, and the search scans the whole view. The second index is
a graph of neighbors, which returns the nearest of all memories. The search then drops memories outside the view. If too
few memories remain, the whole view is scanned instead.

The search by words (`word_search`) reads only some of the rows of a large view. If a word occurs in a large share of
all rows, the word is used only to rank the rows that rarer words have selected. If there are no rarer words, a row must
contain several of these common words.

Statements are sent together unless one statement depends on the result of another.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, LiteralString

from loom.activities.adapters.postgres.database import Connection, Database
from loom.activities.adapters.postgres.memory_rows import (
    COLUMNS,
    SKETCHED,
    as_sketch,
    as_vector,
    conditions,
    hidden_name,
    read_memories,
)
from loom.activities.adapters.postgres.word_search import AskedWord, asked_words, joined, word_values, words_sql
from loom.activities.encryption import Cipher
from loom.activities.memory.ports import Embedder
from loom.activities.memory.question_vector import question_vector
from loom.domain.memory.blended_search import NEAREST, blended
from loom.domain.memory.content import fingerprint
from loom.domain.memory.layers import WHOLE, Hit, Memory, MemorySettings, Query, seen_in

if TYPE_CHECKING:
    from psycopg import AsyncCursor


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """Limits on the number of rows that are examined before ranking."""

    nearest: int = 100
    """Number of rows that are compared by their full vectors. If the sketches are shorter than the vectors, three times
    as many rows are compared.
    """
    few: int = 2_000
    """Maximum number of rows in a small view. In a small view, every word may select rows, and the rarity of a word is
    measured within the view.
    """
    most_matches: int = 4_000
    """Number of rows that words may select for a larger view. Filters are applied after this selection, because the
    word index doesn't support them.
    """
    most_ranked: int = 1_000
    """For a larger view, words may select about this number of rows within the view."""
    step: float = 40.0
    """Cost of one neighbor in the graph, relative to the cost of one sketch in a sequential scan. An infinite cost
    disables the graph.
    """


_NEWEST: Final = 300
"""If too many rows contain all of the words, only this number of the newest rows is ranked."""
_LEAST_ASKED: Final = 200
_MOST_ASKED: Final = 1_000
"""Minimum and maximum number of neighbors to request from the graph. Smaller requests are less reliable, and the graph
never returns more than the maximum.
"""
_SPARE: Final = 1.5
"""For each requested memory, the graph is expected to return this number of neighbors within the view."""

_SCATTERED: Final = 2.5
"""Relative cost of a row in a view of all sessions. The cost is higher because the index is ordered by session."""

_BEGUN: Final = """
SELECT reltuples::float8, set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true),
    set_config('enable_seqscan', 'off', true) FROM pg_class WHERE oid = 'loom_memory'::regclass
"""
"""Turns off JIT compilation and parallel workers, because starting them takes longer than the search."""
_GRAPH: Final = "SELECT set_config('enable_sort', %s, true), set_config('hnsw.ef_search', %s, true)"
"""Turns sorting on or off. Without sorting, only the graph can return memories in order."""
_OFTEN: Final = """
SELECT asked, is_stem, least(1, sum(often)) * reltuples FROM pg_class, pg_stats,
    unnest(most_common_elems::text::text[], most_common_elem_freqs) AS common (word, often),
    unnest(%s::text[], %s::boolean[]) AS question (asked, is_stem)
WHERE pg_class.oid = 'loom_memory'::regclass AND schemaname = current_schema() AND tablename = 'loom_memory'
    AND attname = 'lexemes' AND CASE WHEN is_stem THEN starts_with(word, asked) ELSE word = asked END
GROUP BY asked, is_stem, reltuples
"""
"""Selects the number of rows that contained each common word at the time of the last ANALYZE."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _ViewEstimate:
    """A view's SQL conditions and its expected size."""

    where: LiteralString
    values: Mapping[str, Any]
    effort: Effort
    rows: float
    """Number of rows in the view."""
    all_rows: float
    often: Mapping[AskedWord, float]
    """Maps each common word to the number of rows in the whole table that contain the word. Rare words are missing."""

    @property
    def rarity(self) -> float:
        """The ratio of the table's rows to the view's rows."""
        return self.all_rows / max(1.0, self.rows)


async def search(
    database: Database,
    embedder: Embedder | None,
    settings: MemorySettings,
    effort: Effort,
    query: Query,
    *,
    within: float,
) -> tuple[Hit, ...]:
    """Return the best hits for a question, best first. `within` is the number of seconds to wait for the question's
    vector.
    """
    vector = await question_vector(embedder, query.text, within)
    where, values = conditions(query.view, settings)
    values |= {"depth": max(NEAREST, 4 * query.view.limit)}
    async with database.connection() as connection, connection.pipeline(), connection.transaction():
        words = await _hidden(database.cipher, await asked_words(connection, query.text))
        look = await _planned(connection, where, values, words, effort)
        found = await _asked_by_words(connection, look, words)
        near: dict[int, float] | None = None
        if embedder is not None and vector is not None:
            near = await _by_meaning(connection, look, embedder.model, vector)
        worded: dict[int, float] = {} if found is None else {row[0]: row[1] for row in await found.fetchall()}
        scores = blended(worded, near)
        similar = near or {}
        telling = [name for name in scores if name in worded or similar[name] >= query.threshold]
        rows = await _read(connection, telling[: 3 * query.view.limit])
    memories = await read_memories(database.cipher, rows)
    return tuple(
        Hit(memory=m, layer=seen_in(m.layer, query.view.layers), score=scores[m.id], similarity=similar.get(m.id))
        for m in distinct(memories)[: query.view.limit]
    )


def distinct(memories: Iterable[Memory]) -> list[Memory]:
    """Remove duplicates and keep the order. A duplicate is either a repeated text or the summary of a task that is also
    in the list.
    """
    given = list(memories)
    whole = {m.task_id for m in given if m.layer in WHOLE}
    seen: set[bytes] = set()
    kept = []
    for memory in given:
        said = fingerprint(memory.content)
        if said not in seen and (memory.layer in WHOLE or memory.task_id not in whole):
            seen.add(said)
            kept.append(memory)
    return kept


async def _planned(
    connection: Connection, where: LiteralString, values: Mapping[str, Any], words: Sequence[AskedWord], effort: Effort
) -> _ViewEstimate:
    every = await connection.execute(_BEGUN)
    view = await connection.execute(f"EXPLAIN (FORMAT JSON) SELECT FROM loom_memory WHERE {where}", values)
    often = await connection.execute(_OFTEN, ([word.text for word in words], [word.is_stem for word in words]))
    return _ViewEstimate(
        where=where,
        values=values,
        effort=effort,
        rows=_planned_rows(await view.fetchone()),
        all_rows=(await every.fetchone() or (0.0,))[0],
        often={AskedWord(text=text, is_stem=is_stem): rows for text, is_stem, rows in await often.fetchall()},
    )


async def _by_meaning(
    connection: Connection, look: _ViewEstimate, model: str, vector: Sequence[float]
) -> dict[int, float]:
    """Map memory ids to cosine similarities. The nearest memory comes first."""
    given = {
        **look.values,
        "vector": as_vector(vector),
        "sketch": as_sketch(vector),
        "model": model,
        "dimension": len(vector),
        "nearest": max(look.values["depth"], look.effort.nearest * (1 if len(vector) <= SKETCHED else 3)),
    }
    asked_for = max(_LEAST_ASKED, _SPARE * given["depth"] * look.rarity)
    to_read = look.rows if look.values["places"] else _SCATTERED * look.rows
    if asked_for <= _MOST_ASKED and look.effort.step * asked_for < to_read:
        await connection.execute(_GRAPH, ("off", str(round(asked_for))))
        near = await _nearest(connection, look.where, given, "sketch <#> %(sketch)s::halfvec")
        if len(near) == given["depth"]:
            return near
        await connection.execute(_GRAPH, ("on", str(_LEAST_ASKED)))
    return await _nearest(
        connection, look.where, given, "(sketch <#> %(sketch)s::halfvec) + 0"
    )  # the rows aren't in index order


async def _nearest(
    connection: Connection, where: LiteralString, given: Mapping[str, Any], order: LiteralString
) -> dict[int, float]:
    sql = f"""
        WITH near AS MATERIALIZED (
            SELECT id FROM loom_memory WHERE {where} AND model = %(model)s AND dimension = %(dimension)s
            ORDER BY {order} LIMIT %(nearest)s
        )
        SELECT id, 1 - (embedding <=> %(vector)s::vector) FROM near JOIN loom_memory_vectors USING (id)
        ORDER BY embedding <=> %(vector)s::vector LIMIT %(depth)s
        """  # noqa: S608
    return dict(await (await connection.execute(sql, given)).fetchall())


async def _asked_by_words(
    connection: Connection, look: _ViewEstimate, words: Sequence[AskedWord]
) -> "AsyncCursor[Any] | None":
    """Query the ids and shares of rows that contain any of the words. The best row comes first."""
    if not words:
        return None
    effort = look.effort
    all_rows, often = (look.all_rows, look.often) if look.rows > effort.few else (0.0, {})
    most = min(effort.most_matches, effort.most_ranked * look.rarity)
    selecting, is_cut = _selecting(look, words, most) if all_rows else (joined(words, " | "), False)
    given = {**look.values, **word_values(words, often, all_rows)}
    given["words"] = selecting
    given["newest"] = min(effort.most_matches, _NEWEST)
    sql = words_sql("loom_memory", look.where, len(words), newest=is_cut, is_counted=not all_rows)
    return await connection.execute(sql, given)


def _selecting(look: _ViewEstimate, words: Sequence[AskedWord], most: float) -> tuple[str, bool]:
    """Return a tsquery with the words that select rows, and whether the query still selects too many rows.

    A single rare word is enough to select a row. If even the rarest word is common, a row must also contain the next
    rarest words, because a row with several of these words ranks higher than a row with only one.
    """
    rarest_first = sorted(words, key=lambda word: look.often.get(word, 0.0))
    rows = [look.often.get(word, 0.0) for word in rarest_first]
    if rows[0] <= most:
        enough = bisect_right(list(accumulate(rows)), most)
        return joined(rarest_first[:enough], " | "), False
    together = list(accumulate(rows, lambda before, one: before * one / look.all_rows))
    needed = next((count for count, expected in enumerate(together, 1) if expected <= most), len(rows))
    return joined(rarest_first[:needed], " & "), together[-1] > most


def _planned_rows(row: Any) -> float:
    plan = row[0] if not isinstance(row[0], str) else json.loads(row[0])
    return float(plan[0]["Plan"]["Plan Rows"])


async def _hidden(cipher: Cipher, words: Sequence[AskedWord]) -> list[AskedWord]:
    """Return the words as the index has them: with encryption, hidden."""
    if not cipher.is_on:
        return list(words)
    names = [hidden_name(word.text, is_stem=word.is_stem) for word in words]
    return [AskedWord(text=hidden) for hidden in await cipher.hidden_words(names)]


async def _read(connection: Connection, ids: Sequence[int]) -> list[Any]:
    sql = f"SELECT {COLUMNS} FROM loom_memory WHERE id = ANY(%s)"  # noqa: S608
    rows = await (await connection.execute(sql, (list(ids),))).fetchall()
    by_id = {row[0]: row for row in rows}
    return [by_id[name] for name in ids if name in by_id]
