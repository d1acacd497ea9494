"""The first characters of runs' tasks, which lists of runs show.

A run's task never changes, but it becomes unreadable when the key of its tenant is forgotten. Each is therefore read
again after a minute, which is also how long a process remembers keys.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Final

from loom.client import LoomClient
from loom.domain.core.errors import EncryptionKeyError, RunNotFoundError, UnreachableError

MOST_KEPT: Final = 20_000
KEPT: Final = 60.0
"""Seconds for which a task is kept."""
AT_ONCE: Final = 20


class TaskSummaries:
    """Reads tasks from the server, which returns them with a run's description but not with a list of runs."""

    def __init__(self, client: LoomClient) -> None:
        self._client = client
        self._known: OrderedDict[str, tuple[float, str]] = OrderedDict()
        """Until when each task is kept, and its first characters. The oldest one is the first."""
        self._reading = asyncio.Semaphore(AT_ONCE)

    async def of(self, run_ids: Sequence[str]) -> dict[str, str]:
        """Return the first characters of each run's task. Tasks that can't be read now are left out."""
        now = monotonic()
        while self._known and next(iter(self._known.values()))[0] <= now:
            self._known.popitem(last=False)
        await asyncio.gather(*(self._read(run_id) for run_id in run_ids if run_id not in self._known))
        found = {run_id: self._known[run_id][1] for run_id in run_ids if run_id in self._known}
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)
        return found

    async def _read(self, run_id: str) -> None:
        async with self._reading:
            with suppress(RunNotFoundError, UnreachableError, EncryptionKeyError):
                summary = await self._client.task_summary(run_id)
                self._known[run_id] = monotonic() + KEPT, summary
                self._known.move_to_end(run_id)
