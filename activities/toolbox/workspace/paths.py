"""Confine paths: every path from a model is resolved, checked and opened inside the run's workspace.

`home` is the folder where this worker stores Loom's own state. This folder may be inside a workspace, but tools can't
access it.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, BinaryIO, Final

from pydantic import AfterValidator

from loom.activities.toolbox.workspace import confined_open as beneath
from loom.activities.toolbox.workspace.text_bytes import name_from, readable, with_characters
from loom.domain.core.errors import ToolExecutionError, ToolUnavailableError, ToolValidationError
from loom.domain.permissions.subjects import Subject

READ_ONLY: Final = ".git"
"""The folder with files that Git later runs or obeys outside any sandbox. Tools may read but never write them."""
HIDDEN: Final = ".loom"
"""The usual name of the folder with Loom's own state, including server passwords and the histories of all runs."""
REGENERABLE: Final = frozenset({"node_modules", ".venv", "__pycache__", ".tox", ".nox"})
"""Folders that a command can create again."""
SECRETS: Final = (HIDDEN, ".ssh", ".gnupg", ".aws", ".kube")
"""Folders whose content is hidden from commands: Loom's state, and folders with keys if the workspace is a home
directory.
"""

PLACEHOLDER: Final = stat.S_ISVTX | 0o555
"""The mode of the empty folders that occupy names while a command runs. It is rare for other folders."""


PathText = Annotated[str, AfterValidator(with_characters)]
"""A path in a tool's arguments. Rules about the argument's value match the name of the file, too."""


def is_placeholder(mode: int) -> bool:
    """Whether the mode is a placeholder's, under any umask."""
    return mode & (stat.S_ISVTX | 0o222) == stat.S_ISVTX


def resolve(workspace: Path, path: str, *, home: Path | None, must_exist: bool = True) -> Path:
    """Return the real path of `path`. Raises ToolValidationError if the path is invalid, is outside the workspace or
    doesn't exist.
    """
    real = _confined(workspace, _named(workspace, path), path, home)
    if must_exist and not os.path.lexists(real):
        raise ToolValidationError(_missing(workspace, path, real))
    return real


def unresolved(workspace: Path, path: str, *, home: Path | None) -> Path:
    """Return the path for a call that changes the name itself: a link stands for itself, and the folders above it for
    their targets. Raises ToolValidationError as `resolve` does, and if the path is in `.git`.
    """
    named = _named(workspace, path)
    real = _confined(workspace, named, path, home)
    whole = Path(os.path.normpath(named))
    if whole != workspace and whole.is_relative_to(workspace):
        real = _confined(workspace, whole.parent, path, home) / whole.name
        _confined(workspace, real, path, home)
    if READ_ONLY in real.relative_to(workspace).parts:
        raise ToolValidationError(f"{path} is in .git, which is protected: choose a path outside .git")
    return real


def _confined(workspace: Path, named: Path, path: str, home: Path | None) -> Path:
    """Return the real path of a name, which the model has written as `path`."""
    try:
        real = Path(os.path.realpath(named))
    except (OSError, ValueError) as error:
        raise ToolValidationError(f"{path!r} is not a usable path ({error}): name another one") from None
    if not real.is_relative_to(workspace):
        raise ToolValidationError(f"{path} is outside the workspace: use a path relative to the workspace")
    own = own_state(workspace, home)
    if HIDDEN in real.relative_to(workspace).parts or (own is not None and real.is_relative_to(own)):
        raise ToolValidationError(f"{path} is Loom's own state, which tools cannot access: choose another path")
    return real


def _named(workspace: Path, path: str) -> Path:
    r"""Return the path that the text names. A name as it is goes before one in which `\xNN` is a byte."""
    try:
        whole, other = _names(workspace, path)
        if other == whole or os.path.lexists(whole):
            return whole
        is_below = os.path.lexists(other.parent) and not os.path.lexists(whole.parent)
        return other if is_below or os.path.lexists(other) else whole
    except (OSError, ValueError) as error:
        raise ToolValidationError(f"{path!r} is not a usable path ({error}): name another one") from None


def _names(workspace: Path, path: str) -> tuple[Path, Path]:
    r"""Return the paths that the text can name: with `\xNN` as it is, and as a byte."""
    if not workspace.is_absolute():
        raise ToolUnavailableError("this run has no workspace: start it with one to work with files")
    if not path.strip() or "\0" in path:
        raise ToolValidationError(f"{path!r} is not a path: name one in the workspace (`.` is the workspace itself)")
    return workspace / with_characters(path), workspace / name_from(path)


