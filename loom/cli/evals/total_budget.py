"""The total budget of an eval. A run starts only if its own limit fits into the remaining budget."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from loom.cli.evals.planned_runs import PlannedRun
from loom.domain.core.errors import BadRequest

LIMITS: Final = ("cost_usd", "tokens")


class TotalBudget:
    """Reserves each run's own limit while the run is active, and then counts what the run has used."""

    def __init__(self, limits: Mapping[str, Any], runs: Sequence[PlannedRun]) -> None:
        """Raises BadRequest if a limit is unknown, or if a run has no limit of the same kind."""
        for name, limit in limits.items():
            if name not in LIMITS:
                raise BadRequest(
                    f"--total-budget: there is no limit {name!r}: the limits are {', '.join(LIMITS)}",
                    field="total_budget",
                )
            if isinstance(limit, bool) or not isinstance(limit, int | float) or limit <= 0:
                raise BadRequest(
                    f"--total-budget: {name} must be a number above 0, not {limit!r}", field="total_budget"
                )
        self._limits = dict(limits)
        for run in runs:
            if missing := [name for name in limits if getattr(run.budget, name) is None]:
                raise BadRequest(
                    f"{run.case.where}: a total budget needs a limit for each run: set `budget.{missing[0]}` of case"
                    f" {run.case.name!r}, or use --budget",
                    field="budget",
                )
        self._used: dict[str, float] = dict.fromkeys(limits, 0.0)
        self._reserved: dict[str, float] = dict.fromkeys(limits, 0.0)
        self._working = 0
        self._ended = asyncio.Condition()

    async def admits(self, run: PlannedRun) -> bool:
        """Return whether the run may start. If it doesn't fit, wait until active runs return unused reservations."""
        async with self._ended:
            while not self._fits(run):
                if not self._working:
                    return False
                await self._ended.wait()
            self.reserve(run)
            return True

    def reserve(self, run: PlannedRun) -> None:
        """Reserve the run's limit, whether or not it fits. A run that has already started can't be refused."""
        self._working += 1
        for name in self._limits:
            self._reserved[name] += self._limit(run, name)

    async def settle(self, run: PlannedRun, used: Mapping[str, float | None]) -> None:
        """Replace the run's reservation with what it has used. If its usage is unknown, its limit counts."""
        async with self._ended:
            self._working -= 1
            for name in self._limits:
                self._reserved[name] -= self._limit(run, name)
                amount = used[name]
                self._used[name] += self._limit(run, name) if amount is None else amount
            self._ended.notify_all()

    def _fits(self, run: PlannedRun) -> bool:
        return all(
            self._used[name] + self._reserved[name] + self._limit(run, name) <= limit
            for name, limit in self._limits.items()
        )

    def _limit(self, run: PlannedRun, name: str) -> float:
        return float(getattr(run.budget, name))
