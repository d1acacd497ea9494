"""Store facts about people in Postgres.

Every statement that reads or changes facts names both the tenant and the user, except those of upkeep, which show facts
to nobody. Transactions for the same owner are serialized, and so are those for the same session, so that no fact is
stored after it was forgotten.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, LiteralString

from loom.activities.adapters.postgres.database import Connection, Database, storable
from loom.activities.adapters.postgres.deletion import forget_owner
from loom.activities.adapters.postgres.memory_rows import (
    LOCK,
    MEMORY,
    as_vector,
    digest,
    forgotten_as,
    hidden_fingerprint,
    is_vector,
    key_text,
    owner_digest,
    read_due,
    read_each,
)
from loom.activities.encryption import Cipher
from loom.activities.memory.ports import Compared, Due, Embedder
from loom.activities.memory.question_vector import IN_A_RUN, question_vector
from loom.domain.core.messages import well_formed
from loom.domain.core.tenants import Owner
from loom.domain.memory.content import fingerprint
from loom.domain.memory.contradictions import may_replace, replaced
from loom.domain.memory.layers import MemorySettings
from loom.domain.memory.people import FactKind, ForgottenFacts, NewFact, PersonFact, SaidFact

_WITHIN: Final = 15.0

_COLUMNS: Final = (
    "id, user_id, tenant, kind, content, source, session_id, run_id, task_id, created_at, superseded_by, (SELECT"
    " newer.created_at FROM loom_person_facts AS newer WHERE newer.id = loom_person_facts.superseded_by) AS valid_to"
)
_NAMES: Final = tuple(PersonFact.__slots__)
_OWNERS: Final[LiteralString] = "(tenant, user_id) IN (SELECT * FROM unnest(%(tenants)s::text[], %(user_ids)s::text[]))"
_OWNER: Final[LiteralString] = "tenant = %(tenant)s AND user_id = %(user_id)s"
_ABOUT: Final = f"""
SELECT {_COLUMNS} FROM loom_person_facts
WHERE {_OWNERS} AND superseded_by IS NULL AND (run_id = '' OR run_id <> %(without_run)s)
ORDER BY created_at DESC, id DESC LIMIT %(most)s
"""  # noqa: S608 - constants
_LISTED: Final = f"""
SELECT {_COLUMNS} FROM loom_person_facts WHERE {_OWNER} AND (%(all)s OR superseded_by IS NULL)
ORDER BY created_at DESC, id DESC
"""  # noqa: S608
_SIMILAR: Final = f"""
SELECT id, 1 - (embedding <=> %(vector)s::vector) FROM loom_person_facts
WHERE {_OWNERS} AND superseded_by IS NULL
    AND model = %(model)s AND dimension = %(dimension)s AND embedding IS NOT NULL
"""  # noqa: S608
_LEARN: Final = """
INSERT INTO loom_person_facts AS known (
    tenant, user_id, kind, content, fingerprint, source, session_id, run_id, task_id, created_at
)
SELECT %(tenant)s, %(user_id)s, %(kind)s, %(content)s, %(fingerprint)s, %(source)s, %(session_id)s, %(run_id)s,
    %(task_id)s, %(at)s
WHERE %(source)s = 'added' OR NOT EXISTS (
    SELECT FROM loom_person_facts_forgotten
    WHERE owner = %(owner)s AND fact IN (''::bytea, %(fact)s, %(plain_fact)s) AND until >= %(at)s
) AND NOT EXISTS (SELECT FROM loom_memory_forgotten WHERE session = ANY(%(sessions)s) AND until >= %(at)s)
ON CONFLICT (tenant, user_id, fingerprint) DO UPDATE SET
    kind = excluded.kind, source = excluded.source, session_id = excluded.session_id, run_id = excluded.run_id,
    task_id = excluded.task_id, created_at = excluded.created_at, superseded_by = NULL, compared = false
