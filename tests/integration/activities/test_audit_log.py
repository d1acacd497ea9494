"""The audit log in a real Postgres, and each way in which somebody with access to the database could tamper with it."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psycopg
import pytest

from loom.activities.adapters.encryption.key_ring import KeyRing, new_key, read_keys, write_keys
from loom.activities.adapters.postgres.audit import AT_ONCE, LONGEST, AuditFilter, PostgresAuditLog
from loom.activities.adapters.postgres.database import Database
from loom.activities.ports import StoreUnavailable
from loom.domain.audit.chain import Checkpoint, next_row
from loom.domain.audit.entries import AuditEntry
from loom.testing.harness import Addresses
from tests.databases import as_superuser, fresh_database, rows

AT: Final = datetime(2026, 1, 31, 12, tzinfo=UTC)
ROWS: Final = 6
CHANGED: Final = "it was changed: its hash doesn't match its content"


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


async def tamper(url: str, *statements: str) -> None:
    """Do what a superuser of the database can do."""
    free = "SET session_replication_role = replica; ALTER TABLE loom_audit DROP CONSTRAINT IF EXISTS loom_audit_pkey;"
    free += "ALTER TABLE loom_audit DROP CONSTRAINT IF EXISTS loom_audit_key_key;"
    await rows(url, (free + ";".join(statements)).encode())


TEXTS: Final = ("key", "act", "source", "by", "identity", "tenant", "run_id", "subject", "digest", "key_id")
COPY: Final = "INSERT INTO loom_audit SELECT {} FROM loom_audit WHERE sequence = 3"
COLUMNS: Final = (
    "sequence, recorded_at, key, at, act, source, by, identity, tenant, run_id, subject, digest, key_id, previous, hash"
)
SWAP: Final = (
    "UPDATE loom_audit AS a SET {} FROM loom_audit AS b"
    " WHERE a.sequence IN (3, 4) AND b.sequence IN (3, 4) AND a.sequence <> b.sequence"
)
TAMPERING: Final = {
    **{f"changed {name}": f"UPDATE loom_audit SET {name} = {name} || 'x' WHERE sequence = 3" for name in TEXTS},
    "moved time": "UPDATE loom_audit SET at = at - interval '1 microsecond' WHERE sequence = 3",
    "moved time of recording": "UPDATE loom_audit SET recorded_at = recorded_at - interval '1 day' WHERE sequence = 3",
    "removed the first row": "DELETE FROM loom_audit WHERE sequence = 1",
    "removed a row in the middle": "DELETE FROM loom_audit WHERE sequence = 3",
    "removed a row and closed the gap": "DELETE FROM loom_audit WHERE sequence = 3;"
    " UPDATE loom_audit SET sequence = sequence - 1 WHERE sequence > 3",
    "exchanged two rows": SWAP.format("sequence = b.sequence"),
    "exchanged what two rows say": SWAP.format("key = b.key, run_id = b.run_id, tenant = b.tenant"),
    "moved a row to another tenant": "UPDATE loom_audit SET tenant = 'umbrella' WHERE tenant = 'acme' AND sequence = 4",
    "inserted a row between others": "UPDATE loom_audit SET sequence = sequence + 1 WHERE sequence > 3;"
    + COPY.format(COLUMNS.replace("sequence", "4", 1).replace(" key,", " 'act 9',")),
    "doubled a row": COPY.format(COLUMNS),
    "doubled a row at the end": COPY.format(COLUMNS.replace("sequence", "7", 1)),
    "changed a hash": "UPDATE loom_audit SET hash = sha256(hash) WHERE sequence = 3",
    "changed the last hash": "UPDATE loom_audit SET hash = sha256(hash) WHERE sequence = 6",
    "changed the previous hash": "UPDATE loom_audit SET previous = sha256(previous) WHERE sequence = 3",
    "removed all but the last row": "DELETE FROM loom_audit WHERE sequence < 6",
}


async def test_every_way_to_tamper_with_the_log_is_found(addresses: Addresses) -> None:
    async with written(addresses) as (url, log):
        assert not (await log.verify()).findings
        await rows(url, b"CREATE TABLE intact AS SELECT * FROM loom_audit")
        found = {}
        for name, statement in TAMPERING.items():
            await tamper(url, "DELETE FROM loom_audit", "INSERT INTO loom_audit SELECT * FROM intact", statement)
            found[name] = bool((await log.verify()).findings)
        assert found == dict.fromkeys(TAMPERING, True)
        await tamper(url, "DELETE FROM loom_audit", "INSERT INTO loom_audit SELECT * FROM intact")
        assert not (await log.verify()).findings


async def test_a_cut_end_is_found_by_a_checkpoint_only(addresses: Addresses) -> None:
    async with written(addresses) as (url, log):
        kept = await log.checkpoint()
        await tamper(url, "DELETE FROM loom_audit WHERE sequence > 4")
        assert not (await log.verify()).findings
        (cut,) = (await log.verify(kept)).findings
        assert (cut.sequence, cut.problem[:19]) == (5, "the end was cut off")
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


async def recompute(url: str, log: PostgresAuditLog, *, by: str, only: int | None = None) -> None:
    """Change the third row, and compute its hash and those after it again, as far as that is possible without keys."""
    after = Checkpoint()
    for row in [each async for each in log.oldest(AuditFilter())]:  # the table must not be locked meanwhile
        if row.sequence < 3 or (only is not None and row.sequence > only):
            after = row.checkpoint
            continue
        entry = AuditEntry(**{**{n: getattr(row.entry, n) for n in (*TEXTS[:-1], "at")}, "by": by})
        forged = next_row(after, entry, row.recorded_at, key_id=row.key_id)
        values = f"by = '{by}', previous = '\\x{forged.previous.hex()}', hash = '\\x{forged.hash.hex()}'"
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
        added = await asyncio.gather(
            *((log, other)[turn % 2].append(acts[turn : turn + 10]) for turn in range(0, 31, 5) for _ in range(2))
        )
        assert sum(added) == len(acts)
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
            assert [row.sequence async for row in log.oldest(some)] == newest[::-1]
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
        assert [row.entry.key async for row in log.oldest(AuditFilter())] == [each.key for each in acts]
        assert not (await log.verify()).findings


async def test_a_database_that_does_not_respond_is_reported(tmp_path: Path) -> None:
    async with opened(f"postgresql://x@/x?host={tmp_path}") as log:
        with pytest.raises(StoreUnavailable):
            await log.append([act(1)])
