"""Tenants' queues and accounts in a worker's memory, for installations without a database."""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from datetime import date
from time import monotonic

from loom.activities.tenants.ports import QueueChange
from loom.domain.tree.budget import Spend


class OneWorkerTenants:
    """A `TenantQueue` and `TenantAccounts`. Each worker counts only its own runs, and forgets them when it stops."""

    def __init__(self, *, checked_for: float = 30.0) -> None:
        """After a check, a run counts as running for `checked_for` seconds."""
        self._checked_for = checked_for
        self._runs: defaultdict[str, dict[str, float | None]] = defaultdict(dict)  # None: waits; else last checked at
        self._used: Counter[tuple[str, date, str]] = Counter()

    async def advance(
        self, tenant: str, most: int, *, joins: str | None = None, leaves: Collection[str] = ()
    ) -> QueueChange:
        """See the port."""
        runs = self._runs[tenant]
        for run in leaves:
            runs.pop(run, None)
        if joins is not None:
            runs.setdefault(joins, None)
        room = max(0, most - sum(checked is not None for checked in runs.values()))
        newly = [run for run, checked in runs.items() if checked is None][:room]
        runs.update(dict.fromkeys(newly, monotonic()))
        return QueueChange(
            admitted=frozenset(run for run, checked in runs.items() if checked is not None), newly=tuple(newly)
        )

    async def unchecked(self, tenant: str) -> Sequence[str]:
        """See the port."""
        runs, now = self._runs[tenant], monotonic()
        due = [run for run, checked in runs.items() if checked is not None and now - checked >= self._checked_for]
        runs.update(dict.fromkeys(due, now))
        return due

    async def used(self, tenant: str, day: date) -> Spend:
        """See the port."""
        return Spend(tokens=self._used[tenant, day, "tokens"], micros=self._used[tenant, day, "micros"])

    async def charge(self, tenant: str, day: date, amounts: Spend) -> Spend:
        """See the port."""
        self._used[tenant, day, "tokens"] += amounts.tokens
        self._used[tenant, day, "micros"] += amounts.micros
        return await self.used(tenant, day)
