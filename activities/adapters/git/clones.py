"""The clones of runs on this machine: folders that agents work in, each with a bare repository that they can't write.

    ROOT/NAME           the clone: the files, and a `.git` that agents read
    HOME/clones/NAME    the bare repository, from which the clone is made, and with which its change is computed

HOME has Loom's own state, which tools and commands don't see. Whoever uses a clone holds the lock of its repository.
Workers with another HOME don't see these locks. ROOT therefore belongs to the first HOME that uses it (`ROOT/.owner`).
"""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

import structlog

from loom.activities.adapters.git.bare_repository import run_to_completion
from loom.activities.adapters.git.clone import RunClone
from loom.activities.adapters.git.deletion import delete
from loom.activities.adapters.git.remotes import RemoteGit
from loom.activities.adapters.snapshots.store import Store
from loom.domain.core.errors import BadRequest

_log = structlog.get_logger("loom.clones")

KEEP_SECONDS: Final = 30 * 86_400.0
"""Clones that no run has used for this time are deleted."""
PATIENCE: Final = 1800.0
"""Seconds to wait for another process that uses the same clone, for example to fetch it."""
_EVERY: Final = 86_400.0
_STORES: Final = "clones"
_SWEPT: Final = "swept"
_OWNER: Final = "owner"
_NAME: Final = re.compile(r"[0-9a-f]{32}")
_PARTS: Final = re.compile(rf"({_NAME.pattern})\.(?:new|old-[0-9a-f]+)")
"""The names of folders that become a clone, and of those that were one."""


class RunClones:
    """The clones in one folder, with their repositories in Loom's own state."""

    def __init__(self, root: Path, home: Path, redact: Callable[[str], str]) -> None:
        """`root` is the folder of the clones, and `home` the one with Loom's own state. No other machine uses either of
        them. `redact` removes secrets from what Git says.
        """
        self._root = root.resolve()
        self._home = home.resolve()
        self._stores = self._home / _STORES
        self._remote = RemoteGit(redact)
        self._sweeping: set[asyncio.Task[None]] = set()
        self._is_ours = False
        """Whether the folder of the clones is known to belong to this home."""

    def folder(self, name: str) -> str:
        """See the port."""
        return str(self._root / name)

    def exposes(self, path: Path) -> bool:
        """See the port."""
        return any(path.is_relative_to(place) or self._is_shown(place, path) for place in (self._root, self._stores))

    def _is_shown(self, place: Path, workspace: Path) -> bool:
        """Whether the workspace contains the place, and not as a part of Loom's own state, which is hidden there."""
        if not place.is_relative_to(workspace):
            return False
        hides = self._home.is_relative_to(workspace) and self._home != workspace
        return not (hides and place.is_relative_to(self._home))

    @asynccontextmanager
    async def opened(self, folder: str) -> AsyncIterator[RunClone]:
        """See the port."""
        path = Path(folder)
        if path.parent != self._root or not _NAME.fullmatch(path.name):
            raise BadRequest(
                f"the run's clone is {folder}, but this worker keeps clones in {self._root}: set LOOM_RUN_WORKSPACES to"
                " the same path on all workers",
                field="workspace",
            )
        self._claim()
        store = Store(self._stores / path.name)
        async with store.held(PATIENCE) as lock:
            os.utime(lock)  # it is used now
            await run_to_completion(store.unlock)
            yield RunClone(path, store, lock, self._home, self._remote)
        self._sweep_if_due()

    def _claim(self) -> None:
        """Raise BadRequest if the folder with the clones belongs to another home."""
        if self._is_ours and self._root.is_dir():
            return
        for place in (self._root, self._stores):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._root / f".{_OWNER}"
        own = _first_text(self._stores / _OWNER, uuid4().hex)
        if _first_text(file, own) != own:
            raise BadRequest(
                f"the clones in {self._root} belong to workers with another LOOM_HOME than {self._home}: give these"
                f" workers the same LOOM_HOME, or another LOOM_RUN_WORKSPACES. If no other worker uses {self._root},"
                f" delete {file}",
                field="workspace",
            )
        self._is_ours = True

    def _sweep_if_due(self) -> None:
        """Delete what no run has used for long, once a day, while the run goes on."""
        done = self._stores / _SWEPT
        with suppress(OSError):
            if not done.exists() or time.time() - done.stat().st_mtime >= _EVERY:
                done.touch()  # first, so that a failure isn't repeated after each call
                task = asyncio.create_task(run_to_completion(self.sweep))
                self._sweeping.add(task)
                task.add_done_callback(self._sweeping.discard)

    def sweep(self) -> None:
        """Delete the clones that no run has used for long, and what crashes have left of others."""
        for name in sorted(self._names()):
            try:
                self._delete_if_old(name)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others are deleted
                _log.warning("clone_not_deleted", folder=str(self._root / name), error=str(error))

    def _names(self) -> set[str]:
        """Return the names of all clones of which there is anything."""
        found = {path.name.removesuffix(".lock") for path in _entries(self._stores)}
        found |= {_PARTS.sub(r"\1", path.name) for path in _entries(self._root)}
        return {name for name in found if _NAME.fullmatch(name)}

    def _delete_if_old(self, name: str) -> None:
        """Delete the clone with this name if nobody has used it for long. What has no lock file gets one here, so that
        it is old after the same time.
        """
        store = Store(self._stores / name)
        with store.locked_now() as lock:
            if lock is None or time.time() - os.fstat(lock).st_mtime < KEEP_SECONDS:
                return
            for path in _entries(self._root):
                if _PARTS.sub(r"\1", path.name) == name:
                    delete(path)
            delete(store.path)
            store.lock_file.unlink()  # last, so that what is left is found again
        _log.info("clone_deleted", folder=str(self._root / name))


def _first_text(file: Path, text: str) -> str:
    """Return the text in the file. If there is no file, make it with this text, unless another process is faster."""
    with suppress(FileNotFoundError):
        return file.read_text(encoding="ascii")
    written = file.with_name(f"{file.name}-{uuid4().hex}")
    written.write_text(text, encoding="ascii")
    try:
        with suppress(FileExistsError):
            os.link(written, file)
    finally:
        written.unlink()
    return file.read_text(encoding="ascii")


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
