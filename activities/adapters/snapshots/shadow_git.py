"""Take, compare and restore snapshots of workspaces in shadow Git repositories.

Snapshots are taken before changes. The first snapshot of turn N contains the state before turn N. Each workspace has a
store in `<LOOM_HOME>/snapshots/` on the machine of the worker that took the snapshots.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog

from loom.activities.adapters.snapshots import restore as shadow_restore
from loom.activities.adapters.snapshots.cleanup import is_due, tidy
from loom.activities.adapters.snapshots.record import Label, Recorded, record
from loom.activities.adapters.snapshots.restore import Restoration, RestoreChanges
from loom.activities.adapters.snapshots.store import FOLDER, Blobs, Snapshot, Store, StoredTree, refs_of
from loom.activities.adapters.snapshots.walk import Facts
from loom.activities.ports import StoreUnavailable
from loom.domain.core.errors import BadRequest, RefusedError, RunNotFoundError

_log = structlog.get_logger("loom.snapshots")

AT_ONCE: Final = 4
"""Maximum number of snapshots that one worker takes concurrently. Each snapshot uses a thread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedFile:
    """A file that differs between two states."""

    path: str
    change: str
    """`added`, `removed` or `modified`."""
    added: int | None
    """Number of lines, or None for a binary file."""
    removed: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """The changes between two states."""

    before: Snapshot
    after: Snapshot | None
    """The later snapshot, or None for the current workspace."""
    files: tuple[ChangedFile, ...]
    patch: bytes
    """The differences in `git diff` format."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Origin:
    """The run, turn and call that a snapshot belongs to."""

    run_id: str
    turn: int | None
    call_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """The outcome of a restore."""

    target: Snapshot
    undo: str
    """The id of the snapshot that was taken just before the restore."""
    plan: RestoreChanges
    left: dict[str, str]
    """Paths that differ but weren't changed, each with the reason."""


