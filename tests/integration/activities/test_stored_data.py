"""Releases side by side on one database: their data after an upgrade, and their statements on today's schema.

`tests/stored` has the statements of each release.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from loom.activities.adapters.postgres.payloads import create_payload_tables
from loom.activities.adapters.postgres.schema_migrations import (
    Migration,
    SchemaRefused,
    migrate,
    pending,
    read_migrations,
)
from loom.activities.ports import StoredPatch
from loom.domain.memory.layers import Layer
from loom.domain.tree.budget import Spend
from loom.testing.harness import Addresses
from tests.acceptance.upgrade import RELEASES
from tests.databases import fresh_database, rows
from tests.stored.recording import FOLDER, Recording, read_recording, send
from tests.stored.stories import AT, BAKERY, BOAT, CAPTAIN, HARBOUR, PAYLOAD, PICTURE, RULE, read, store

RECORDINGS: Final[Mapping[str, Recording]] = {path.stem: read_recording(path) for path in sorted(FOLDER.glob("*.sql"))}
NEWEST: Final = max(RECORDINGS, key=lambda name: [int(part) for part in RECORDINGS[name].release.split(".")])
STEPS: Final = read_migrations()

OF_0_2_0: Final[dict[str, Any]] = {
    "payload": PAYLOAD.data,
    "artifact is whole": True,
    "the finished call's result": "paid",
    "earlier attempt at the lost call": 1,
    "memories of nobody": [],
    "memories of ann": [],
    "what nobody recalls by meaning": [],
    "what ann recalls by meaning": [],
    "tasks are known": False,
    "notes of nobody": [],
    "notes of ann": [],
    "rules for nobody": [],
    "rules for acme": [],
    "picture": None,
    "execution of the start": "another execution",
    "stored runs": [],
    "facts about ann": [],
    "facts that hold": [],
    "tokens": [],
    "approvals": {},
    "acts": [],
    "signs of tampering": [],
    "histories are read until": None,
    "unread histories": [],
    "running": frozenset(),
    "spent": Spend(),
    "owners of keys": [],
    "change to the clone": StoredPatch(version=0, patch=b""),
}
OF_0_3_0: Final[dict[str, Any]] = OF_0_2_0 | {
    "memories of nobody": [(CAPTAIN, Layer.L2), (BAKERY, Layer.L2), (HARBOUR, Layer.L2)],
    "what nobody recalls by meaning": [CAPTAIN, HARBOUR],
    "tasks are known": True,
    "notes of nobody": ["sail at dawn (shared)", "sail at dawn (global)"],
    "rules for nobody": [("rules.md", RULE, ("Rules",), 1.0)],
    "rules for acme": [("rules.md", RULE, ("Rules",), 1.0)],
}
OF_0_4_0: Final[dict[str, Any]] = OF_0_3_0 | {
    "earlier attempt at the lost call": 2,  # the recording has read everything once
    "memories of ann": [(BOAT, Layer.L2)],
    "what ann recalls by meaning": [BOAT],
    "notes of nobody": ["sail at dawn (shared)"],
    "notes of ann": ["sail at dawn (local)", "sail at dawn (global)"],
    "rules for acme": [("own.md", RULE, ("Rules",), 1.0)],
    "picture": PICTURE,
    "execution of the start": "execution",
    "stored runs": ["run"],
    "facts about ann": ["drinks coffee", "sails on Sundays", "sells the boat"],
    "facts that hold": ["drinks coffee", "sells the boat"],
    "tokens": [("phone", False), ("laptop", True)],
    "approvals": {("run", "call", "asked"): ("ann",)},
    "acts": [(2, "approve", "ann"), (1, "start", "ann")],
    "histories are read until": AT,
    "unread histories": [("run", "execution")],
    "running": frozenset({"run"}),
    "spent": Spend(tokens=200, micros=14),
    "owners of keys": ["acme"],
}
EXPECTED: Final = {"0.2.0": OF_0_2_0, "0.3.0": OF_0_3_0, "unreleased": OF_0_4_0}


def is_excluded(recording: Recording) -> bool:
    """Whether one of the migrations after the release needs a newer one."""
    try:
        pending([each.applied for each in STEPS], STEPS[: recording.schema], recording.release)
    except SchemaRefused:
        return True
    return False


@pytest.fixture
async def empty(addresses: Addresses) -> AsyncIterator[str]:
    """A database without any table."""
    async with fresh_database(addresses.database) as url:
        yield url


@pytest.fixture
async def other(addresses: Addresses) -> AsyncIterator[str]:
    """Another one."""
    async with fresh_database(addresses.database) as url:
        yield url


async def create_schema_of(recording: Recording, url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await migrate(connection, STEPS[: recording.schema])
    await send(url, recording.tables)


async def create_todays_schema(url: str, *more: Migration) -> None:
    """Create today's tables, or migrate a release's. `more` are migrations that aren't written yet."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await migrate(connection, (*STEPS, *more))
        await create_payload_tables(connection)


