"""Something in each of Loom's tables, stored and read through the stores."""

import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, date, datetime
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    StorageDriverClaim,
    StorageDriverRetrieveContext,
    StorageDriverStoreContext,
    StorageDriverWorkflowInfo,
)

from loom.activities.adapters.encryption.data_keys import DataKeys
from loom.activities.adapters.encryption.key_ring import KeyRing
from loom.activities.adapters.postgres.access import PostgresCallApprovals, PostgresTokens
from loom.activities.adapters.postgres.artifacts import PostgresArtifacts
from loom.activities.adapters.postgres.audit import AuditFilter, PostgresAuditLog
from loom.activities.adapters.postgres.clones import PostgresClonePatches
from loom.activities.adapters.postgres.collection import PostgresStoredData
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.effects import PostgresEffects
from loom.activities.adapters.postgres.knowledge import PostgresKnowledge
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.memory_upkeep import PostgresMemoryUpkeep
from loom.activities.adapters.postgres.parts import PostgresParts
from loom.activities.adapters.postgres.payloads import PostgresPayloads
from loom.activities.adapters.postgres.person_facts import PostgresPersonFacts
from loom.activities.adapters.postgres.scoped_memory import PostgresScopedMemory
from loom.activities.adapters.postgres.tenants import PostgresTenants
from loom.activities.adapters.postgres.used_starts import PostgresUsedStarts
from loom.activities.knowledge.ports import Document
from loom.activities.ports import Claim, CloneKey
from loom.domain.audit.entries import Act, AuditEntry, Source
from loom.domain.core.tasks import Action, Task
from loom.domain.core.tenants import Owner
from loom.domain.core.tool_calls import ToolResult
from loom.domain.memory.chunks import Chunk
from loom.domain.memory.knowledge import KnowledgeQuery
from loom.domain.memory.layers import MemoryScope, Query, View
from loom.domain.memory.people import FactKind, NewFact, SaidFact
from loom.domain.memory.scopes import ScopedWrite
from loom.domain.tree.budget import Spend

AT: Final = datetime(2026, 11, 1, 12, tzinfo=UTC)
LATER: Final = datetime(2126, 1, 1, tzinfo=UTC)
TODAY: Final = date(2026, 11, 1)
ANN: Final = Owner(user_id="ann", tenant="acme")
NOBODY: Final = Owner()
HARBOUR: Final = (
    "The harbour opens at six in the morning, and closes at night when the last ship of the day has come in."
)
BAKERY: Final = (
    "The bakery behind the market opens at seven, and its bread is sold out before the ferry leaves at nine."
)
CAPTAIN: Final = (
    "Every captain of the island knows the rocks in front of the harbour, but no chart that we have shows them."
)
BOAT: Final = "My boat lies in the harbour."
RULE: Final = "Ships must slow down in the harbour."
LONG: Final = "the tide table of the harbour\n" * 200
PAYLOAD: Final = Payload(metadata={"encoding": b"json/plain"}, data=b'"a conversation"')
PICTURE: Final = b"a picture"
DECISION: Final = bytes(32)
CLONE: Final = CloneKey(run_id="run", execution="1")
STACK_KEY: Final = f"k-2026-11-01-000000 {base64.b64encode(bytes(range(32))).decode()}\n"


class Directions:
    """An embedder with one direction for texts about the harbour, and one for all others."""

    model: Final = "directions"
    dimension: Final = 2

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[list[float]]:
        del query
        return [[1.0, 0.0] if "harbour" in text else [0.0, 1.0] for text in texts]


def said(text: str, number: int, owner: Owner = NOBODY, session: str = "trip", **more: Any) -> Task:
    """A message to a run of this owner."""
    metadata = {"importance": 0.9, "tenant": owner.tenant, "user_id": owner.user_id, **more}
    run_id = f"run-{owner.user_id}" if owner.user_id else "run"
    return Task(
        task_id=f"{run_id}/n{number}/node.message",
        run_id=run_id,
        root_run_id=run_id,
        session_id=session,
        action=Action.MESSAGE,
        created_at=AT.replace(minute=number),
        source_agent="default",
        parameters={"text": text},
        metadata={name: value for name, value in metadata.items() if value},
    )


@asynccontextmanager
async def _keys(database: Database) -> AsyncIterator[DataKeys]:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "keys"
        file.touch(mode=0o600)
        file.write_text(STACK_KEY)
        yield DataKeys(KeyRing(file), database)


