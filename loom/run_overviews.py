"""Overviews of runs for people: besides the list entry, each run's task, turns, cost, and what exactly it waits for.

Visibility doesn't know these. A run that hasn't ended is asked for its status, and the result of an ended run is read,
all at the same time. What isn't known in time is left out.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from temporalio.client import Client, WorkflowFailureError, WorkflowHandle

from loom.activities.adapters.temporal.errors import UNREADABLE
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult
from loom.visibility import RunSummary, failed_result, task_summary

TIME_LIMIT: Final = 3.0
"""Seconds after which runs that haven't answered are shown without these facts."""
AT_ONCE: Final = 50
"""Number of runs that are read at the same time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOverview:
    """A run in a list for people."""

    summary: RunSummary
    task: str = ""
    """The beginning of the task. For a sub-agent, the label that its parent gave it."""
    started_at: datetime | None = None
    """When the run started, even if it has continued as new since. None if it isn't known."""
    turns: int | None = None
    cost: float | None = None
    waits_for: str = ""
    """What the run waits for, which is also what it is doing, such as `approval: bash: rm -rf build`."""


class RunOverviews:
    """Reads overviews."""

    def __init__(self, temporal: Client) -> None:
        self._temporal = temporal
        self._runs = TemporalRuns(temporal)
        self._reading = asyncio.Semaphore(AT_ONCE)

    async def of(self, summaries: Sequence[RunSummary]) -> tuple[RunOverview, ...]:
        """Return the overview of each run, in the same order."""
        reading = [asyncio.create_task(self._read(each)) for each in summaries]
        if not reading:
            return ()
        _, late = await asyncio.wait(reading, timeout=TIME_LIMIT)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        return tuple(
            _bare(summary) if task in late else task.result() for summary, task in zip(summaries, reading, strict=True)
        )

    async def _read(self, summary: RunSummary) -> RunOverview:
        async with self._reading:
            handle = self._temporal.get_workflow_handle(summary.run_id, result_type=RunResult)
            (task, began), told = await asyncio.gather(self._described(summary.run_id), self._told(summary, handle))
        known = replace(_bare(summary), task=task, started_at=began)
        match told:
            case RunResult(turns=turns, cost=cost):
                return replace(known, turns=turns, cost=cost)
            case {"waiting_on": waits_for, "turn": int() as turns, "cost": cost}:  # else, another release has answered
                return replace(known, turns=turns, cost=cost, waits_for=str(waits_for or ""))
        return known

    async def _told(self, summary: RunSummary, handle: WorkflowHandle[Any, RunResult]) -> RunResult | JsonObject | None:
        """Return the result of an ended run or the status of another one, or None if it can't be read."""
        try:
            if summary.closed_at is None:
                return dict(await self._runs.query(summary.run_id, "status", dict))
            return await handle.result()
        except WorkflowFailureError as error:
            return failed_result(error)
        except UNREADABLE:
            return None

    async def _described(self, run_id: str) -> tuple[str, datetime | None]:
        """Return the beginning of the run's task, and when the run started."""
        try:
            described = await self._runs.described(run_id)
            return await task_summary(described), await self._runs.started_at(described)
        except UNREADABLE:
            return "", None


def _bare(summary: RunSummary) -> RunOverview:
    """Return what Visibility knows."""
    waits = "" if summary.waiting_on == "none" else summary.waiting_on
    return RunOverview(summary=summary, cost=summary.cost, waits_for=waits)
