"""Report the progress of activities: write events to the live stream, and send heartbeats to Temporal.

`stream_writer` writes in the background and never blocks the activity. The `publish` activity writes events that
occurred while no other activity was running. If the stream is unavailable, readers miss events, but the run loses no
data because the history contains them.
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
from loom.domain.core.notifications import NotifyPlan
from loom.domain.core.tasks import (
    FINAL_ACTIONS,
    SHOWN_ONLY,
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
"""Maximum number of seconds that an ending activity waits until its last events are written."""


class AbsentStream:
    """The event stream of a worker without Redis."""

    async def publish(self, tasks: Sequence[Task], segment: Segment | None = None) -> bool:
        """Always raise StreamAbsent."""
        raise StreamAbsent("no Redis is configured: set LOOM_REDIS_URL")


LINGER: Final = 0.02
"""Seconds that an event may wait for the next ones, so that a quick activity writes all of its events at once. Text and
partial output are written immediately.
"""


class StreamWriter:
    """Collects events and writes them in order. Events that arrive during a write are part of the next write."""

    def __init__(
        self,
        stream: EventStream,
        origin: Origin,
        turn: int,
        segment: Segment | None = None,
        *,
        linger: float = LINGER,
    ) -> None:
        self._stream = stream
        self._linger = linger
        self._origin = origin
        self._segment = segment
        self._scope = turn_scope(turn) if segment is None else scope_of(segment)
        self._queue: deque[Task] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._serial = 0
        self.fenced = False
        """Whether a later attempt has taken over. If so, events from this attempt are no longer shown."""
        self.dropped = 0
        """Number of events that couldn't be written because the store was unavailable."""

    def emit(self, event: StreamEvent) -> None:
        """Queue one event."""
        self._serial += 1
        self._put(event.task(self._origin, self._scope, datetime.now(UTC), key=event.key or str(self._serial)))

    def notices(self, notices: tuple[Notice, ...]) -> None:
        """Queue events that occurred while no activity was running. Each event appears once, even if it is written
        twice.
        """
        for notice in notices:
            self._put(task_of_notice(self._origin, notice))

    async def close(self) -> None:
        """Wait until all events are written or the stream is known to be unavailable, but no longer than `CLOSE_LIMIT`
        seconds.
        """
        if self._lingering is not None:
            self._begin()
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
        if self._writing is not None:
            return
        if task.action in SHOWN_ONLY:
            self._begin()
        elif self._lingering is None:
            self._lingering = asyncio.get_running_loop().call_later(self._linger, self._begin)

    def _begin(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            # Yield once first, so that events emitted together are written together.
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
    stream: EventStream, origin: Origin, turn: int, segment: Segment | None = None, *, linger: float = LINGER
) -> AsyncIterator[StreamWriter]:
    """Provide a writer. It writes text and partial output immediately, and other events after at most `linger` seconds.
    When the body exits, even with an exception, it writes the rest.
    """
    writer = StreamWriter(stream, origin, turn, segment, linger=linger)
    try:
        yield writer
    finally:
        await writer.close()


LONGEST: Final = 4.0
"""Maximum total number of seconds for writing notices. The activity's own timeout is longer, so that the activity can
still return the notices as its result. The history records this result.
"""
PATIENCE: Final = (0.0, 1.1, 1.5)
"""Seconds before each attempt to write a run's last event. An unavailable store often recovers quickly."""


class Progress:
    """Writes notices to the stream."""

    def __init__(self, stream: EventStream, notify: NotifyPlan | None = None) -> None:
        """`notify` names the people who are told of a run's end."""
        self._stream = stream
        self._notify = notify

    @activity.defn(name="publish")
    async def publish(self, request: PublishRequest) -> Published:
        """Write the notices. If the stream is unavailable, only the history contains them, and the run continues."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST):
                await self._write(request)
        kept = tuple(notice for notice in request.notices if notice.action not in FINAL_ACTIONS)
        return Published(notices=kept, notify=None if len(kept) == len(request.notices) else self._notify)

    async def _write(self, request: PublishRequest) -> None:
        is_last = any(notice.action in FINAL_ACTIONS for notice in request.notices)
        for pause in PATIENCE if is_last else PATIENCE[:1]:
            await asyncio.sleep(pause)
            async with stream_writer(self._stream, request.origin, request.turn) as writer:
                writer.notices(request.notices)
            if not writer.dropped:
                return


INTERVAL: Final = 0.4
"""Heartbeat interval in seconds. The response to a heartbeat tells the activity whether it was cancelled."""


@asynccontextmanager
async def heartbeating() -> AsyncIterator[None]:
    """Send heartbeats in the background while the body is running."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def beat() -> None:
        nonlocal timer
        timer = loop.call_later(INTERVAL, beat)
        activity.heartbeat()

    timer = loop.call_later(INTERVAL, beat)  # a timer costs less than a task, and most activities end before it
    try:
        yield
    finally:
        timer.cancel()
