"""What a call touches, as permission rules see it: commands of a shell line, files, hosts, and their location."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a call would run. Both paths are absolute; empty if unknown."""

    workspace: str = ""
    home: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Touched:
    """A file that a command reads or writes, as the path rules of a file tool see it."""

    tool: str
    """The tool whose rules apply: `read_file` or `write_file`."""
    text: str = ""
    """Relative to the workspace; absolute if outside."""
    loose: str = ""
    """The absolute path."""
    opaque: bool = False
    """Only running the command would tell which file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One thing that a call touches: a command of a shell line, a path of a file tool, a host."""

    text: str
    """As a rule would spell it; paths are relative to the workspace."""
    loose: str = ""
    """For asks and denies: the command without environment assignments, or the absolute path."""
    opaque: bool = False
    """The parser could not analyze it, so no allow pattern covers it."""
    words: tuple[str | None, ...] = ()
    """A command's words as the shell will read them; None for one that only running would tell."""
    passive: bool = False
    """Needs no allow of its own, because it is part of a command that does."""
    reaches: bool = False
    """Everything below it is read too."""
    files: tuple[Touched, ...] = ()
    """The files that a command reads and writes, as far as its words show."""


def normal(path: str, base: str = "") -> str:
    """An absolute path without `.`, `..` and double slashes. Relative ones start at `base`."""
    parts: list[str] = []
    for part in (path if path.startswith("/") else f"{base}/{path}").split("/"):
        if part == "..":
            parts[-1:] = []
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def expanded(path: str, home: str) -> str:
    """The path with its `~` expanded; unchanged if the home is unknown."""
    if home and (path == "~" or path.startswith("~/")):
        return home + path[1:]
    return path
