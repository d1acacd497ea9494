"""Loom's own database on a real Postgres: its schema, and what comes out when it is not there."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from functools import partial
from math import hypot
from pathlib import Path
from random import Random
from typing import Final, LiteralString
from urllib.parse import urlsplit

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.sql import SQL, Identifier

from loom.activities.adapters.postgres.database import Connection, Database, storable
from loom.activities.adapters.postgres.memory_rows import SKETCHED, as_sketch, as_vector
from loom.activities.adapters.postgres.schema_migrations import (
    LOCK,
    AppliedMigration,
    Migration,
    SchemaRefused,
    migrate,
    pending,
    read_migrations,
)
from loom.activities.ports import StoreUnavailable
from loom.testing.harness import Addresses
from loom.testing.waiting import eventually
from tests.databases import ANEW, as_superuser, fresh_database, rows
from tests.integration.activities.conftest import PostgresServer

ONE: Final = Migration(number=1, name="one", sql="CREATE TABLE one (n int)")
TWO: Final = Migration(number=2, name="two", sql="CREATE TABLE two (n int); INSERT INTO two VALUES (2)")
APPLIED: Final = "SELECT number, name, checksum FROM loom_migrations ORDER BY number"
TABLES: Final = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
ROOT: Final = Path(__file__).parents[3]
USE: Final = """
import asyncio, sys
from loom.activities.adapters.postgres.database import Database

async def main():
    database = Database(sys.argv[1])
    async with database.connection() as connection:
        await connection.execute("SELECT 1 FROM loom_effects")
    await database.aclose()

asyncio.run(main())
"""


@pytest.fixture
async def empty(addresses: Addresses) -> AsyncIterator[str]:
    """A database without any table, of the test's own."""
    async with fresh_database(addresses.database) as url:
        yield url


async def used(url: str, *steps: Migration, release: str = "0.4.0") -> None:
    """Use the database once with a release that has these steps."""
    ensure = partial(migrate, migrations=steps, release=release)
    async with aclosing(Database(url, ensure=ensure)) as database:
        await do(database.connection())


def applied(*steps: Migration) -> list[AppliedMigration]:
    return [step.applied for step in steps]


async def do(
    use: AbstractAsyncContextManager[Connection], *statements: LiteralString, then: Exception | None = None
) -> None:
    """Run statements in one use of a database, which may end with an exception of its own."""
    async with use as connection:
        for statement in statements:
            await connection.execute(statement)
        if then is not None:
            raise then


async def complaint(database: Database) -> str:
    """What a use says that finds the database away; nothing when it is there."""
    try:
        await do(database.connection(), "SELECT 1 FROM loom_effects")
    except StoreUnavailable as error:
        return str(error)
    return ""


async def tables(url: str) -> list[str]:
    return [name for (name,) in await rows(url, TABLES)]


# ---- the schema ------------------------------------------------------------------------------------------------


def test_the_steps_are_numbered_from_one_without_a_gap() -> None:
    assert [step.number for step in read_migrations()] == list(range(1, len(read_migrations()) + 1))


@pytest.mark.parametrize(("has", "missing"), [((), (ONE, TWO)), ((ONE,), (TWO,)), ((TWO,), (ONE,)), ((ONE, TWO), ())])
def test_a_database_gets_the_steps_that_it_lacks(has: Sequence[Migration], missing: Sequence[Migration]) -> None:
    assert pending(applied(*has), (ONE, TWO), "0.4.0") == missing


@pytest.mark.parametrize("release", ["0.5.0", "0.5.1", "0.10.0", "1.0.0", "0.5.0rc1"])
def test_a_release_works_with_newer_steps_that_do_not_exclude_it(release: str) -> None:
    needs_05 = replace(TWO, needs="0.5.0")
    assert pending(applied(ONE, needs_05), (ONE,), release) == ()


@pytest.mark.parametrize("release", ["0.4.0", "0.4.12"])
def test_a_release_refuses_a_newer_step_that_excludes_it_but_not_one_that_it_has(release: str) -> None:
    needs_05 = replace(TWO, needs="0.5.0")
    with pytest.raises(SchemaRefused, match="has the migration 0002_two, which needs Loom 0.5.0 or newer"):
        pending(applied(ONE, needs_05), (ONE,), release)
    assert pending(applied(ONE, needs_05), (ONE, needs_05), release) == ()


