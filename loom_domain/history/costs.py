"""Add up what runs cost, by agent, session, tenant, user, model or day. Each run counts with its own part of the cost.

A run's reported cost includes its sub-agents. Its own part is that cost without the reported costs of the runs directly
below it. The parts of a tree therefore add up to the cost of its root.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from loom.domain.core.errors import BadRequest


class CostKey(StrEnum):
    """What costs can be added up by."""

    AGENT = "agent"
    SESSION = "session"
    TENANT = "tenant"
    USER = "user"
    MODEL = "model"
    DAY = "day"
    """The day in UTC on which a tree ended."""


NONE: Final = ""
"""The group of runs without this value, for example without a tenant, or of those that haven't ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCost:
    """One run, as it counts."""

    run_id: str
    root_run_id: str
    group: str
    cost: float | None
    """What the run reports in US dollars, with its sub-agents. None if it is unknown."""
    is_running: bool = False

    @property
    def parent_run_id(self) -> str:
        """The run directly above. Empty for the root."""
        return "" if self.run_id == self.root_run_id else self.run_id.rpartition("/")[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class CostGroup:
    """The costs of one agent, session, tenant, user, model or day."""

    name: str
    """Empty for the runs without this value."""
    cost: float
    """US dollars, without the runs whose cost is unknown."""
    runs: int
    """The number of runs, with sub-agents and runs in progress."""
    sub_agents: int
    unknown: int
    """The number of ended runs whose cost is unknown: a price is unknown, or something other than Loom ended them."""
    running: int
    """The number of runs in progress. They report their cost when they end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """The costs of all runs of a period."""

    by: CostKey
    """What the groups stand for: agents, sessions, tenants, users, models or days."""
    groups: tuple[CostGroup, ...]
    """The most expensive group first. Days are in their order."""
    total: CostGroup
    """All groups together. Its name is empty."""
    is_complete: bool = True
    """Whether all runs were counted. If False, the newest ones were."""


def cost_key(name: str) -> CostKey:
    """Return what to add up by. Raises BadRequest if it is unknown."""
    try:
        return CostKey(name)
    except ValueError:
        raise BadRequest(f"by: {name!r} is not one of {', '.join(CostKey)}", field="by") from None


def costs_of(runs: Iterable[RunCost], by: CostKey, *, is_complete: bool = True) -> Costs:
    """Add up the costs of these runs. Sub-agents whose root isn't among them are left out, so no tree is counted in
    part.
    """
    listed = {run.run_id: run for run in runs}
    counted = [run for run in listed.values() if run.root_run_id in listed]
    own = _own_parts(counted)
    names = dict.fromkeys(run.group for run in counted)
    groups = [_group(name, [run for run in counted if run.group == name], own) for name in names]
    ordered = sorted(groups, key=lambda group: (0.0 if by is CostKey.DAY else -group.cost, group.name))
    return Costs(by=by, groups=tuple(ordered), total=_group("total", counted, own), is_complete=is_complete)


def _own_parts(runs: Sequence[RunCost]) -> Mapping[str, float]:
    """Return each run's own part of the cost, if the run's cost is known."""
    below: dict[str, float] = {}
    for run in runs:
        if run.parent_run_id and run.cost is not None:
            below[run.parent_run_id] = below.get(run.parent_run_id, 0.0) + run.cost
    # Costs are rounded to millionths of a dollar, so a difference may be slightly below zero.
    return {run.run_id: max(run.cost - below.get(run.run_id, 0.0), 0.0) for run in runs if run.cost is not None}


def _group(name: str, runs: Sequence[RunCost], own: Mapping[str, float]) -> CostGroup:
    return CostGroup(
        name=name,
        cost=round(sum(own.get(run.run_id, 0.0) for run in runs), 6),
        runs=len(runs),
        sub_agents=sum(run.run_id != run.root_run_id for run in runs),
        unknown=sum(run.cost is None and not run.is_running for run in runs),
        running=sum(run.is_running for run in runs),
    )
