"""Owners with equal names for everything, the words that they leave behind, and the ways to read them again.

Each owner writes words that nobody else writes, through every store and tool. A way to read says which of these words
a reader may see. Readers see exactly these words, or some of them if the way shows only the most fitting texts.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum, auto
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import uuid4

from loom.activities.adapters.postgres.artifacts import PostgresArtifacts
from loom.activities.adapters.postgres.audit import AuditFilter, PostgresAuditLog
from loom.activities.adapters.postgres.collection import PostgresStoredData
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.knowledge import PostgresKnowledge
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.memory_upkeep import PostgresMemoryUpkeep
from loom.activities.adapters.postgres.parts import PostgresParts
from loom.activities.adapters.postgres.person_facts import PostgresPersonFacts
from loom.activities.adapters.postgres.scoped_memory import PostgresScopedMemory
from loom.activities.adapters.postgres.tenants import PostgresTenants
from loom.activities.knowledge.ports import Document
from loom.activities.memory.person_facts import PersonFactKeeper, learn_by_rule
from loom.activities.memory.upkeep import MemoryKeeper, embed, promote
from loom.activities.ports import Tool, ToolContext
from loom.activities.recall import InheritedNotes, Knowledge, PersonMemory, SessionMemory
from loom.activities.toolbox.built_in.made_tools import MadeTools
from loom.added_memory import learn, memory_task
from loom.composition.memory import WorkerMemory
from loom.composition.settings import Settings
from loom.composition.tool_registry import registry_from
from loom.domain.agents.spec import AgentSpec
from loom.domain.audit.entries import AuditEntry
from loom.domain.core.errors import LoomError
from loom.domain.core.tasks import Action, Origin, Task
from loom.domain.core.tenants import Owner, OwnerFilter
from loom.domain.memory.chunks import Chunk
from loom.domain.memory.knowledge import KnowledgeQuery
from loom.domain.memory.layers import MemoryScope, MemorySettings, Query, View
from loom.domain.memory.people import owners_for
from loom.domain.memory.scopes import ScopedWrite
from tests.memories import WordVectors, task

WORDS: Final = WordVectors()
MOST: Final = 500
"""More than what a world has, so that nothing is missing because others have more."""


class Source(StrEnum):
    """Where a word was left."""

    SAID = auto()
    SAID_TO_ALL = auto()
    ADDED_TO_ALL = auto()
    """By a person, for all sessions of the tenant, and in a session of its own."""
    FACT = auto()
    NOTE = auto()
    SHARED = auto()
    PUBLISHED = auto()
    ARTIFACT = auto()
    FOLDER = auto()
    DOCUMENT = auto()
    PART = auto()
    AUDITED = auto()
    QUEUED = auto()


SESSION: Final = frozenset({Source.SAID, Source.SAID_TO_ALL, Source.NOTE, Source.SHARED, Source.PUBLISHED})
"""What is forgotten with a session."""
OF_TENANT: Final = frozenset({Source.PUBLISHED, Source.FOLDER, Source.DOCUMENT})
"""What all members of a tenant replace. What else is replaced is each owner's own."""
NOTES: Final = (Source.NOTE, Source.SHARED, Source.PUBLISHED)
SCOPES: Final = {MemoryScope(s): n for s, n in zip(("local", "shared", "global"), NOTES, strict=True)}


@dataclass
class Word:
    """A word that an owner has left."""

    text: str
    owner: Owner
    source: Source
    is_gone: bool = False


Sees: TypeAlias = Callable[["World", Owner, Word], bool]


