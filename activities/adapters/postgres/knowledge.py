"""Store and search knowledge bases in Postgres.

A base is stored under a key: its name, or `tenant/name` if it belongs to a tenant. The key is unambiguous because no
name of a base or of a tenant contains a slash.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loom.activities.adapters.postgres.database import Connection, Database
from loom.activities.adapters.postgres.knowledge_search import (
    CALM,
    Rankings,
    by_meaning,
    by_words,
    name_and_tenant,
    read_hits,
)
from loom.activities.adapters.postgres.memory_rows import as_tsvector, as_vector
from loom.activities.knowledge.ports import Document, Unembedded
from loom.activities.memory.ports import Embedder
from loom.activities.memory.question_vector import PATIENT, question_vector
from loom.domain.core.messages import well_formed
from loom.domain.core.tenants import checked_tenant
from loom.domain.memory.blended_search import blended
from loom.domain.memory.chunks import Chunk
from loom.domain.memory.knowledge import (
    KnowledgeBase,
    KnowledgeHit,
    KnowledgeQuery,
    checked_name,
    is_relevant,
    threshold_of,
    told_text,
)

_WITHIN: Final = 30.0

_BEGIN: Final = """
INSERT INTO loom_knowledge (name, folder) VALUES (%s, %s)
ON CONFLICT (name) DO UPDATE SET folder = excluded.folder, updated_at = now()
"""
_VECTORS: Final = """
SELECT c.told, c.model, c.dimension, c.embedding::text FROM loom_knowledge_chunks c
JOIN loom_knowledge_documents d ON d.id = c.document WHERE d.base = %s AND d.path = %s AND c.model IS NOT NULL
"""
_HOLD: Final = "SELECT FROM loom_knowledge WHERE name = %s FOR UPDATE"
_REMOVE: Final = "DELETE FROM loom_knowledge_documents WHERE base = %s AND path = ANY(%s)"
_DOCUMENT: Final = """
INSERT INTO loom_knowledge_documents (base, path, digest, chunks, length) VALUES (%s, %s, %s, %s, %s) RETURNING id
"""
_CHUNK: Final = """
INSERT INTO loom_knowledge_chunks (base, document, ordinal, headings, first_line, last_line, page, content, told,
    lexemes, length, model, dimension, embedding)
VALUES (%(base)s, %(document)s, %(ordinal)s, %(headings)s, %(first)s, %(last)s, %(page)s, %(content)s, %(told)s,
    %(lexemes)s::tsvector, %(length)s, %(model)s, %(dimension)s, %(embedding)s::vector)
"""
_SEARCHABLE: Final = "SELECT name FROM loom_knowledge WHERE strpos(name, '/') = 0 OR starts_with(name, %s)"
_BASES: Final = """
SELECT b.name, b.folder, b.updated_at,
    (SELECT count(*) FROM loom_knowledge_documents d WHERE d.base = b.name),
    (SELECT coalesce(sum(chunks), 0) FROM loom_knowledge_documents d WHERE d.base = b.name),
    (SELECT coalesce(json_object_agg(model, n), '{}') FROM (
        SELECT model, count(*) AS n FROM loom_knowledge_chunks c WHERE c.base = b.name AND model IS NOT NULL GROUP BY 1
    ) AS models)
