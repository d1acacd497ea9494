"""The `collect_stored_data` activity deletes the data of runs that have left the server.

Temporal deletes a run's history after the namespace's retention period. Loom then deletes what the run has stored in
Postgres: artifacts, recorded effects, and payloads that are too large for a history. Age alone never decides. A tree's
data is deleted only if this server had the run before, and now has neither the run, nor its tree, nor its parent.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

import structlog
from temporalio import activity

from loom.activities.ports import RunIndex, StoredData
from loom.activities.publish import heartbeating
from loom.domain.core.stored_data import Collected

_log = structlog.get_logger("loom.collection")

GRACE: Final = timedelta(days=1)
"""Keep data that was stored within this time, because its run may be about to start."""
UNTIL_KNOWN: Final = timedelta(minutes=10)
"""The time within which a run must have started after its data was stored."""
AT_ONCE: Final = 100
"""Maximum number of trees that are checked in one round."""


class Collection:
    """Deletes the data of runs that have left the server."""

    def __init__(self, data: StoredData, index: RunIndex, *, grace: timedelta = GRACE) -> None:
        self._data = data
        self._index = index
        self._grace = grace

    @activity.defn(name="collect_stored_data")
    async def collect_stored_data(self) -> Collected:
        """Look up runs that have stored data, and delete the data of trees that have left the server."""
        async with heartbeating():
            return await self.collect(datetime.now(UTC))

    async def collect(self, now: datetime) -> Collected:
        """Do the same at a given time."""
        server = await self._index.server()
        for run_id in await self._data.unknown(server, now - min(self._grace, UNTIL_KNOWN), 5 * AT_ONCE):
            await self._data.look_up(server, run_id, await self._index.find(run_id))
        done = Collected()
        for tree in await self._data.due(server, now - self._grace, AT_ONCE):
            if await self._index.has_any(tree):
                await self._data.keep(server, tree)
                continue
            gone = await self._data.delete(server, tree, now - self._grace)
            _log.info("stored_data_deleted", tree=tree.root, artifacts=gone.artifacts, payloads=gone.payloads)
            done += gone
        return done
