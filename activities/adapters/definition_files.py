"""Tell which agent, crew and skill files of a worker have changed since its last start, and which run changed them.

The records are in `<LOOM_HOME>/definitions/`, which no tool can access:

known/      for each task queue, the digests of the files that its worker found when it last started on this machine
begun/      for each call that may be changing such files now, the digests before the call
changes/    for each file, the last call that changed it

A call that may change these files is in `begun/` before it runs. If the worker is killed, its next attempt or the next
start therefore still knows what the call changed.
"""

import asyncio
import os
import stat
import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final, Literal, TypeAlias, TypeVar

import structlog
from pydantic import TypeAdapter

from loom.activities.adapters.skills.folders import skills_in
from loom.domain.skills.catalog import SkillFolder

_log = structlog.get_logger("loom.worker")

Digests: TypeAlias = dict[str, str]
"""The digest of each file, by its path."""
T = TypeVar("T")

LARGE: Final = 1024 * 1024
"""Of larger files, such as a skill's data, the size and the time of the last change stand for the content."""
MOST_FILES: Final = 2000
"""The maximum number of files in one folder that are read, so that a call doesn't wait for long. Files in the folder
come before those in its subfolders, so a skill's data doesn't displace what defines the skill.
"""
DAY: Final = 24 * 3600.0
"""Seconds after which a call in `begun/` has certainly ended."""
_SKIPPED: Final = frozenset({".git", "node_modules", "__pycache__", ".venv"})


@dataclass(frozen=True, slots=True)
class DefinitionFolder:
    """A folder whose files a worker obeys."""

    path: str
    """The absolute path. The folder doesn't have to exist."""
    endings: tuple[str, ...] = ()
    """The suffixes of the files in the folder that define agents or crews. Empty if the folder contains skills."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileChange:
    """A file that differs from the one that the worker knew."""

    path: str
    change: Literal["changed", "added", "removed"]
    run_id: str = ""
    """The last run that changed the file since the worker's last start. Empty if no run is known to have changed it."""
    call_id: str = ""
    is_latest: bool = True
    """Whether the file is as this run left it. If not, something else has changed the file since."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    at: float
    """The time at which the files were read."""
    files: Digests


@dataclass(frozen=True, kw_only=True, slots=True)
class _Begun:
    run_id: str
    call_id: str
    at: float
    before: dict[str, Digests]
    """The digests by folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Changed:
    run_id: str
    call_id: str
    at: float
    digest: str
    """The digest after the call. Empty if the call removed the file."""


_KNOWN: Final = TypeAdapter(dict[str, _Known])
_BEGUN: Final = TypeAdapter(_Begun)
_CHANGED: Final = TypeAdapter(_Changed)


class DefinitionFiles:
    """The agent, crew and skill files of one worker, and the records of its machine."""

    def __init__(self, home: Path) -> None:
        self._known = home / "definitions" / "known"
        self._begun = home / "definitions" / "begun"
        self._changes = home / "definitions" / "changes"
        self._folders: Mapping[str, DefinitionFolder] = {}

    def add(self, folders: Iterable[DefinitionFolder]) -> None:
        """Add folders that the worker reads."""
        self._folders = {**self._folders, **{folder.path: folder for folder in folders}}

    def touched(self, paths: Collection[str]) -> Sequence[str]:
        """Return the folders that a call with these absolute paths may change: those that contain one of the paths, or
        that are in one of them.
        """
        reals = [(name, os.path.realpath(name)) for name in self._folders] if paths else ()
        return [name for name, real in reals if any(_overlap(path, name) or _overlap(path, real) for path in paths)]

    @asynccontextmanager
    async def attributed(self, folders: Sequence[str], *, run_id: str, call_id: str) -> AsyncIterator[None]:
        """Record the files in these folders that the body changes. Problems are only logged."""
        if not folders:
            yield
            return
        beginning = asyncio.ensure_future(asyncio.to_thread(self._begin, folders, run_id, call_id))

        async def end() -> None:
            if (record := await beginning) is not None:
                await asyncio.to_thread(self._end, record)

        try:
            await asyncio.shield(beginning)
            yield
        finally:
            # Both threads finish even if the call is being aborted, because it may have changed a file. If the record
            # stayed, the run would be blamed for what others change later.
            await asyncio.shield(end())

    def changes_since_last_start(self, namespace: str, task_queue: str) -> Sequence[FileChange]:
        """Return what has changed since a worker of this task queue last started on this machine, and remember the
        current files. A folder that no such worker has read before has no changes. Problems are only logged.
        """
        record = self._known / _name(namespace, task_queue)
        at = time.time()
        with _logged("worker_files_not_compared"):
            known = _read(_KNOWN, record) or {}
            now = {name: _Known(at=at, files=_digests(folder)) for name, folder in self._folders.items()}
            self._settle_all()
            found = [each for name in now if name in known for each in self._changes_of(known[name], now[name].files)]
            for name in (name for name, folder in now.items() if len(folder.files) == MOST_FILES):
                why = f"{name} contains too many files: only the first {MOST_FILES} are compared"
                _log.warning("worker_files_not_compared", why=why)
            with _logged("worker_files_not_remembered"):  # the next start tells the changes again, rather than never
                _write(_KNOWN, record, {**known, **now})
            return found
        return ()

    def _changes_of(self, known: _Known, now: Digests) -> Iterator[FileChange]:
        for path in _differing(known.files, now):
            after = now.get(path, "")
            change: Literal["changed", "added"] = "changed" if known.files.get(path) else "added"
            last = self._last_change(path)
            if last is None or last.at < known.at:
                last = _Changed(run_id="", call_id="", at=known.at, digest=after)
            yield FileChange(
                path=path,
                change=change if after else "removed",
                run_id=last.run_id,
                call_id=last.call_id,
                is_latest=last.digest == after,
            )

    def _begin(self, folders: Sequence[str], run_id: str, call_id: str) -> Path | None:
        record = self._begun / _name(run_id, call_id)
        with _logged("file_changes_not_recorded"):
            if _read(_BEGUN, record) is None:  # otherwise, an earlier attempt may have changed files already
                before = {name: _digests(self._folders[name]) for name in folders}
                _write(_BEGUN, record, _Begun(run_id=run_id, call_id=call_id, at=time.time(), before=before))
            return record
        return None

    def _end(self, record: Path) -> None:
        with _logged("file_changes_not_recorded"):
            self._settle(record, at=time.time())
            record.unlink()

    def _settle_all(self) -> None:
        """Record what interrupted calls have changed. A recent one may still be running on another worker."""
        for record in self._begun.iterdir() if self._begun.is_dir() else ():
            with _logged("file_changes_not_recorded"), suppress(FileNotFoundError):  # the call has just ended
                is_old = time.time() - record.stat().st_mtime > DAY
                self._settle(record)
                if is_old:
                    record.unlink()

    def _settle(self, record: Path, at: float | None = None) -> None:
        begun = _read(_BEGUN, record)
        if begun is None:
            return
        for name, before in begun.before.items():
            now = _digests(self._folders[name]) if name in self._folders else before
            for path in _differing(before, now):
                digest = now.get(path, "")
                last = self._last_change(path)
                # Another call has changed the file meanwhile. An interrupted call may have ended before that one.
                if last is not None and last.at >= begun.at and (at is None or last.digest == digest):
                    continue
                made = _Changed(run_id=begun.run_id, call_id=begun.call_id, at=at or begun.at, digest=digest)
                _write(_CHANGED, self._changes / _name(path), made)

    def _last_change(self, path: str) -> _Changed | None:
        return _read(_CHANGED, self._changes / _name(path))


