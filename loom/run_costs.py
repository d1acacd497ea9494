"""Read what runs cost, and estimate what a run will cost, from what the Temporal server retains, without a worker."""

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Final

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowFailureError

from loom.activities.adapters.temporal.errors import UNREADABLE
from loom.activities.adapters.temporal.run_history import TemporalPasts
from loom.activities.adapters.temporal.runs import UNQUOTABLE, TemporalRuns
from loom.activities.failures import result_in
from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.history.costs import NONE, CostKey, Costs, RunCost, costs_of
from loom.domain.history.estimates import PastRun, RunEstimate, estimate_of
from loom.outside_status import request_of
from loom.visibility import completed_runs_of, first_value, is_sub_agent, listing, root_of

MOST_COUNTED: Final = 10_000
"""Maximum number of runs in one report. Runs in progress and the runs that ended last are counted."""
MOST_OPENED: Final = 500
"""Maximum number of results that one report reads. It reads a result if the run's cost isn't a search attribute."""
MOST_ESTIMATED: Final = 50
"""Maximum number of past runs that an estimate is based on. The newest ones are."""
AT_ONCE: Final = 20
"""Number of runs whose results or requests one client reads at the same time, for all of its reports together."""

_ATTRIBUTES: Final = {
    CostKey.AGENT: "LoomAgent",
    CostKey.MODEL: "LoomModel",
    CostKey.SESSION: "LoomSession",
    CostKey.TENANT: "LoomTenant",
}


class RunCosts:
    """The costs of runs."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._runs = TemporalRuns(client)
        self._pasts = TemporalPasts(client)
        self._reading = asyncio.Semaphore(AT_ONCE)

    async def by(self, key: CostKey, since: datetime | None = None, tenant: str | None = None) -> Costs:
        """Return the costs of the runs that are in progress or have ended since then, or of all that are retained. With
        `tenant`, only its runs count. Raises BadRequest if it is invalid.
        """
        query = listing(status=None, session=None, below=None, tenant=tenant, waiting=None)
        if since is not None:
            at = since.astimezone(UTC).isoformat().replace("+00:00", "Z")
            query += f" AND (ExecutionStatus = 'Running' OR CloseTime >= '{at}')"
        found: dict[str, WorkflowExecution] = {}
        async with aclosing(self._runs.current(query)) as executions:  # type: ignore[type-var]
            async for execution in executions:
                if len(found) == MOST_COUNTED:
                    break
                found.setdefault(execution.id, execution)
        untold = [each for each in found.values() if _told(each) is None and not _is_running(each)][:MOST_OPENED]
        results = dict(zip((each.id for each in untold), await asyncio.gather(*map(self._cost, untold)), strict=True))
        groups = await self._groups(found, key)
        counted = [
            RunCost(
                run_id=run_id,
                root_run_id=root_of(each),
                group=groups.get(run_id, NONE),
                cost=results.get(run_id, _told(each)),
                is_running=_is_running(each),
            )
            for run_id, each in found.items()
        ]
        return costs_of(counted, key, is_complete=len(found) < MOST_COUNTED)

    async def estimate(self, agent: str, model: str | None) -> RunEstimate:
        """Return what a run of this agent will probably take. With `model`, only runs with this model count.

        Raises BadRequest if the agent's or the model's name is invalid.
        """
        found: dict[str, WorkflowExecution] = {}
        async with aclosing(self._runs.current(completed_runs_of(agent, model))) as executions:  # type: ignore[type-var]
            async for execution in executions:
                if len(found) == MOST_ESTIMATED:
                    break
                if not is_sub_agent(execution):
                    found.setdefault(execution.id, execution)
        results = await asyncio.gather(*map(self._result, found.values()))
        began = await self._beginnings(found)
        runs = [
            PastRun(result=result, seconds=((each.close_time or began[each.id]) - began[each.id]).total_seconds())
            for each, result in zip(found.values(), results, strict=True)
            if result is not None and result.status is RunStatus.COMPLETED
        ]
        return estimate_of(agent, model, runs)

    async def _beginnings(self, found: dict[str, WorkflowExecution]) -> dict[str, datetime]:
        """Return when each run began. A run that continued as new has earlier executions."""
        began = {run_id: each.start_time for run_id, each in found.items()}
        ids = ", ".join(f"'{run_id}'" for run_id in found if not UNQUOTABLE.intersection(run_id))
        if ids:
            async for each in self._runs.found(f"WorkflowId IN ({ids}) AND ExecutionStatus = 'ContinuedAsNew'"):
                began[each.id] = min(began[each.id], each.start_time)
        return began

    async def _groups(self, found: dict[str, WorkflowExecution], key: CostKey) -> dict[str, str]:
        """Return each run's group. Sub-agents work for the tenant and the user of their root, in its session, and count
        on the day on which it ends.
        """
        if key in (CostKey.AGENT, CostKey.MODEL):
            return {run_id: first_value(each, _ATTRIBUTES[key]) for run_id, each in found.items()}
        roots = {run_id: each for run_id, each in found.items() if root_of(each) == run_id}
        if key is CostKey.DAY:
            by_root = {run_id: _day(each.close_time) for run_id, each in roots.items()}
        elif key is CostKey.USER:
            users = await asyncio.gather(*(self._user(each) for each in roots.values()))
            by_root = dict(zip(roots, users, strict=True))
        else:
            by_root = {run_id: first_value(each, _ATTRIBUTES[key]) for run_id, each in roots.items()}
        return {run_id: by_root.get(root_of(each), NONE) for run_id, each in found.items()}

    async def _user(self, execution: WorkflowExecution) -> str:
        async with self._reading:
            try:
                beginning = await self._pasts.beginning(execution.id)
            except UNREADABLE:
                return NONE
            return request_of(execution, beginning).user_id or NONE

    async def _cost(self, execution: WorkflowExecution) -> float | None:
        """Return the cost in the run's result. None if it is unknown, or if there is no result that can be read."""
        result = await self._result(execution)
        return result.cost if result else None

    async def _result(self, execution: WorkflowExecution) -> RunResult | None:
        handle = self._client.get_workflow_handle(execution.id, run_id=execution.run_id, result_type=RunResult)
        async with self._reading:
            try:
                result: RunResult | None = await handle.result(follow_runs=False)
            except WorkflowFailureError as error:
                result = result_in(error.cause)
            except UNREADABLE:
                return None
        return result


def _day(ended_at: datetime | None) -> str:
    return ended_at.astimezone(UTC).date().isoformat() if ended_at else NONE


def _told(execution: WorkflowExecution) -> float | None:
    cost = dict(execution.search_attributes).get("LoomCostUsd")
    return float(cost[0]) if cost else None  # type: ignore[arg-type]


def _is_running(execution: WorkflowExecution) -> bool:
    return execution.status is WorkflowExecutionStatus.RUNNING
