"""The audit log in Postgres. All processes of a stack append to the same chain."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from loom.activities.adapters.postgres.database import Connection, Database, storable
from loom.domain.audit.chain import START, AuditRow, ChainCheck, Checkpoint, Finding, OmittedRows, next_row
from loom.domain.audit.entries import AuditEntry

if TYPE_CHECKING:  # importing cryptography takes time, and most stacks don't encrypt
    from loom.activities.adapters.encryption.key_ring import KeyRing

PURPOSE: Final = "audit"
"""The purpose for which a key is derived from the stack's key."""
AT_ONCE: Final = 500
"""Rows that are read or written at once. All processes wait for each other's writes, so none of these may take long."""
LONGEST: Final = 2_400
"""Most bytes of a text that comes from outside. Postgres refuses to index longer ones, and such a row could never be
written, nor those that wait behind it. Names and IDs that Loom and Temporal accept are shorter.
"""
_FROM_OUTSIDE: Final = ("by", "identity", "tenant", "run_id", "subject")
_LONG: Final = 3600.0
"""The maximum number of seconds for reading the whole log."""

_ENTRY: Final = tuple(field.name for field in fields(AuditEntry))
_COLUMNS: Final = ("sequence", "recorded_at", "key_id", "previous", "hash", *_ENTRY)
_SELECT: Final = f"SELECT {', '.join(_COLUMNS)} FROM loom_audit"  # noqa: S608 - constants
_LOCK: Final = "SELECT pg_advisory_xact_lock(1280265071)"
_KNOWN: Final = "SELECT key FROM loom_audit WHERE key = ANY(%s)"
_LAST: Final = "SELECT sequence, hash FROM loom_audit ORDER BY sequence DESC LIMIT 1"
_INSERT: Final = f"INSERT INTO loom_audit ({', '.join(_COLUMNS)}) VALUES ({', '.join('%s' for _ in _COLUMNS)})"  # noqa: S608
_ALL: Final = f"{_SELECT} ORDER BY sequence, ctid"
_CHOSEN: Final = """
(%(tenant)s::text IS NULL OR tenant = %(tenant)s)
    AND (%(run_id)s::text IS NULL OR run_id = %(run_id)s OR starts_with(run_id, %(run_id)s || '/'))
    AND (%(by)s::text IS NULL OR %(by)s = ANY(by || string_to_array(by, ', ')))
    AND (%(since)s::timestamptz IS NULL OR at >= %(since)s)
"""
_NEWEST: Final = f"{_SELECT} WHERE {_CHOSEN} ORDER BY sequence DESC LIMIT %(limit)s"
_EXPORTED: Final = f"SELECT {', '.join(_COLUMNS)}, {_CHOSEN} FROM loom_audit ORDER BY sequence, ctid"  # noqa: S608