class ShadowGit:
    """The snapshots of all workspaces on this machine."""

    def __init__(self, home: Path, *, settled: float = 2.0) -> None:
        """If a file hasn't changed for `settled` seconds, its timestamps reliably show the next change."""
        self._home = home
        self._root = home / "snapshots"
        self._settled = settled
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tidying: set[asyncio.Task[None]] = set()

    async def take(self, workspace: Path, run_id: str, turn: int, call_id: str) -> str:
        """Take a snapshot of the workspace and return its id. Raises OSError or StoreUnavailable if the snapshot can't
        be taken.
        """
        origin = _Origin(run_id=run_id, turn=turn, call_id=call_id)
        async with self._slots:
            taken, untidy = await asyncio.to_thread(self._take, workspace, origin)
        if untidy is not None and not self._tidying:
            task = asyncio.create_task(_tidy(untidy))
            self._tidying.add(task)
            task.add_done_callback(self._tidying.discard)
        return taken

    def list(self, run_id: str) -> tuple[Snapshot, ...]:
        """Return the run's snapshots, oldest first. Raises RunNotFoundError if this machine has no snapshots of the
        run.
        """
        return self._find(run_id)[1]

    def diff(self, run_id: str, turn: int | None = None) -> Difference:
        """Return the changes that the run has made so far. For one of its turns, return the changes between the turn's
        snapshot and the next snapshot.
        """
        store, snapshots = self._find(run_id)
        before = snapshots[0] if turn is None else _of_turn(snapshots, turn)
        after = None if turn is None else _following(snapshots, turn)
        to = after.id if after is not None else self._now(store).id
        return Difference(
            before=before,
            after=after,
            files=_changed(store, before.id, to),
            patch=_compare(store, "--patch", "--find-renames", before.id, to),
        )

    def plan(self, run_id: str, *, turn: int | None = None, snapshot: str = "") -> tuple[Snapshot, RestoreChanges]:
        """Return the changes that a restore would make, without making them."""
        store, snapshots = self._find(run_id)
        target = _chosen(snapshots, turn, snapshot)
        now = store.kept(self._now(store).id) if store.workspace.is_dir() else StoredTree(files={}, facts=Facts())
        return target, shadow_restore.plan(now, store.kept(target.id))

    def restore(self, run_id: str, *, turn: int | None = None, snapshot: str = "") -> Restored:
        """Take a snapshot of the current state, then restore the state before the turn or the state in the snapshot."""
        store, snapshots = self._find(run_id)
        target = _chosen(snapshots, turn, snapshot)
        workspace = _workspace(store, make=True)
        with store.locked() as lock, Blobs(store) as blobs:
            origin = _Origin(run_id=run_id, turn=None, call_id=f"restore {target.id[:12]}")
            before = self._record(store, lock, workspace, origin)
            todo = shadow_restore.plan(store.kept(before.id), store.kept(target.id))
            work = Restoration(workspace, before.files, blobs)
            work.perform(todo)
        return Restored(target=target, undo=before.id, plan=todo, left={**todo.left, **work.left})

    def extract(self, run_id: str, *, after: int, folder: Path) -> Snapshot | None:
        """Write the state at the end of turn `after` to a new folder. Return the snapshot of that state, or None if it
        is the workspace's current state.

        Raises RefusedError if the folder already exists or a file can't be written.
        """
        store, snapshots = self._find(run_id)
        target = _end_of(snapshots, after)
        kept = store.kept(target.id if target else self._now(store).id)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise RefusedError(f"{folder} already exists: name a new folder") from None
        with Blobs(store) as blobs:
            work = Restoration(folder, {}, blobs)
            todo = shadow_restore.plan(StoredTree(files={}, facts=Facts()), kept)
            work.perform(todo)
        if left := {**todo.left, **work.left}:
            path, why = next(iter(left.items()))
            raise RefusedError(f"{folder} is incomplete: {len(left)} paths are missing; the first is {path!r}: {why}")
        return target

    def _take(self, workspace: Path, origin: "_Origin") -> tuple[str, Store | None]:
        """Return the snapshot's id, and its store if the store needs a cleanup."""
        real = Path(os.path.realpath(workspace))
        store = Store.of(self._root, real)
        with store.locked() as lock:
            taken = self._record(store, lock, real, origin).id
            return taken, store if is_due(store) else None

    def _record(self, store: Store, lock: int, workspace: Path, origin: "_Origin") -> Recorded:
        store.prepare(workspace, lock)
        at = datetime.now(UTC)
        said = json.dumps({**asdict(origin), "at": at.isoformat()})
        label = Label(ref=f"{refs_of(origin.run_id)}{store.next_number(lock):010}", said=said, at=at)
        return record(store, lock, workspace, label, hidden=self._home, settled=self._settled)

    def _now(self, store: Store) -> Recorded:
        """Store the current workspace for a comparison. The snapshot doesn't belong to a run."""
        workspace = _workspace(store, make=False)
        with store.locked() as lock:
            store.prepare(workspace, lock)
            label = Label(said="{}", at=datetime.now(UTC))
            return record(store, lock, workspace, label, hidden=self._home, settled=self._settled)

    def _find(self, run_id: str) -> tuple[Store, tuple[Snapshot, ...]]:
        for ready in self._root.glob("*/ready"):
            store = Store(ready.parent)
            if snapshots := _listed(store, run_id):
                return store, snapshots
        raise RunNotFoundError(
            f"there is no snapshot of run {run_id!r} in {self._root}: snapshots are in LOOM_HOME on the"
            " machine of the worker that took them; a run that changed nothing has no snapshots, and a sub-agent's"
            " snapshots are under its own id (`loom list --tree RUN`)"
        )


def _listed(store: Store, run_id: str) -> tuple[Snapshot, ...]:
    try:
        return store.list(run_id)
    except StoreUnavailable:
        with store.locked() as lock:
            store.prepare(store.workspace, lock)
            store.mend(lock)
        return store.list(run_id)