async def store(url: str) -> None:
    """Store something in each table."""
    async with aclosing(Database(url)) as database, aclosing(PostgresPayloads(url)) as payloads:
        await _store_calls(database)
        await PostgresArtifacts(database).save("run", "tides", LONG)
        target = StorageDriverWorkflowInfo(namespace="default", id="run", type="AgentRun", run_id="1")
        await payloads.store(StorageDriverStoreContext(target=target), [PAYLOAD])
        await PostgresParts(database).save("run", PICTURE, "acme")
        await PostgresStoredData(database).look_up("server", "run", "")
        await PostgresUsedStarts(database).use("start", "run", "execution")
        clones, holder = PostgresClonePatches(database), uuid4()
        await clones.hold(CLONE, holder)
        await clones.begin(CLONE, holder, "call", "generation")
        await clones.save(CLONE, holder, b"a patch", "call", 0)
        await _store_memory(database)
        await _store_knowledge(database)
        await _store_people(database)
        await _store_tenant(database)
        await _store_acts(database)
        async with _keys(database) as keys:
            await keys.current("acme")
            await keys.words()


async def _store_calls(database: Database) -> None:
    effects = PostgresEffects(database)
    await effects.reserve("run/finished", "run", 1)
    await effects.finish("run/finished", 1, ToolResult(content="paid"))
    await effects.reserve("run/lost", "run", 1)
    claim = Claim(key="run/lost", run_id="run", attempt=1)
    await effects.renew([claim])
    await effects.release(claim)


async def _store_memory(database: Database) -> None:
    memory = PostgresMemory(database, embedder=Directions())
    await memory.remember(
        [
            said(HARBOUR, 1),
            said(BAKERY, 2),
            said(CAPTAIN, 3, scope="global"),
            said(BOAT, 4, ANN),
        ]
    )
    upkeep = PostgresMemoryUpkeep(database, model=Directions.model, dimension=Directions.dimension)
    for due in await upkeep.due_for_summary(10):
        await upkeep.summarise(due.id, [f"fact: {due.content}"])
    due_for_vector = await upkeep.due_for_vector(10)
    vectors = await Directions().embed([each.content for each in due_for_vector])
    await upkeep.keep_vectors([(each.id, vector) for each, vector in zip(due_for_vector, vectors, strict=True)])
    await memory.remember([said("to be forgotten", 5, session="other")])
    await memory.forget("other")
    notes = PostgresScopedMemory(database)
    for owner, scope in ((NOBODY, MemoryScope.SHARED), (ANN, MemoryScope.LOCAL), (ANN, MemoryScope.GLOBAL)):
        await notes.write(
            ScopedWrite(
                id="plan",
                content=f"sail at dawn ({scope})",
                scope=scope,
                by=("run",),
                written_for=owner,
                session_id="trip",
            )
        )


async def _store_knowledge(database: Database) -> None:
    knowledge = PostgresKnowledge(database)
    chunks = (Chunk(text=RULE, headings=("Rules",), first_line=3, last_line=4),)
    for tenant, path in (("", "rules.md"), ("acme", "own.md")):
        await knowledge.begin("port", "/srv/port", tenant=tenant)
        await knowledge.save("port", Document(path=path, digest="d1", chunks=chunks), tenant=tenant)
        without = await knowledge.unembedded("port", 10, tenant=tenant)
        await knowledge.set_vectors(Directions.model, {each.id: [1.0, 0.0] for each in without})


async def _store_people(database: Database) -> None:
    people = PostgresPersonFacts(database, embedder=Directions())
    for number, content in enumerate(("prefers sail to motor", "sails on Sundays", "drinks coffee")):
        fact = SaidFact(kind=FactKind.PREFERENCE, content=content)
        await people.learn(
            [NewFact(owner=ANN, said=fact, source="rule", at=AT.replace(minute=number), session_id="trip", run_id="r")]
        )
    newest, older, _ = await people.about([ANN])
    await people.supersede(newest, [older.id])
    due = await people.due_for_vector(10)
    vectors = await Directions().embed([each.content for each in due])
    await people.keep_vectors([(each.id, vector) for each, vector in zip(due, vectors, strict=True)])
    (gone,) = [each for each in await people.about([ANN]) if each.content == "prefers sail to motor"]
    await people.learn(
        [NewFact(owner=ANN, said=SaidFact(kind=FactKind.DECISION, content="sells the boat"), source="added", at=AT)]
    )
    await people.forget(ANN, gone.id)


async def _store_tenant(database: Database) -> None:
    tenants = PostgresTenants(database)
    for run_id in ("run", "waiting"):
        await tenants.advance("acme", 1, joins=run_id)
    for _ in range(2):
        await tenants.charge("acme", TODAY, Spend(tokens=100, micros=7))


