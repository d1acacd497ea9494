"""Put the tasks of runs on a bus that isn't in the store of their live streams."""

from collections.abc import Sequence

import structlog

from loom.activities.bus import Transport
from loom.activities.ports import EventStream, StreamAbsent, StreamUnavailable, TaskTooLarge
from loom.domain.core.tasks import SHOWN_ONLY, Segment, Task

_log = structlog.get_logger("loom.bus")


class BusStream:
    """An `EventStream` that also sends each task to the bus, except for fragments of texts.

    A task that is written again after a failure is also sent again.
    """

    def __init__(self, stream: EventStream, transport: Transport) -> None:
        self._stream = stream
        self._transport = transport

    async def publish(self, tasks: Sequence[Task], segment: Segment | None = None) -> bool:
        """See the port. The bus receives the tasks even if the live stream has no store, or its store is unavailable.
        While it is unavailable, the bus may also receive tasks of an attempt that a later one has replaced.
        """
        try:
            written = await self._stream.publish(tasks, segment)
        except StreamAbsent:
            written = True
        except StreamUnavailable:
            await self._send(tasks)
            raise
        if written:
            await self._send(tasks)
        return written

    async def _send(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if task.action in SHOWN_ONLY:
                continue
            try:
                await self._transport.send(task)
            except TaskTooLarge as error:  # the others must not be lost with it
                _log.warning("task_not_on_bus", run_id=task.run_id, task_id=task.task_id, error=str(error))
