"""Copy a running stack to another directory, which is then a stack of its own.

Temporal's data is copied first. What a history refers to, such as a payload or the record of an effect, is in Postgres
before the history says so. A copy of Postgres that is a little newer is therefore complete, and nothing is done twice.

Redis isn't copied. It holds live events and caches. `loom events` and memory read what is missing from the histories.
"""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from loom.stack import state
from loom.stack.errors import StackError
from loom.stack.postgres import admin_address, copy_cluster
from loom.stack.services import temporal_database

_NOT_COPIED: Final = (
    *("temporal", "temporal.db*", "postgres", "postgres.new", "redis", "redis.conf", "logs"),
    *("stack.json", "sizes.json", "*.lock", "*.sock"),
)
"""Data that is copied in another way, or that belongs to the running processes."""


def back_up(home: Path, target: Path) -> Path:
    """Copy the stack in `home` to the new directory `target`. Runs go on meanwhile.

    Raises StackError if the stack isn't running, or if the target exists or can't be written.
    """
    server = state.read(home).living().get("postgres")
    if server is None or server.address is None or not temporal_database(home).exists():
        raise StackError(
            f"no stack is running in {home}: start it with `loom up`, or copy the folder as it is", home=str(home)
        )
    if target.exists():
        raise StackError(f"{target} exists: name a new folder for the backup", home=str(target))
    aside = target.with_name(f"{target.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True, mode=0o700)
        (aside / "temporal").mkdir(mode=0o700)
        _copy_database(temporal_database(home), temporal_database(aside))
        port = urlsplit(server.address).port or 0
        copy_cluster(f"{admin_address(home, port)}/postgres", home / "postgres", aside / "postgres")
        shutil.copytree(home, aside, symlinks=True, dirs_exist_ok=True, ignore=_ignored_in(home))
        aside.replace(target)
    except (OSError, sqlite3.Error) as error:
        raise StackError(f"the backup can't be written to {target}: {error}", home=str(target)) from error
    return target


def _copy_database(source: Path, target: Path) -> None:
    """Copy an SQLite database in one step, while its server writes to it."""
    with (
        closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as original,
        closing(sqlite3.connect(target)) as copy,
    ):
        original.backup(copy)
    target.chmod(0o600)


def _ignored_in(home: Path) -> Callable[[str, list[str]], set[str]]:
    patterns = shutil.ignore_patterns(*_NOT_COPIED)
    return lambda folder, names: set(patterns(folder, names)) if Path(folder) == home else set()
