"""Searching memory by words and by meaning, and one ranking out of both.

By meaning: a sketch of each vector, its first components in half precision, lies in an index together with everything
that is filtered by. So the nearest few hundred under any filter are found from the index alone, and only these are
compared as vectors.

By words: of the rows that have any of the words, each word counts by how rare it is and how often it is in a row,
saturating, against the row's length: BM25 by what Postgres has. Where the view is large and a word is in a great part
of all rows, that word only ranks what rarer words have found.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import structlog

from activities.adapters.postgres import Connection, Database
from activities.adapters.postgres_memory_rows import COLUMNS, as_sketch, as_vector, conditions, read_memory
from activities.memory.ports import Embedder, EmbedderUnavailable
from loom_domain.lexemes import asked_lexemes
from loom_domain.memory import WHOLE, Hit, Memory, MemorySettings, Query, seen_in
from loom_domain.memory_content import fingerprint
from loom_domain.ranking import fused

_log = structlog.get_logger("loom.memory")


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """How much is looked at before it is ranked."""

    nearest: int = 300
    """Rows that are compared as vectors; a view of no more is searched exactly."""
    few: int = 1_000
    """Rows of a view in which every word may select, and is as rare as it is there."""
    most_matches: int = 6_000
    """Rows that words may select for a larger view, before any filter: the index of words knows of none."""


_DEPTH: Final = 40
"""Ranks of each way of looking that are fused, at least."""

_CALM: Final = """
SELECT set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true),
    set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', %s, true)
"""
"""Compiling and starting workers take longer than the search; what it looks at by meaning is all in one index."""
_OFTEN: Final = """
SELECT '', reltuples::float8 FROM pg_class WHERE oid = 'loom_memory'::regclass
UNION ALL
SELECT word, often * reltuples FROM pg_class, pg_stats,
    unnest(most_common_elems::text::text[], most_common_elem_freqs) AS common (word, often)
WHERE pg_class.oid = 'loom_memory'::regclass AND schemaname = current_schema() AND tablename = 'loom_memory'
    AND attname = 'lexemes' AND word = ANY(%s)
