"""Activity `publish`: what happened while no other activity ran, written to the live stream."""

import asyncio
from contextlib import suppress
from typing import Final

from temporalio import activity

from loom.activities.ports import EventStream
from loom.activities.stream_writer import stream_writer
from loom.domain.core.tasks import FINAL_ACTIONS, Published
from loom.domain.run.activity_payloads import PublishRequest

LONGEST: Final = 4.0
"""Seconds in all: less than the activity has, since what it was to tell enters history as its result."""
PATIENCE: Final = (0.0, 1.1, 1.5)
"""Seconds before each try at a run's last event: a store that was away a moment ago is often back."""


class Progress:
    """Carries notices to the stream."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream

    @activity.defn(name="publish")
    async def publish(self, request: PublishRequest) -> Published:
        """Write the notices; a stream that is away costs them, never the run, and history keeps them."""
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
