"""What a call touches, as permission rules see it: commands of a shell line, files, hosts, and where all that is."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a call would run; both absolute, empty where unknown."""

    workspace: str = ""
    home: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Touched:
    """A file that a command reads or writes, as the path rules of a file tool see it."""

    tool: str
    """Under whose rules it counts: `read_file` or `write_file`."""
    text: str = ""
    """Relative to the workspace; absolute when outside."""
    loose: str = ""
    """The absolute path."""
    opaque: bool = False
    """Only running it would tell which file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One thing that a call touches: a command of a shell line, a path of a file tool, a host."""

    text: str
    """As a rule would spell it; paths relative to the workspace."""
    loose: str = ""
    """For asks and denies: the command without any environment assignment before it; of a path the absolute one."""
    opaque: bool = False
    """The parser could not see inside: no allow pattern covers it."""
    words: tuple[str | None, ...] = ()
    """A command's words as the shell will understand them; None where only running would tell."""
    passive: bool = False
    """Needs no allow of its own: it is a part of a command that does."""
    reaches: bool = False
    """Everything below it is read as well."""
    files: tuple[Touched, ...] = ()
    """What a command reads and writes, as far as its words say so."""


def normal(path: str, base: str = "") -> str:
    """An absolute path without `.`, `..` and double slashes; relative ones start at `base`."""
    parts: list[str] = []
    for part in (path if path.startswith("/") else f"{base}/{path}").split("/"):
        if part == "..":
            parts[-1:] = []
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def expanded(path: str, home: str) -> str:
    """The path with its `~` spelled out; as it is where the home is unknown."""
    if home and (path == "~" or path.startswith("~/")):
        return home + path[1:]
    return path
