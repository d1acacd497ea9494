"""Find a project's virtual environments that don't work in the sandbox because commands can't see the Python that they
were created from.

An agent can write an environment's files, so they never open a folder. They only explain why a command failed. What a
model reads contains nothing but what is in these files. Only the advice to a person depends on what is outside.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from loom.activities.adapters.sandbox.repositories import text_in

_USUAL: Final = (".venv", "venv", "env")
_IN_OUTPUT: Final = re.compile(r"([\w@.+/-]+)/bin/[\w.+-]+")
_MOST_NAMED: Final = 20
_HOME: Final = re.compile(r"^home *= *(/.+?) *$", re.MULTILINE)
_NOT_FOUND: Final = 127


class UnseenPython(NamedTuple):
    """An environment in a workspace, and the folder outside that contains its programs."""

    environment: str
    folder: Path

    @property
    def reason(self) -> str:
        """Why programs of the environment fail."""
        return f"the programs of {self.environment} are in {self.folder}, which commands can't see"

    def advice(self) -> str:
        """Tell a person what to set. The folder must be a Python installation, because an agent may have named it."""
        real = self.folder.resolve()
        base = real.parent if real.name == "bin" else real
        named = self.folder.parent if self.folder.name == "bin" else self.folder
        shown = Path(os.path.commonpath((named, base)))  # contains the links to the installation, too
        if not any(base.glob("lib*/python3*")) or _has_private_files(shown.resolve()):
            return f"create {self.environment} again with `/usr/bin/python3 -m venv`"
        return f"set LOOM_SANDBOX_READABLE={shown}"


def unseen_pythons(workspace: Path, shown: Sequence[Path], names: Sequence[str] = ()) -> Iterator[UnseenPython]:
    """Return the environments with one of these names or a usual name whose programs aren't in one of the `shown`
    folders.
    """
    for name in dict.fromkeys((*names, *_USUAL)):
        place = Path(os.path.normpath(workspace / name))
        if place == workspace or not place.is_relative_to(workspace):
            continue
        folder = _programs_of(workspace, place.relative_to(workspace).parts)
        if folder is not None and not any(folder.is_relative_to(each) for each in (*shown, workspace)):
            yield UnseenPython(str(place.relative_to(workspace)), folder)


def named_environments(workspace: Path) -> tuple[str, ...]:
    """Return the environments of any name in a workspace, and those with a usual name in its folders."""
    marks = [*workspace.glob("*/pyvenv.cfg"), *(m for name in _USUAL for m in workspace.glob(f"*/{name}/pyvenv.cfg"))]
    return tuple(sorted(str(mark.parent.relative_to(workspace)) for mark in marks))


def hint(workspace: Path, shown: Sequence[Path], exit_code: int, output: str) -> str:
    """Return why a failed command couldn't run a program of the project's environment, if that may be the reason."""
    named = list(dict.fromkeys(_IN_OUTPUT.findall(output)))[:_MOST_NAMED]
    is_likely = "No module named" in output or (exit_code == _NOT_FOUND and "python" in output)
    if exit_code == 0 or not (named or is_likely):
        return ""
    for found in unseen_pythons(workspace, shown, named):
        if is_likely or any(
            Path(os.path.normpath(workspace / name)) == workspace / found.environment for name in named
        ):
            return (
                f"{found.reason}: use `python3`, create another environment with `/usr/bin/python3 -m venv`, or ask for"
                " LOOM_SANDBOX_READABLE to be set, as `loom doctor` describes"
            )
    return ""


def _has_private_files(folder: Path) -> bool:
    """Whether the folder contains more of a home than a Python: `/`, `~`, `~/.local` or another hidden folder in it."""
    home = Path.home().resolve()
    return (home / ".local/share").is_relative_to(folder) or (folder.parent == home and folder.name.startswith("."))


def _programs_of(workspace: Path, parts: tuple[str, ...]) -> Path | None:
    place = workspace.joinpath(*parts)
    if len(parts) == 1 and place.is_symlink():
        return Path(os.path.normpath(workspace / place.readlink()))
    found = _HOME.search(text_in(workspace, (*parts, "pyvenv.cfg")))
    return Path(os.path.normpath(found[1])) if found else None