WHERE excluded.created_at > known.created_at AND (known.source <> 'added' OR excluded.source = 'added')
"""
"""A fact that the person repeats becomes the newest and valid again. Texts written by hand stay unchanged."""
_SUPERSEDE: Final = f"""
UPDATE loom_person_facts AS old SET superseded_by = new.id
FROM unnest(%(olds)s::bigint[], %(news)s::bigint[]) AS new (was, id)
WHERE {_OWNER} AND (old.id = new.was OR old.superseded_by = new.was) AND old.id <> new.id
"""  # noqa: S608
"""Also moves the facts that the older fact has replaced, so that each of them names the valid one."""
_PRUNE: Final = f"""
DELETE FROM loom_person_facts WHERE {_OWNER} AND id IN (
    SELECT id FROM loom_person_facts WHERE {_OWNER}
    ORDER BY superseded_by IS NULL DESC, source = 'added' DESC, created_at DESC, id DESC OFFSET %(most)s
)
"""  # noqa: S608
_MARK: Final = f"""
INSERT INTO loom_person_facts_forgotten AS known (owner, fact, until)
SELECT %(owner)s, %(fact)s, greatest(clock_timestamp(), max(created_at)) FROM loom_person_facts WHERE {_OWNER}
ON CONFLICT (owner, fact) DO UPDATE SET until = greatest(excluded.until, known.until)
"""  # noqa: S608
_FORGET: Final = f"""
DELETE FROM loom_person_facts WHERE {_OWNER} AND (%(id)s::bigint IS NULL OR %(id)s IN (id, superseded_by))
RETURNING session_id
"""  # noqa: S608
_ONE: Final = f"""
SELECT {_COLUMNS} FROM loom_person_facts WHERE {_OWNER} AND %(id)s IN (id, superseded_by) ORDER BY id <> %(id)s
"""  # noqa: S608
"""Selects a fact, and then the older ones that it has replaced."""
_NOT_COMPARED: Final = f"""
SELECT {_COLUMNS} FROM loom_person_facts WHERE NOT compared AND superseded_by IS NULL ORDER BY id LIMIT %(limit)s
"""  # noqa: S608
_COMPARED: Final = f"UPDATE loom_person_facts SET compared = true WHERE {_OWNER} AND id = %(id)s"  # noqa: S608
_WITHOUT_VECTOR: Final = "SELECT id, content FROM loom_person_facts WHERE model IS NULL ORDER BY id LIMIT %(limit)s"
_OTHER_VECTOR: Final = """
SELECT id, content FROM loom_person_facts WHERE model IS NOT NULL AND (model, dimension) <> (%(model)s, %(dimension)s)
ORDER BY id LIMIT %(limit)s
"""
_KEEP: Final = """
UPDATE loom_person_facts SET model = %(model)s, dimension = %(dimension)s, embedding = %(vector)s::vector
WHERE id = %(id)s
"""
_DELETE: Final = "DELETE FROM loom_person_facts WHERE id = ANY(%s)"


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
        owners = {owner_digest(fact.owner): fact.owner for fact in facts}
        async with self._database.transaction(within=_WITHIN) as connection:
            sessions = {key_text(fact.session_id) for fact in facts if fact.session_id}
            await connection.execute(LOCK, (sorted(sessions.union(owner.hex() for owner in owners)),))
            learned = sum([(await connection.execute(_LEARN, await self._new(fact))).rowcount for fact in facts])
            for owner in owners.values():
                await self._settle(connection, owner)
        return learned

    async def about(self, owners: Sequence[Owner], *, without_run: str = "") -> tuple[PersonFact, ...]:
        """See the port."""
        if not owners:
            return ()
        asked = {**_all_named(owners), "without_run": key_text(without_run)}
        asked["most"] = len(owners) * self._settings.person_facts
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_ABOUT, asked)).fetchall()
        return await _facts(self._database.cipher, rows)

    async def similarities(self, owners: Sequence[Owner], question: str) -> Mapping[int, float] | None:
        """See the port."""
        vector = await question_vector(self._embedder, question, IN_A_RUN)
        if self._embedder is None or vector is None:
            return None
        asked = {**_all_named(owners), "vector": as_vector(vector), "model": self._embedder.model}
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_SIMILAR, {**asked, "dimension": len(vector)})).fetchall()
        return dict(rows)

    async def listed(self, owner: Owner, *, with_replaced: bool = False) -> tuple[PersonFact, ...]:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            return await _listed(self._database.cipher, connection, owner, with_replaced=with_replaced)

    async def edit(self, owner: Owner, fact_id: int, content: str) -> bool:
        """See the port."""
        async with self._database.transaction(within=_WITHIN) as connection:
            known = await _locked(self._database.cipher, connection, owner, fact_id)
            if not known:
                return False
            await self._forget(connection, owner, known)
            said = SaidFact(kind=known[0].kind, content=content)
            new = NewFact(owner=owner, said=said, source="added", at=datetime.now(UTC))
            await connection.execute(_LEARN, await self._new(new))
            await self._settle(connection, owner)
        return True

    async def forget(self, owner: Owner, fact_id: int | None = None) -> ForgottenFacts:
        """See the port."""
        async with self._database.transaction(within=_WITHIN) as connection:
            # First, because it locks more, and because the facts tell whose runs an earlier release has stored.
            traces = await forget_owner(connection, owner) if fact_id is None and owner.user_id else None
            known = await _locked(self._database.cipher, connection, owner, fact_id)
            if fact_id is not None and not known:
                return ForgottenFacts()
            sessions = await self._forget(connection, owner, known)
        return ForgottenFacts(
            facts=len(sessions), sessions=tuple(sorted({name for name in sessions if name})), traces=traces
        )

    async def due_for_comparison(self, limit: int) -> tuple[Compared, ...]:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            read = partial(_fact, self._database.cipher)
            due = await read_due(connection, _NOT_COMPARED, {"limit": limit}, read, delete=_DELETE)
            return tuple([await _with_older(self._database.cipher, connection, fact) for fact in due])

    async def supersede(self, by: PersonFact, older: Collection[int]) -> None:
        """See the port."""
        owner = Owner(user_id=by.user_id, tenant=by.tenant)
        async with self._database.transaction(within=_WITHIN) as connection:
            holds = {fact.id for fact in await _locked_all(self._database.cipher, connection, owner)}
            await connection.execute(_COMPARED, {**_named(owner), "id": by.id})
            if by.id in holds:
                await _supersede(connection, owner, dict.fromkeys(holds.intersection(older), by.id))

    async def due_for_vector(self, limit: int, *, other_models: bool = False) -> tuple[Due, ...]:
        """See the port."""
        model, dimension = self._vectors
        asked = {"limit": limit, "model": model, "dimension": dimension}

        async def read(row: Any) -> Due:
            name, content = row
            return Due(id=name, content=await self._database.cipher.open_text(content, MEMORY))

        select = _OTHER_VECTOR if other_models else _WITHOUT_VECTOR
        async with self._database.connection(within=_WITHIN) as connection:
            return tuple(await read_due(connection, select, asked, read, delete=_DELETE))

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

    async def _settle(self, connection: Connection, owner: Owner) -> None:
        """Replace facts that newer ones contradict, and delete facts beyond the limit."""
        await _supersede(connection, owner, replaced(await _listed(self._database.cipher, connection, owner)))
        await connection.execute(_PRUNE, {**_named(owner), "most": self._settings.person_facts})

    async def _forget(self, connection: Connection, owner: Owner, facts: Sequence[PersonFact]) -> list[str]:
        """Delete a fact and those that it replaced, or all facts if none are given. Return the sessions of what was
        deleted.
        """
        named = {**_named(owner), "owner": owner_digest(owner), "id": facts[0].id if facts else None}
        for fact in [await self._digest(owner, each.content) for each in facts] or [b""]:
            await connection.execute(_MARK, {**named, "fact": fact})
        return [row[0] for row in await (await connection.execute(_FORGET, named)).fetchall()]

    async def _new(self, fact: NewFact) -> dict[str, Any]:
        content, cipher = well_formed(fact.said.content), self._database.cipher
        return {
            **_named(fact.owner),
            "owner": owner_digest(fact.owner),
            "kind": str(fact.said.kind),
            "content": await cipher.seal_text(content, MEMORY, fact.owner.tenant),
            "fingerprint": await hidden_fingerprint(cipher, content),
            "fact": await self._digest(fact.owner, content),
            "plain_fact": digest(owner_digest(fact.owner).hex() + fingerprint(content).hex()),
            "source": fact.source,
            "sessions": [*forgotten_as(fact.session_id, fact.owner)],
            "session_id": key_text(fact.session_id),
            "run_id": key_text(fact.run_id),
            "task_id": key_text(fact.task_id),
            "at": fact.at,
        }

    async def _digest(self, owner: Owner, content: str) -> bytes:
        """Return what identifies a fact after it was forgotten."""
        return digest(owner_digest(owner).hex() + (await hidden_fingerprint(self._database.cipher, content)).hex())


async def _listed(
    cipher: Cipher, connection: Connection, owner: Owner, *, with_replaced: bool = False
) -> tuple[PersonFact, ...]:
    rows = await (await connection.execute(_LISTED, {**_named(owner), "all": with_replaced})).fetchall()
    return await _facts(cipher, rows)


async def _locked(cipher: Cipher, connection: Connection, owner: Owner, fact_id: int | None) -> tuple[PersonFact, ...]:
    """Lock the owner's facts until the transaction ends. Return the fact with this id, and those that it replaced."""
    await connection.execute(LOCK, ([owner_digest(owner).hex()],))
    rows = await (await connection.execute(_ONE, {**_named(owner), "id": fact_id})).fetchall()
    return await _facts(cipher, rows)


