"""Record in the audit log what people and programs do to runs.

    a run is started or steered ──▶ the worker notes it ──▶ its history is read within a second ──▶ rows
    every minute                ──▶ the histories of all runs that have changed are read        ──▶ rows

Temporal's history contains every act before the run responds to it, so no act is lost if a worker dies before it
records the act. If Postgres or Temporal doesn't respond, the worker records the acts later. Only acts in histories that
the server has deleted by then are lost. Each act is recorded once, no matter how often its history is read.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from time import monotonic
from typing import Final, TypeAlias

import structlog
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.adapters.postgres.audit import PostgresAuditLog
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.temporal.run_acts import ReadActs, TemporalRunActs
from loom.activities.ports import StoreUnavailable
from loom.composition.audit_log import opened_log
from loom.composition.settings import Settings

_log = structlog.get_logger("loom.audit")

LOOK_EVERY: Final = 1.0
"""Seconds between two reads of the noted runs. By then, the server has recorded what the runs have received."""
SWEEP_EVERY: Final = 60.0
"""Seconds between two sweeps over all runs."""
DUE_AFTER: Final = 50.0
"""In seconds. A worker sweeps only if no worker of its task queue has done so for this long."""
SWEEP_SHARE: Final = 0.02
"""The maximum share of the time that a sweep takes, so that runs come first. If very many runs are open, a sweep lasts
for minutes.
"""
OVERLAP: Final = timedelta(minutes=5)
"""How far before the newest event that was read the next sweep begins, because the server's list of runs may lag, and
the clocks of its hosts may differ.
"""
PAUSE: Final = 2.0
"""Seconds to wait if Temporal or Postgres doesn't respond."""
LAST_SECONDS: Final = 2.0
LOOKS: Final = 4
"""The maximum number of reads for an update. As soon as there is something to record, only one more read follows, for
another update.
"""
_AT_ONCE: Final = 50
"""Noted runs whose acts are appended together."""
_REMEMBERED: Final = 50_000
_OF_ONE_HISTORY: Final = frozenset(
    {
        RPCStatusCode.INVALID_ARGUMENT,
        RPCStatusCode.FAILED_PRECONDITION,
        RPCStatusCode.OUT_OF_RANGE,
        RPCStatusCode.INTERNAL,
        RPCStatusCode.UNKNOWN,
        RPCStatusCode.DATA_LOSS,
    }
)
"""The server's errors that may be about one history. After the others, no history can be read."""

_Execution: TypeAlias = tuple[str, str]
"""The ID of a run, and the ID of one of its executions."""