@contextmanager
def _logged(event: str) -> Iterator[None]:
    """Log a problem with a record or a file as this event."""
    try:
        yield
    except (OSError, ValueError) as error:
        _log.warning(event, why=str(error))


def _overlap(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/") or folder.startswith(f"{path.rstrip('/')}/")


def _digests(folder: DefinitionFolder) -> Digests:
    paths = {os.fsencode(path).decode("utf-8", "backslashreplace"): path for path in _files(folder)}
    return {name: _digest(paths[name]) for name in sorted(paths, key=_order)[:MOST_FILES]}


def _order(path: str) -> tuple[int, str]:
    return path.count("/"), path


def _differing(before: Digests, now: Digests) -> Sequence[str]:
    """Return the files that differ. If only the first files were read, nothing is known about those after them."""
    ends = [max(map(_order, each)) for each in (before, now) if len(each) == MOST_FILES]
    paths = (path for path in sorted({*before, *now}) if before.get(path, "") != now.get(path, ""))
    return [path for path in paths if all(_order(path) <= end for end in ends)]


def _files(folder: DefinitionFolder) -> Iterator[str]:
    if folder.endings:
        with suppress(OSError), os.scandir(folder.path) as entries:
            yield from (entry.path for entry in entries if entry.name.lower().endswith(folder.endings))
        return
    for skill in skills_in(SkillFolder(path=folder.path, source="")).skills:
        for root, folders, names in os.walk(skill.root):
            folders[:] = [name for name in folders if name not in _SKIPPED]
            yield from (f"{root}/{name}" for name in names)


def _digest(path: str) -> str:
    """Return the file's digest, or an empty string if there is no such file."""
    try:
        # Without O_NONBLOCK, opening a pipe would wait for a writer.
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            return ""
        if status.st_size > LARGE:
            return f"{status.st_size} {status.st_mtime_ns}"
        with os.fdopen(opened, "rb", closefd=False) as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
    finally:
        os.close(opened)


def _name(*parts: str) -> str:
    whole = "\0".join(parts).encode("utf-8", "surrogatepass")
    return f"{sha256(whole).hexdigest()[:32]}.json"


def _read(kind: TypeAdapter[T], path: Path) -> T | None:
    """Return a record, or None if there is none or it is damaged. A damaged record is later replaced."""
    try:
        return kind.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        _log.warning("worker_files_not_compared", why=f"{path} is damaged: {error}")
        return None


def _write(kind: TypeAdapter[T], path: Path, record: T) -> None:
    """Replace a record. A worker that is killed meanwhile leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent.parent, delete=False) as draft:
        try:
            draft.write(kind.dump_json(record))
            draft.flush()
            os.fsync(draft.fileno())
            Path(draft.name).replace(path)
        except BaseException:
            Path(draft.name).unlink(missing_ok=True)
            raise
