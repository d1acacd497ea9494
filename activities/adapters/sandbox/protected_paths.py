"""Mount a workspace for bubblewrap, and protect some paths in it, so that commands can't change or see them.

Some files determine what Git, editors, agents and Loom later do outside any sandbox. `loom.domain.permissions.obeyed`
lists their names. If such a file exists, it is read-only. If one of the most dangerous files is missing, a placeholder
occupies its name. Every path is opened one component at a time without following links, and mounted by descriptor.
Another run's command in the same workspace therefore can't replace a component with a link.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loom.activities.adapters.sandbox.open_files import refuse_if_exhausted
from loom.activities.adapters.sandbox.placeholders import occupied_names
from loom.activities.adapters.sandbox.repositories import Parts, Repositories
from loom.activities.toolbox.workspace import confined_open as beneath
from loom.activities.toolbox.workspace.paths import HIDDEN, READ_ONLY, SECRETS
from loom.domain.core.errors import ToolExecutionError
from loom.domain.permissions.obeyed import NO_FILES, PARENTS, WorkerFiles, is_obeyed

_OF_A_BARE_REPOSITORY: Final[Sequence[str]] = ("config", "hooks")
KEPT_FREE: Final[Sequence[str]] = (HIDDEN, ".agents", "loom.toml")
"""Names that no command can create, in addition to `.git`. The list is short, because commands can see the
placeholders.
"""

_LEFT_BY_A_KILL: Final = frozenset({"loom-commit", "HEAD.lock", "index.lock"})
_OF_A_COMMIT: Final = frozenset({"objects", "refs", "logs", "HEAD", "index", "packed-refs"}) | _LEFT_BY_A_KILL
"""What Git and `git_commit` write in a repository when they commit."""
_SETTINGS: Final = "config"

_OPEN: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Mounts:
    """Arguments for bubblewrap and the descriptors that they refer to."""

    words: list[str] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    emptied: list[Path] = field(default_factory=list)
    """Folders that appear empty and read-only."""
    readable: list[str] = field(default_factory=list)
    """Arguments for readable folders. These arguments come after the arguments for emptied folders."""

    def add(self, option: str, descriptor: int, place: Path) -> None:
        """Add one mount by descriptor."""
        self.words.extend((option, str(descriptor), str(place)))
        self.descriptors.append(descriptor)

    def add_readable(self, descriptor: int, place: Path) -> None:
        """Add one readable folder by descriptor."""
        self.readable.extend(("--ro-bind-fd", str(descriptor), str(place)))
        self.descriptors.append(descriptor)


_MOST_FILES: Final = 64
"""The maximum number of modules that are mounted one by one. Of more modules, the folders are read-only."""


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """The files in a workspace that the worker reads."""

    folders: Sequence[Parts] = ()
    files: Sequence[Parts] = ()

    @classmethod
    def of(cls, workspace: Path, obeyed: WorkerFiles) -> "OwnFiles":
        """Return those of a worker's files that are in the workspace."""
        files = sorted(_existing(workspace, _below(workspace, obeyed.files)))
        if len(files) > _MOST_FILES:
            files = sorted({parts[:-1] or parts for parts in files})
        return cls(sorted(_below(workspace, obeyed.folders)), files)

    @property
    def read_only(self) -> Sequence[Parts]:
        """All of them, except what is in another one of them."""
        found: list[Parts] = []
        for parts in sorted({*self.folders, *self.files}):
            if not found or parts[: len(found[-1])] != found[-1]:
                found.append(parts)
        return found

    @property
    def above(self) -> set[Parts]:
        """The folders that contain them, except the workspace."""
        return {parts[:length] for parts in self.read_only for length in range(1, len(parts))}


def _below(workspace: Path, paths: Iterable[str]) -> set[Parts]:
    top = f"{workspace}/"
    return {tuple(path.removeprefix(top).split("/")) for path in paths if path.startswith(top)}


def _existing(workspace: Path, paths: Iterable[Parts]) -> Iterator[Parts]:
    """Yield the paths that exist. Each folder is read once, because most of many paths don't exist."""
    names: dict[Parts, set[str]] = {}
    for parts in paths:
        names.setdefault(parts[:-1], set()).add(parts[-1])
    for folder, wanted in names.items():
        try:
            with os.scandir(workspace.joinpath(*folder)) as entries:
                yield from ((*folder, entry.name) for entry in entries if entry.name in wanted)
        except OSError as error:
            refuse_if_exhausted(error, "/".join(folder) or str(workspace))