async def _store_acts(database: Database) -> None:
    tokens = PostgresTokens(database)
    for name in ("phone", "laptop"):
        await tokens.add(
            name, name.encode(), name=name, role="operator", tenant="acme", created_by="ann", expires_at=None
        )
    await tokens.revoke("phone")
    await PostgresCallApprovals(database).add("run", "call", "asked", DECISION, "ann")
    audit = PostgresAuditLog(database)
    for act in (Act.START, Act.APPROVE):
        entry = AuditEntry(
            key=f"run/{act}", at=AT, act=act, source=Source.UPDATE, by="ann", tenant="acme", run_id="run"
        )
        await audit.append([entry])
    await audit.set_read_until("server", "loom", AT)
    await audit.add_unread("server", "loom", "run", "execution")


async def read(url: str) -> dict[str, Any]:
    """Return what today's stores find of it."""
    async with aclosing(Database(url)) as database, aclosing(PostgresPayloads(url)) as payloads:
        id_ = sha256(PAYLOAD.SerializeToString(deterministic=True)).hexdigest()
        (payload,) = await payloads.retrieve(
            StorageDriverRetrieveContext(), [StorageDriverClaim(claim_data={"id": id_})]
        )
        tides = await PostgresArtifacts(database).load("run", "tides")
        return {
            "payload": payload.data,
            "artifact is whole": tides == LONG,
            **await _read_calls(database),
            **await _read_memory(database),
            **await _read_knowledge(database),
            **await _read_later_tables(database),
        }


async def _read_calls(database: Database) -> dict[str, Any]:
    effects = PostgresEffects(database)
    finished, lost = [await effects.reserve(f"run/{name}", "run", 2) for name in ("finished", "lost")]
    assert isinstance(finished, ToolResult)
    return {"the finished call's result": finished.content, "earlier attempt at the lost call": lost}


async def _read_memory(database: Database) -> dict[str, Any]:
    memory, notes = PostgresMemory(database, embedder=Directions()), PostgresScopedMemory(database)
    found: dict[str, Any] = {}
    for name, owner in (("nobody", NOBODY), ("ann", ANN)):
        here = View(session_id="trip", owner=owner)
        recent = await memory.recent(here)
        by_meaning = await memory.recall(Query(text="the harbour", view=here, threshold=0.5))
        found |= {
            f"memories of {name}": [(hit.memory.content, hit.memory.layer) for hit in recent],
            f"what {name} recalls by meaning": sorted(hit.memory.content for hit in by_meaning if hit.similarity),
            f"notes of {name}": [note.content for note in await notes.entries(("run",), owner)],
        }
    found["tasks are known"] = await memory.missing([said(HARBOUR, 1)]) == ()
    return found


async def _read_knowledge(database: Database) -> dict[str, Any]:
    knowledge = PostgresKnowledge(database, embedder=Directions())
    return {
        f"rules for {tenant or 'nobody'}": [
            (hit.path, hit.chunk.text, hit.chunk.headings, hit.similarity)
            for hit in await knowledge.search(KnowledgeQuery(text="slow down in the harbour", tenant=tenant))
        ]
        for tenant in ("", "acme")
    }


async def _read_later_tables(database: Database) -> dict[str, Any]:
    """Return what releases before 0.4.0 don't store."""
    tenants, audit = PostgresTenants(database), PostgresAuditLog(database)
    people = PostgresPersonFacts(database, embedder=Directions())
    acts = await audit.newest(AuditFilter(), 10)
    async with _keys(database) as keys:
        key_owners = [key.tenant for key in await keys.listed() if await keys.current(key.tenant)]
    return {
        "picture": await PostgresParts(database).load(sha256(PICTURE).hexdigest()),
        "execution of the start": await PostgresUsedStarts(database).use("start", "run", "another execution"),
        "stored runs": [tree.root for tree in await PostgresStoredData(database).due("server", LATER, 10)],
        "facts about ann": [fact.content for fact in await people.listed(ANN, with_replaced=True)],
        "facts that hold": [fact.content for fact in await people.about([ANN])],
        "tokens": [(token.name, token.revoked_at is None) for token in await PostgresTokens(database).all()],
        "approvals": await PostgresCallApprovals(database).of_runs(["run"]),
        "acts": [(row.sequence, row.entry.act, row.entry.by) for row in acts],
        "signs of tampering": (await audit.verify()).findings,
        "histories are read until": await audit.read_until("server", "loom"),
        "unread histories": await audit.unread("server", "loom"),
        "running": (await tenants.advance("acme", 1)).admitted,
        "spent": await tenants.used("acme", TODAY),
        "owners of keys": key_owners,
        "change to the clone": await PostgresClonePatches(database).load(CLONE),
    }
