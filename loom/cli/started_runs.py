"""Remember which runs this user has started, for `@last` and for shell completion.

The file is in the user's own state folder, because the server doesn't know who started a run at which terminal.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

MOST: Final = 200
"""Maximum number of remembered runs."""

Entry: TypeAlias = tuple[str, str, str]
"""The server, the terminal and the id of a started run."""


def remember(server: str, run_id: str) -> None:
    """Remember a run that this terminal has started. A folder that can't be written is no reason to fail."""
    # RuntimeError: a container's user may have no home.
    with suppress(OSError, RuntimeError):
        path = _path()
        entries = [*_entries(), (server, _terminal(), run_id)][-MOST:]
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as fresh:
            json.dump(entries, fresh)
        Path(fresh.name).replace(path)


def started_runs(server: str | None = None) -> Iterator[str]:
    """Yield the remembered runs at a server, or at all: first this terminal's, and the newest first."""
    entries = [entry for entry in reversed(_entries()) if server in (None, entry[0])]
    here = _terminal()
    yield from (run_id for _, terminal, run_id in entries if terminal == here)
    yield from (run_id for _, terminal, run_id in entries if terminal != here)


def _path() -> Path:
    folder = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(folder) / "loom" / "started-runs.json"


def _terminal() -> str:
    """Return a name for the login session that this process belongs to. All commands of one terminal share it."""
    return str(os.getsid(0))


def _entries() -> list[Entry]:
    """Return the entries in the file, oldest first. A file that can't be read has none."""
    try:
        found = json.loads(_path().read_text(encoding="utf-8"))
        return [(str(server), str(terminal), str(run_id)) for server, terminal, run_id in found]
    except (OSError, ValueError, TypeError, RuntimeError):
        return []
