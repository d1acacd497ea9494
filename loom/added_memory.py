"""Add memories by hand, from the command line and from Python."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from loom.activities.adapters.postgres.database import Database
from loom.activities.memory.ports import PersonFactStore
from loom.activities.ports import StoreUnavailable
from loom.composition.client_settings import ClientSettings
from loom.composition.encryption import opened_database
from loom.domain.core.errors import BadRequest, UnreachableError
from loom.domain.core.messages import canonical, short_digest
from loom.domain.core.tasks import Action, Task
from loom.domain.core.tenants import Owner
from loom.domain.memory.content import LONGEST
from loom.domain.memory.layers import MemoryScope
from loom.domain.memory.people import FactKind, NewFact, SaidFact, checked_content

NO_DATABASE: Final = "memory needs a database: start `loom up`, or set LOOM_DATABASE_URL"


def memory_task(
    text: str,
    session: str | None,
    *,
    for_all: bool = False,
    by: str = "",
    importance: float = 0.8,
    memory_id: str | None = None,
    owner: Owner = Owner(),  # noqa: B008 - frozen
) -> Task:
    """Return a memory as the Task of a person's message. The owner's runs in the session can find it, or with `for_all`
    all runs of the owner's tenant.

    Raises BadRequest if the text or the session is missing.
    """
    if not 0 < len(text.strip()) <= LONGEST:
        told = f"has {len(text.strip()):,} characters" if text.strip() else "is empty"
        raise BadRequest(f"the text {told}: it must have 1 to {LONGEST:,} characters", field="text")
    if bool(session) == for_all:
        raise BadRequest("choose which runs can find it: one session's, or all", field="session")
    if not 0 <= importance <= 1:
        raise BadRequest(f"importance: {importance:g} is not from 0 to 1", field="importance")
    of = "" if owner == Owner() else f"{short_digest(canonical(asdict(owner)))}-"
    name = f"memory-{of}{memory_id or uuid4()}"
    names = {**asdict(owner), "scope": str(MemoryScope.GLOBAL) if for_all else ""}
    return Task(
        task_id=f"{name}/1",
        run_id=name,
        root_run_id=name,
        session_id=session or name,
        source_agent="person",
        action=Action.MESSAGE,
        created_at=datetime.now(UTC),
        parameters={"text": text.strip(), **({"by": by} if by else {})},
        metadata={"importance": importance, **{name: value for name, value in names.items() if value}},
    )


async def add_memory(settings: ClientSettings, task: Task) -> None:
    """Store a memory once, however often it is added. A worker adds its vector later. Raises UnreachableError."""
    async with _database(settings) as database:
        from loom.activities.adapters.postgres.memory import PostgresMemory  # noqa: PLC0415 - needs pgvector

        await PostgresMemory(database, embedder=None, settings=settings.memory_limits).remember([task])


async def add_fact(settings: ClientSettings, owner: Owner, text: str) -> None:
    """Store a fact for all runs of a person or a tenant. A worker adds its vector later.

    Raises BadRequest and UnreachableError.
    """
    checked_content(text)
    async with _database(settings) as database:
        from loom.activities.adapters.postgres.person_facts import PostgresPersonFacts  # noqa: PLC0415 - needs pgvector

        await learn(PostgresPersonFacts(database, embedder=None, settings=settings.memory_limits), owner, text)


async def learn(store: PersonFactStore, owner: Owner, text: str) -> None:
    """Store a fact that a person has written."""
    said = SaidFact(kind=FactKind.PREFERENCE, content=checked_content(text))
    await store.learn([NewFact(owner=owner, said=said, source="added", at=datetime.now(UTC))])


@asynccontextmanager
async def _database(settings: ClientSettings) -> AsyncIterator[Database]:
    if settings.database_url is None:
        raise UnreachableError(NO_DATABASE)
    try:
        async with opened_database(settings, max_connections=1, name="loom-memory") as database:
            yield database
    except StoreUnavailable as error:
        raise UnreachableError(str(error)) from error