@dataclass(kw_only=True)
class World:
    """Stores in which all owners have equal names for everything. The names of each world are its own."""

    database: Database
    home: Path
    tools: Mapping[str, Tool]
    mark: str = field(default_factory=lambda: "".join(chr(ord("a") + int(digit, 16)) for digit in uuid4().hex[:8]))
    words: list[Word] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """The sessions of memories that belong to no session of runs."""

    def __post_init__(self) -> None:
        """Open the stores, and name everything."""
        self._numbers = count(1)
        self.memory = PostgresMemory(self.database, embedder=WORDS)
        self.upkeep = PostgresMemoryUpkeep(self.database, model=WORDS.model, dimension=WORDS.dimension)
        self.people = PostgresPersonFacts(self.database, embedder=WORDS)
        self.notes = PostgresScopedMemory(self.database)
        self.knowledge = PostgresKnowledge(self.database, embedder=WORDS)
        self.parts = PostgresParts(self.database)
        self.audit = PostgresAuditLog(self.database)
        self.queue = PostgresTenants(self.database)
        self.session = f"session-{self.mark}"
        self.base = f"handbook-{self.mark}"
        self.root = f"run-{self.mark}"
        self.writer, self.reader = f"{self.root}/d1-1-aaaa", f"{self.root}/d1-2-bbbb"
        tenants = ("", f"t1-{self.mark}", f"t2-{self.mark}")
        ann, bob = f"ann-{self.mark}", f"bob-{self.mark}"
        everybody, without = [(tenant, user) for tenant in tenants[1:] for user in (ann, bob)], [("", ""), ("", ann)]
        self.owners = tuple(
            Owner(tenant=tenant, user_id=user) for tenant, user in (*everybody, *without, (tenants[1], ""))
        )

    def word(self, owner: Owner, *sources: Source) -> str:
        """A new word that the owner leaves there."""
        number = next(self._numbers)
        text = f"zq{self.mark}{chr(ord('a') + number // 26)}{chr(ord('a') + number % 26)}"
        self.words += [Word(text, owner, source) for source in sources]
        return text

    def seen_in(self, told: object) -> set[str]:
        """This world's words in whatever somebody was told."""
        return set(re.findall(rf"zq{self.mark}[a-z]+", repr(told)))

    def visible(self, sees: Sees, reader: Owner) -> set[str]:
        """What the reader may see."""
        return {word.text for word in self.words if not word.is_gone and sees(self, reader, word)}

    def is_newest(self, word: Word) -> bool:
        """Whether nothing has replaced the word where it was left."""
        later = self.words[self.words.index(word) + 1 :]
        return not any(not each.is_gone and _place(each) == _place(word) for each in later)

    def has_base(self, tenant: str) -> bool:
        """Whether the tenant has a knowledge base, or the operator for an empty name."""
        bases = (word for word in self.words if word.source is Source.FOLDER and not word.is_gone)
        return any(word.owner.tenant == tenant for word in bases)

    def forgotten(self, *sources: Source, of: Callable[[Owner], bool]) -> None:
        """Record what is gone."""
        for word in self.words:
            word.is_gone = word.is_gone or (word.source in sources and of(word.owner))

    def forgotten_word(self, text: str, source: Source) -> None:
        """Record that one word is gone."""
        for word in self.words:
            word.is_gone = word.is_gone or (word.text, word.source) == (text, source)

    def origin(self, owner: Owner) -> Origin:
        """A run of the owner that reads."""
        return Origin(
            run_id=self.reader,
            root_run_id=self.root,
            session_id=self.session,
            tenant=owner.tenant,
            user_id=owner.user_id,
        )

    async def use(self, tool: str, owner: Owner, *, run_id: str = "", **arguments: object) -> str:
        """What a run of the owner is told by a tool. An error is told as well."""
        context = ToolContext(
            workspace=self.home,
            run_id=run_id or self.reader,
            call_id="c1",
            idempotency_key="k",
            timeout=10,
            session_id=self.session,
            root_run_id=self.root,
            execution=f"of {owner.named}",
            root_execution=f"of {owner.named}",
            tenant=owner.tenant,
            user_id=owner.user_id,
        )
        try:
            return str(await self.tools[tool].run(self.tools[tool].parse(arguments), context))
        except LoomError as error:
            return str(error)

    async def clear(self) -> None:
        """Delete what runs without a tenant of another world would see."""
        for session in (self.session, *self.others):
            await self.memory.forget(session)
        await self.knowledge.drop(self.base)


def _place(word: Word) -> tuple[object, ...]:
    return word.source, word.owner.tenant if word.source in OF_TENANT else word.owner


def tools_of(database: Database, home: Path) -> Mapping[str, Tool]:
    """All tools of a worker with this database."""
    memory = PostgresMemory(database, embedder=WORDS)
    remembered = WorkerMemory(
        store=memory,
        scoped=PostgresScopedMemory(database),
        people=PostgresPersonFacts(database),
        keeper=MemoryKeeper(None),
        limits=MemorySettings(),
        stored=PostgresStoredData(database),
    )
    return registry_from(
        Settings(home=home, dynamic_tools="on"),
        MadeTools(sandbox=None),
        artifacts=PostgresArtifacts(database),
        knowledge=PostgresKnowledge(database, embedder=WORDS),
        memory=remembered,
    ).tools