@pytest.mark.parametrize("needs", [("0.5.0", "0.10.0"), ("0.10.0", "0.5.0")])
def test_the_oldest_release_that_works_is_named_if_several_steps_exclude_the_worker(needs: tuple[str, str]) -> None:
    two, three = replace(TWO, needs=needs[0]), replace(TWO, number=3, name="three", needs=needs[1])
    with pytest.raises(SchemaRefused, match="which needs Loom 0.10.0 or newer, but this is Loom 0.4.0"):
        pending(applied(ONE, two, three), (ONE,), "0.4.0")


def test_a_step_says_in_its_first_line_which_release_it_needs_and_its_checksum_does_not_cover_this(
    tmp_path: Path,
) -> None:
    (tmp_path / "0001_one.sql").write_text(ONE.sql)
    (tmp_path / "0002_two.sql").write_text(f"-- needs Loom 0.5.0: why\n{TWO.sql}")
    assert read_migrations(tmp_path) == (ONE, replace(TWO, needs="0.5.0"))
    declared = [step for step in read_migrations() if "needs Loom" in step.sql]
    assert declared == []  # each declaration of Loom's own steps was understood


async def test_the_first_use_makes_the_tables_and_a_second_process_finds_them(empty: str) -> None:
    assert await tables(empty) == []
    for _ in range(2):
        async with aclosing(Database(empty)) as database:
            await do(database.connection(), "SELECT 1 FROM loom_effects, loom_artifacts")
    assert {"loom_artifacts", "loom_effects", "loom_migrations"} <= set(await tables(empty))
    assert await rows(empty, APPLIED) == [(step.number, step.name, step.checksum) for step in read_migrations()]


async def test_a_newer_loom_adds_its_steps_and_an_older_one_then_goes_on(empty: str) -> None:
    await used(empty, ONE)
    await used(empty, ONE, TWO)
    await used(empty, ONE)
    assert await tables(empty) == ["loom_migrations", "one", "two"]


async def test_an_older_loom_refuses_a_schema_that_excludes_it_and_says_which_release_it_needs(empty: str) -> None:
    await used(empty, ONE, replace(TWO, needs="0.5.0"), release="0.6.0")
    await used(empty, ONE, release="0.5.0")
    with pytest.raises(
        SchemaRefused, match=r"needs Loom 0\.5\.0 or newer, but this is Loom 0\.4\.0: .*Update this worker"
    ):
        await used(empty, ONE, release="0.4.0")


async def test_a_database_that_0_3_0_has_migrated_is_taken_over(empty: str) -> None:
    of_0_3_0 = "CREATE TABLE loom_migrations (number int PRIMARY KEY, name text, checksum text, applied_at timestamptz)"
    await rows(empty, of_0_3_0)
    await rows(empty, "INSERT INTO loom_migrations VALUES (1, 'one', %s)", (ONE.checksum,))
    await used(empty, ONE)
    await used(empty, ONE, TWO)
    assert await rows(empty, APPLIED) == [(step.number, step.name, step.checksum) for step in (ONE, TWO)]


async def test_a_step_is_recorded_while_a_backup_reads_the_record(empty: str) -> None:
    """Otherwise, all workers that start would wait for `pg_dump`."""
    await used(empty, ONE)
    async with await psycopg.AsyncConnection.connect(empty) as backup:
        await backup.execute("LOCK TABLE loom_migrations IN ACCESS SHARE MODE")
        await used(empty, ONE, TWO)
    assert await tables(empty) == ["loom_migrations", "one", "two"]


async def test_a_step_that_was_changed_after_its_release_is_refused(empty: str) -> None:
    await used(empty, ONE)
    changed = replace(ONE, sql="CREATE TABLE one (n bigint)")
    with pytest.raises(SchemaRefused, match="Migration 0001_one differs from the one that was applied"):
        await used(empty, changed, TWO)
    assert await tables(empty) == ["loom_migrations", "one"]


