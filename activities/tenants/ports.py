"""The ports for tenants' limits, as protocols. The methods of the first two raise StoreUnavailable."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Protocol

from loom.domain.tree.budget import Spend


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueChange:
    """The result of a change to a tenant's queue."""

    admitted: frozenset[str]
    """All runs that are in progress."""
    newly: tuple[str, ...] = ()
    """The runs that this change has admitted."""


class TenantQueue(Protocol):
    """The runs of each tenant: the ones in progress, and the ones that wait, in the order in which they joined."""

    async def advance(
        self, tenant: str, most: int, *, joins: str | None = None, leaves: Collection[str] = ()
    ) -> QueueChange:
        """Remove the runs that leave, add the run that joins unless it is in the queue, and admit waiting runs until
        `most` runs are in progress. This is one atomic step.
        """
        ...

    async def unchecked(self, tenant: str) -> Sequence[str]:
        """Return the admitted runs that this method hasn't returned to any caller within the last half minute."""
        ...


class TenantAccounts(Protocol):
    """The amounts that each tenant's runs have used on each day."""

    async def used(self, tenant: str, day: date) -> Spend:
        """Return the amounts of one day."""
        ...

    async def charge(self, tenant: str, day: date, amounts: Spend) -> Spend:
        """Add the amounts, which may be negative, and return the new sums. This is one atomic step."""
        ...


class WaitingRuns(Protocol):
    """Reaches runs on the server."""

    async def wake(self, run_id: str) -> bool:
        """Tell a waiting run that it is admitted. Returns False if the run has ended."""
        ...

    async def is_running(self, run_id: str) -> bool:
        """Whether the run exists and hasn't ended."""
        ...
