"""Store facts about people in Postgres.

Every statement that reads or changes facts names both the tenant and the user, except those of upkeep, which show facts
to nobody. Transactions for the same owner are serialized, and so are those for the same session, so that no fact is
stored after it was forgotten.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, LiteralString

from loom.activities.adapters.postgres.database import Connection, Database, storable
from loom.activities.adapters.postgres.memory_rows import LOCK, as_vector, digest, is_vector, key_text
from loom.activities.memory.ports import Due, Embedder
from loom.activities.memory.question_vector import IN_A_RUN, question_vector
from loom.domain.core.messages import canonical, well_formed
from loom.domain.memory.content import fingerprint
from loom.domain.memory.layers import MemorySettings
from loom.domain.memory.people import FactKind, FactOwner, ForgottenFacts, NewFact, PersonFact, SaidFact

_WITHIN: Final = 15.0

_COLUMNS: Final = "id, user_id, tenant, kind, content, source, session_id, run_id, task_id, created_at"
_NAMES: Final = tuple(_COLUMNS.split(", "))
_OWNERS: Final[LiteralString] = "(tenant, user_id) IN (SELECT * FROM unnest(%(tenants)s::text[], %(user_ids)s::text[]))"
_OWNER: Final[LiteralString] = "tenant = %(tenant)s AND user_id = %(user_id)s"
_ABOUT: Final = f"""
SELECT {_COLUMNS} FROM loom_person_facts WHERE {_OWNERS} AND (run_id = '' OR run_id <> %(without_run)s)
ORDER BY created_at DESC, id DESC LIMIT %(most)s
"""  # noqa: S608 - constants
_LISTED: Final = f"SELECT {_COLUMNS} FROM loom_person_facts WHERE {_OWNER} ORDER BY created_at DESC, id DESC"  # noqa: S608
_SIMILAR: Final = f"""
SELECT id, 1 - (embedding <=> %(vector)s::vector) FROM loom_person_facts
WHERE {_OWNERS} AND model = %(model)s AND dimension = %(dimension)s AND embedding IS NOT NULL
"""  # noqa: S608
_LEARN: Final = """
INSERT INTO loom_person_facts AS known (
    tenant, user_id, kind, content, fingerprint, source, session_id, run_id, task_id, created_at
)
SELECT %(tenant)s, %(user_id)s, %(kind)s, %(content)s, %(fingerprint)s, %(source)s, %(session_id)s, %(run_id)s,
    %(task_id)s, %(at)s
WHERE %(source)s = 'added' OR NOT EXISTS (
    SELECT FROM loom_person_facts_forgotten
    WHERE owner = %(owner)s AND fact IN (''::bytea, %(fact)s) AND until >= %(at)s
) AND NOT EXISTS (SELECT FROM loom_memory_forgotten WHERE session = %(session)s AND until >= %(at)s)
ON CONFLICT (tenant, user_id, fingerprint) DO UPDATE SET
    kind = excluded.kind, source = excluded.source, session_id = excluded.session_id, run_id = excluded.run_id,
    task_id = excluded.task_id, created_at = excluded.created_at
