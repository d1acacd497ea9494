"""Which programs a command finds: those of the system, and those of a virtual environment that was prepared for it."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loom.domain.core.errors import BadRequest, ToolUnavailableError

SEARCH_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INTERPRETER: Final = str(Path(sys.executable).resolve())
"""The interpreter that the worker's environment was created from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandEnvironment:
    """The programs and variables of commands."""

    python: str = INTERPRETER
    """The interpreter that runs Python programs."""
    prepared: Path | None = None
    """The virtual environment. Its programs precede those of the system."""
    folders: tuple[Path, ...] = ()
    """What commands must be able to read: the environment and the installation that it was created from."""

    def variables(self, home: str) -> dict[str, str]:
        """Return a command's variables. They contain none of the worker's variables."""
        plain = {"PATH": SEARCH_PATH, "HOME": home, "LANG": "C.UTF-8", "TERM": "dumb"}
        if self.prepared is None:
            return plain
        return {**plain, "PATH": f"{self.prepared / 'bin'}:{SEARCH_PATH}", "VIRTUAL_ENV": str(self.prepared)}

    def refuse_inside(self, workspace: Path) -> None:
        """Raise ToolUnavailableError if the agent could change the environment's programs.

        Permission rules name programs. They must not allow a program that the agent has put in its place.
        """
        if self.prepared is not None and self.prepared.is_relative_to(workspace.resolve()):
            raise ToolUnavailableError(
                f"LOOM_SANDBOX_ENVIRONMENT ({self.prepared}) is in the workspace, where agents could change its "
                "programs: create it outside"
            )


def prepared_environment(folder: Path | None) -> CommandEnvironment:
    """Return the environment of commands. Raises BadRequest if `folder` isn't a usable virtual environment."""
    if folder is None:
        return CommandEnvironment()
    folder = folder.resolve()  # a link could later lead elsewhere, such as into a workspace
    python = folder / "bin" / "python"
    if not (folder / "pyvenv.cfg").is_file() or not python.is_file():
        raise BadRequest(
            f"{folder} is not a virtual environment: create one with `python3 -m venv {folder}`",
            field="LOOM_SANDBOX_ENVIRONMENT",
        )
    named = next(
        (Path(value.strip()).parent for key, _, value in _lines(folder / "pyvenv.cfg") if key.strip() == "home"), folder
    )
    bases = (named, named.resolve(), python.resolve().parents[1])
    if strange := next((base for base in bases if not any(base.glob("lib*/python3*"))), None):
        raise BadRequest(
            f"{folder} was created from {strange}, which is not a Python installation: create it anew",
            field="LOOM_SANDBOX_ENVIRONMENT",
        )
    return CommandEnvironment(python=str(python), prepared=folder, folders=tuple(dict.fromkeys((folder, *bases))))


def _lines(file: Path) -> list[tuple[str, str, str]]:
    return [line.partition("=") for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
