"""The `await_admission` and `leave_tenant` activities, which limit how many runs of a tenant are in progress.

A waiting run takes up no slot: its activity is completed from outside, by the run that makes room for it. If that
fails, the activity's attempt times out, and the next attempt looks again. A run that the server has ended can't leave
by itself. Waiting runs notice this and remove it.
"""

from collections.abc import Collection, Mapping
from typing import Final

from temporalio import activity

from loom.activities.ports import StoreUnavailable
from loom.activities.tenants.ports import TenantQueue, WaitingRuns
from loom.domain.core.tasks import Origin
from loom.domain.core.tenants import Admission, TenantLimits, limits_of


class TenantGate:
    """Admits the runs of each tenant, one after the other, up to the tenant's limit."""

    def __init__(self, *, limits: Mapping[str, TenantLimits], queue: TenantQueue, runs: WaitingRuns) -> None:
        self._limits = limits
        self._queue = queue
        self._runs = runs

    async def admission(self, origin: Origin) -> Admission:
        """Return whether a run that has been prepared may begin. Sub-agents belong to their root run and don't wait."""
        if origin.root_run_id or limits_of(self._limits, origin.tenant).runs is None:
            return ""
        try:
            return "admitted" if await self._enters(origin) else "waiting"
        except StoreUnavailable:
            return "waiting"  # until the store is back

    def limits_dollars(self, tenant: str) -> bool:
        """Whether the tenant's runs may spend only a certain amount in dollars a day."""
        return limits_of(self._limits, tenant).usd_per_day is not None

    @activity.defn(name="await_admission")
    async def await_admission(self, origin: Origin) -> Admission:
        """Return if the run may begin. Otherwise, the run that makes room for this one completes the activity."""
        if not await self._enters(origin):
            activity.raise_complete_async()
        return "admitted"

    @activity.defn(name="leave_tenant")
    async def leave_tenant(self, origin: Origin) -> None:
        """Make room for the next waiting run."""
        await self._advance(origin.tenant, leaves=[origin.run_id])

    async def _enters(self, origin: Origin) -> bool:
        admitted = await self._advance(origin.tenant, joins=origin.run_id)
        if origin.run_id not in admitted:
            unchecked = await self._queue.unchecked(origin.tenant)
            if gone := [run for run in unchecked if not await self._runs.is_running(run)]:
                admitted = await self._advance(origin.tenant, joins=origin.run_id, leaves=gone)
        return origin.run_id in admitted

    async def _advance(self, tenant: str, *, joins: str | None = None, leaves: Collection[str] = ()) -> Collection[str]:
        """Change the queue, wake the runs that it admits, and return all admitted runs."""
        limit = limits_of(self._limits, tenant).runs
        most = UNLIMITED if limit is None else limit
        change = await self._queue.advance(tenant, most, joins=joins, leaves=leaves)
        while gone := [run for run in change.newly if run != joins and not await self._runs.wake(run)]:
            change = await self._queue.advance(tenant, most, joins=joins, leaves=gone)
        return change.admitted


UNLIMITED: Final = 2**31 - 1
"""Admits every run. Some runs may still wait for a limit that no longer applies."""
