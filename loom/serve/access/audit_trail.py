"""Record in the audit log what the service itself decides: refused requests, and approvals that wait for others.

Strangers can send any number of requests. Of those that are refused to the same caller at the same address, the first
ones of a minute are recorded one by one, and the others as a number.

What callers do to runs is recorded from the runs' histories. Requests don't wait for the audit log, so entries are
written behind them, several at a time. If the database doesn't respond, they wait. If too many wait, or if the service
ends before the database responds, entries are lost: the log of the service and a metric count them.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any, Final

import structlog

from loom.activities.adapters.postgres.audit import LONGEST, PostgresAuditLog
from loom.domain.audit.entries import Act, AuditEntry, Source, content_digest
from loom.serve.access.roles import Caller

_log = structlog.get_logger("loom.serve")

MOST_WAITING: Final = 1000
AT_ONCE: Final = 100
"""Most entries that are written per second, so that a flood of refused requests doesn't keep the database busy."""
PAUSE: Final = 1.0
WINDOW: Final = 60.0
"""Seconds within which refused requests of the same origin are counted."""
FROM_ONE_ORIGIN: Final = 20
"""The refused requests of an origin that are recorded one by one within that time."""
MOST_ADDRESSES: Final = 50
"""The addresses of strangers that are told apart within that time. Those of all others count as one."""
LAST_SECONDS: Final = 3.0
"""The number of seconds for writing the remaining entries when the service ends."""


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where refused requests come from."""

    caller: Caller | None
    """None: somebody without a valid token."""
    address: str


_ELSEWHERE: Final = _Origin(None, "other addresses")


class AuditTrail:
    """Entries that wait to be written. Without a log, they are dropped."""

    def __init__(self, log: PostgresAuditLog | None) -> None:
        self._log = log
        self._waiting: deque[AuditEntry] = deque()
        self._arrived = asyncio.Event()
        self._refused: Counter[_Origin] = Counter()
        """How many requests were refused within the current window."""
        self._left_out = 0
        """The number of entries that were lost since the last row that reports a loss."""
        self.lost = 0
        """The number of entries that were lost since the service started."""

    def refused(
        self, subject: str, error: Exception, *, caller: Caller | None = None, identity: str = "", run_id: str = ""
    ) -> None:
        """Record that the service refused `subject` to somebody. Too many refusals in a minute are only counted."""
        origin = _Origin(caller, identity)
        if origin not in self._refused and caller is None and len(self._refused) >= MOST_ADDRESSES:
            origin = _ELSEWHERE
        if not self._refused:
            asyncio.get_running_loop().call_later(WINDOW, self.end_window)
        self._refused[origin] += 1
        if self._refused[origin] > FROM_ONE_ORIGIN:
            return
        content = {"error": type(error).__name__, "detail": str(error)}
        self.add(Act.REFUSE, content, caller=caller, identity=identity, run_id=run_id, subject=subject)

    def add(
        self,
        act: Act,
        content: Any,
        *,
        caller: Caller | None = None,
        identity: str = "",
        run_id: str = "",
        subject: str = "",
    ) -> None:
        """Record an act of the service, soon."""
        if self._log is None:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._left_out += 1
            self.lost += 1
            return
        entry = AuditEntry(
            key=f"http {token_hex(16)}",
            at=datetime.now(UTC),
            act=act,
            source=Source.HTTP,
            by=caller.name if caller else "",
            identity=identity,
            tenant=(caller.tenant if caller else None) or "",
            run_id=run_id[:LONGEST],  # whatever a caller sends, entries that wait take little memory
            subject=subject[:LONGEST],
            digest=content_digest(content),
        )
        self._waiting.append(entry)
        self._arrived.set()

    @asynccontextmanager
    async def written(self) -> AsyncIterator[None]:
        """Write entries while the body is running, and then those that are left."""
        if (log := self._log) is None:
            yield
            return
        writing = asyncio.create_task(self._write(log))
        try:
            yield
        finally:
            writing.cancel()
            await asyncio.wait({writing})
            self.end_window()
            await self._write_last(log)

    def end_window(self) -> None:
        """Record how many requests were only counted, and count anew."""
        refused, self._refused = self._refused, Counter()
        for origin, count in refused.items():
            if (more := count - FROM_ONE_ORIGIN) > 0:
                subject = f"{more} more requests within {WINDOW:.0f} seconds"
                self.add(Act.REFUSE, {"more": more}, caller=origin.caller, identity=origin.address, subject=subject)

    async def _write(self, log: PostgresAuditLog) -> None:
        is_away = False
        while True:
            await self._arrived.wait()
            try:
                await self._write_some(log)
            except Exception as error:  # noqa: BLE001 - whatever it is, the entries wait
                if not is_away:
                    _log.error("audit_waits", why=f"{type(error).__name__}: {error}", most_waiting=MOST_WAITING)
                is_away = True
            else:
                is_away = False
            await asyncio.sleep(PAUSE)

    async def _write_some(self, log: PostgresAuditLog) -> None:
        if self._left_out and len(self._waiting) < MOST_WAITING:
            count, self._left_out = self._left_out, 0
            _log.error("audit_entries_lost", count=count)
            self.add(Act.REFUSE, {"lost": count}, subject=f"{count} more, which were too many to record")
        taken: Sequence[AuditEntry] = list(self._waiting)[:AT_ONCE]
        await log.append(taken)
        for _ in taken:
            self._waiting.popleft()
        if not self._waiting:
            self._arrived.clear()

    async def _write_last(self, log: PostgresAuditLog) -> None:
        try:
            async with asyncio.timeout(LAST_SECONDS):
                while self._waiting:
                    await self._write_some(log)
        except Exception as error:  # noqa: BLE001 - the service ends
            self.lost += len(self._waiting)
            _log.error("audit_entries_lost", count=len(self._waiting), why=str(error))
