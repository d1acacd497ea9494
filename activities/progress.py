"""Activity `publish`: what happened while no other activity ran, written to the live stream."""

from temporalio import activity

from activities.ports import EventStream
from activities.stream_writer import stream_writer
from loom_domain.work import PublishRequest


class Progress:
    """Carries notices to the stream."""

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream

    @activity.defn(name="publish")
    async def publish(self, request: PublishRequest) -> None:
        """Write the notices; a stream that is away costs them, never the run."""
        async with stream_writer(self._stream, request.origin, request.turn) as writer:
            writer.notices(request.notices)