# ---- what one may see --------------------------------------------------------------------------------------------


def own(*sources: Source) -> Sees:
    """What the reader itself has left."""
    return lambda _, reader, word: word.source in sources and word.owner == reader


def of_tenant(*sources: Source) -> Sees:
    """What the reader's tenant has left."""
    return lambda _, reader, word: word.source in sources and word.owner.tenant == reader.tenant


def any_of(*rules: Sees) -> Sees:
    """What one of the rules allows."""
    return lambda world, reader, word: any(rule(world, reader, word) for rule in rules)


def newest(rule: Sees) -> Sees:
    """What the rule allows, without what was replaced."""
    return lambda world, reader, word: rule(world, reader, word) and world.is_newest(word)


def _of_bases(world: World, reader: Owner, word: Word) -> bool:
    whose = reader.tenant if world.has_base(reader.tenant) else ""
    return word.owner.tenant == whose and world.is_newest(word)


def searched(source: Source) -> Sees:
    """What the knowledge base that the reader searches has: its tenant's, or else the operator's."""
    return lambda world, reader, word: word.source is source and _of_bases(world, reader, word)


def _of_people(world: World, reader: Owner, word: Word) -> bool:
    return word.source is Source.FACT and word.owner in owners_for(world.origin(reader))


OF_AGENTS: Final = any_of(own(Source.SAID), of_tenant(Source.SAID_TO_ALL))
MEMORY: Final = any_of(OF_AGENTS, of_tenant(Source.ADDED_TO_ALL))
OPERATORS: Final = own(Source.SAID, Source.SAID_TO_ALL, Source.ADDED_TO_ALL)
OPERATORS_IN_SESSION: Final = own(Source.SAID, Source.SAID_TO_ALL)
READABLE_NOTES: Final = newest(any_of(own(Source.NOTE, Source.SHARED), of_tenant(Source.PUBLISHED)))
SHARED_NOTES: Final = newest(any_of(own(Source.SHARED), of_tenant(Source.PUBLISHED)))


# ---- ways to leave a word ----------------------------------------------------------------------------------------

Write: TypeAlias = Callable[[World, Owner], Awaitable[object]]
WRITES: Final[dict[str, Write]] = {}


def writes(function: Write) -> Write:
    """Register a way to leave a word, or to change or delete what the owner has left."""
    WRITES[str(getattr(function, "__name__", ""))] = function
    return function


def _task(world: World, owner: Owner, text: str, **given: Any) -> Task:
    names = {"user_id": owner.user_id, "tenant": owner.tenant, **given.pop("metadata", {})}
    return task(
        text,
        session_id=world.session,
        run_id=world.writer,
        root_run_id=world.root,
        metadata={"importance": 0.9, **{name: value for name, value in names.items() if value}},
        **given,
    )


@writes
async def say(world: World, owner: Owner) -> None:
    """A person's message, from which the rule learns a fact about the person."""
    sources = (Source.SAID, Source.FACT) if owner.user_id else (Source.SAID,)
    said = _task(world, owner, f"I always use the plan {world.word(owner, *sources)}.")
    await world.memory.remember(await world.memory.missing([said]))
    await learn_by_rule(world.people, [said])


@writes
async def say_to_all(world: World, owner: Owner) -> None:
    """A message for all sessions of the tenant."""
    word = world.word(owner, Source.SAID_TO_ALL)
    await world.memory.remember([_task(world, owner, f"The plan is {word}.", metadata={"scope": "global"})])


@writes
async def add_to_all(world: World, owner: Owner) -> None:
    """A memory that a person adds for all sessions of the tenant."""
    word = world.word(owner, Source.ADDED_TO_ALL)
    added = memory_task(f"The plan is {word}.", None, for_all=True, owner=owner)
    world.others.append(added.session_id)
    await world.memory.remember([added])


@writes
async def end(world: World, owner: Owner) -> None:
    """The end of the run, after which its tasks are summarized."""
    await world.memory.remember([_task(world, owner, "done", action=Action.COMPLETE)])


