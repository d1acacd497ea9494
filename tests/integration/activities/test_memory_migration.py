"""Memories that builds before 0.4.0 stored belong to nobody, or to the person whom their tasks name.

`test_stored_data.py` has the data of releases.
"""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, Final

import psycopg

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.memory_rows import key_text
from loom.activities.adapters.postgres.memory_tasks import memory_row
from loom.activities.adapters.postgres.schema_migrations import migrate, read_migrations
from loom.activities.adapters.postgres.scoped_memory import PostgresScopedMemory
from loom.activities.encryption import NoEncryption
from loom.domain.core.tasks import Task
from loom.domain.core.tenants import Owner
from loom.domain.memory.layers import MemoryScope, MemorySettings, Query, View
from loom.domain.memory.scopes import place_of
from loom.testing.harness import Addresses
from tests.databases import fresh_database
from tests.memories import task

WITH_OWNERS: Final = 16
"""The last migration of builds that stored the owner of a task, but didn't separate sessions by it."""

TASK: Final = """
INSERT INTO loom_memory_tasks (id, task_id, run_id, session_id, turn, ordinal, action, created_at, owner)
VALUES (%(id)s, %(task_id)s, %(run_id)s, %(session_id)s, %(turn)s, %(ordinal)s, %(action)s, %(created_at)s, %(owner)s)
"""
MEMORY: Final = """
INSERT INTO loom_memory (
    place, session_id, run_id, root_run_id, task_id, parent_task_id, turn, ordinal, node, action, status, layer, scope,
    importance, content, fingerprint, task, lexemes, length, telling, created_at
) VALUES (
    %(old_place)s, %(session_id)s, %(run_id)s, %(root_run_id)s, %(task_id)s, %(parent_task_id)s, %(turn)s, %(ordinal)s,
    %(node)s, %(action)s, %(status)s, %(layer)s, %(scope)s, %(importance)s, %(content)s, %(fingerprint)s, %(task)s,
    %(lexemes)s::tsvector, %(length)s, %(telling)s, %(created_at)s
)
"""
NOTE: Final = """
INSERT INTO loom_scoped_memory (place, id, version, content, scope, owner, session_id, created_by, updated_by)
VALUES (%s, 'plan', 1, %s, %s, %s, 's', %s, %s)
"""
ANN: Final = Owner(user_id="ann", tenant="acme")
EVE: Final = Owner(user_id="eve", tenant="acme")


async def store_as_before(url: str, tasks: Sequence[Task]) -> None:
    """Store the tasks, and a note of each run in each scope, with the statements of these builds."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await migrate(connection, read_migrations()[:WITH_OWNERS])
        for number, each in enumerate(tasks, start=1):
            row: dict[str, Any] = await memory_row(NoEncryption(), each, number, 0.9, MemorySettings())
            row["old_place"] = "" if row["scope"] == "global" else key_text(each.session_id)
            await connection.execute(TASK.encode(), row)
            await connection.execute(MEMORY.encode(), row)
            node = (each.run_id,)
            for scope in (MemoryScope.LOCAL, MemoryScope.SHARED):
                values = (place_of(scope, node), each.run_id, scope, list(node), each.run_id, each.run_id)
                await connection.execute(NOTE.encode(), values)


async def seen(database: Database, owner: Owner) -> set[str]:
    here = View(session_id="s", owner=owner)
    memory = PostgresMemory(database)
    hits = (await memory.recent(here), await memory.recall(Query(text="code", view=here)))
    (recent, found) = ({hit.memory.content for hit in each} for each in hits)
    assert recent == found
    return recent


async def test_what_runs_without_an_owner_have_left_stays_theirs(addresses: Addresses) -> None:
    mine = task("the code of nobody", run_id="r", session_id="s")
    shared = task("the code of everybody", run_id="r2", session_id="other", metadata={"scope": "global"})
    async with fresh_database(addresses.database) as url:
        await store_as_before(url, [mine, shared])
        async with aclosing(Database(url)) as database:
            assert await seen(database, Owner()) == {"the code of nobody", "the code of everybody"}
            assert await seen(database, ANN) == await seen(database, Owner(tenant="acme")) == set()
            notes = PostgresScopedMemory(database)
            assert [each.content for each in await notes.entries(("r",), Owner())] == ["r", "r"]
            assert await notes.entries(("r",), ANN) == ()
            assert await PostgresMemory(database).remember([mine]) == 0
            assert (await PostgresMemory(database).forget("s")).memories == 1


async def test_what_a_persons_runs_have_left_is_only_for_the_person(addresses: Addresses) -> None:
    of = [
        task(f"the code of {who.user_id}", run_id=who.user_id, session_id="s", metadata=asdict(who))
        for who in (ANN, EVE)
    ]
    async with fresh_database(addresses.database) as url:
        await store_as_before(url, of)
        async with aclosing(Database(url)) as database:
            assert await seen(database, ANN) == {"the code of ann"}
            assert await seen(database, EVE) == {"the code of eve"}
            assert await seen(database, Owner()) == await seen(database, Owner(user_id="ann", tenant="other")) == set()
            notes = PostgresScopedMemory(database)
            assert [each.content for each in await notes.entries(("ann",), ANN)] == ["ann", "ann"]
            assert await notes.entries(("ann",), EVE) == await notes.entries(("ann",), Owner()) == ()
            assert (await PostgresMemory(database).forget("s")).memories == 2
