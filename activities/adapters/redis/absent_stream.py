"""The live stream of a worker without Redis: publishing always raises."""

from collections.abc import Sequence

from loom.activities.ports import StreamAbsent
from loom.domain.core.tasks import Segment, Task


class AbsentStream:
    """The port EventStream if no Redis is configured."""

    async def publish(self, tasks: Sequence[Task], segment: Segment | None = None) -> bool:
        """Always raises StreamAbsent."""
        raise StreamAbsent("no Redis is configured: set LOOM_REDIS_URL")