@writes
async def add_fact(world: World, owner: Owner) -> None:
    """A fact that somebody writes down about a person, or about everybody in a tenant."""
    if owner != Owner():
        await learn(world.people, owner, f"I always use the plan {world.word(owner, Source.FACT)}")


@writes
async def edit_fact(world: World, owner: Owner) -> None:
    """The newest fact gets another text."""
    for fact in (await world.people.listed(owner))[:1]:
        (old,) = world.seen_in(fact.content)
        world.forgotten_word(old, Source.FACT)
        await world.people.edit(owner, fact.id, f"I always use the plan {world.word(owner, Source.FACT)}")


@writes
async def note_in_each_scope(world: World, owner: Owner) -> None:
    """A new version of the note with the same name in each scope."""
    await world.memory.remember([_task(world, owner, "noted")])  # whoever notes something has said something before
    for scope, source in SCOPES.items():
        await world.notes.write(
            ScopedWrite(
                id=f"plan-{scope}",
                content=f"The plan is {world.word(owner, source)}.",
                scope=scope,
                by=(world.root, world.writer),
                written_for=owner,
                session_id=world.session,
            )
        )


@writes
async def write_notes_with_tools(world: World, owner: Owner) -> None:
    """The same as a model does it."""
    await world.memory.remember([_task(world, owner, "noted")])
    for tool, given, source in (
        ("write_memory", {"id": "plan-local"}, Source.NOTE),
        ("write_memory", {"id": "plan-shared", "scope": "shared"}, Source.SHARED),
        ("publish_memory", {"id": "plan-global"}, Source.PUBLISHED),
    ):
        content = f"The plan is {world.word(owner, source)}."
        assert "Kept" in await world.use(tool, owner, run_id=world.writer, content=content, **given)


@writes
async def share_a_text(world: World, owner: Owner) -> None:
    """An artifact, which never changes."""
    if not world.visible(own(Source.ARTIFACT), owner):
        word = world.word(owner, Source.ARTIFACT)
        assert "Shared" in await world.use("share_artifact", owner, name="plan", content=f"The plan is {word}.")


@writes
async def index_a_document(world: World, owner: Owner) -> None:
    """The same document of the same knowledge base, from another folder."""
    folder, word = world.word(owner, Source.FOLDER), world.word(owner, Source.DOCUMENT)
    await world.knowledge.begin(world.base, f"/docs/{folder}", tenant=owner.tenant)
    chunk = Chunk(text=f"The plan of the company is {word}.", first_line=1, last_line=1)
    document = Document(path="plan.md", digest=word, chunks=(chunk,))
    await world.knowledge.save(world.base, document, tenant=owner.tenant)


@writes
async def remove_a_document(world: World, owner: Owner) -> None:
    """Only the tenant's own."""
    await world.knowledge.remove(world.base, ["plan.md"], tenant=owner.tenant)
    world.forgotten(Source.DOCUMENT, of=lambda each: each.tenant == owner.tenant)


@writes
async def drop_a_base(world: World, owner: Owner) -> None:
    """Only the tenant's own."""
    await world.knowledge.drop(world.base, tenant=owner.tenant)
    world.forgotten(Source.FOLDER, Source.DOCUMENT, of=lambda each: each.tenant == owner.tenant)


@writes
async def embed_documents(world: World, owner: Owner) -> None:
    """Vectors of the tenant's own documents, computed anew."""
    await world.knowledge.drop_vectors(world.base, tenant=owner.tenant)
    due = await world.knowledge.unembedded(world.base, MOST, tenant=owner.tenant)
    vectors = await WORDS.embed([each.told for each in due])
    await world.knowledge.set_vectors(WORDS.model, dict(zip((each.id for each in due), vectors, strict=True)))


@writes
async def send_a_part(world: World, owner: Owner) -> None:
    """A client sends a run a file, and the run takes it."""
    data = f"The plan is {world.word(owner, Source.PART)}.".encode()
    run = uuid4().hex
    assert await world.parts.adopt(run, await world.parts.save(run, data, None), owner.tenant)


@writes
async def store_a_part(world: World, owner: Owner) -> None:
    """A tool returns a file."""
    await world.parts.save(world.writer, f"The plan is {world.word(owner, Source.PART)}.".encode(), owner.tenant)


