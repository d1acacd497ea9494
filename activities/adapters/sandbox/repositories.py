"""Find the Git repositories in a workspace. Commands must not change them, because Git later reads them outside any
sandbox.
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

Parts: TypeAlias = tuple[str, ...]
"""A path relative to the workspace."""

_FOLDERS: Final = 2000
_DEPTH: Final = 6
_SHARE: Final = 50
_ELSEWHERE: Final = re.compile(r'^(?:gitdir:|\s*hookspath\s*=)\s*"?([^"\n]+)', re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Repositories:
    """Finds repositories, and caches the result for fifty times as long as the search took."""

    _known: dict[Path, tuple[float, tuple[Parts, ...]]] = field(default_factory=dict)

    def inside(self, workspace: Path) -> tuple[Parts, ...]:
        """Return every `.git` in the workspace, and the targets of `.git` files and of the `core.hooksPath` setting."""
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
    seen = 0
    for _ in range(_DEPTH):
        below: list[Parts] = []
        for parts in level:
            seen += 1
            folders, repository = _look(workspace, parts)
            below += folders
            if repository:
                yield repository
                yield from _named_in(workspace, repository)
        if seen + len(below) > _FOLDERS:
            return
        level = below


def _look(workspace: Path, parts: Parts) -> tuple[list[Parts], Parts | None]:
    """Return a folder's subfolders and its `.git`. A subfolder that has been replaced with a link is detected when it
    is opened.
    """
    folders: list[Parts] = []
    repository = None
    try:
        with os.scandir(workspace.joinpath(*parts)) as entries:
            for entry in entries:
                if entry.name == READ_ONLY:
                    repository = (*parts, entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    folders.append((*parts, entry.name))
    except OSError:
        return [], None
    return folders, repository


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
