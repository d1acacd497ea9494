"""Scopes of memory: who reads and writes what, and what becomes of two writes at once."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.errors import BadRequest
from loom.domain.core.tenants import Owner
from loom.domain.memory.layers import MemoryScope
from loom.domain.memory.scopes import (
    NodePath,
    ReadOnlyScopeError,
    ScopedEntry,
    ScopedWrite,
    next_version,
    place_of,
    read_first,
    scope_for,
)

ROOT: NodePath = ("root",)
PARENT: NodePath = ("root", "parent")
CHILD: NodePath = ("root", "parent", "child")
SIBLING: NodePath = ("root", "parent", "sibling")
STRANGER: NodePath = ("elsewhere",)
LOCAL, SHARED, INHERITED, GLOBAL = MemoryScope
WRITABLE = (LOCAL, SHARED, GLOBAL)


def write(scope: MemoryScope, by: NodePath, content: str = "text", read_version: int | None = None) -> ScopedWrite:
    return ScopedWrite(
        id="plan",
        content=content,
        scope=scope,
        by=by,
        written_for=Owner(),
        session_id="s",
        read_version=read_version,
    )


def entry(scope: MemoryScope, owner: NodePath) -> ScopedEntry:
    return next_version(write(scope, owner), None)


@pytest.mark.parametrize(
    ("scope", "owner", "reader", "seen"),
    [
        (LOCAL, PARENT, PARENT, LOCAL),
        (LOCAL, PARENT, CHILD, None),
        (LOCAL, CHILD, PARENT, None),
        (SHARED, PARENT, CHILD, SHARED),
        (SHARED, ROOT, CHILD, SHARED),
        (SHARED, CHILD, PARENT, SHARED),
        (SHARED, CHILD, ROOT, SHARED),
        (SHARED, SIBLING, CHILD, INHERITED),
        (SHARED, STRANGER, CHILD, None),
        (GLOBAL, STRANGER, CHILD, GLOBAL),
        (GLOBAL, CHILD, ROOT, GLOBAL),
    ],
)
def test_who_sees_what_of_whom(scope: MemoryScope, owner: NodePath, reader: NodePath, seen: MemoryScope | None) -> None:
    assert scope_for(entry(scope, owner), reader) is seen


def test_the_nearest_scope_is_read_first() -> None:
    entries = [entry(GLOBAL, STRANGER), entry(SHARED, SIBLING), entry(SHARED, PARENT), entry(LOCAL, CHILD)]
    order = []
    while found := read_first(entries, CHILD):
        order.append(found[0])
        entries.remove(found[1])
    assert order == [LOCAL, SHARED, INHERITED, GLOBAL]


def test_inherited_memory_is_read_only() -> None:
    with pytest.raises(ReadOnlyScopeError, match="INHERITED memory is read-only"):
        next_version(write(INHERITED, CHILD), None)
    with pytest.raises(PermissionError, match="'plan' belongs to sibling, which is on another branch"):
        next_version(write(SHARED, CHILD), entry(SHARED, SIBLING))


@pytest.mark.parametrize("wrong", [replace(write(LOCAL, CHILD), by=()), replace(write(LOCAL, CHILD), id="")])
def test_a_write_without_id_or_node_is_refused(wrong: ScopedWrite) -> None:
    with pytest.raises(BadRequest, match="needs an id and the path"):
        next_version(wrong, None)


def test_a_version_says_what_it_was_made_from() -> None:
    first = next_version(write(SHARED, PARENT, "one"), None)
    second = next_version(write(SHARED, CHILD, "two", read_version=1), first)
    assert (first.version, first.parent_version, first.conflicts_with) == (1, None, None)
    assert second == ScopedEntry(
        id="plan", content="two", scope=SHARED, owner=PARENT, session_id="s", version=2, created_by="parent",
        updated_by="child", parent_version=1,
    )  # fmt: skip


def test_of_two_writes_over_one_version_the_later_is_newest_and_names_the_one_it_did_not_know() -> None:
    first = next_version(write(SHARED, PARENT, "one"), None)
    parents = next_version(write(SHARED, PARENT, "parent's", read_version=1), first)
    childs = next_version(write(SHARED, CHILD, "child's", read_version=1), parents)
    assert (childs.version, childs.content, childs.parent_version, childs.conflicts_with) == (3, "child's", 1, 2)


NODES = st.sampled_from([ROOT, PARENT, CHILD, SIBLING, STRANGER])


@given(st.lists(st.tuples(NODES, st.sampled_from(WRITABLE), st.none() | st.integers(1, 5)), max_size=20))
def test_no_write_is_ever_lost(writes: Sequence[tuple[NodePath, MemoryScope, int | None]]) -> None:
    """A model of the store: one list of versions for each place."""
    kept: dict[str, list[ScopedEntry]] = {}
    done = 0
    for number, (by, scope, read) in enumerate(writes):
        versions = kept.setdefault(place_of(scope, by), [])
        try:
            versions.append(next_version(write(scope, by, str(number), read), versions[-1] if versions else None))
        except ReadOnlyScopeError:
            assert scope is SHARED
            continue
        done += 1
        latest = [found[-1] for found in kept.values() if found]
        seen = read_first(latest, by)
        assert seen is not None
        assert seen[0] is LOCAL or seen[1].content == str(number) or scope is GLOBAL
    assert sum(map(len, kept.values())) == done
    for versions in kept.values():
        assert [one.version for one in versions] == list(range(1, len(versions) + 1))
        for before, after in pairwise(versions):
            assert (after.conflicts_with == before.version) is (after.parent_version != before.version)