def own_state(workspace: Path, home: Path | None) -> Path | None:
    """Return the real path of Loom's own state if it is in the workspace. The path doesn't have to exist."""
    real = None if home is None else Path(os.path.realpath(home))
    return real if real is not None and real.is_relative_to(workspace) else None


def subjects(workspace: Path, path: str, *, home: Path | None) -> tuple[Subject, ...]:
    """Return the subjects to match against path patterns: the path as written and, if links change it, the path that
    `resolve` returns and the one that `unresolved` returns. Which of two names the path means may change until the call
    runs, so both are judged.
    """
    found: dict[Path, None] = {}
    for named in dict.fromkeys((_named(workspace, path), *_names(workspace, path))):
        real = _confined(workspace, named, path, home)
        whole = Path(os.path.normpath(named))
        is_inside = whole.is_relative_to(workspace) and whole != workspace
        link = (whole, _confined(workspace, whole.parent, path, home) / whole.name) if is_inside else ()
        found |= dict.fromkeys((*link, real))
    return tuple(Subject(text=shown(workspace, each), loose=str(each)) for each in found)


def shown(workspace: Path, real: Path) -> str:
    r"""Return the path relative to the workspace, as the model should name it. Bytes that aren't UTF-8 are `\xNN`."""
    return readable(relative(workspace, real))


def relative(workspace: Path, real: Path) -> str:
    """Return the path relative to the workspace, as the system names it."""
    return real.relative_to(workspace).as_posix()


def open_file(workspace: Path, real: Path) -> BinaryIO:
    """Open a regular file in the workspace for reading."""
    with _explained(workspace, real):
        return os.fdopen(beneath.open_file(str(workspace), _parts(workspace, real)), "rb")


def entries(workspace: Path, real: Path) -> Sequence[beneath.Entry]:
    """Return the entries of a folder in the workspace, sorted by name."""
    with _explained(workspace, real):
        return beneath.entries(str(workspace), _parts(workspace, real))


def visible_entries(workspace: Path, real: Path, home: Path | None) -> Iterator[beneath.Entry]:
    """Yield the entries of a folder, sorted by name, without `.git`, Loom's own state and drafts."""
    own = own_state(workspace, home)
    for entry in entries(workspace, real):
        is_own = entry.name in (READ_ONLY, HIDDEN) or real / entry.name == own or beneath.is_draft(entry.name)
        if not is_own:
            yield entry


def replace_file(workspace: Path, real: Path, data: bytes) -> bool:
    """Write a whole file atomically, and create its parent folders. Return True if the file is new."""
    parts = _parts(workspace, real)
    if not parts:
        raise ToolValidationError("`.` is the workspace itself: name a file in it")
    if READ_ONLY in parts:
        raise ToolValidationError(f"{shown(workspace, real)} is protected: choose a path outside .git")
    with _explained(workspace, real):
        return beneath.replace_file(str(workspace), parts, data)


def delete_file(workspace: Path, path: Path) -> None:
    """Delete a file or a link. `path` comes from `unresolved`."""
    parts = _parts(workspace, path)
    if not parts:
        raise ToolValidationError("`.` is the workspace itself: name a file in it")
    with _explained(workspace, path):
        beneath.delete_file(str(workspace), parts)


def _parts(workspace: Path, real: Path) -> tuple[str, ...]:
    return real.relative_to(workspace).parts


@contextmanager
def _explained(workspace: Path, real: Path) -> Iterator[None]:
    path = shown(workspace, real)
    try:
        yield
    except beneath.NotAFile as error:
        raise ToolValidationError(f"{path} cannot be used as a file: {error}") from None
    except FileNotFoundError:
        raise ToolValidationError(_missing(workspace, path, real)) from None
    except IsADirectoryError:
        raise ToolValidationError(f"{path} is a folder: use list_dir, or name a file in it") from None
    except NotADirectoryError:
        raise ToolValidationError(f"{path} is not a folder, or a part of the path is a file: use list_dir") from None
    except OSError as error:
        raise ToolExecutionError(f"{path}: {error.strerror or error}") from None


def _missing(workspace: Path, path: str, real: Path) -> str:
    parent = real.parent
    try:
        names = [entry.name for entry in beneath.entries(str(workspace), _parts(workspace, parent))]
    except (OSError, ValueError):
        return f"{path} does not exist, nor does the folder around it: look with list_dir or glob"
    near = [shown(workspace, parent / name) for name in get_close_matches(real.name, names, n=3)]
    return f"{path} does not exist: " + (f"did you mean {', '.join(near)}?" if near else "look with list_dir or glob")
