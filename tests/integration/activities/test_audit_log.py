"""The audit log in a real Postgres, and each way in which somebody with access to the database could tamper with it."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psycopg
import pytest

from loom.activities.adapters.encryption.key_ring import KeyRing, new_key, read_keys, write_keys
from loom.activities.adapters.postgres.audit import AT_ONCE, LONGEST, AuditFilter, PostgresAuditLog
from loom.activities.adapters.postgres.database import Database
from loom.activities.ports import StoreUnavailable
from loom.domain.audit.chain import AuditRow, Checkpoint, next_row
from loom.domain.audit.entries import AuditEntry
from loom.testing.harness import Addresses
from tests.databases import as_superuser, fresh_database, rows

AT: Final = datetime(2026, 1, 31, 12, tzinfo=UTC)
ROWS: Final = 6
ALL: Final = AuditFilter()


def act(number: int, **known: str) -> AuditEntry:
    given = {"act": "approve", "source": "update", "by": "ann", "run_id": f"run-{number}", **known}
    return AuditEntry(key=f"act {number}", at=AT, tenant=("acme", "umbrella")[number % 2], **given)


@asynccontextmanager
async def opened(url: str, keys: Path | None = None) -> AsyncIterator[PostgresAuditLog]:
    async with aclosing(Database(url)) as database:
        yield PostgresAuditLog(database, KeyRing(keys) if keys else None)


@asynccontextmanager
async def written(addresses: Addresses, keys: Path | None = None) -> AsyncIterator[tuple[str, PostgresAuditLog]]:
    """A log with six rows, in a database of its own, and its address for a superuser."""
    async with fresh_database(addresses.database) as url, opened(url, keys) as log:
        for number in range(1, ROWS + 1):
            await log.append([act(number)])
        yield as_superuser(addresses.home, url), log


async def exported(log: PostgresAuditLog, chosen: AuditFilter = ALL) -> list[AuditRow]:
    return [each async for each in log.export(chosen) if isinstance(each, AuditRow)]


async def tamper(url: str, *statements: str) -> None:
    """Do what a superuser of the database can do."""
    free = "SET session_replication_role = replica; ALTER TABLE loom_audit DROP CONSTRAINT IF EXISTS loom_audit_pkey;"
    free += "ALTER TABLE loom_audit DROP CONSTRAINT IF EXISTS loom_audit_key_key;"
    await rows(url, (free + ";".join(statements)).encode())


NAMES: Final = tuple(field.name for field in fields(AuditEntry))
TEXTS: Final = (*(name for name in NAMES if name != "at"), "key_id")
TIMES: Final = ("at", "recorded_at")
HASHES: Final = ("previous", "hash")
COLUMNS: Final = ", ".join(("sequence", *TEXTS, *TIMES, *HASHES))
COPY: Final = f"INSERT INTO loom_audit ({COLUMNS}) SELECT {{}} FROM loom_audit WHERE sequence = 3"
SWAP: Final = (
    "UPDATE loom_audit AS a SET {} FROM loom_audit AS b"
    " WHERE a.sequence IN (3, 4) AND b.sequence IN (3, 4) AND a.sequence <> b.sequence"
)
CHANGED: Final = "it was changed: its hash doesn't match its content"
REPLACED: Final = "it doesn't follow row {}: one of them was replaced"
UNSEALED: Final = "it isn't sealed by a key, but rows before it are"
CUT: Final = "the end was cut off: the log ends before the checkpoint, so "

TAMPERING: Final[dict[str, tuple[str, int, str]]] = {
    **{
        f"changed {name}": (f"UPDATE loom_audit SET {name} = {name} || 'x' WHERE sequence = 3", 3, CHANGED)
        for name in TEXTS
        if name != "key_id"
    },
    **{
        f"changed {name}": (
            f"UPDATE loom_audit SET {name} = {name} - interval '1 microsecond' WHERE sequence = 3",
            3,
            CHANGED,
        )
        for name in TIMES
    },
    "changed the hash": ("UPDATE loom_audit SET hash = sha256(hash) WHERE sequence = 3", 3, CHANGED),
    "changed the last hash": ("UPDATE loom_audit SET hash = sha256(hash) WHERE sequence = 6", 6, CHANGED),
    "changed the previous hash": (
        "UPDATE loom_audit SET previous = sha256(previous) WHERE sequence = 3",
        3,
        REPLACED.format(2),
    ),
    "named another key": (
        "UPDATE loom_audit SET key_id = 'k-9' WHERE sequence = 3",
        3,
        "it can't be checked: LOOM_ENCRYPTION_KEYS doesn't contain the key k-9",
    ),
    "moved a row to another tenant": ("UPDATE loom_audit SET tenant = 'umbrella' WHERE sequence = 4", 4, CHANGED),
    "moved a row to another table": (
        "CREATE TEMPORARY TABLE elsewhere AS SELECT * FROM loom_audit WHERE sequence = 3;"
        " DELETE FROM loom_audit WHERE sequence = 3",
        3,
        "it is missing",
    ),
    "removed the first row": ("DELETE FROM loom_audit WHERE sequence = 1", 1, "it is missing"),
    "removed rows in the middle": (
        "DELETE FROM loom_audit WHERE sequence IN (3, 4)",
        3,
        "rows 3 to 4 are missing",
    ),
    "removed all but the last row": ("DELETE FROM loom_audit WHERE sequence < 6", 1, "rows 1 to 5 are missing"),
    "removed a row and closed the gap": (
        "DELETE FROM loom_audit WHERE sequence = 3; UPDATE loom_audit SET sequence = sequence - 1 WHERE sequence > 3",
        3,
        REPLACED.format(2),
    ),
    "removed the last rows": ("DELETE FROM loom_audit WHERE sequence > 4", 5, CUT + "rows 5 to 6 are missing"),
    "removed all rows": ("TRUNCATE loom_audit", 1, CUT + "rows 1 to 6 are missing"),
    "exchanged two rows": (SWAP.format("sequence = b.sequence"), 3, REPLACED.format(2)),
    "exchanged what two rows say": (SWAP.format("key = b.key, run_id = b.run_id, tenant = b.tenant"), 3, CHANGED),
    "renumbered the rows": ("UPDATE loom_audit SET sequence = sequence + 10", 1, "rows 1 to 10 are missing"),
    "inserted a row": (
        "UPDATE loom_audit SET sequence = sequence + 1 WHERE sequence > 3;"
        + COPY.format(COLUMNS.replace("sequence", "4", 1).replace(" key,", " 'act 9',", 1)),
        4,
        REPLACED.format(3),
    ),
    "doubled a row": (COPY.format(COLUMNS), 3, "it comes after row 3"),
    "doubled a row at the end": (COPY.format(COLUMNS.replace("sequence", "7", 1)), 7, REPLACED.format(6)),
}
"""What somebody does to a log of six rows, and the first finding of a check: the row, and what is wrong with it."""
OF_SEALED: Final[dict[str, tuple[str, int, str]]] = {
    "unsealed a row": ("UPDATE loom_audit SET key_id = '' WHERE sequence = 3", 3, UNSEALED),
    "unsealed the first row": ("UPDATE loom_audit SET key_id = '' WHERE sequence = 1", 1, CHANGED),
}


@pytest.mark.parametrize("sealed", [False, True])
async def test_every_way_to_tamper_with_the_log_is_found(addresses: Addresses, tmp_path: Path, sealed: bool) -> None:
    write_keys(tmp_path / "keys", [new_key()])
    tampering = TAMPERING | OF_SEALED if sealed else TAMPERING
    async with written(addresses, tmp_path / "keys" if sealed else None) as (url, log):
        kept = await log.checkpoint()
        assert not (await log.verify(kept)).findings
        await rows(url, b"CREATE TABLE intact AS SELECT * FROM loom_audit")
        found = {}
        for name, (statements, _, _) in tampering.items():
            await tamper(url, "DELETE FROM loom_audit", "INSERT INTO loom_audit SELECT * FROM intact", statements)
            first = (await log.verify(kept)).findings[:1]
            found[name] = [(each.sequence, each.problem) for each in first]
        assert found == {name: [(row, problem)] for name, (_, row, problem) in tampering.items()}
        await tamper(url, "DELETE FROM loom_audit", "INSERT INTO loom_audit SELECT * FROM intact")
        assert not (await log.verify(kept)).findings


async def test_a_cut_end_is_found_by_a_checkpoint_only(addresses: Addresses) -> None:
    async with written(addresses) as (url, log):
        kept = await log.checkpoint()
        await tamper(url, "DELETE FROM loom_audit WHERE sequence > 4")
        assert not (await log.verify()).findings
        await log.append([act(7), act(8), act(9)])  # the log grows on, and doesn't look shorter any more
        assert not (await log.verify()).findings
        (other,) = (await log.verify(kept)).findings
        assert other.sequence == 6


async def test_a_row_with_a_new_hash_breaks_the_chain_after_it(addresses: Addresses) -> None:
    async with written(addresses) as (url, log):
        await recompute(url, log, only=3, by="eve")
        (broken,) = (await log.verify()).findings
        assert (broken.sequence, broken.problem) == (4, "it doesn't follow row 3: one of them was replaced")


async def test_a_log_that_was_computed_anew_is_found_by_a_checkpoint_or_by_keys(
    addresses: Addresses, tmp_path: Path
) -> None:
    async with written(addresses) as (url, log):
        kept = await log.checkpoint()
        await recompute(url, log, by="eve")
        assert not (await log.verify()).findings
        assert [each.sequence for each in (await log.verify(kept)).findings] == [ROWS]

    write_keys(tmp_path / "keys", [new_key()])
    async with written(addresses, tmp_path / "keys") as (url, log):
        kept = await log.checkpoint()
        assert (await log.verify(kept)).sealed_from == 1
        await recompute(url, log, by="eve")
        findings = (await log.verify()).findings
        assert {each.sequence for each in findings} == set(range(3, ROWS + 1))
        assert {each.problem for each in findings} == {CHANGED}


async def test_a_sealed_log_that_was_written_anew_without_keys_is_found_by_a_checkpoint(
    addresses: Addresses, tmp_path: Path
) -> None:
    write_keys(tmp_path / "keys", [new_key()])
    async with written(addresses, tmp_path / "keys") as (url, log):
        kept = await log.checkpoint()
        await recompute(url, log, by="eve", first=1, key_id="")
        await log.append([act(7)])  # the log grows on, and the new row is sealed
        found = await log.verify()
        assert (found.findings, found.sealed_from) == ([], 7)
        (rewritten,) = (await log.verify(kept)).findings
        assert (rewritten.sequence, rewritten.problem) == (
            ROWS,
            "it doesn't match the checkpoint: the log was rewritten",
        )


async def recompute(
    url: str, log: PostgresAuditLog, *, by: str, first: int = 3, only: int | None = None, key_id: str | None = None
) -> None:
    """Change a row and those after it, and compute their hashes again, as far as that is possible without keys."""
    after = Checkpoint()
    for row in await exported(log):  # the table must not be locked meanwhile
        if row.sequence < first or (only is not None and row.sequence > only):
            after = row.checkpoint
            continue
        sealed_by = row.key_id if key_id is None else key_id
        forged = next_row(after, replace(row.entry, by=by), row.recorded_at, key_id=sealed_by)
        hashes = f"previous = '\\x{forged.previous.hex()}', hash = '\\x{forged.hash.hex()}'"
        values = f"by = '{by}', key_id = '{sealed_by}', {hashes}"
        await tamper(url, f"UPDATE loom_audit SET {values} WHERE sequence = {row.sequence}")
        after = forged.checkpoint


async def test_rows_are_neither_changed_nor_deleted(addresses: Addresses) -> None:
    async with written(addresses) as (url, log):
        for statement in ("UPDATE loom_audit SET by = 'eve'", "DELETE FROM loom_audit", "TRUNCATE loom_audit"):
            with pytest.raises(psycopg.errors.RaiseException, match="only grows"):
                await rows(url, statement.encode())
        assert not (await log.verify(await log.checkpoint())).findings


async def test_many_processes_append_to_one_chain_and_record_each_act_once(addresses: Addresses) -> None:
    async with fresh_database(addresses.database) as url, opened(url) as log, opened(url) as other:
        acts = [act(number) for number in range(40)]
        writing = asyncio.gather(
            *((log, other)[turn % 2].append(acts[turn : turn + 10]) for turn in range(0, 31, 5) for _ in range(2))
        )
        while not writing.done():
            assert not (await log.verify(await log.checkpoint())).findings  # also while others write
        assert sum(await writing) == len(acts)
        found = await log.verify()
        assert (found.findings, found.checkpoint.sequence) == ([], len(acts))


async def test_a_new_key_seals_the_rows_after_it(addresses: Addresses, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    async with written(addresses) as (url, _):
        write_keys(file, [new_key()])
        for number in (7, 8):
            async with opened(url, file) as log:
                await log.append([act(number)])
            write_keys(file, [new_key(), *read_keys(file)])
        async with opened(url, file) as log:
            found = await log.verify()
        assert (found.findings, found.sealed_from) == ([], 7)
        async with opened(url) as log:
            assert [each.sequence for each in (await log.verify()).findings] == [7, 8]


async def test_acts_are_found_by_tenant_run_person_and_time(addresses: Addresses) -> None:
    async with fresh_database(addresses.database) as url, opened(url) as log:
        odd = act(4, by="ann\0\ud800\\", run_id="100%_")
        await log.append([act(1), act(2, by="ann, ben"), act(3, by="ben", run_id="run-1/d1"), odd])

        async def found(**chosen: object) -> list[int]:
            some = AuditFilter(**chosen)  # type: ignore[arg-type]  # each test has its own
            newest = [row.sequence for row in await log.newest(some, 10)]
            assert [row.sequence for row in await exported(log, some)] == newest[::-1]
            return newest

        assert await found() == [4, 3, 2, 1]
        assert await found(run_id="run-1") == [3, 1]
        assert await found(by="ben") == [3, 2]
        assert await found(by="ann\0\ud800\\", run_id="100%_") == [4]
        assert await found(tenant="acme", since=AT) == [4, 2]
        assert await found(since=AT.replace(year=2027)) == []
        assert not (await log.verify()).findings


async def test_a_text_that_is_too_long_to_index_is_cut_and_keeps_nothing_else_out(addresses: Addresses) -> None:
    async with fresh_database(addresses.database) as url, opened(url) as log:
        long = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789\u00e9", k=10_000))
        assert await log.append([act(1, run_id=long, subject=long), replace(act(3), tenant=long), act(2)]) == 3
        other, _, cut = await log.newest(AuditFilter(), 10)
        assert other.entry.run_id == "run-2"
        assert long.startswith(cut.entry.run_id)
        assert LONGEST - 1 <= len(cut.entry.run_id.encode()) <= LONGEST
        assert not (await log.verify()).findings


async def test_a_run_with_more_acts_than_are_written_at_once_is_recorded_whole(addresses: Addresses) -> None:
    async with fresh_database(addresses.database) as url, opened(url) as log:
        acts = [act(number) for number in range(2 * AT_ONCE + 1)]
        assert (await log.append(acts), await log.append(acts)) == (len(acts), 0)
        assert [row.entry.key for row in await exported(log)] == [each.key for each in acts]
        assert not (await log.verify()).findings


async def test_a_database_that_does_not_respond_is_reported(tmp_path: Path) -> None:
    async with opened(f"postgresql://x@/x?host={tmp_path}") as log:
        with pytest.raises(StoreUnavailable):
            await log.append([act(1)])
