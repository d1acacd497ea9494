"""Find the Git repositories in a workspace, and the other files in its folders that programs obey outside any sandbox.
Commands must not change them.

In the folders that package managers and build tools fill, only repositories are looked for. These folders contain the
files of other projects, which nobody obeys there, and which the tools must be able to replace.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final, TypeAlias

from loom.activities.toolbox.workspace import confined_open as beneath
from loom.activities.toolbox.workspace.paths import READ_ONLY
from loom.domain.permissions.obeyed import PRODUCED, is_obeyed

Parts: TypeAlias = tuple[str, ...]
"""A path relative to the workspace."""

_FOLDERS: Final = 2000
_DEPTH: Final = 6
_SHARE: Final = 50
_MOST_OBEYED: Final = 100
"""The maximum number of obeyed files, because each is a mount of every command."""
_ELSEWHERE: Final = re.compile(r'^(?:gitdir:|\s*hookspath\s*=)\s*"?([^"\n]+)', re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Repositories:
    """Finds repositories, and caches the result for fifty times as long as the search took."""

    _known: dict[Path, tuple[float, tuple[Parts, ...]]] = field(default_factory=dict)

    def inside(self, workspace: Path) -> tuple[Parts, ...]:
        """Return every `.git` in the workspace, the targets of `.git` files and of the `core.hooksPath` setting, and
        the first files and folders that programs obey.
        """
        until, found = self._known.get(workspace, (0.0, ()))
        begun = monotonic()
        if begun < until:
            return found
        found = tuple(dict.fromkeys(_repositories(workspace)))
        now = monotonic()
        self._known[workspace] = now + _SHARE * (now - begun), found
        return found


def _repositories(workspace: Path) -> Iterator[Parts]:
    """Search breadth-first up to a limit, because a workspace may be large."""
    level: list[Parts] = [()]
    seen = told = 0
    for _ in range(_DEPTH):
        below: list[Parts] = []
        for parts in level:
            seen += 1
            look = _look(workspace, parts)
            below += look.folders
            yield from sorted(look.obeyed)[: _MOST_OBEYED - told]
            told = min(told + len(look.obeyed), _MOST_OBEYED)
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
    except OSError:
        return _Look()
    return look


def _named_in(workspace: Path, repository: Parts) -> Iterator[Parts]:
    text = _text(workspace, repository) or _text(workspace, (*repository, "config"))
    for name in _ELSEWHERE.findall(text):
        place = Path(os.path.normpath(workspace.joinpath(*repository[:-1], name.strip())))
        if place != workspace and place.is_relative_to(workspace):
            yield place.relative_to(workspace).parts


def _text(workspace: Path, parts: Parts) -> str:
    """Return the beginning of a file, or an empty string if the path isn't a file."""
    try:
        with os.fdopen(beneath.open_file(str(workspace), parts), "rb") as file:
            return file.read(65_536).decode("utf-8", "replace")
    except OSError:
        return ""