@writes
async def record_an_act(world: World, owner: Owner) -> None:
    """A row of the audit log."""
    word = world.word(owner, Source.AUDITED)
    entry = AuditEntry(
        key=word, at=datetime.now(UTC), act="start", source="http", tenant=owner.tenant, run_id=world.root, subject=word
    )
    await world.audit.append([entry])


@writes
async def join_the_queue(world: World, owner: Owner) -> None:
    """A run that the tenant's limit has admitted a minute ago."""
    word = world.word(owner, Source.QUEUED)
    await world.queue.advance(owner.tenant, MOST, joins=word)
    async with world.database.connection() as connection:
        ago = "UPDATE loom_tenant_runs SET checked_at = now() - interval '1 minute' WHERE run_id = %s"
        await connection.execute(ago, (word,))


@writes
async def forget_a_session(world: World, owner: Owner) -> None:
    """The owner's session, and not those of others with the same name. Facts that somebody wrote down remain."""
    heard = [fact for fact in await world.people.listed(owner) if fact.source != "added"]
    await world.memory.forget(world.session, OwnerFilter(tenant=owner.tenant, user_id=owner.user_id))
    world.forgotten(*SESSION, of=lambda each: each == owner)
    for word in world.seen_in(heard):
        world.forgotten_word(word, Source.FACT)


@writes
async def forget_a_person(world: World, owner: Owner) -> None:
    """All that the person's runs have left, or the facts for everybody in a tenant."""
    await world.people.forget(owner)
    runs = (*SESSION, Source.ADDED_TO_ALL) if owner.user_id else ()
    world.forgotten(Source.FACT, *runs, of=lambda each: each == owner)


@writes
async def change_what_others_have(world: World, owner: Owner) -> None:
    """Facts of others can't be changed or deleted by their numbers."""
    for other in world.owners:
        for fact in await world.people.listed(other) if other != owner else ():
            assert not await world.people.edit(owner, fact.id, "hacked")
            assert (await world.people.forget(owner, fact.id)).facts == 0


@writes
async def keep_up(world: World, owner: Owner) -> None:
    """Everybody's memory is summarized, distilled, compared, embedded and expired."""
    del owner
    distiller = OneOwnersTexts(world)
    settings = MemorySettings(distill_over=0)
    await promote(world.upkeep, distiller, settings, PersonFactKeeper(store=world.people, distiller=distiller))
    await embed(world.upkeep, WORDS, 50)
    await embed(world.people, WORDS, 50)
    await world.upkeep.expire()


@dataclass(frozen=True)
class OneOwnersTexts:
    """A model that distills texts, and never sees texts of two owners at once."""

    world: World

    async def facts(self, text: str) -> Sequence[str]:
        """The text itself."""
        self._check(text)
        return [" ".join(text.split())[:200]]

    async def about_person(self, text: str) -> Sequence[str]:
        """A fact about the one who wrote the text. The rule has found some of them already."""
        self._check(text)
        facts = {word.text for word in self.world.words if word.source is Source.FACT}
        for word in [each for each in self.world.words if each.text in self.world.seen_in(text) - facts]:
            self.world.words.append(Word(word.text, word.owner, Source.FACT))
        return [f"prefers: I always use the plan {word}" for word in self.world.seen_in(text)]

    async def contradicted(self, new: str, older: Sequence[str]) -> Sequence[int]:
        """Nothing."""
        self._check(new, *older)
        return ()

    def _check(self, *texts: str) -> None:
        seen = self.world.seen_in(texts)
        assert len({word.owner for word in self.world.words if word.text in seen}) <= 1


# ---- ways to read ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Read:
    """A way to read, what it shows, and whether it shows all of it."""

    ask: Callable[[World, Owner], Awaitable[object]]
    sees: Sees
    shows_all: bool = True


def _view(world: World, reader: Owner, **given: Any) -> View:
    return View(session_id=world.session, owner=reader, limit=MOST, **given)


def _filtered(reader: Owner) -> OwnerFilter:
    return OwnerFilter(tenant=reader.tenant, user_id=reader.user_id)


def _for_operators(reader: Owner) -> View:
    return View(session_id=None, owner=None, of=_filtered(reader), limit=MOST)


async def collected(found: AsyncIterator[Any]) -> list[Any]:
    """All that is yielded."""
    return [each async for each in found]


