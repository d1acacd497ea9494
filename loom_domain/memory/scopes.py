"""Notes that the runs of one tree write for themselves and each other, in four scopes.

    LOCAL      the node's own; nobody else reads it
    SHARED     a node, its ancestors and its descendants read and write it
    INHERITED  what the parent can read from other branches of the tree; read-only
    GLOBAL     for all nodes of all sessions

Reading an id looks in that order and returns the first entry found. A node is named by its path from the root run.

Every write creates a new version; versions never change. A writer names the version that it has read. If another one
was written since, both are kept: the later write becomes the newest, and `conflicts_with` names the unknown version.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from loom.domain.core.errors import BadRequest, PermissionDeniedError
from loom.domain.memory.layers import MemoryScope

NodePath: TypeAlias = tuple[str, ...]
"""Run ids from the root to the node itself."""

ORDER: Final = tuple(MemoryScope)
"""LOCAL before SHARED before INHERITED before GLOBAL."""


class ReadOnlyScopeError(PermissionDeniedError, PermissionError):
    """INHERITED notes are read-only: only the nodes they are inherited from can write them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScopedEntry:
    """One version of one entry."""

    id: str
    content: str
    scope: MemoryScope
    """LOCAL, SHARED or GLOBAL, as it was written."""
    owner: NodePath
    """The node that wrote the first version."""
    session_id: str
    version: int
    created_by: str
    updated_by: str
    parent_version: int | None = None
    """The version that the writer had read; None if it had read none."""
    conflicts_with: int | None = None
    """The version that this one supersedes although the writer did not know it."""
    updated_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScopedWrite:
    """A note to be written."""

    id: str
    content: str
    scope: MemoryScope = MemoryScope.LOCAL
    by: NodePath
    session_id: str
    read_version: int | None = None
    """The version that the writer has read; None if it has read none."""


def path_of(run_id: str, root_run_id: str) -> NodePath:
    """The path of a run from the root of its tree. A child's id is its parent's id, a slash and one more part."""
    if not root_run_id or not run_id.startswith(f"{root_run_id}/"):
        return (run_id,)
    parts = run_id[len(root_run_id) + 1 :].split("/")
    return (root_run_id, *(f"{root_run_id}/{'/'.join(parts[:end])}" for end in range(1, len(parts) + 1)))


def place_of(scope: MemoryScope, node: NodePath) -> str:
    """The place that a scope stores its entries in; an id is unique within a place."""
    match scope:
        case MemoryScope.LOCAL:
            return f"local:{node[-1]}"
        case MemoryScope.GLOBAL:
            return "global"
        case _:
            return f"tree:{node[0]}"


def places_of(node: NodePath) -> tuple[str, ...]:
    """Every place that a node may read."""
    return tuple(place_of(scope, node) for scope in (MemoryScope.LOCAL, MemoryScope.SHARED, MemoryScope.GLOBAL))


def scope_for(entry: ScopedEntry, reader: NodePath) -> MemoryScope | None:
    """The scope in which a node sees an entry; None if it cannot see it."""
    match entry.scope:
        case MemoryScope.LOCAL:
            return MemoryScope.LOCAL if entry.owner == reader else None
        case MemoryScope.GLOBAL:
            return MemoryScope.GLOBAL
        case _ if entry.owner[0] != reader[0]:
            return None
        case _:
            return MemoryScope.SHARED if _in_line(entry.owner, reader) else MemoryScope.INHERITED


def read_first(entries: Iterable[ScopedEntry], reader: NodePath) -> tuple[MemoryScope, ScopedEntry] | None:
    """The entry that a node reads, of the newest versions of one id: the one in the nearest scope."""
    seen = [(scope, entry) for entry in entries if (scope := scope_for(entry, reader)) is not None]
    return min(seen, key=lambda pair: ORDER.index(pair[0]), default=None)


def next_version(write: ScopedWrite, latest: ScopedEntry | None) -> ScopedEntry:
    """The version that a write creates after the latest one. Raises ReadOnlyScopeError."""
    _check(write, latest)
    missed = latest is not None and latest.version != write.read_version
    return ScopedEntry(
        id=write.id,
        content=write.content,
        scope=write.scope,
        owner=write.by if latest is None else latest.owner,
        session_id=write.session_id,
        version=1 if latest is None else latest.version + 1,
        created_by=write.by[-1] if latest is None else latest.created_by,
        updated_by=write.by[-1],
        parent_version=write.read_version,
        conflicts_with=latest.version if latest is not None and missed else None,
    )


def _check(write: ScopedWrite, latest: ScopedEntry | None) -> None:
    if not write.by or not write.id:
        raise BadRequest("a memory needs an id and the path of the node that writes it", field="id")
    if write.scope is MemoryScope.INHERITED:
        raise ReadOnlyScopeError("INHERITED memory is read-only: write it as local, shared or global", id=write.id)
    if latest is not None and scope_for(latest, write.by) is MemoryScope.INHERITED:
        raise ReadOnlyScopeError(
            f"{write.id!r} belongs to {latest.owner[-1]}, of another branch: write under another id", id=write.id
        )


def _in_line(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether one of the two nodes is an ancestor of the other."""
    short = min(len(one), len(other))
    return tuple(one[:short]) == tuple(other[:short])
