"""Search knowledge bases with the same two searches as memory: by words (`word_search`) and by meaning.

The search by meaning compares every vector. In benchmarks, comparing only the signs of the vector components didn't
find the nearest chunks, because all E5 vectors point in nearly the same direction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

from loom.activities.adapters.postgres.database import Connection
from loom.activities.adapters.postgres.memory_rows import as_vector
from loom.activities.adapters.postgres.word_search import AskedWord, asked_words, joined, word_values, words_sql
from loom.domain.memory.blended_search import NEAREST
from loom.domain.memory.chunks import Chunk
from loom.domain.memory.knowledge import KnowledgeHit

MOST_MATCHES: Final = 5_000
"""Maximum number of chunks that words may select. If a word occurs in more chunks, it is used only to rank the chunks
that rarer words have selected.
"""

_BASES: Final[LiteralString] = "base = ANY(%(keys)s::text[])"
"""Selects the bases with these keys, and nothing if there are none."""
_SIZE: Final = f"SELECT sum(chunks) FROM loom_knowledge_documents WHERE {_BASES}"  # noqa: S608
_OFTEN: Final = f"""
SELECT word, (SELECT count(*) FROM (SELECT FROM loom_knowledge_chunks
    WHERE {_BASES} AND lexemes @@ word::tsquery LIMIT %(most)s) AS few)
FROM unnest(%(queries)s::text[]) AS word
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
    """Maps each chunk's id to the chunk's share of the highest possible score."""
    covered: Mapping[int, float] = field(default_factory=dict)
    """Maps each chunk's id to the share of the question's words that the chunk contains."""
    by_meaning: Mapping[int, float] | None = None
    """Maps each chunk's id to the chunk's cosine similarity to the question. None means that there is no vector."""


def name_and_tenant(key: str) -> tuple[str, str]:
    """Split the key of a base into the base's name and its tenant."""
    tenant, _, name = key.rpartition("/")
    return name, tenant


async def by_meaning(
    connection: Connection, keys: Sequence[str], model: str, vector: Sequence[float], depth: int = NEAREST
) -> dict[int, float]:
    """Map chunk ids to cosine similarities. The nearest chunk comes first."""
    values = {
        "keys": list(keys),
        "vector": as_vector(vector),
        "model": model,
        "dimension": len(vector),
        "depth": depth,
    }
    return dict(await (await connection.execute(_NEAR, values)).fetchall())


async def by_words(
    connection: Connection, keys: Sequence[str], question: str, depth: int = NEAREST
) -> tuple[dict[int, float], dict[int, float]]:
    """Return `Rankings.by_words` and `Rankings.covered`. The best chunk comes first."""
    words = await asked_words(connection, question)
    values: dict[str, Any] = {"keys": list(keys), "most": MOST_MATCHES, "depth": depth}
    size = await (await connection.execute(_SIZE, values)).fetchone()
    if not words or size is None or not size[0]:
        return {}, {}
    queries = {word.query: word for word in words}
    counted = await (await connection.execute(_OFTEN, {**values, "queries": list(queries)})).fetchall()
    often = {queries[query]: float(count) for query, count in counted}
    values |= word_values(words, often, float(size[0]))
    values |= {"words": joined(_selecting(often), " | "), "newest": MOST_MATCHES}
    is_cut = min(often.values()) >= MOST_MATCHES
    sql = words_sql("loom_knowledge_chunks", _BASES, len(words), newest=is_cut, is_counted=False)
    rows = await (await connection.execute(sql, values)).fetchall()
    return {name: share for name, share, _ in rows}, {name: covered for name, _, covered in rows}


def _selecting(often: Mapping[AskedWord, float]) -> list[AskedWord]:
    """Return as many of the rarest words as possible without selecting too many chunks."""
    chosen: list[AskedWord] = []
    expected = 0.0
    for word in sorted(often, key=lambda word: often[word]):
        expected += often[word]
        if chosen and expected > MOST_MATCHES:
            break
        chosen.append(word)
    return chosen


async def read_hits(
    connection: Connection, ids: Sequence[int], scores: Mapping[int, float], rankings: Rankings
) -> list[KnowledgeHit]:
    """Return the chunks with these ids in the given order."""
    rows = await (await connection.execute(_READ, (list(ids),))).fetchall()
    found = {row[0]: row for row in rows}
    return [_hit(found[name], scores[name], rankings) for name in ids if name in found]


def _hit(row: Sequence[Any], score: float, rankings: Rankings) -> KnowledgeHit:
    name, key, path, content, headings, first, last, page = row
    base, tenant = name_and_tenant(key)
    return KnowledgeHit(
        base=base,
        tenant=tenant,
        path=path,
        chunk=Chunk(text=content, headings=tuple(headings), first_line=first, last_line=last, page=page),
        score=score,
        similarity=(rankings.by_meaning or {}).get(name),
        covered=rankings.covered.get(name, 0.0),
    )


CALM: Final[LiteralString] = (
    "SELECT set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true)"
)
"""Turns off JIT compilation and parallel workers, because both slow down small, fast queries."""