async def _similar(world: World, reader: Owner) -> object:
    facts = {fact.id: fact for owner in world.owners for fact in await world.people.listed(owner)}
    similar = await world.people.similarities(owners_for(world.origin(reader)), "the plan")
    return [facts[number].content for number in similar or ()]


async def _parts(world: World, reader: Owner) -> object:
    """The reader tries the digests of all files."""
    stored = [word.text for word in world.words if word.source is Source.PART]
    digests = [sha256(f"The plan is {word}.".encode()).hexdigest() for word in stored]
    return [await world.parts.load(each) for each in digests if await world.parts.adopt("r", each, reader.tenant)]


async def _versions(world: World, reader: Owner) -> object:
    path = (world.root, world.writer)
    return [await world.notes.versions(f"plan-{scope}", path, reader) for scope in SCOPES]


async def _notes(world: World, reader: Owner) -> object:
    path = (world.root, world.writer)
    return [await world.notes.read(f"plan-{scope}", path, reader) for scope in SCOPES]


async def _waiting_for_vectors(world: World, reader: Owner) -> object:
    return await world.knowledge.unembedded(world.base, MOST, tenant=reader.tenant)


def _spec(world: World) -> AgentSpec:
    return AgentSpec(name="default", model="demo", knowledge=(world.base,))


def _query(world: World, reader: Owner) -> KnowledgeQuery:
    return KnowledgeQuery(text="the plan of the company", tenant=reader.tenant, bases=(world.base,), limit=MOST)


STORE_READS: Final[dict[str, Read]] = {
    "memory.recall": Read(
        ask=lambda world, reader: world.memory.recall(Query(text="the plan", view=_view(world, reader))), sees=MEMORY
    ),
    "memory.recent": Read(ask=lambda world, reader: world.memory.recent(_view(world, reader)), sees=MEMORY),
    "memory.important": Read(ask=lambda world, reader: world.memory.important(_view(world, reader)), sees=MEMORY),
    "memory.by_action": Read(
        ask=lambda world, reader: world.memory.by_action(_view(world, reader), "node.message"), sees=MEMORY
    ),
    "memory.by_node": Read(
        ask=lambda world, reader: world.memory.by_node(_view(world, reader), "default"), sees=OF_AGENTS
    ),
    "memory.recall for operators": Read(
        ask=lambda world, reader: world.memory.recall(Query(text="the plan", view=_for_operators(reader))),
        sees=OPERATORS,
    ),
    "memory.recent for operators": Read(
        ask=lambda world, reader: world.memory.recent(_for_operators(reader)), sees=OPERATORS
    ),
    "memory.export": Read(
        ask=lambda world, reader: collected(world.memory.export(world.session, _filtered(reader))),
        sees=OPERATORS_IN_SESSION,
    ),
    "notes.read": Read(ask=_notes, sees=READABLE_NOTES),
    "notes.versions": Read(ask=_versions, sees=any_of(own(Source.NOTE, Source.SHARED), of_tenant(Source.PUBLISHED))),
    "notes.entries": Read(
        ask=lambda world, reader: world.notes.entries((world.root, world.writer), reader), sees=READABLE_NOTES
    ),
    "notes.entries of a sibling": Read(
        ask=lambda world, reader: world.notes.entries((world.root, world.reader), reader), sees=SHARED_NOTES
    ),
    "notes.export": Read(
        ask=lambda world, reader: world.notes.export(world.session, _filtered(reader)), sees=own(*NOTES)
    ),
    "people.about": Read(
        ask=lambda world, reader: world.people.about(owners_for(world.origin(reader))), sees=_of_people
    ),
    "people.listed": Read(ask=lambda world, reader: world.people.listed(reader), sees=own(Source.FACT)),
    "people.similarities": Read(ask=_similar, sees=_of_people, shows_all=False),
    "knowledge.search": Read(
        ask=lambda world, reader: world.knowledge.search(_query(world, reader)), sees=searched(Source.DOCUMENT)
    ),
    "knowledge.bases": Read(
        ask=lambda world, reader: world.knowledge.bases(tenant=reader.tenant), sees=searched(Source.FOLDER)
    ),
    "knowledge.digests": Read(
        ask=lambda world, reader: world.knowledge.digests(world.base, tenant=reader.tenant),
        sees=newest(of_tenant(Source.DOCUMENT)),
    ),
    "knowledge.unembedded": Read(ask=_waiting_for_vectors, sees=newest(of_tenant(Source.DOCUMENT)), shows_all=False),
    "parts.adopt": Read(ask=_parts, sees=of_tenant(Source.PART)),
    "audit.newest": Read(
        ask=lambda world, reader: world.audit.newest(AuditFilter(tenant=reader.tenant), MOST),
        sees=of_tenant(Source.AUDITED),
    ),
    "audit.export": Read(
        ask=lambda world, reader: collected(world.audit.export(AuditFilter(tenant=reader.tenant))),
        sees=of_tenant(Source.AUDITED),
    ),
    "queue.advance": Read(
        ask=lambda world, reader: world.queue.advance(reader.tenant, MOST), sees=of_tenant(Source.QUEUED)
    ),
    "queue.unchecked": Read(
        ask=lambda world, reader: world.queue.unchecked(reader.tenant), sees=of_tenant(Source.QUEUED), shows_all=False
    ),
    "recalled of the session": Read(
        ask=lambda world, reader: SessionMemory(world.memory).recall("the plan", world.origin(reader), _spec(world)),
        sees=MEMORY,
        shows_all=False,
    ),
    "recalled notes": Read(
        ask=lambda world, reader: InheritedNotes(world.notes).recall("the plan", world.origin(reader), _spec(world)),
        sees=newest(own(Source.SHARED)),
    ),
    "recalled facts": Read(
        ask=lambda world, reader: PersonMemory(world.people).about("the plan", world.origin(reader)), sees=_of_people
    ),
    "recalled knowledge": Read(
        ask=lambda world, reader: Knowledge(world.knowledge).recall(
            "the plan of the company", world.origin(reader), _spec(world)
        ),
        sees=searched(Source.DOCUMENT),
    ),
}