async def _tidy(store: Store) -> None:
    try:
        await asyncio.to_thread(tidy, store)
    except (OSError, StoreUnavailable) as error:
        _log.warning("snapshots_not_tidied", store=str(store.path), error=str(error))


def _workspace(store: Store, *, make: bool) -> Path:
    """Return the workspace of the snapshots. Raises RefusedError if the workspace has become a link, or if it no longer
    exists and `make` is false.
    """
    workspace = store.workspace
    if Path(os.path.realpath(workspace)) != workspace:
        raise RefusedError(
            f"the workspace {workspace} has become a link to {os.path.realpath(workspace)}: remove it first"
        )
    if make:
        workspace.mkdir(parents=True, exist_ok=True)
    elif not workspace.is_dir():
        raise RefusedError(f"the workspace {workspace} is gone: `loom restore` restores it")
    return workspace


def _chosen(snapshots: Sequence[Snapshot], turn: int | None, snapshot: str) -> Snapshot:
    if (turn is None) == (not snapshot):
        raise BadRequest(f"name one state: --turn N or --snapshot ID. {_choice(snapshots)}", field="turn")
    if turn is not None:
        return _of_turn(snapshots, turn)
    found = [each for each in snapshots if each.id.startswith(snapshot)]
    if len(found) != 1:
        raise BadRequest(
            f"{'no' if not found else 'more than one'} snapshot {snapshot!r}. {_choice(snapshots)}", field="snapshot"
        )
    return found[0]


def _of_turn(snapshots: Sequence[Snapshot], turn: int) -> Snapshot:
    found = next((each for each in snapshots if each.turn == turn), None)
    if found is None:
        raise BadRequest(f"turn {turn} has no snapshot: it changed nothing. {_choice(snapshots)}", field="turn")
    return found


def _following(snapshots: Sequence[Snapshot], turn: int) -> Snapshot | None:
    """Return the first snapshot after the turn's snapshots. It belongs to another turn or to a restore."""
    last = max(place for place, each in enumerate(snapshots) if each.turn == turn)
    return snapshots[last + 1] if last + 1 < len(snapshots) else None


def _end_of(snapshots: Sequence[Snapshot], turn: int) -> Snapshot | None:
    """Return the next snapshot after a turn. It contains the state at the end of the turn."""
    until = [place for place, each in enumerate(snapshots) if each.turn is not None and each.turn <= turn]
    following = snapshots[max(until) + 1 if until else 0 :]
    return following[0] if following else None


def _choice(snapshots: Sequence[Snapshot]) -> str:
    turns = ", ".join(str(turn) for turn in sorted({each.turn for each in snapshots if each.turn is not None}))
    undo = ", ".join(each.id[:12] for each in snapshots if each.turn is None)
    return f"Turns with a snapshot: {turns or 'none'}" + (f"; taken before a restore: {undo}" if undo else "")


def _compare(store: Store, *words: str) -> bytes:
    return store.git("diff-tree", "-r", "--no-ext-diff", "--no-textconv", f"--relative={FOLDER}/", *words)


def _changed(store: Store, before: str, after: str) -> tuple[ChangedFile, ...]:
    kinds = _compare(store, "--name-status", "--no-renames", "-z", before, after).split(b"\0")
    numbers = _compare(store, "--numstat", "--no-renames", "-z", before, after).split(b"\0")
    counted = {path: (added, removed) for added, removed, path in (line.split(b"\t", 2) for line in numbers if line)}
    names = {b"A": "added", b"D": "removed"}
    return tuple(
        ChangedFile(
            path=os.fsdecode(path),
            change=names.get(kind, "modified"),
            added=_lines(counted[path][0]),
            removed=_lines(counted[path][1]),
        )
        for kind, path in zip(kinds[::2], kinds[1::2], strict=False)
    )


def _lines(number: bytes) -> int | None:
    return None if number == b"-" else int(number)