"""
"""Rows that have a word, for the words that many have; under no name: rows at all. As of the last ANALYZE."""


async def search(
    database: Database, embedder: Embedder | None, settings: MemorySettings, effort: Effort, query: Query
) -> tuple[Hit, ...]:
    """The best hits for a question, best first."""
    vector = await _embedded(embedder, query.text)
    where, values = conditions(query.view, settings)
    values |= {"depth": max(_DEPTH, 4 * query.view.limit), "nearest": effort.nearest}
    async with database.transaction() as connection:
        similar: dict[int, float] = {}
        if embedder is not None and vector is not None:
            await connection.execute(_CALM, ("off",))
            found = await _by_meaning(connection, where, values, embedder.model, vector)
            similar = {name: cosine for name, cosine in found.items() if cosine >= query.threshold}
        await connection.execute(_CALM, ("on",))
        by_words = await _by_words(connection, where, values, asked_lexemes(query.text), effort)
        scores = fused([by_words, tuple(similar)] if vector is not None else [by_words])
        memories = await _read(connection, tuple(scores)[: 3 * query.view.limit])
    return tuple(
        Hit(memory=m, layer=seen_in(m.layer, query.view.layers), score=scores[m.id], similarity=similar.get(m.id))
        for m in distinct(memories)[: query.view.limit]
    )


def distinct(memories: Iterable[Memory]) -> list[Memory]:
    """In their order, without what was said before: a text twice, the summary of a Task that is there whole."""
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


async def _embedded(embedder: Embedder | None, text: str) -> Sequence[float] | None:
    if embedder is None:
        return None
    try:
        return (await embedder.embed([text], query=True))[0]
    except EmbedderUnavailable as error:
        _log.warning("memory_searched_by_words_only", error=str(error))
        return None


async def _by_meaning(
    connection: Connection, where: LiteralString, values: dict[str, Any], model: str, vector: Sequence[float]
) -> dict[int, float]:
    """Ids with their cosine, nearest first."""
    sql = f"""
        WITH near AS MATERIALIZED (
            SELECT id FROM loom_memory WHERE {where} AND model = %(model)s AND dimension = %(dimension)s
            ORDER BY sketch <#> %(sketch)s::halfvec LIMIT %(nearest)s
        )
        SELECT id, 1 - (embedding <=> %(vector)s::vector) FROM near JOIN loom_memory_vectors USING (id)
        ORDER BY embedding <=> %(vector)s::vector LIMIT %(depth)s
        """  # noqa: S608
    given = {**values, "vector": as_vector(vector), "sketch": as_sketch(vector), "model": model}
    given["dimension"] = len(vector)
    return dict(await (await connection.execute(sql, given)).fetchall())


async def _by_words(
    connection: Connection, where: LiteralString, values: dict[str, Any], words: Sequence[str], effort: Effort
) -> tuple[int, ...]:
    """Ids of the rows that have any of the words, best first."""
    if not words:
        return ()
    plan = await connection.execute(f"EXPLAIN (FORMAT JSON) SELECT FROM loom_memory WHERE {where}", values)
    often: dict[str, float] = {}
    selecting, is_cut = words, False
    if _planned(await plan.fetchone()) > effort.few:
        often = dict(await (await connection.execute(_OFTEN, (list(words),))).fetchall())
        selecting, is_cut = _selecting(words, often, effort.most_matches)
    given = values | {f"w{number}": f"'{word}'" for number, word in enumerate(words)}
    given |= {f"d{number}": often.get(word, 0.0) for number, word in enumerate(words)}
    given["rows"] = often.get("", 0.0)
    given["words"] = " | ".join(f"'{word}'" for word in selecting)
    given["most"] = effort.most_matches
    cursor = await connection.execute(_words_sql(where, len(words), is_cut=is_cut), given)
    return tuple(row[0] for row in await cursor.fetchall())


_RARITY: Final = """
ln(1 + (greatest(%(rows)s, count(*)) + 0.5) / (greatest(%(d{n})s, count(*) FILTER (WHERE r{n} > 0)) + 0.5)) AS i{n}
"""


def _words_sql(where: LiteralString, count: int, *, is_cut: bool) -> bytes:
    """One column for each word: how much of it a row has."""
    numbers = range(count)
    columns = ", ".join(f"ts_rank('{{1,1,1,1}}', lexemes, %(w{n})s::tsquery) AS r{n}" for n in numbers)
    rarity = ", ".join(_RARITY.format(n=n) for n in numbers)
    score = " + ".join(f"i{n} * r{n} / (r{n} + share)" for n in numbers)
    newest = "ORDER BY created_at DESC LIMIT %(most)s" if is_cut else ""
    return f"""
        WITH matched AS MATERIALIZED (
            SELECT id, length, {columns} FROM loom_memory WHERE {where} AND lexemes @@ %(words)s::tsquery {newest}
        ),
        rarity AS (SELECT greatest(avg(length), 1) AS usual, {rarity} FROM matched),
        weighed AS (SELECT *, 0.7 * (0.25 + 0.75 * length / usual) AS share FROM matched, rarity)
        SELECT id FROM weighed ORDER BY {score} DESC, id DESC LIMIT %(depth)s
        """.encode()  # noqa: S608


def _selecting(words: Sequence[str], often: Mapping[str, float], most: int) -> tuple[Sequence[str], bool]:
    """The words that select rows, and whether even the rarest of them has too many."""
    chosen: list[str] = []
    expected = 0.0
    for word in sorted(words, key=lambda word: often.get(word, 0.0)):
        expected += often.get(word, 0.0)
        if chosen and expected > most:
            break
        chosen.append(word)
    return chosen, often.get(chosen[0], 0.0) > most


def _planned(row: Any) -> float:
    plan = row[0] if not isinstance(row[0], str) else json.loads(row[0])
    return float(plan[0]["Plan"]["Plan Rows"])


async def _read(connection: Connection, ids: Sequence[int]) -> list[Memory]:
    sql = f"SELECT {COLUMNS} FROM loom_memory WHERE id = ANY(%s)"  # noqa: S608
    rows = await (await connection.execute(sql, (list(ids),))).fetchall()
    by_id = {row[0]: row for row in rows}
    return [read_memory(by_id[name]) for name in ids if name in by_id]