async def _locked_all(cipher: Cipher, connection: Connection, owner: Owner) -> tuple[PersonFact, ...]:
    await connection.execute(LOCK, ([owner_digest(owner).hex()],))
    return await _listed(cipher, connection, owner)


async def _with_older(cipher: Cipher, connection: Connection, fact: PersonFact) -> Compared:
    known = await _listed(cipher, connection, Owner(user_id=fact.user_id, tenant=fact.tenant))
    older = [each for each in known if (each.created_at, each.id) < (fact.created_at, fact.id)]
    return Compared(new=fact, older=tuple(each for each in older if may_replace(fact, each)))


async def _supersede(connection: Connection, owner: Owner, newer: Mapping[int, int]) -> None:
    if newer:
        await connection.execute(_SUPERSEDE, {**_named(owner), "olds": list(newer), "news": list(newer.values())})


def _named(owner: Owner) -> dict[str, Any]:
    return {"tenant": storable(owner.tenant), "user_id": storable(owner.user_id)}


def _all_named(owners: Sequence[Owner]) -> dict[str, Any]:
    named = [_named(owner) for owner in owners]
    return {"tenants": [one["tenant"] for one in named], "user_ids": [one["user_id"] for one in named]}


async def _facts(cipher: Cipher, rows: Iterable[Sequence[Any]]) -> tuple[PersonFact, ...]:
    """Return the facts in rows, without those of a tenant that was forgotten before they were stored."""
    facts, _ = await read_each(rows, partial(_fact, cipher))
    return tuple(facts)


async def _fact(cipher: Cipher, row: Sequence[Any]) -> PersonFact:
    given = dict(zip(_NAMES, row, strict=True))
    content = await cipher.open_text(given["content"], MEMORY)
    return PersonFact(**{**given, "kind": FactKind(given["kind"]), "content": content})