class AuditedHistories:
    """Reads the histories of one task queue's runs, and appends their acts to the audit log."""

    def __init__(self) -> None:
        self._noted: dict[_Execution, int] = {}
        """The executions that have received something, and how often to read them."""
        self._read: OrderedDict[str, int] = OrderedDict()
        """The number of events that have been read of each execution."""
        self._newest: datetime | None = None
        """When the newest event happened that has been read, by the server's clock. No worker's clock counts."""
        self._since: datetime | None = None
        self._is_away = False

    def note(self, run_id: str, execution: str, *, is_update: bool = False) -> None:
        """Read this run's history soon. An update is in the history only after the run has answered it, so look for it
        several times. Any thread may call this.
        """
        noted = (run_id, execution)
        self._noted[noted] = max(self._noted.get(noted, 0), LOOKS if is_update else 1)

    async def follow(self, acts: TemporalRunActs, log: PostgresAuditLog) -> None:
        """Record acts until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_at_noted(acts, log))
            group.create_task(self._sweep_regularly(acts, log))

    async def finish(self, acts: TemporalRunActs, log: PostgresAuditLog) -> None:
        """Record the remaining acts for a short time. The next worker records the rest."""
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self._read_noted(acts, log)
        except Exception as error:  # noqa: BLE001 - the worker ends
            _log.info("audit_left_to_next_worker", why=f"{type(error).__name__}: {error}")

    async def sweep(self, acts: TemporalRunActs, log: PostgresAuditLog, *, share: float = 1.0) -> None:
        """Record all acts up to now, in this share of the time. If this fails, the next call starts from the same point
        in time. A history that can't be read is tried again by each sweep, and keeps no other from being read.
        """
        server = await acts.server()
        for unread in await log.unread(server, acts.task_queue):
            if await self._is_recorded(unread, acts, log, {}, None):
                await log.remove_unread(server, acts.task_queue, *unread)
        read_until = await log.read_until(server, acts.task_queue)
        self._since = since = read_until - OVERLAP if read_until else None
        began = worked_since = monotonic()
        newest = self._newest
        async for each in acts.executions(since):
            if self._read.get(each.execution, 0) < each.events:
                execution = (each.run_id, each.execution)
                if not await self._is_recorded(execution, acts, log, self._read, since):
                    await log.add_unread(server, acts.task_queue, *execution)
            await asyncio.sleep((monotonic() - worked_since) * (1 / share - 1))
            worked_since = monotonic()
        if monotonic() - began < OVERLAP.total_seconds() / 2:
            newest = self._newest
        # After a long sweep, the newest event may have come long after a history was read that has grown since then.
        await log.set_read_until(server, acts.task_queue, newest)

    async def _look_at_noted(self, acts: TemporalRunActs, log: PostgresAuditLog) -> None:
        while True:
            await self._tried(self._read_noted(acts, log))
            await asyncio.sleep(LOOK_EVERY)

    async def _sweep_regularly(self, acts: TemporalRunActs, log: PostgresAuditLog) -> None:
        # A worker may have died before it recorded what its runs received. The first sweep therefore doesn't pause.
        sweep: Callable[[TemporalRunActs, PostgresAuditLog], Awaitable[None]] = self.sweep
        while True:
            began = monotonic()
            if await self._tried(sweep(acts, log)):
                sweep = self._sweep_if_due
                await asyncio.sleep(max(0.0, began + SWEEP_EVERY - monotonic()))

    async def _sweep_if_due(self, acts: TemporalRunActs, log: PostgresAuditLog) -> None:
        """Sweep, unless another worker of this task queue has done so lately."""
        if not await log.has_been_read(await acts.server(), acts.task_queue, DUE_AFTER):
            await self.sweep(acts, log, share=SWEEP_SHARE)

    async def _read_noted(self, acts: TemporalRunActs, log: PostgresAuditLog) -> None:
        noted = list(self._noted.items())
        for first in range(0, len(noted), _AT_ONCE):
            await self._read_some(dict(noted[first : first + _AT_ONCE]), acts, log)

    async def _read_some(self, noted: Mapping[_Execution, int], acts: TemporalRunActs, log: PostgresAuditLog) -> None:
        for each in noted:
            del self._noted[each]
        try:
            found = {each: await acts.acts(*each, self._read, self._since) for each in noted}
            await log.append([entry for read in found.values() for entry in read.entries])
        except asyncio.CancelledError:
            self._note_again(noted)
            raise
        except Exception as error:
            if _is_about_all(error):
                self._note_again(noted)
                raise
            for each in noted:  # one of them can't be read or recorded, and that is logged here
                await self._is_recorded(each, acts, log, self._read, self._since)
            return
        for each, read in found.items():
            self._remember(read)
            looks = min(noted[each] - 1, 1) if read.entries else noted[each] - 1
            if looks > 0:
                self._noted.setdefault(each, looks)

    def _note_again(self, noted: Mapping[_Execution, int]) -> None:
        for each, looks in noted.items():
            self._noted.setdefault(each, looks)

    async def _is_recorded(
        self,
        each: _Execution,
        acts: TemporalRunActs,
        log: PostgresAuditLog,
        read: Mapping[str, int],
        since: datetime | None,
    ) -> bool:
        """Record the acts in this execution. Return False if that isn't possible. The next sweep tries it again."""
        try:
            found = await acts.acts(*each, read, since)
            await log.append(found.entries)
        except Exception as error:
            if _is_about_all(error):
                raise
            _log.error("history_not_read", run_id=each[0], exc_info=error)
            return False
        self._remember(found)
        return True

    def _remember(self, found: ReadActs) -> None:
        if found.until is not None:
            self._newest = max(self._newest or found.until, found.until)
        for execution, events in found.read.items():
            self._read[execution] = max(events, self._read.get(execution, 0))
            self._read.move_to_end(execution)
            if len(self._read) > _REMEMBERED:
                self._read.popitem(last=False)

    async def _tried(self, step: Awaitable[None]) -> bool:
        """Return whether this step has been done. Otherwise, pause."""
        try:
            await step
        except Exception as error:  # noqa: BLE001 - whatever it is, the acts are in the histories, and it tries again
            self._tell(error)
            await asyncio.sleep(PAUSE)
            return False
        self._tell(None)
        return True

    def _tell(self, error: Exception | None) -> None:
        """Log once when the audit log becomes unavailable, and once when it is available again."""
        if (error is not None) == self._is_away:
            return
        self._is_away = error is not None
        if error is not None:
            why = f"{type(error).__name__}: {error}"
            _log.warning("audit_waits", why=why, effect="acts are recorded later")
        else:
            _log.info("audit_available_again")


def _is_about_all(error: Exception) -> bool:
    """Return whether no history can be read or recorded now."""
    return isinstance(error, StoreUnavailable) or (isinstance(error, RPCError) and error.status not in _OF_ONE_HISTORY)


@asynccontextmanager
async def audit_running(
    histories: AuditedHistories | None, settings: Settings, client: Client, task_queue: str
) -> AsyncIterator[None]:
    """Record the acts on this task queue's runs while the body runs. If `histories` is None, the audit log is off."""
    if histories is None:
        yield
        return
    assert settings.database_url is not None  # noqa: S101 - otherwise, the log would be off
    database = Database(settings.database_url, max_connections=1, name="loom-audit")
    acts, log = TemporalRunActs(client, task_queue), opened_log(settings, database)
    following = asyncio.create_task(histories.follow(acts, log))
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait({following})
        await histories.finish(acts, log)
        await database.aclose()
