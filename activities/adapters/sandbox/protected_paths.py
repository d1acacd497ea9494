"""The paths in a workspace that a command must not change, or see, as mounts for bubblewrap.

Files that Git, editors, agents and Loom obey later, outside any sandbox, are read-only if they exist. Of the most
dangerous ones, a placeholder occupies missing names. Everything is opened step by step without following links and
mounted by descriptor, so that a command of another run in the same workspace cannot substitute a link.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from loom.activities.adapters.sandbox.placeholders import occupied_names
from loom.activities.adapters.sandbox.repositories import Parts, Repositories
from loom.activities.toolbox.workspace import confined_open as beneath
from loom.activities.toolbox.workspace.paths import HIDDEN, READ_ONLY
from loom.domain.core.errors import ToolExecutionError

OBEYED_LATER: Final[Sequence[str]] = (
    *(READ_ONLY, ".husky", ".agents", ".claude", ".codex", ".cursor", ".devcontainer", ".idea", ".vscode"),
    *(".env", ".envrc", ".mcp.json", "loom.toml"),
)
"""Read-only if they exist: hooks, skills, tasks that start automatically, settings."""

_OF_A_BARE_REPOSITORY: Final[Sequence[str]] = ("config", "hooks")
KEPT_FREE: Final[Sequence[str]] = (HIDDEN, ".agents", "loom.toml")
"""If one of these, or a `.git`, does not exist, no command can create it. The list is short, since commands see it."""

SECRETS: Final[Sequence[str]] = (HIDDEN, ".ssh", ".gnupg", ".aws", ".kube")
"""Folders whose content is hidden from a command: Loom's state, and keys, in case the workspace is a home directory."""

_OPEN: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Mounts:
    """Arguments for bubblewrap, and the descriptors that they refer to."""

    words: list[str] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    emptied: list[Path] = field(default_factory=list)
    """Folders that are shown empty and read-only."""
    readable: list[str] = field(default_factory=list)
    """Arguments for readable folders, wherever they are. They come after the emptied ones."""

    def add(self, option: str, descriptor: int, place: Path) -> None:
        """Add one mount by descriptor."""
        self.words.extend((option, str(descriptor), str(place)))
        self.descriptors.append(descriptor)

    def add_readable(self, descriptor: int, place: Path) -> None:
        """Add one readable folder by descriptor."""
        self.readable.extend(("--ro-bind-fd", str(descriptor), str(place)))
        self.descriptors.append(descriptor)


@contextmanager
def mounted(
    workspace: Path, repositories: Repositories, readable: Sequence[Path] = (), fixed: Sequence[Path] = ()
) -> Iterator[Mounts]:
    """Mount the workspace and its protected paths. The placeholders stay until the end of the block.

    The `fixed` folders cannot be renamed, because they are mounts. Otherwise a folder that contains something hidden
    could be moved together with it, and the next command would see it there.
    """
    with ExitStack() as stack:
        mounts = Mounts()
        here = _opened_folder(workspace, "workspace")
        stack.callback(os.close, here)
        mounts.add("--bind-fd", here, workspace)
        for folder in fixed:
            if (found := _opened(workspace, folder.relative_to(workspace).parts)) is not None:
                stack.callback(os.close, found)
                mounts.add("--bind-fd", found, folder)
        is_inside = any((folder / READ_ONLY).exists() for folder in workspace.parents)
        folders, others = ((READ_ONLY,), KEPT_FREE) if is_inside else ((), (READ_ONLY, *KEPT_FREE))
        stack.enter_context(occupied_names(here, folders, others))
        for parts in _read_only(workspace, repositories):
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


def _opened_folder(folder: Path, what: str) -> int:
    try:
        with beneath.folder("/", folder.parts[1:]) as found:
            return os.dup(found)
    except OSError:
        raise ToolExecutionError(
            f"the {what} {str(folder)!r} is not a folder on this worker: nothing was run"
        ) from None


def _read_only(workspace: Path, repositories: Repositories) -> Iterator[Parts]:
    yield from ((name,) for name in dict.fromkeys((*OBEYED_LATER, *KEPT_FREE)))
    yield from (parts for parts in repositories.inside(workspace) if parts != (READ_ONLY,))
    if (workspace / "HEAD").is_file() and (workspace / "objects").is_dir():
        yield from ((name,) for name in _OF_A_BARE_REPOSITORY)


def _opened(workspace: Path, parts: Parts) -> int | None:
    """Open for mounting; None if it does not exist or is a link."""
    try:
        with beneath.folder(str(workspace), parts[:-1]) as parent:
            found = os.open(parts[-1], _OPEN, dir_fd=parent)
    except OSError:
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
