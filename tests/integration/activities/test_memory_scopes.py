"""Scoped memory on a real Postgres: versions are added, none is lost, whoever writes at the same time."""

import asyncio
from dataclasses import replace
from uuid import uuid4

import pytest

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.scoped_memory import PostgresScopedMemory
from loom.activities.memory.ports import ScopedMemory
from loom.domain.core.tenants import Owner
from loom.domain.memory.layers import MemoryScope
from loom.domain.memory.scopes import NodePath, ReadOnlyScopeError, ScopedWrite

LOCAL, SHARED, INHERITED, GLOBAL = MemoryScope


@pytest.fixture(scope="module")
def memory(database: Database) -> ScopedMemory:
    return PostgresScopedMemory(database)


@pytest.fixture
def root() -> str:
    return uuid4().hex


NOBODY = Owner()


def write(
    by: NodePath, content: str, scope: MemoryScope = SHARED, *, read_version: int | None = None, owner: Owner = NOBODY
) -> ScopedWrite:
    return ScopedWrite(
        id="plan",
        content=content,
        scope=scope,
        by=by,
        written_for=owner,
        session_id=by[0],
        read_version=read_version,
    )


async def read(memory: ScopedMemory, *reader: str) -> tuple[MemoryScope, str] | None:
    found = await memory.read("plan", reader, NOBODY)
    return None if found is None else (found.scope, found.content)


async def test_a_node_reads_its_own_before_its_line_before_its_branch_before_all(
    memory: ScopedMemory, root: str
) -> None:
    assert await read(memory, root, "child") is None
    await memory.write(
        ScopedWrite(id="plan", content="global", scope=GLOBAL, by=(root + "x",), written_for=NOBODY, session_id=root)
    )
    assert await read(memory, root, "child") == (GLOBAL, "global")
    await memory.write(write((root, "sibling"), "sibling's"))
    assert await read(memory, root, "child") == (INHERITED, "sibling's")
    assert await read(memory, root) == (SHARED, "sibling's")
    await memory.write(write((root, root + "c"), "private", LOCAL))
    assert await read(memory, root, root + "c") == (LOCAL, "private")
    assert await read(memory, root, root + "c", "below") == (INHERITED, "sibling's")
    seen = await memory.entries((root, root + "c"), NOBODY)
    assert [(one.scope, one.content) for one in seen if one.session_id == root] == [
        (LOCAL, "private"),
        (INHERITED, "sibling's"),
        (GLOBAL, "global"),
    ]
    with pytest.raises(ReadOnlyScopeError):
        await memory.write(write((root, "child"), "mine"))


async def test_of_many_writers_at_once_every_version_is_kept_and_says_what_it_superseded(
    memory: ScopedMemory, root: str
) -> None:
    await memory.write(write((root,), "first"))
    await asyncio.gather(*(memory.write(write((root, f"c{n}"), f"by {n}", read_version=1)) for n in range(12)))
    versions = await memory.versions("plan", (root,), NOBODY)
    assert [one.version for one in versions] == list(range(1, 14))
    assert {one.content for one in versions} == {"first", *(f"by {n}" for n in range(12))}
    assert [one.conflicts_with for one in versions] == [None, None, *range(2, 13)]
    assert {one.parent_version for one in versions[1:]} == {1}
    newest = await memory.read("plan", (root,), NOBODY)
    assert newest == versions[-1]


@pytest.mark.parametrize("hard", ["\\", "a\0b", "half \ud800", "中" * 500, "'; --"])
async def test_any_id_is_one(memory: ScopedMemory, root: str, hard: str) -> None:
    node = (root + hard,)
    await memory.write(ScopedWrite(id=hard, content=f"{hard}!", by=node, written_for=NOBODY, session_id=root))
    found = await memory.read(hard, node, NOBODY)
    assert found is not None
    assert found.scope is LOCAL
    assert await memory.read(hard, (root,), NOBODY) is None


async def test_forgetting_a_session_forgets_what_its_nodes_wrote(
    database: Database, memory: ScopedMemory, root: str
) -> None:
    for scope in (LOCAL, SHARED, GLOBAL):
        await memory.write(
            ScopedWrite(id=root, content="x", scope=scope, by=(root,), written_for=NOBODY, session_id=root)
        )
    await PostgresMemory(database).forget(root)
    assert await memory.read(root, (root,), NOBODY) is None


OWNERS = tuple(Owner(user_id=user, tenant=tenant) for user in ("", "ann", "eve") for tenant in ("", "t1", "t2"))


@pytest.mark.parametrize("scope", [LOCAL, SHARED, GLOBAL])
async def test_equal_notes_of_different_owners_never_meet(memory: ScopedMemory, root: str, scope: MemoryScope) -> None:
    """Even if their runs have the same id, one after the other. What is global is global within a tenant."""
    wrote = [each for each in OWNERS if scope is not GLOBAL or not each.user_id]
    for owner in wrote:
        await memory.write(replace(write((root,), f"of {owner.named}", scope, owner=owner), id=root))
    for owner in OWNERS:
        whose = Owner(tenant=owner.tenant) if scope is GLOBAL else owner
        found = await memory.read(root, (root,), owner)
        assert found is not None
        assert (found.content, found.version) == (f"of {whose.named}", 1)
        assert [each.content for each in await memory.entries((root,), owner) if each.id == root] == [found.content]
        assert await memory.versions(root, (root,), owner) == (replace(found, scope=scope),)