_READ_UNTIL: Final = "SELECT read_until FROM loom_audit_reading WHERE server = %s AND task_queue = %s"
_SWEPT: Final = """
SELECT swept_at > clock_timestamp() - make_interval(secs => %s) FROM loom_audit_reading
WHERE server = %s AND task_queue = %s
"""
_READ: Final = """
INSERT INTO loom_audit_reading AS known (server, task_queue, read_until, swept_at)
VALUES (%s, %s, %s, clock_timestamp())
ON CONFLICT (server, task_queue) DO UPDATE
SET read_until = greatest(known.read_until, excluded.read_until), swept_at = excluded.swept_at
"""
_UNREAD: Final = "SELECT run_id, execution FROM loom_audit_unread WHERE server = %s AND task_queue = %s"
_ADD_UNREAD: Final = """
INSERT INTO loom_audit_unread (server, task_queue, run_id, execution) VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
_REMOVE_UNREAD: Final = """
DELETE FROM loom_audit_unread WHERE server = %s AND task_queue = %s AND run_id = %s AND execution = %s
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditFilter:
    """Which rows to return. A field that is None matches all rows."""

    tenant: str | None = None
    run_id: str | None = None
    """This run and its sub-agents."""
    by: str | None = None
    """Who did the act, alone or together with others."""
    since: datetime | None = None
    """Acts at this time or later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """The result of a check of the whole log."""

    findings: Sequence[Finding]
    checkpoint: Checkpoint
    """The last row."""
    sealed_from: int | None
    """The first row that an encryption key seals."""


class PostgresAuditLog:
    """The audit log of all processes that use this database. All methods raise StoreUnavailable."""

    def __init__(self, database: Database, keys: "KeyRing | None" = None) -> None:
        """Use the database, which the caller must close. The newest of the keys, if there are any, seals new rows."""
        self._database = database
        self._keys = keys

    async def append(self, entries: Iterable[AuditEntry]) -> int:
        """Append the acts that the log doesn't contain yet, in order, and return their number.

        If this fails, the log may contain some of them. Append all of them again.
        """
        stored = [*map(_storable, entries)]
        return sum([await self._append(stored[first : first + AT_ONCE]) for first in range(0, len(stored), AT_ONCE)])

    async def _append(self, entries: Sequence[AuditEntry]) -> int:
        by_key = {entry.key: entry for entry in entries}
        async with self._database.transaction() as connection:
            await connection.execute(_LOCK)
            known = await (await connection.execute(_KNOWN, (list(by_key),))).fetchall()
            for (key,) in known:
                del by_key[key]
            await self._add(connection, list(by_key.values()))
        return len(by_key)

    async def _add(self, connection: Connection, entries: Sequence[AuditEntry]) -> None:
        newest = self._keys.newest if self._keys is not None else None
        key_id, secret = (newest.id, newest.derived(PURPOSE)) if newest is not None else ("", None)
        last = await _last(connection)
        ((now,),) = await (await connection.execute("SELECT clock_timestamp()")).fetchall()
        rows = []
        for entry in entries:
            row = next_row(last, entry, now, key_id=key_id, secret=secret)
            rows.append(_values(row))
            last = row.checkpoint
        async with connection.cursor() as cursor:
            await cursor.executemany(_INSERT, rows)

    async def checkpoint(self) -> Checkpoint:
        """Return the state of the log now."""
        async with self._database.connection() as connection:
            return await _last(connection)

    async def newest(self, chosen: AuditFilter, limit: int) -> tuple[AuditRow, ...]:
        """Return at most `limit` of the chosen rows, newest first."""
        async with self._database.connection() as connection:
            found = await connection.execute(_NEWEST, {**_filtered(chosen), "limit": limit})
            return tuple(_row(values) for values in await found.fetchall())

    async def export(self, chosen: AuditFilter) -> AsyncIterator[AuditRow | OmittedRows | Verification]:
        """Yield the chosen rows, oldest first, and the rows that are left out between them. The last item is the result
        of a check of the whole log, which is made meanwhile.
        """
        check = ChainCheck(self._secret)
        findings: list[Finding] = []
        omitted: OmittedRows | None = None
        async for *values, is_chosen in self._read(_EXPORTED, _filtered(chosen)):
            row = _row(values)
            findings += check.findings(row)
            if not is_chosen:
                omitted = OmittedRows.with_row(row, omitted)
                continue
            if omitted is not None:
                yield omitted
            omitted = None
            yield row
        if omitted is not None:
            yield omitted
        yield _verification(check, findings)

    async def verify(self, kept: Checkpoint | None = None) -> Verification:
        """Check the whole log. If `kept` is given, also compare the log with this checkpoint."""
        check = ChainCheck(self._secret, kept)
        findings: list[Finding] = []
        async for values in self._read(_ALL, {}):
            findings += check.findings(_row(values))
        return _verification(check, [*findings, *check.findings_at_end()])

    async def read_until(self, server: str, task_queue: str) -> datetime | None:
        """Return the time up to which the histories of a task queue have been read, or None. It is the server's time,
        which no worker's clock changes.
        """
        async with self._database.connection() as connection:
            found = await (await connection.execute(_READ_UNTIL, (server, task_queue))).fetchone()
        return found[0] if found else None

    async def set_read_until(self, server: str, task_queue: str, at: datetime | None) -> None:
        """Record that the histories of a task queue have been read now, up to this time of the server. None: there was
        nothing to read.
        """
        async with self._database.connection() as connection:
            await connection.execute(_READ, (server, task_queue, at))

    async def has_been_read(self, server: str, task_queue: str, within: float) -> bool:
        """Return whether the histories of a task queue have been read within this number of seconds."""
        async with self._database.connection() as connection:
            found = await (await connection.execute(_SWEPT, (within, server, task_queue))).fetchone()
        return bool(found and found[0])

    async def unread(self, server: str, task_queue: str) -> Sequence[tuple[str, str]]:
        """Return the histories that couldn't be read: the run and the execution of each."""
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_UNREAD, (server, task_queue))).fetchall()
        return [(run_id.decode("utf-8", "surrogatepass"), execution) for run_id, execution in rows]

    async def add_unread(self, server: str, task_queue: str, run_id: str, execution: str) -> None:
        """Record that a history couldn't be read."""
        async with self._database.connection() as connection:
            await connection.execute(_ADD_UNREAD, (server, task_queue, _bytes(run_id), execution))

    async def remove_unread(self, server: str, task_queue: str, run_id: str, execution: str) -> None:
        """Record that a history was read after all."""
        async with self._database.connection() as connection:
            await connection.execute(_REMOVE_UNREAD, (server, task_queue, _bytes(run_id), execution))

    async def _read(self, statement: str, values: dict[str, Any]) -> AsyncIterator[Sequence[Any]]:
        """Yield rows as they are read, because a log can be larger than memory."""
        async with self._database.transaction(within=_LONG) as connection, connection.cursor("loom_audit") as cursor:
            await cursor.execute(statement.encode(), values)
            while found := await cursor.fetchmany(AT_ONCE):
                for each in found:
                    yield each

    def _secret(self, key_id: str) -> bytes | None:
        key = self._keys.find(key_id) if self._keys is not None else None
        return None if key is None else key.derived(PURPOSE)


