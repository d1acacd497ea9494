"""Activity `publish`: what happened while no other activity ran, written to the live stream."""

import asyncio
from typing import Final

from temporalio import activity

from activities.ports import EventStream
from activities.stream_writer import stream_writer
from loom_domain.tasks import FINAL_ACTIONS
from loom_domain.work import PublishRequest

PATIENCE: Final = (0.0, 1.1, 1.5)
"""Seconds before each try at a run's last event: a store that was away a moment ago is often back."""


class Progress:
    """Carries notices to the stream."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream

    @activity.defn(name="publish")
    async def publish(self, request: PublishRequest) -> None:
        """Write the notices; a stream that is away costs them, never the run."""
        is_last = any(notice.action in FINAL_ACTIONS for notice in request.notices)
        for pause in PATIENCE if is_last else PATIENCE[:1]:
            await asyncio.sleep(pause)
            async with stream_writer(self._stream, request.origin, request.turn) as writer:
                writer.notices(request.notices)
            if not writer.dropped:
                return
