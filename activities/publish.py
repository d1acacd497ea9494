"""What activities report while they work: events to the live stream, heartbeats to Temporal.

`stream_writer` writes in the background and never blocks the work. The activity `publish` writes what happened while no
other activity ran. If the stream is unavailable, readers miss events, but the run loses nothing: history has them.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import Final

import structlog
from temporalio import activity

from loom.activities.ports import EventStream, StreamAbsent, StreamUnavailable
from loom.domain.core.tasks import (
    FINAL_ACTIONS,
    Notice,
    Origin,
    Published,
    Segment,
    Task,
    task_of_notice,
)
from loom.domain.run.activity_payloads import PublishRequest
from loom.domain.run.stream_events import StreamEvent, scope_of, turn_scope

_log = structlog.get_logger("loom.stream")

CLOSE_LIMIT: Final = 2.0
"""Seconds that an activity waits at its end for its last events."""


class AbsentStream:
    """The event stream of a worker without Redis."""

    async def publish(self, tasks: Sequence[Task], segment: Segment | None = None) -> bool:
        """Always raise StreamAbsent."""
        raise StreamAbsent("no Redis is configured: set LOOM_REDIS_URL")


class StreamWriter:
    """Collects events and writes them in order: events that arrive during one round trip are written with the next."""

    def __init__(self, stream: EventStream, origin: Origin, turn: int, segment: Segment | None = None) -> None:
        self._stream = stream
        self._origin = origin
        self._segment = segment
        self._scope = turn_scope(turn) if segment is None else scope_of(segment)
        self._queue: deque[Task] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._serial = 0
        self.fenced = False
        """A later attempt has taken over, so nothing of this one is shown any more."""
        self.dropped = 0
        """Number of events that an unavailable store did not accept."""

    def emit(self, event: StreamEvent) -> None:
        """Queue one event."""
        self._serial += 1
        self._put(event.task(self._origin, self._scope, datetime.now(UTC), key=event.key or str(self._serial)))

    def notices(self, notices: tuple[Notice, ...]) -> None:
        """Queue what happened while no activity ran. It appears once even if it is written twice."""
        for notice in notices:
            self._put(task_of_notice(self._origin, notice))

    async def close(self) -> None:
        """Wait until everything is written or the stream is known to be unavailable, at most `CLOSE_LIMIT`."""
        while (writing := self._writing) is not None:
            await asyncio.wait({writing}, timeout=CLOSE_LIMIT)
            if not writing.done():
                writing.cancel()
                _log.warning("stream_slow", run_id=self._origin.run_id, dropped=len(self._queue))
                return
            if (error := writing.exception()) is not None:
                _log.error("stream_write_failed", run_id=self._origin.run_id, exc_info=error)

    def _put(self, task: Task) -> None:
        self._queue.append(task)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            # Yield once first, so that events that are emitted together are written together.
            await asyncio.sleep(0)
            while self._queue:
                batch = tuple(self._queue)
                self._queue.clear()
                await self._publish(batch)
        finally:
            self._writing = None

    async def _publish(self, batch: tuple[Task, ...]) -> None:
        if self.fenced:
            return
        try:
            self.fenced = not await self._stream.publish(batch, self._segment)
        except StreamAbsent:
            return
        except StreamUnavailable as error:
            self.dropped += len(batch)
            _log.debug("stream_away", run_id=self._origin.run_id, dropped=len(batch), error=str(error))


@asynccontextmanager
async def stream_writer(
    stream: EventStream, origin: Origin, turn: int, segment: Segment | None = None
) -> AsyncIterator[StreamWriter]:
    """A writer whose events are written when the body ends, however it ends."""
    writer = StreamWriter(stream, origin, turn, segment)
    try:
        yield writer
    finally:
        await writer.close()


LONGEST: Final = 4.0
"""Maximum seconds in total: less than the activity has, since its unwritten tasks enter history as its result."""
PATIENCE: Final = (0.0, 1.1, 1.5)
"""Seconds before each attempt to write a run's last event: an unavailable store is often back soon."""


class Progress:
    """Writes notices to the stream."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream

    @activity.defn(name="publish")
    async def publish(self, request: PublishRequest) -> Published:
        """Write the notices. If the stream is unavailable, they are only in the history, and the run continues."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST):
                await self._write(request)
        return Published(notices=tuple(notice for notice in request.notices if notice.action not in FINAL_ACTIONS))

    async def _write(self, request: PublishRequest) -> None:
        is_last = any(notice.action in FINAL_ACTIONS for notice in request.notices)
        for pause in PATIENCE if is_last else PATIENCE[:1]:
            await asyncio.sleep(pause)
            async with stream_writer(self._stream, request.origin, request.turn) as writer:
                writer.notices(request.notices)
            if not writer.dropped:
                return


INTERVAL: Final = 0.4
"""Seconds. An activity learns of a cancellation with the response to its next heartbeat."""


@asynccontextmanager
async def heartbeating() -> AsyncIterator[None]:
    """Send heartbeats in the background while the body runs."""
    beat = asyncio.create_task(_beat())
    try:
        yield
    finally:
        beat.cancel()
        with suppress(asyncio.CancelledError):
            await beat


async def _beat() -> None:
    while True:
        await asyncio.sleep(INTERVAL)
        activity.heartbeat()