async def test_a_step_that_fails_leaves_nothing_behind(empty: str) -> None:
    with pytest.raises(psycopg.errors.UndefinedObject):
        await used(empty, ONE, replace(TWO, sql="CREATE TABLE two (n int); CREATE TABLE three (n nonsense)"))
    assert await tables(empty) == []
    await used(empty, ONE, TWO)
    assert await rows(empty, "SELECT n FROM two") == [(2,)]


async def test_processes_that_start_together_apply_each_step_once(empty: str) -> None:
    command = [sys.executable, "-W", "error", "-c", USE, empty]

    async def both_wait() -> bool:
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        waiting += " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        return await rows(empty, waiting) == [(2,)]

    async with await psycopg.AsyncConnection.connect(empty, autocommit=True) as gate:
        await gate.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        processes = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) for _ in range(2)]
        try:
            await eventually(both_wait)
        except BaseException:
            for process in processes:
                process.kill()
                process.communicate()
            raise
    ends = [await asyncio.to_thread(process.communicate) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ends
    assert len(await rows(empty, APPLIED)) == len(read_migrations())


# ---- connections -----------------------------------------------------------------------------------------------


async def test_statements_commit_by_themselves_and_transactions_as_a_whole(url: str, database: Database) -> None:
    await do(database.connection(), "CREATE TABLE told (n int)")
    with pytest.raises(KeyError):
        await do(database.transaction(), "INSERT INTO told VALUES (1)", then=KeyError())
    with pytest.raises(KeyError):
        await do(database.connection(), "INSERT INTO told VALUES (2)", then=KeyError())
    await do(database.transaction(), "INSERT INTO told VALUES (3)")
    assert await rows(url, "SELECT n FROM told ORDER BY n") == [(2,), (3,)]


async def test_a_statement_that_is_wrong_is_no_outage(database: Database) -> None:
    with pytest.raises(psycopg.errors.SyntaxError):
        await do(database.connection(), "SELEKT 1")
    with pytest.raises(psycopg.errors.UniqueViolation):
        await do(database.transaction(), "CREATE TABLE u (n int PRIMARY KEY)", "INSERT INTO u VALUES (1), (1)")


async def test_a_statement_that_takes_too_long_is_stopped_and_leaves_a_working_connection(database: Database) -> None:
    await do(database.connection())
    with pytest.raises(StoreUnavailable, match="no response in time"):
        await do(database.connection(within=0.1), "SELECT pg_sleep(60)")
    async with database.connection() as connection:
        running = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()"
        running += " AND datname = current_database()"
        cursor = await connection.execute(running + " AND state = 'active'")
        assert await cursor.fetchone() == (0,)


async def test_what_the_body_raises_itself_comes_out_as_it_is(database: Database) -> None:
    with pytest.raises(TimeoutError, match="mine"):
        await do(database.connection(), then=TimeoutError("mine"))


async def test_a_cancelled_use_gives_its_connection_back(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def sleeping() -> bool:
        sleeps = "SELECT 1 FROM pg_stat_activity WHERE query = %s AND datname = current_database()"
        return await rows(url, sleeps, ("SELECT pg_sleep(600)",)) != []

    async with aclosing(Database(url, max_connections=1)) as database:
        holding = asyncio.create_task(do(database.connection(within=900), "SELECT pg_sleep(600)"))
        await eventually(sleeping)
        with monkeypatch.context() as patch:
            patch.setattr(database._pool, "timeout", 0.1)
            with pytest.raises(StoreUnavailable, match="couldn't get a connection"):
                await do(database.connection())
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding
        await do(database.connection(), "SELECT 1")


async def test_a_connection_that_the_server_has_closed_is_replaced_before_its_next_use(url: str) -> None:
    async def backend() -> int:
        async with database.connection() as connection:
            (pid,) = await (await connection.execute("SELECT pg_backend_pid()")).fetchone() or (0,)
        return int(pid)

    async with aclosing(Database(url, max_connections=1)) as database:
        first = await backend()
        assert await backend() == first
        await rows(url, SQL("SELECT pg_terminate_backend({}, 10000)").format(first))
        assert await backend() != first


async def test_a_standby_that_only_reads_is_an_outage(empty: str) -> None:
    read_only = SQL("ALTER DATABASE {} SET default_transaction_read_only = on")
    await rows(empty, read_only.format(Identifier(urlsplit(empty).path[1:])))
    await used(empty)
    async with aclosing(Database(empty)) as standby:
        with pytest.raises(StoreUnavailable, match="ReadOnlySqlTransaction"):
            await do(standby.connection())


@pytest.mark.usefixtures("soon_away")
async def test_a_refused_login_says_why_and_keeps_the_password_to_itself(url: str) -> None:
    async with aclosing(Database(url.replace(f":{urlsplit(url).password}@", ":hunter2@"))) as wrong:

        async def refused() -> str | None:
            told = await complaint(wrong)
            assert told
            return told if "password authentication failed" in told else None  # a slow server has not refused it yet

        told = await eventually(refused)
    assert "correct LOOM_DATABASE_URL" in told
    assert "hunter2" not in told


async def test_a_postgres_that_is_killed_is_found_again_without_a_restart(postgres: PostgresServer) -> None:
    async def gone() -> bool:
        return not (postgres._server.pgdata / "postmaster.pid").exists()

    async with aclosing(Database(postgres.url)) as killed:

        async def answers() -> bool:
            return not await complaint(killed)

        await do(killed.connection())
        pid = postgres._server.get_pid()
        assert pid is not None
        os.kill(pid, signal.SIGQUIT)  # it drops everything at once and has to recover when it starts
        await eventually(gone)
        try:
            assert (await complaint(killed)).endswith("Start it, or correct LOOM_DATABASE_URL.")
        finally:
            await postgres.start()
        await eventually(answers)


async def test_a_database_that_was_made_anew_gets_its_tables_again(empty: str, addresses: Addresses) -> None:
    async with aclosing(Database(empty)) as database:
        await do(database.connection())
        await rows(as_superuser(addresses.home, empty), ANEW)
        with pytest.raises(StoreUnavailable, match='"loom_effects" does not exist'):
            await do(database.connection(), "SELECT 1 FROM loom_effects")
        await do(database.connection(), "SELECT 1 FROM loom_effects")


async def test_another_event_loop_needs_another_database(database: Database) -> None:
    await do(database.connection())
    with pytest.raises(RuntimeError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, do(database.connection()))
    await do(database.connection())


async def test_closing_twice_or_before_the_first_use_is_fine_and_a_later_use_opens_again(database: Database) -> None:
    await database.aclose()
    for _ in range(2):
        async with database.connection() as connection:
            assert await (await connection.execute("SELECT 1")).fetchone() == (1,)
        await database.aclose()
        await database.aclose()
        assert connection.closed


# ---- text ------------------------------------------------------------------------------------------------------

HARD: Final = st.text(st.sampled_from(["\0", "0", "\\", "\ud800", "u", "d", "8", "ä", "😀"]), max_size=8)


@given(HARD, HARD)
def test_storable_text_is_plain_and_tells_texts_apart(one: str, other: str) -> None:
    assert (storable(one) == storable(other)) is (one == other)
    assert "\0" not in storable(one)
    assert storable(one).encode().decode() == storable(one)


def test_storable_text_stays_readable() -> None:
    assert storable("run-ä/t1/call_1") == "run-ä/t1/call_1"


async def test_vectors_are_sent_as_the_numbers_that_their_text_would_store(url: str) -> None:
    numbers = Random(4)
    async with aclosing(Database(url)) as database, database.connection() as connection:
        for dimension in (5, SKETCHED, 3 * SKETCHED):
            vector = [numbers.gauss(0, 10 ** numbers.randint(-6, 3)) for _ in range(dimension)]
            first = vector[:SKETCHED]
            sketch = [part / hypot(*first) for part in first] + [0.0] * (SKETCHED - len(first))
            asked = "SELECT %s::vector = %s::vector, %s::halfvec = %s::halfvec"
            values = (as_vector(vector), str(vector), as_sketch(vector), str(sketch))
            assert await (await connection.execute(asked, values)).fetchone() == (True, True)