@contextmanager
def mounted(
    workspace: Path,
    repositories: Repositories,
    readable: Sequence[Path] = (),
    fixed: Sequence[Path] = (),
    obeyed: WorkerFiles = NO_FILES,
) -> Iterator[Mounts]:
    """Mount the workspace and its protected paths. The placeholders stay until the end of the block.

    The `fixed` folders can't be renamed, because they are mounts. Otherwise a command could move a folder that contains
    hidden content, and the next command would see this content at the new path. The same applies to the folders
    above the `obeyed` files.
    """
    own = OwnFiles.of(workspace, obeyed)
    with ExitStack() as stack:
        mounts = Mounts()
        here = _opened_folder(workspace, "workspace")
        stack.callback(os.close, here)
        read_only = dict.fromkeys((*_read_only(workspace, repositories), *own.read_only))
        bind = "--ro-bind-fd" if () in read_only else "--bind-fd"
        mounts.add(bind, here, workspace)
        for parts in sorted({*(folder.relative_to(workspace).parts for folder in fixed), *own.above}):
            if (found := _opened(workspace, parts)) is not None:
                stack.callback(os.close, found)
                mounts.add(bind, found, workspace.joinpath(*parts))
        _occupy(workspace, own.folders, stack)
        for parts in filter(None, read_only):
            if (found := _opened(workspace, parts)) is not None:
                stack.callback(os.close, found)
                mounts.add("--ro-bind-fd", found, workspace.joinpath(*parts))
        for name in SECRETS:
            if _is_folder(here, name):
                mounts.emptied.append(workspace / name)
        for folder in readable:
            found = _opened_folder(folder, "folder")
            stack.callback(os.close, found)
            mounts.add_readable(found, folder)
        yield mounts


def _occupy(workspace: Path, folders: Iterable[Parts], stack: ExitStack) -> None:
    """Occupy names in the workspace, and those of missing folders that the worker would read."""
    names: dict[Parts, list[str]] = {(): [READ_ONLY, *KEPT_FREE]}
    for *above, name in folders:
        names.setdefault(tuple(above), []).append(name)
    for parts, missing in names.items():
        if (found := _opened_below(workspace, parts)) is not None:
            stack.callback(os.close, found)
            stack.enter_context(occupied_names(found, missing))


def _opened_below(workspace: Path, parts: Parts) -> int | None:
    try:
        with beneath.folder(str(workspace), parts) as found:
            return os.dup(found)
    except OSError as error:
        refuse_if_exhausted(error, "/".join(parts) or str(workspace))
        return None


def open_repository(workspace: Path, git: Path, settings: int, mounts: Mounts, stack: ExitStack) -> None:
    """Mount a repository's `.git` folder writable, for Git itself, after its read-only mount.

    Everything in it that isn't part of a commit stays read-only, and the text in the descriptor `settings` covers the
    repository's settings. Raises ToolExecutionError if the folder contains links, because Git would write through them.
    """
    found = _opened_folder(git, "repository")
    stack.callback(os.close, found)
    parts = git.relative_to(workspace).parts
    mounts.add("--bind-fd", found, git)
    for entry in beneath.entries(str(workspace), parts):
        if entry.kind == "link":
            raise ToolExecutionError(f"{entry.name} in {git} is a link: nothing was run. A person must commit here")
        if entry.name in _OF_A_COMMIT or entry.name == _SETTINGS:
            continue
        if (kept := _opened(workspace, (*parts, entry.name))) is not None:
            stack.callback(os.close, kept)
            mounts.add("--ro-bind-fd", kept, git / entry.name)
    if not (git / _SETTINGS).is_file():
        raise ToolExecutionError(f"{git} has no settings, so it is no repository: nothing was run")
    mounts.words.extend(("--ro-bind-data", str(settings), str(git / _SETTINGS)))


def _opened_folder(folder: Path, what: str) -> int:
    try:
        with beneath.folder("/", folder.parts[1:]) as found:
            return os.dup(found)
    except OSError as error:
        refuse_if_exhausted(error, str(folder))
        raise ToolExecutionError(
            f"the {what} {str(folder)!r} is not a folder on this worker: nothing was run"
        ) from None


def _read_only(workspace: Path, repositories: Repositories) -> Iterator[Parts]:
    # What is at the top is looked up for each command, and the rest with a delay.
    found = ((READ_ONLY,), *((name,) for name in KEPT_FREE), *_at_the_top(workspace), *repositories.inside(workspace))
    yield from dict.fromkeys(found)
    if (workspace / "HEAD").is_file() and (workspace / "objects").is_dir():
        yield from ((name,) for name in _OF_A_BARE_REPOSITORY)


def _at_the_top(workspace: Path) -> Iterator[Parts]:
    for name in _entries(workspace, ()):
        if is_obeyed(name):
            yield (name,)
        elif name.lower() in PARENTS:
            yield from ((name, each) for each in _entries(workspace, (name,)) if is_obeyed(each, name))


def _entries(workspace: Path, parts: Parts) -> Sequence[str]:
    try:
        return beneath.names(str(workspace), parts)
    except OSError as error:
        refuse_if_exhausted(error, "/".join(parts) or str(workspace))
        return ()


def _opened(workspace: Path, parts: Parts) -> int | None:
    """Open a path for mounting. Return None if it doesn't exist or is a link.

    Raises ToolExecutionError if the process can't open more files, because the path would otherwise be unprotected.
    """
    try:
        with beneath.folder(str(workspace), parts[:-1]) as parent:
            found = os.open(parts[-1], _OPEN, dir_fd=parent)
    except OSError as error:
        refuse_if_exhausted(error, "/".join(parts))
        return None
    if stat.S_ISLNK(os.fstat(found).st_mode):
        os.close(found)
        return None
    return found


def _is_folder(parent: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        return False
