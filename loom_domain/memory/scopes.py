"""Notes that the runs in one tree write for themselves and each other, in four scopes.

    LOCAL      a node's own notes, which no other node can read
    SHARED     notes that a node, its ancestors and its descendants can read and write
    INHERITED  read-only notes from outside this node's line that its parent can read
    GLOBAL     notes for all nodes in all sessions of a tenant

Reading an id searches the scopes in that order and returns the first match. A node is identified by its path from the
root run.

Every write creates a new version, and versions never change. A writer passes the version that it has read. If another
version was written in the meantime, both versions are kept. The later write becomes the newest version, and its
`conflicts_with` names the version that its writer hadn't read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from loom.domain.core.errors import BadRequest, PermissionDeniedError
from loom.domain.core.tenants import Owner
from loom.domain.memory.layers import MemoryScope

NodePath: TypeAlias = tuple[str, ...]
"""The run ids from the root to the node itself."""

TASK_NOTE: Final = "task:"
"""The notes with a run's task have this in front of the run's id."""
ORDER: Final = tuple(MemoryScope)
"""The scopes in reading order: LOCAL, SHARED, INHERITED, GLOBAL."""


class ReadOnlyScopeError(PermissionDeniedError, PermissionError):
    """An attempt to write an INHERITED entry. Only the nodes that the entry is inherited from can write it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScopedEntry:
    """One version of one entry."""

    id: str
    content: str
    scope: MemoryScope
    """The scope that the entry was written to: LOCAL, SHARED or GLOBAL."""
    owner: NodePath
    """The node that wrote the first version."""
    session_id: str
    version: int
    created_by: str
    updated_by: str
    parent_version: int | None = None
    """The version that the writer had read, or None."""
    conflicts_with: int | None = None
    """The version that this version supersedes although the writer hadn't read it."""
    tenant: str = ""
    """The tenant that the writer worked for. Empty if it named none, or if an earlier release has stored the entry."""
    user_id: str = ""
    updated_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScopedWrite:
    """A note that a node wants to write."""

    id: str
    content: str
    scope: MemoryScope = MemoryScope.LOCAL
    by: NodePath
    written_for: Owner
    """Whom the node works for. Only nodes that work for the same owner can read the note, or, if it is GLOBAL, nodes
    that work for the same tenant.
    """
    session_id: str
    read_version: int | None = None
    """The version that the writer has read, or None."""


def path_of(run_id: str, root_run_id: str) -> NodePath:
    """Return a run's path from the root of its tree. A child's id consists of its parent's id, a slash, and one more
    segment.
    """
    if not root_run_id or not run_id.startswith(f"{root_run_id}/"):
        return (run_id,)
    parts = run_id[len(root_run_id) + 1 :].split("/")
    return (root_run_id, *(f"{root_run_id}/{'/'.join(parts[:end])}" for end in range(1, len(parts) + 1)))


def place_of(scope: MemoryScope, node: NodePath) -> str:
    """Return the place where a scope's entries are stored. One id in one place identifies one entry."""
    match scope:
        case MemoryScope.LOCAL:
            return f"local:{node[-1]}"
        case MemoryScope.GLOBAL:
            return "global"
        case _:
            return f"tree:{node[0]}"


def scope_for(entry: ScopedEntry, reader: NodePath) -> MemoryScope | None:
    """Return the scope that lets a node read an entry, or None if the node can't read the entry."""
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
    """Return the entry that a node reads for an id: the newest version in the nearest scope that contains the id."""
    seen = [(scope, entry) for entry in entries if (scope := scope_for(entry, reader)) is not None]
    return min(seen, key=lambda pair: ORDER.index(pair[0]), default=None)


def next_version(write: ScopedWrite, latest: ScopedEntry | None) -> ScopedEntry:
    """Return the version that a write creates after the latest one. Raises ReadOnlyScopeError if the node may not write
    the entry.
    """
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
        tenant=write.written_for.tenant,
        user_id=write.written_for.user_id,
    )


def _check(write: ScopedWrite, latest: ScopedEntry | None) -> None:
    if not write.by or not write.id:
        raise BadRequest("a memory needs an id and the path of the node that writes it", field="id")
    if write.scope is MemoryScope.INHERITED:
        raise ReadOnlyScopeError("INHERITED memory is read-only: write it as local, shared or global", id=write.id)
    if latest is not None and scope_for(latest, write.by) is MemoryScope.INHERITED:
        raise ReadOnlyScopeError(
            f"{write.id!r} belongs to {latest.owner[-1]}, which is on another branch: use another id", id=write.id
        )


def _in_line(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether the two nodes are the same, or one is an ancestor of the other."""
    short = min(len(one), len(other))
    return tuple(one[:short]) == tuple(other[:short])