def planted(sql: str) -> Migration:
    return Migration(number=len(STEPS) + 1, name="planted", sql=sql)


@pytest.mark.parametrize("name", RECORDINGS)
async def test_todays_stores_read_all_that_a_release_has_stored(empty: str, name: str) -> None:
    recording = RECORDINGS[name]
    await create_schema_of(recording, empty)
    await send(empty, recording.stored + recording.read)
    await create_todays_schema(empty)
    assert await read(empty) == EXPECTED[name]


@pytest.mark.parametrize("name", [name for name, recording in RECORDINGS.items() if not is_excluded(recording)])
async def test_each_statement_of_a_release_affects_as_many_rows_on_todays_schema_as_on_its_own(
    empty: str, other: str, name: str
) -> None:
    recording = RECORDINGS[name]
    statements = recording.stored + recording.read
    await create_schema_of(recording, empty)
    await create_todays_schema(other)
    assert await send(other, statements) == await send(empty, statements)
    assert await read(other) == EXPECTED[name]


async def test_the_last_release_finds_as_many_rows_in_what_todays_stores_have_stored_as_in_its_own(
    empty: str, other: str
) -> None:
    """Add stories in tables, or of owners, that the last release doesn't read."""
    last = RECORDINGS[NEWEST]
    await create_todays_schema(empty)
    await send(empty, last.stored)
    await store(other)
    assert await send(other, last.read) == await send(empty, last.read)


async def test_a_new_form_of_stored_values_that_the_last_release_does_not_find_is_noticed(
    empty: str, other: str
) -> None:
    last = RECORDINGS[NEWEST]
    await create_todays_schema(empty)
    await send(empty, last.stored)
    await store(other)
    await rows(other, "UPDATE loom_memory SET place = 'session/' || place")
    assert await send(other, last.read) != await send(empty, last.read)


def test_no_migration_excludes_the_last_release() -> None:
    assert not is_excluded(RECORDINGS[NEWEST])


def test_releases_that_refuse_every_newer_schema_count_as_excluded() -> None:
    assert {"0.2.0", "0.3.0"} <= {name for name, recording in RECORDINGS.items() if is_excluded(recording)}


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("ALTER TABLE loom_artifacts RENAME COLUMN size TO bytes", psycopg.errors.UndefinedColumn),
        ("ALTER TABLE loom_effects ADD COLUMN cost int NOT NULL", psycopg.errors.NotNullViolation),
        ("ALTER TABLE loom_tenant_days DROP CONSTRAINT loom_tenant_days_pkey", psycopg.errors.InvalidColumnReference),
    ],
)
async def test_a_migration_that_the_last_release_does_not_work_with_is_found(
    empty: str, sql: str, error: type[psycopg.Error]
) -> None:
    await create_todays_schema(empty, planted(sql))
    with pytest.raises(error):
        await send(empty, RECORDINGS[NEWEST].stored)


async def test_a_migration_that_only_adds_changes_nothing_for_the_last_release(empty: str, other: str) -> None:
    last = RECORDINGS[NEWEST]
    await create_todays_schema(empty)
    await create_todays_schema(other, planted("ALTER TABLE loom_effects ADD COLUMN note text"))
    statements = last.stored + last.read
    assert await send(other, statements) == await send(empty, statements)


async def test_the_stories_store_something_in_each_table(empty: str) -> None:
    await store(empty)
    tables = await rows(empty, "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
    unused = [
        table for (table,) in tables if not await rows(empty, SQL("SELECT 1 FROM {} LIMIT 1").format(Identifier(table)))
    ]
    assert unused == []


def test_each_release_with_a_database_has_a_recording() -> None:
    missing = [name for name in RELEASES if name != "0.1.0" and name not in RECORDINGS]
    assert missing == [], f"run `python -m tests.stored.recording {missing[0]}` at the commit of the release"