WHERE excluded.created_at > known.created_at AND (known.source <> 'added' OR excluded.source = 'added')
"""
"""A fact that the person repeats becomes the newest. What a person wrote down stays as it is."""
_PRUNE: Final = f"""
DELETE FROM loom_person_facts WHERE {_OWNER} AND id IN (
    SELECT id FROM loom_person_facts WHERE {_OWNER} ORDER BY source = 'added' DESC, created_at DESC, id DESC
    OFFSET %(most)s
)
"""  # noqa: S608
_MARK: Final = f"""
INSERT INTO loom_person_facts_forgotten AS known (owner, fact, until)
SELECT %(owner)s, %(fact)s, greatest(clock_timestamp(), max(created_at)) FROM loom_person_facts WHERE {_OWNER}
ON CONFLICT (owner, fact) DO UPDATE SET until = greatest(excluded.until, known.until)
"""  # noqa: S608
_FORGET: Final = f"""
DELETE FROM loom_person_facts WHERE {_OWNER} AND (%(id)s::bigint IS NULL OR id = %(id)s) RETURNING session_id
"""  # noqa: S608
_ONE: Final = f"SELECT {_COLUMNS} FROM loom_person_facts WHERE {_OWNER} AND id = %(id)s"  # noqa: S608
_WITHOUT_VECTOR: Final = "SELECT id, content FROM loom_person_facts WHERE model IS NULL ORDER BY id LIMIT %(limit)s"
_OTHER_VECTOR: Final = """
SELECT id, content FROM loom_person_facts WHERE model IS NOT NULL AND (model, dimension) <> (%(model)s, %(dimension)s)
ORDER BY id LIMIT %(limit)s
"""
_KEEP: Final = """
UPDATE loom_person_facts SET model = %(model)s, dimension = %(dimension)s, embedding = %(vector)s::vector
WHERE id = %(id)s
"""


class PostgresPersonFacts:
    """A `PersonFactStore` that uses Loom's own database."""

    def __init__(
        self,
        database: Database,
        *,
        embedder: Embedder | None = None,
        settings: MemorySettings = MemorySettings(),  # noqa: B008 - frozen
    ) -> None:
        """Use the database and the embedder. The caller must close both."""
        self._database = database
        self._embedder = embedder
        self._settings = settings

    async def learn(self, facts: Sequence[NewFact]) -> int:
        """See the port."""
        if not facts:
            return 0
        owners = {_owner_digest(fact.owner): fact.owner for fact in facts}
        async with self._database.transaction(within=_WITHIN) as connection:
            sessions = {key_text(fact.session_id) for fact in facts if fact.session_id}
            await connection.execute(LOCK, (sorted(sessions.union(owner.hex() for owner in owners)),))
            learned = sum([(await connection.execute(_LEARN, _new(fact))).rowcount for fact in facts])
            for owner in owners.values():
                await connection.execute(_PRUNE, {**_named(owner), "most": self._settings.person_facts})
        return learned

    async def about(self, owners: Sequence[FactOwner], *, without_run: str = "") -> tuple[PersonFact, ...]:
        """See the port."""
        if not owners:
            return ()
        asked = {**_all_named(owners), "without_run": key_text(without_run)}
        asked["most"] = len(owners) * self._settings.person_facts
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_ABOUT, asked)).fetchall()
        return tuple(map(_fact, rows))

    async def similarities(self, owners: Sequence[FactOwner], question: str) -> Mapping[int, float] | None:
        """See the port."""
        vector = await question_vector(self._embedder, question, IN_A_RUN)
        if self._embedder is None or vector is None:
            return None
        asked = {**_all_named(owners), "vector": as_vector(vector), "model": self._embedder.model}
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_SIMILAR, {**asked, "dimension": len(vector)})).fetchall()
        return dict(rows)

    async def listed(self, owner: FactOwner) -> tuple[PersonFact, ...]:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            rows = await (await connection.execute(_LISTED, _named(owner))).fetchall()
        return tuple(map(_fact, rows))

    async def edit(self, owner: FactOwner, fact_id: int, content: str) -> bool:
        """See the port."""
        async with self._database.transaction(within=_WITHIN) as connection:
            known = await self._locked(connection, owner, fact_id)
            if known is None:
                return False
            await self._forget(connection, owner, known)
            said = SaidFact(kind=known.kind, content=content)
            new = NewFact(owner=owner, said=said, source="added", at=datetime.now(UTC))
            await connection.execute(_LEARN, _new(new))
        return True

    async def forget(self, owner: FactOwner, fact_id: int | None = None) -> ForgottenFacts:
        """See the port."""
        async with self._database.transaction(within=_WITHIN) as connection:
            known = await self._locked(connection, owner, fact_id)
            if fact_id is not None and known is None:
                return ForgottenFacts()
            sessions = await self._forget(connection, owner, known)
        return ForgottenFacts(facts=len(sessions), sessions=tuple(sorted({name for name in sessions if name})))

    async def due_for_vector(self, limit: int, *, other_models: bool = False) -> tuple[Due, ...]:
        """See the port."""
        model, dimension = self._vectors
        asked = {"limit": limit, "model": model, "dimension": dimension}
        async with self._database.connection(within=_WITHIN) as connection:
            rows = await (
                await connection.execute(_OTHER_VECTOR if other_models else _WITHOUT_VECTOR, asked)
            ).fetchall()
        return tuple(Due(id=name, content=content) for name, content in rows)

    async def keep_vectors(self, vectors: Sequence[tuple[int, Sequence[float]]]) -> int:
        """See the port. An invalid vector is dropped, so its fact can be found only by words."""
        model, dimension = self._vectors
        kept = [
            {
                "id": name,
                "model": model,
                "dimension": dimension,
                "vector": as_vector(vector) if is_vector(vector, dimension) else None,
            }
            for name, vector in vectors
        ]
        async with self._database.transaction(within=_WITHIN) as connection:
            await connection.cursor().executemany(_KEEP, kept)
        return len(kept)

    @property
    def _vectors(self) -> tuple[str, int]:
        return ("", 0) if self._embedder is None else (self._embedder.model, self._embedder.dimension)

    async def _locked(self, connection: Connection, owner: FactOwner, fact_id: int | None) -> PersonFact | None:
        """Lock the owner's facts until the transaction ends, and return the fact with this id."""
        await connection.execute(LOCK, ([_owner_digest(owner).hex()],))
        row = await (await connection.execute(_ONE, {**_named(owner), "id": fact_id})).fetchone()
        return None if row is None else _fact(row)

    async def _forget(self, connection: Connection, owner: FactOwner, fact: PersonFact | None) -> list[str]:
        """Delete one fact, or every fact, and return the sessions of what was deleted."""
        named = {**_named(owner), "owner": _owner_digest(owner), "id": None if fact is None else fact.id}
        await connection.execute(_MARK, {**named, "fact": b"" if fact is None else _fact_digest(owner, fact.content)})
        return [row[0] for row in await (await connection.execute(_FORGET, named)).fetchall()]


