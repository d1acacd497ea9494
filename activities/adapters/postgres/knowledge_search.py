"""Search knowledge bases by words and by meaning, and fuse the two rankings.

The search by words implements BM25 in Postgres. Each word is weighted by its rarity in the searched bases and by its
frequency in a chunk. The frequency saturates and is relative to the chunk's length. The search by meaning compares
every vector. In benchmarks, comparing only the signs of the vector components didn't find the nearest chunks, because
all E5 vectors point in nearly the same direction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any, Final, LiteralString

from loom.activities.adapters.postgres.database import Connection
from loom.activities.adapters.postgres.memory_rows import as_vector
from loom.domain.memory.chunks import Chunk
from loom.domain.memory.knowledge import KnowledgeHit

DEPTH: Final = 40
"""Number of top-ranked chunks to fuse from each search."""
MOST_MATCHES: Final = 5_000
"""Maximum number of chunks that words may select. If a word occurs in more chunks, it is used only to rank the chunks
that rarer words have selected.
"""

_BASES: Final = "(cardinality(%(bases)s::text[]) = 0 OR base = ANY(%(bases)s))"
_SIZE: Final = f"SELECT sum(chunks), sum(length) FROM loom_knowledge_documents WHERE {_BASES}"  # noqa: S608
_OFTEN: Final = f"""
SELECT word, (SELECT count(*) FROM (SELECT FROM loom_knowledge_chunks
    WHERE {_BASES} AND lexemes @@ ('''' || word || '''')::tsquery LIMIT %(most)s) AS few)
FROM unnest(%(words)s::text[]) AS word
"""  # noqa: S608
_NEAR: Final = f"""
SELECT id, 1 - (embedding <=> %(vector)s::vector) FROM loom_knowledge_chunks
WHERE {_BASES} AND model = %(model)s AND dimension = %(dimension)s
ORDER BY embedding <=> %(vector)s::vector, id LIMIT %(depth)s
"""  # noqa: S608
_READ: Final = """
SELECT c.id, c.base, d.path, c.content, c.headings, c.first_line, c.last_line, c.page
FROM loom_knowledge_chunks c JOIN loom_knowledge_documents d ON d.id = c.document WHERE c.id = ANY(%s)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rankings:
    """The results of each search, best first."""

    by_words: Mapping[int, float] = field(default_factory=dict)
    """Maps each chunk's id to the share of the question's words that the chunk contains."""
    by_meaning: Mapping[int, float] = field(default_factory=dict)
    """Maps each chunk's id to the chunk's cosine similarity to the question."""


async def by_meaning(
    connection: Connection, bases: Sequence[str], model: str, vector: Sequence[float], depth: int = DEPTH
) -> dict[int, float]:
    """Map chunk ids to cosine similarities. The nearest chunk comes first."""
    values = {
        "bases": list(bases),
        "vector": as_vector(vector),
        "model": model,
        "dimension": len(vector),
        "depth": depth,
    }
    return dict(await (await connection.execute(_NEAR, values)).fetchall())


async def by_words(
    connection: Connection, bases: Sequence[str], words: Sequence[str], depth: int = DEPTH
) -> dict[int, float]:
    """Map each chunk's id to the share of the words that the chunk contains. The best chunk comes first."""
    values: dict[str, Any] = {"bases": list(bases), "words": list(words), "most": MOST_MATCHES, "depth": depth}
    size = await (await connection.execute(_SIZE, values)).fetchone()
    if not words or size is None or not size[0]:
        return {}
    often: dict[str, int] = dict(await (await connection.execute(_OFTEN, values)).fetchall())
    worth = [log(1 + (size[0] - min(often[word], size[0]) + 0.5) / (often[word] + 0.5)) for word in words]
    values |= {f"w{n}": f"'{word}'" for n, word in enumerate(words)} | {f"i{n}": each for n, each in enumerate(worth)}
    values |= {"usual": max(1.0, float(size[1]) / size[0]), "all": sum(worth)}
    values["selecting"] = " | ".join(f"'{word}'" for word in _selecting(often))
    return dict(await (await connection.execute(_words_sql(len(words)), values)).fetchall())


def _selecting(often: Mapping[str, int]) -> list[str]:
    """Return as many of the rarest words as possible without selecting too many chunks."""
    chosen: list[str] = []
    expected = 0
    for word in sorted(often, key=lambda word: often[word]):
        expected += often[word]
        if chosen and expected > MOST_MATCHES:
            break
        chosen.append(word)
    return chosen


def _words_sql(count: int) -> bytes:
    """Return the SQL for the search. Each word has a column, which increases with the word's frequency in a chunk."""
    numbers = range(count)
    columns = ", ".join(f"ts_rank('{{1,1,1,1}}', lexemes, %(w{n})s::tsquery) AS r{n}" for n in numbers)
    score = " + ".join(f"%(i{n})s * r{n} / (r{n} + share)" for n in numbers)
    covered = " + ".join(f"CASE WHEN r{n} > 0 THEN %(i{n})s ELSE 0 END" for n in numbers)
    return f"""
        WITH matched AS MATERIALIZED (
            SELECT id, 0.7 * (0.25 + 0.75 * length / %(usual)s) AS share, {columns} FROM loom_knowledge_chunks
            WHERE {_BASES} AND lexemes @@ %(selecting)s::tsquery LIMIT %(most)s
        )
        SELECT id, ({covered}) / %(all)s FROM matched ORDER BY {score} DESC, id LIMIT %(depth)s
        """.encode()  # noqa: S608


async def read_hits(
    connection: Connection, ids: Sequence[int], scores: Mapping[int, float], rankings: Rankings
) -> list[KnowledgeHit]:
    """Return the chunks with these ids in the given order."""
    rows = await (await connection.execute(_READ, (list(ids),))).fetchall()
    found = {row[0]: row for row in rows}
    return [_hit(found[name], scores[name], rankings) for name in ids if name in found]


def _hit(row: Sequence[Any], score: float, rankings: Rankings) -> KnowledgeHit:
    name, base, path, content, headings, first, last, page = row
    return KnowledgeHit(
        base=base,
        path=path,
        chunk=Chunk(text=content, headings=tuple(headings), first_line=first, last_line=last, page=page),
        score=score,
        similarity=rankings.by_meaning.get(name),
        covered=float(rankings.by_words.get(name, 0.0)),
    )


CALM: Final[LiteralString] = (
    "SELECT set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true)"
)
"""Turns off JIT compilation and parallel workers, because both slow down small, fast queries."""
