"""The statements that stores send to Postgres, in a file: `python -m tests.stored.recording 0.5.0`."""

import argparse
import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

import psycopg
from pgvector import HalfVector, Vector
from psycopg import AsyncClientCursor, AsyncCursor, AsyncServerCursor

from loom.activities.adapters.postgres.payloads import create_payload_tables
from loom.activities.adapters.postgres.schema_migrations import migrate, read_migrations
from loom.stack import up_down as stack
from loom.stack.plan import Plan
from tests.stored.stories import read, store

FOLDER: Final = Path(__file__).parent
_NEXT: Final = "-- next statement\n"
_PART: Final = re.compile(r"^-- (tables|stored|read)\n", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """The statements of one release."""

    release: str
    schema: int
    """The number of the release's last migration."""
    tables: tuple[str, ...]
    """Create the tables for payloads, which aren't part of a migration."""
    stored: tuple[str, ...]
    """Store the stories."""
    read: tuple[str, ...]
    """Read them. Empty in the recordings of releases that refuse today's schema."""

    @property
    def text(self) -> str:
        """The recording as a file."""
        parts = {"tables": self.tables, "stored": self.stored, "read": self.read}
        return f"-- Loom {self.release}, schema {self.schema}\n" + "".join(
            f"-- {name}\n" + _NEXT.join(f"{each}\n" for each in statements)
            for name, statements in parts.items()
            if statements
        )


def read_recording(path: Path) -> Recording:
    """Return the recording in a file."""
    first, *parts = _PART.split(path.read_text(encoding="utf-8"))
    _, _, release, _, schema = first.replace(",", "").split()
    statements = {
        name: tuple(each.removesuffix("\n") for each in part.split(_NEXT))
        for name, part in zip(parts[::2], parts[1::2], strict=True)
    }
    return Recording(
        release=release,
        schema=int(schema),
        tables=statements["tables"],
        stored=statements["stored"],
        read=statements.get("read", ()),
    )


async def send(url: str, statements: Iterable[str]) -> list[int]:
    """Send the statements, and return the number of rows of each."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        return [(await connection.execute(each.encode())).rowcount for each in statements]


@contextmanager
def recorded() -> Iterator[list[str]]:
    """Collect the statements that are sent in this process, with their values."""
    statements: list[str] = []

    def keep(cursor: Any, query: Any, values: Any) -> None:
        plain = query.encode() if isinstance(query, str) else query
        if values is not None:  # a cursor that inserts values itself sends text only
            plain = AsyncClientCursor(cursor.connection).mogrify(plain.replace(b"%b", b"%s"), _as_text(values)).encode()
        # A pool sends an empty one to see whether a connection works. Which migrations a database has isn't what a
        # release stores.
        if plain and b"loom_migrations" not in plain:
            statements.append(plain.decode().strip())

    def keeping(send: Any) -> Any:
        async def execute(self: Any, query: Any, params: Any = None, **options: Any) -> Any:
            keep(self, query, params)
            return await send(self, query, params, **options)

        return execute

    async def executemany(self: Any, query: Any, all_params: Iterable[Any], **options: Any) -> None:
        values = [*all_params]
        for each in values:
            keep(self, query, each)
        await send_many(self, query, values, **options)

    send_many = AsyncCursor.executemany
    with (
        patch.object(AsyncCursor, "execute", keeping(AsyncCursor.execute)),
        patch.object(AsyncServerCursor, "execute", keeping(AsyncServerCursor.execute)),
        patch.object(AsyncCursor, "executemany", executemany),
    ):
        yield statements


def _as_text(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _text(value) for name, value in values.items()}
    return [_text(value) for value in values]


def _text(value: Any) -> Any:
    return value.to_text() if isinstance(value, Vector | HalfVector) else value


async def recording_of_today(url: str, release: str) -> Recording:
    """Store the stories in an empty database, read them, and return the statements."""
    steps = read_migrations()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await migrate(connection)
        with recorded() as tables:
            await create_payload_tables(connection)
    with recorded() as stored:
        await store(url)
    with recorded() as found:
        await read(url)
    return Recording(
        release=release, schema=steps[-1].number, tables=tuple(tables), stored=tuple(stored), read=tuple(found)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the statements of this code as those of a release."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release")
    release = parser.parse_args(arguments).release
    with TemporaryDirectory(prefix="loom-recording-") as folder:
        home = Path(folder) / ".loom"
        parts = stack.up_detached(Plan(home=home, worker=None)).parts
        try:
            recording = asyncio.run(recording_of_today(parts["postgres"].address or "", release))
        finally:
            stack.down(home)
    (FOLDER / f"{release}.sql").write_text(recording.text, encoding="utf-8")


if __name__ == "__main__":
    main()