def _named(owner: FactOwner) -> dict[str, Any]:
    return {"tenant": storable(owner.tenant), "user_id": storable(owner.user_id)}


def _all_named(owners: Sequence[FactOwner]) -> dict[str, Any]:
    named = [_named(owner) for owner in owners]
    return {"tenants": [one["tenant"] for one in named], "user_ids": [one["user_id"] for one in named]}


def _owner_digest(owner: FactOwner) -> bytes:
    return digest(canonical({"tenant": owner.tenant, "user_id": owner.user_id}))


def _fact_digest(owner: FactOwner, content: str) -> bytes:
    return digest(_owner_digest(owner).hex() + fingerprint(content).hex())


def _new(fact: NewFact) -> dict[str, Any]:
    content = well_formed(fact.said.content)
    return {
        **_named(fact.owner),
        "owner": _owner_digest(fact.owner),
        "kind": str(fact.said.kind),
        "content": content,
        "fingerprint": fingerprint(content),
        "fact": _fact_digest(fact.owner, content),
        "source": fact.source,
        "session": digest(fact.session_id),
        "session_id": key_text(fact.session_id),
        "run_id": key_text(fact.run_id),
        "task_id": key_text(fact.task_id),
        "at": fact.at,
    }


def _fact(row: Sequence[Any]) -> PersonFact:
    given = dict(zip(_NAMES, row, strict=True))
    return PersonFact(**{**given, "kind": FactKind(given["kind"])})