def _verification(check: ChainCheck, findings: Sequence[Finding]) -> Verification:
    return Verification(findings=findings, checkpoint=check.last, sealed_from=check.sealed_from)


def _bytes(run_id: str) -> bytes:
    return run_id.encode("utf-8", "surrogatepass")


async def _last(connection: Connection) -> Checkpoint:
    found = await (await connection.execute(_LAST)).fetchone()
    return Checkpoint(sequence=found[0], hash=bytes(found[1])) if found else Checkpoint(hash=START)


def _filtered(chosen: AuditFilter) -> dict[str, Any]:
    given = {"tenant": chosen.tenant, "run_id": chosen.run_id, "by": chosen.by}
    texts = {name: None if text is None else storable(text) for name, text in given.items()}
    return {**texts, "since": chosen.since}


def _storable(entry: AuditEntry) -> AuditEntry:
    """Return the entry as Postgres stores it, because a row's hash covers the stored values."""
    texts: dict[str, Any] = {name: storable(value) for name in _ENTRY if isinstance(value := getattr(entry, name), str)}
    cut = {name: texts[name].encode()[:LONGEST].decode("utf-8", "ignore") for name in _FROM_OUTSIDE}
    return replace(entry, **{**texts, **cut})


def _values(row: AuditRow) -> tuple[Any, ...]:
    own = (row.sequence, row.recorded_at, row.key_id, row.previous, row.hash)
    return (*own, *(str(v) if isinstance(v := getattr(row.entry, name), str) else v for name in _ENTRY))


def _row(values: Sequence[Any]) -> AuditRow:
    named = dict(zip(_COLUMNS, values, strict=True))
    return AuditRow(
        sequence=named["sequence"],
        recorded_at=named["recorded_at"],
        key_id=named["key_id"],
        previous=bytes(named["previous"]),
        hash=bytes(named["hash"]),
        entry=AuditEntry(**{name: named[name] for name in _ENTRY}),
    )
