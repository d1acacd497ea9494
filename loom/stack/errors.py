"""Errors that the embedded stack raises.

LoomError
└── StackError                a service does not start, the home cannot be used, or a program is missing
    ├── AlreadySupervised     another process supervises this home
    └── UnreadableState       the record of the stack's processes is damaged, or has an unknown format

Each message describes the failure, quotes the end of the relevant log and suggests a fix.
"""

from pathlib import Path

from loom.domain.core.errors import LoomError


class StackError(LoomError):
    """The embedded stack can't perform the requested operation."""


class AlreadySupervised(StackError):
    """Another process supervises this home."""


class UnreadableState(StackError):
    """The record of the stack's processes is damaged, or has an unknown format."""


def tail(log: Path, *, lines: int = 12, since: int = 0, width: int = 400) -> str:
    """Return the last lines of a log, indented for an error message.

    `since` is the byte offset to start from. Lines longer than `width` characters are truncated.
    """
    try:
        with log.open("rb") as file:
            file.seek(max(since, log.stat().st_size - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        return f"  (no log at {log})"
    last = text.splitlines()[-lines:]
    shown = (line if len(line) <= width else f"{line[:width]}…" for line in last)
    return "\n".join([f"  {log}:", *(f"  | {line}" for line in shown)])
