"""The errors of the embedded stack.

LoomError └── StackError                a service does not start, the home cannot be used, a program is missing
    └── AlreadySupervised     another process supervises this home

The message says what failed, where (the end of the service's log) and what to do.
"""

from pathlib import Path

from loom.domain.core.errors import LoomError


class StackError(LoomError):
    """The embedded stack cannot do what was requested."""


class AlreadySupervised(StackError):
    """Another process supervises this home."""


def tail(log: Path, *, lines: int = 12, since: int = 0, width: int = 400) -> str:
    """The end of a log from an offset on, indented for an error message, with long lines cut."""
    try:
        with log.open("rb") as file:
            file.seek(max(since, log.stat().st_size - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        return f"  (no log at {log})"
    last = text.splitlines()[-lines:]
    shown = (line if len(line) <= width else f"{line[:width]}…" for line in last)
    return "\n".join([f"  {log}:", *(f"  | {line}" for line in shown)])
