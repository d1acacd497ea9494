"""List the files in a folder that Git wouldn't ignore, sorted by path.

Folders that a command can create again, such as virtual environments, are skipped unless the search starts in them.
They contain thousands of files that nobody in the project has written.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from loom.activities.toolbox.workspace import paths as workspace
from loom.domain.core.errors import LoomError

if TYPE_CHECKING:  # imported when the first `.gitignore` is read
    from pathspec import GitIgnoreSpec

Layers: TypeAlias = "tuple[tuple[str, GitIgnoreSpec], ...]"
"""The ignore files, from the workspace root downward, each with its folder (`""` or `a/b/`)."""


def walk(root: Path, start: Path, is_stopped: Callable[[], bool], home: Path | None = None) -> Iterator[str]:
    """Yield the paths of the files below `start`, relative to `root`. Links and `home` are excluded. Stop early when
    `is_stopped` returns True.
    """
    if start.is_file():
        yield workspace.relative(root, start)
        return
    base = "" if start == root else workspace.relative(root, start) + "/"
    own = workspace.own_state(root, home)
    hidden = None if own is None else workspace.relative(root, own)
    yield from _below(root, base, _layers_above(root, base), is_stopped, hidden)


def _below(
    root: Path, prefix: str, layers: Layers, is_stopped: Callable[[], bool], hidden: str | None
) -> Iterator[str]:
    try:
        found = workspace.entries(root, root / prefix)
    except LoomError:
        return  # unreadable, or deleted after its parent was listed
    if any(entry.name == ".gitignore" and entry.kind == "file" for entry in found):
        layers = (*layers, *_layer(root, prefix))
    for entry in found:
        path = prefix + entry.name
        if is_stopped():
            return
        if entry.kind == "file" and not is_ignored(path, layers):
            yield path
        elif (
            entry.kind == "folder"
            and path != hidden
            and not is_ignored(path + "/", layers)
            and not _is_skipped(root, path)
        ):
            yield from _below(root, path + "/", layers, is_stopped, hidden)


def _is_skipped(root: Path, path: str) -> bool:
    name = path.rpartition("/")[2]
    own = name in (workspace.READ_ONLY, workspace.HIDDEN)
    return own or name in workspace.REGENERABLE or (root / path / "pyvenv.cfg").is_file()


def is_ignored(path: str, layers: Layers) -> bool:
    """Whether the path is ignored. The deepest ignore file with a matching pattern decides."""
    for prefix, spec in reversed(layers):
        verdict = spec.check_file(path[len(prefix) :]).include
        if verdict is not None:
            return verdict
    return False


def _layers_above(root: Path, base: str) -> Layers:
    """Return the ignore files in the parent folders of `base`. If these files ignore all of `base`, return an empty
    sequence, because the path was requested by name.
    """
    layers: Layers = ()
    names = base.split("/")[:-1]
    for depth in range(len(names)):
        layers += _layer(root, "".join(name + "/" for name in names[:depth]))
        if is_ignored("".join(name + "/" for name in names[: depth + 1]), layers):
            return ()
    return layers


def _layer(root: Path, prefix: str) -> Layers:
    from pathspec import GitIgnoreSpec  # noqa: PLC0415

    try:
        with workspace.open_file(root, root / prefix / ".gitignore") as file:
            return ((prefix, GitIgnoreSpec.from_lines(file.read().decode("utf-8", "replace").splitlines())),)
    except LoomError:
        return ()
