"""The subjects of a tool call, which permission rules are matched against: commands, files, hosts and locations."""

from collections.abc import Container
from dataclasses import dataclass
from typing import Final

WRITING_REDIRECTS: Final = frozenset({">", ">>", "&>", "&>>", ">|", ">&", "<>"})
"""Operators of redirects that write a file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The place where a call would run. All paths are absolute, or empty if unknown."""

    workspace: str = ""
    home: str = ""
    obeyed: Container[str] = frozenset()
    """The files and folders that this worker reads as code or instructions, wherever they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Touched:
    """A file that a command reads, writes or deletes, in the form that a file tool's path rules match."""

    tool: str
    """The tool whose rules apply: `read_file`, `write_file` or `delete_file`."""
    text: str = ""
    """The path relative to the workspace, or an absolute path if the file is outside it."""
    loose: str = ""
    """The absolute path."""
    opaque: bool = False
    """Whether the file can't be determined before the command runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One item that a call accesses: a command in a shell line, a file tool's path, or a host."""

    text: str
    """The text as a rule would spell it. Paths are relative to the workspace."""
    loose: str = ""
    """The text that ask and deny rules match: the command without environment assignments, or the absolute path."""
    opaque: bool = False
    """Whether the parser failed to analyze the subject. If so, no allow pattern covers it."""
    cause: str = ""
    """The part of an opaque or possible subject that prevents the analysis."""
    is_possible: bool = False
    """Whether it is uncertain that the command runs. Deny rules that match such a command require approval."""
    words: tuple[str | None, ...] = ()
    """The command's words as the shell reads them. None stands for a word that can't be determined before the command
    runs.
    """
    reads_input: bool = False
    """Whether a heredoc, a pipe or a file feeds a command that may run its input, so that its words don't show all that
    it does.
    """
    passive: bool = False
    """Whether the subject needs no allow rule of its own because it is part of a command that needs one."""
    reaches: bool = False
    """Whether the call also reads everything in this folder."""
    files: tuple[Touched, ...] = ()
    """The files that the command reads and writes, as far as its words name them."""
    mentions: tuple[Touched, ...] = ()
    """The files that a word of the command may be, if it isn't known what the program does with its words. An opaque
    file is a glob, or a computed word. Ask and deny rules that match one of these files require approval.
    """


def normal(path: str, base: str = "") -> str:
    """Return an absolute path without `.`, `..` and double slashes. A relative path starts at `base`."""
    parts: list[str] = []
    for part in (path if path.startswith("/") else f"{base}/{path}").split("/"):
        if part == "..":
            parts[-1:] = []
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


def expanded(path: str, home: str) -> str:
    """Return the path with its `~` expanded, or unchanged if the home directory is unknown."""
    if home and (path == "~" or path.startswith("~/")):
        return home + path[1:]
    return path