TOOL_READS: Final[dict[str, tuple[Mapping[str, Any], Sees, bool]]] = {
    "query_l1_memory": ({"top_k": 50}, MEMORY, True),
    "query_l2_memory": ({"top_k": 50}, MEMORY, True),
    "query_l3_memory": ({"top_k": 50}, MEMORY, False),
    "search_memory": ({"query": "the plan", "top_k": 50}, MEMORY, True),
    "query_recent_events": ({"top_k": 50}, MEMORY, True),
    "query_events_by_action": ({"action": "node.message", "top_k": 50}, MEMORY, True),
    "query_events_by_node": ({"node": "default", "top_k": 50}, OF_AGENTS, True),
    "query_collective_memory": ({"limit": 50}, MEMORY, True),
    "query_sibling_insights": ({"top_k": 50}, OF_AGENTS, True),
    "read_memory": ({}, SHARED_NOTES, True),
    "read_artifact": ({"artifact": "shared-plan"}, own(Source.ARTIFACT), True),
    "search_knowledge": ({"query": "the plan of the company", "top_k": 20}, searched(Source.DOCUMENT), True),
}
"""The tools that read what others may have left: their arguments, what a run may see, and whether it sees all of it."""

TOOLS_THAT_WRITE: Final = ("write_memory", "publish_memory", "share_artifact")
READS_OF_ITS_RUN: Final = "search_history"
"""The tool that reads the history of the run itself, which only a server has."""


def _with_tool(name: str) -> Read:
    arguments, sees, shows_all = TOOL_READS[name]
    return Read(ask=lambda world, reader: world.use(name, reader, **arguments), sees=sees, shows_all=shows_all)


READS: Final[dict[str, Read]] = {**STORE_READS, **{f"tool {name}": _with_tool(name) for name in TOOL_READS}}


async def look(world: World, name: str) -> set[str]:
    """Let every owner read in this way. Everyone sees what they may see, and nothing else. Return what was seen."""
    read = READS[name]
    found = await asyncio.gather(*(read.ask(world, owner) for owner in world.owners))
    seen = [world.seen_in(told) for told in found]
    for owner, words in zip(world.owners, seen, strict=True):
        visible = world.visible(read.sees, owner)
        assert words <= visible, f"{name} shows {owner.named or 'nobody'} words of others: {words - visible}"
        assert words == visible or not read.shows_all, f"{name} hides own words from {owner.named or 'nobody'}"
    return set().union(*seen)