FROM loom_knowledge b WHERE %(keys)s::text[] IS NULL OR b.name = ANY(%(keys)s::text[])
"""
_SET: Final = """
UPDATE loom_knowledge_chunks SET model = %s, dimension = %s, embedding = %s::vector WHERE id = %s
"""
_UNSET: Final = """
UPDATE loom_knowledge_chunks SET model = NULL, dimension = NULL, embedding = NULL WHERE base = %s
"""


class PostgresKnowledge:
    """A `KnowledgeStore` that uses Loom's own database."""

    def __init__(
        self, database: Database, *, embedder: Embedder | None = None, question_within: float = PATIENT
    ) -> None:
        """Use the database and the embedder. The caller must close both. Without an embedder, search uses words only.

        Search also uses words only if the embedder doesn't return the question's vector within `question_within`
        seconds.
        """
        self._database = database
        self._embedder = embedder
        self._question_within = question_within

    async def digests(self, base: str, *, tenant: str = "") -> Mapping[str, str]:
        """See the port."""
        rows = await self._all(
            "SELECT path, digest FROM loom_knowledge_documents WHERE base = %s", (_key(base, tenant),)
        )
        return dict(rows)

    async def begin(self, base: str, folder: str, *, tenant: str = "") -> None:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            await connection.execute(_BEGIN, (_key(base, tenant), well_formed(folder)))

    async def save(self, base: str, document: Document, *, tenant: str = "") -> None:
        """See the port."""
        key, path = _key(base, tenant), well_formed(document.path)
        async with self._database.transaction(within=_WITHIN) as connection:
            # Only one writer at a time may change a knowledge base, and no writer may change a base that has been
            # dropped.
            if (await connection.execute(_HOLD, (key,))).rowcount == 0:
                return
            known = await (await connection.execute(_VECTORS, (key, path))).fetchall()
            vectors = {told: (model, dimension, vector) for told, model, dimension, vector in known}
            await connection.execute(_REMOVE, (key, [path]))
            await _insert(connection, key, path, document, vectors)

    async def remove(self, base: str, paths: Sequence[str], *, tenant: str = "") -> None:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            await connection.execute(_REMOVE, (_key(base, tenant), [well_formed(path) for path in paths]))

    async def drop(self, base: str, *, tenant: str = "") -> bool:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            gone = await connection.execute("DELETE FROM loom_knowledge WHERE name = %s", (_key(base, tenant),))
        return gone.rowcount == 1

    async def bases(self, *, tenant: str | None = None) -> tuple[KnowledgeBase, ...]:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            keys = None if tenant is None else list((await _searchable(connection, tenant)).values())
            rows = await (await connection.execute(_BASES, {"keys": keys})).fetchall()
        return tuple(sorted((_base(row) for row in rows), key=lambda base: (base.tenant, base.name)))

    async def missing(self, names: Sequence[str], *, tenant: str | None = None) -> tuple[str, ...]:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            if tenant is None:
                keys = await (await connection.execute("SELECT name FROM loom_knowledge")).fetchall()
                there = {name_and_tenant(key)[0] for (key,) in keys}
            else:
                there = set(await _searchable(connection, tenant))
        return tuple(name for name in names if name not in there)

    async def unembedded(self, base: str, limit: int, *, tenant: str = "") -> tuple[Unembedded, ...]:
        """See the port."""
        sql = "SELECT id, told FROM loom_knowledge_chunks WHERE base = %s AND model IS NULL ORDER BY id LIMIT %s"
        rows = await self._all(sql, (_key(base, tenant), limit))
        return tuple(Unembedded(id=name, told=told) for name, told in rows)

    async def set_vectors(self, model: str, vectors: Mapping[int, Sequence[float]]) -> None:
        """See the port."""
        rows = [(model, len(v), as_vector(v), name) for name, v in vectors.items()]
        async with self._database.transaction(within=_WITHIN) as connection, connection.cursor() as cursor:
            await cursor.executemany(_SET, rows)

    async def drop_vectors(self, base: str, *, tenant: str = "") -> None:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            await connection.execute(_UNSET, (_key(base, tenant),))

    async def search(self, query: KnowledgeQuery) -> tuple[KnowledgeHit, ...]:
        """See the port."""
        vector = await question_vector(self._embedder, query.text, self._question_within)
        model = self._embedder.model if self._embedder is not None else None
        async with self._database.transaction() as connection:
            found = await self.rankings(connection, query, vector)
            scores = blended(found.by_words, found.by_meaning)
            hits = await read_hits(connection, tuple(scores), scores, found)
        threshold = threshold_of(model, query.threshold)
        return tuple(hit for hit in hits if is_relevant(hit, threshold, query.floor))[: query.limit]

    async def rankings(self, connection: Connection, query: KnowledgeQuery, vector: Sequence[float] | None) -> Rankings:
        """Return the results of each search separately. The benchmark compares them."""
        await connection.execute(CALM)
        there = await _searchable(connection, query.tenant)
        keys = [key for name, key in there.items() if not query.bases or name in query.bases]
        words, covered = await by_words(connection, keys, query.text)
        near = None
        if vector is not None and self._embedder is not None:
            near = await by_meaning(connection, keys, self._embedder.model, vector)
        return Rankings(by_words=words, covered=covered, by_meaning=near)

    async def _all(self, sql: Any, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        async with self._database.connection(within=_WITHIN) as connection:
            return await (await connection.execute(sql, values)).fetchall()


def _key(name: str, tenant: str) -> str:
    """Return the key of a base. Raises BadRequest if a name is invalid, because the key could be another base's."""
    return f"{checked_tenant(tenant)}/{checked_name(name)}" if tenant else checked_name(name)


async def _searchable(connection: Connection, tenant: str) -> dict[str, str]:
    """Map the names of the bases that runs of this tenant can search to their keys."""
    rows = await (await connection.execute(_SEARCHABLE, (f"{well_formed(tenant)}/",))).fetchall()
    found = [(*name_and_tenant(key), key) for (key,) in rows]
    shared = {name: key for name, whose, key in found if not whose}
    own = {name: key for name, whose, key in found if whose}
    return shared | own  # a tenant's base hides the operator's base with the same name


def _base(row: Sequence[Any]) -> KnowledgeBase:
    key, folder, updated_at, documents, chunks, vectors = row
    name, tenant = name_and_tenant(key)
    return KnowledgeBase(
        name=name,
        tenant=tenant,
        folder=folder,
        documents=documents,
        chunks=chunks,
        vectors=vectors,
        updated_at=updated_at,
    )


async def _insert(
    connection: Connection,
    key: str,
    path: str,
    document: Document,
    vectors: Mapping[str, tuple[str, int, str]],
) -> None:
    rows = [_row(key, path, ordinal, chunk) for ordinal, chunk in enumerate(document.chunks, start=1)]
    length = sum(row["length"] for row in rows)
    row = await (await connection.execute(_DOCUMENT, (key, path, document.digest, len(rows), length))).fetchone()
    assert row is not None  # noqa: S101 - an insert with RETURNING always returns a row
    for each in rows:
        model, dimension, vector = vectors.get(each["told"], (None, None, None))
        each |= {"document": row[0], "model": model, "dimension": dimension, "embedding": vector}
    async with connection.cursor() as cursor:
        await cursor.executemany(_CHUNK, rows)


def _row(key: str, path: str, ordinal: int, chunk: Chunk) -> dict[str, Any]:
    told = well_formed(told_text(path, chunk))
    lexemes, length = as_tsvector(told)
    return {
        "base": key,
        "ordinal": ordinal,
        "headings": [well_formed(heading) for heading in chunk.headings],
        "first": chunk.first_line,
        "last": chunk.last_line,
        "page": chunk.page,
        "content": well_formed(chunk.text),
        "told": told,
        "lexemes": lexemes,
        "length": length,
    }
