"""The live stream of a worker without Redis: there is none, and whoever writes to it is told so."""

from collections.abc import Sequence

from loom.activities.ports import StreamAbsent
from loom.domain.core.tasks import Segment, Task


class AbsentStream:
    """The port EventStream where no store is configured."""

    async def publish(self, tasks: Sequence[Task], segment: Segment | None = None) -> bool:
        """Raises StreamAbsent, always."""
        raise StreamAbsent("no Redis is configured: set LOOM_REDIS_URL")
