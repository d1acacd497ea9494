"""Find the Git repositories in a workspace, and the other files in its folders that programs obey outside any sandbox.
Commands must not change them.

In the folders that package managers and build tools fill, only repositories are looked for. These folders contain the
files of other projects, which nobody obeys there, and which the tools must be able to replace.
"""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final, TypeAlias

import structlog

from loom.activities.adapters.sandbox.open_files import refuse_if_exhausted
from loom.activities.toolbox.workspace import confined_open as beneath
from loom.activities.toolbox.workspace.paths import READ_ONLY
from loom.domain.permissions.obeyed import PRODUCED, is_obeyed

_log = structlog.get_logger("loom.sandbox")

Parts: TypeAlias = tuple[str, ...]
"""A path relative to the workspace."""

_FOLDERS: Final = 2000
_DEPTH: Final = 6
_SHARE: Final = 50
_MOST_OBEYED: Final = 200
"""The maximum number of obeyed files that are protected one by one. Each is a mount of every command, and each mount
takes longer the more there are: 200 mounts take about 0.2 s, and 1,000 would take 2 s.
"""
_MOST_CLOSED: Final = 50
"""The maximum number of folders that are read-only because of the other obeyed files."""
_TOO_MANY: Final = f"the workspace contains more than {_MOST_OBEYED} files that programs obey, such as AGENTS.md"
_NOT_WRITTEN: Final = "Read-only file system"
_ELSEWHERE: Final = re.compile(r'^(?:gitdir:|\s*hookspath\s*=)\s*"?([^"\n]+)', re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Repositories:
    """Finds repositories and what programs obey, and caches the result for fifty times as long as the search took."""

    _known: dict[Path, tuple[float, tuple[Parts, ...]]] = field(default_factory=dict)
    _closed: dict[Path, frozenset[Parts]] = field(default_factory=dict)

    def inside(self, workspace: Path) -> tuple[Parts, ...]:
        """Return every `.git` in the workspace, the targets of `.git` files and of the `core.hooksPath` setting, and
        the files and folders that programs obey.

        If there are more of these than can be protected one by one, return the folders that contain the others. An
        empty path stands for the whole workspace.
        """
        until, found = self._known.get(workspace, (0.0, ()))
        begun = monotonic()
        if begun < until:
            return found
        obeyed: list[Parts] = []
        repositories = tuple(_repositories(workspace, obeyed))
        closed = _folders_of(obeyed[_MOST_OBEYED:])
        if closed and closed != self._closed.get(workspace):
            names = ["/".join(parts) or "." for parts in sorted(closed)]
            _log.warning("folders_read_only", workspace=str(workspace), folders=names, why=_TOO_MANY)
        self._closed[workspace] = closed
        single = (parts for parts in obeyed[:_MOST_OBEYED] if not _is_below(parts, closed))
        found = tuple(dict.fromkeys((*single, *sorted(closed), *repositories)))
        now = monotonic()
        self._known[workspace] = now + _SHARE * (now - begun), found
        return found

    def hint(self, workspace: Path, output: str) -> str:
        """Return why a command with this output couldn't write, if read-only folders may be the reason."""
        closed = self._closed.get(workspace)
        if not closed or _NOT_WRITTEN not in output:
            return ""
        first, *others = ["/".join(parts) or "the whole workspace" for parts in sorted(closed)]
        more = f" and {len(others)} other folder{'s' if len(others) > 1 else ''} are" if others else " is"
        return f"{first}{more} read-only for commands, because {_TOO_MANY}: use the file tools there"


def _folders_of(obeyed: Iterable[Parts]) -> frozenset[Parts]:
    """Return the folders that contain these paths. As long as there are too many, the folder in which most of them are,
    and of several such folders the deepest one, replaces those in it. The whole workspace comes last, because then
    commands can't write anything.
    """
    folders = {parts[:-1] for parts in obeyed}
    while len(folders) > _MOST_CLOSED:
        inside = Counter(parts[:-1] for parts in folders if parts)
        shared = max(inside, key=lambda parts: (bool(parts) and inside[parts] > 1, inside[parts], len(parts), parts))
        folders = {parts for parts in folders if parts[: len(shared)] != shared} | {shared}
    return frozenset(parts for parts in folders if not _is_below(parts, folders))


def _is_below(parts: Parts, folders: Collection[Parts]) -> bool:
    return any(parts[:length] in folders for length in range(len(parts)))


def _repositories(workspace: Path, obeyed: list[Parts]) -> Iterator[Parts]:
    """Search breadth-first up to a limit, because a workspace may be large. Add what programs obey to `obeyed`."""
    level: list[Parts] = [()]
    seen = 0
    for _ in range(_DEPTH):
        below: list[Parts] = []
        for parts in level:
            seen += 1
            look = _look(workspace, parts)
            below += look.folders
            obeyed += sorted(look.obeyed)
            if look.repository:
                yield look.repository
                yield from _named_in(workspace, look.repository)
        if seen + len(below) > _FOLDERS:
            return
        level = below


@dataclass(slots=True)
class _Look:
    """What is in one folder."""

    folders: list[Parts] = field(default_factory=list)
    obeyed: list[Parts] = field(default_factory=list)
    repository: Parts | None = None


def _look(workspace: Path, parts: Parts) -> _Look:
    """Look into a folder. A subfolder that has been replaced with a link is detected when it is opened."""
    look = _Look()
    is_own = PRODUCED.isdisjoint(part.lower() for part in parts)
    folder = parts[-1] if parts else ""
    try:
        with os.scandir(workspace.joinpath(*parts)) as entries:
            for entry in entries:
                if entry.name == READ_ONLY:
                    look.repository = (*parts, entry.name)
                elif is_own and is_obeyed(entry.name, folder):
                    look.obeyed.append((*parts, entry.name))
                elif entry.is_dir(follow_symlinks=False):
                    look.folders.append((*parts, entry.name))
    except OSError as error:
        refuse_if_exhausted(error, "/".join(parts) or str(workspace))
        return _Look()
    return look


def _named_in(workspace: Path, repository: Parts) -> Iterator[Parts]:
    text = text_in(workspace, repository) or text_in(workspace, (*repository, "config"))
    for name in _ELSEWHERE.findall(text):
        place = Path(os.path.normpath(workspace.joinpath(*repository[:-1], name.strip())))
        if place != workspace and place.is_relative_to(workspace):
            yield place.relative_to(workspace).parts


def text_in(workspace: Path, parts: Parts) -> str:
    """Return the beginning of a file, or an empty string if the path isn't a file."""
    try:
        with os.fdopen(beneath.open_file(str(workspace), parts), "rb") as file:
            return file.read(65_536).decode("utf-8", "replace")
    except OSError as error:
        refuse_if_exhausted(error, "/".join(parts))
        return ""
