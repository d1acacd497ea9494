"""Tell of the runs whose workflow task fails: one line in the worker's log and one event on each run's stream.

A run that can't be replayed says nothing itself. All workers of a task queue look for such runs.
"""

import asyncio
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import structlog
from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.adapters.temporal.run_history import TemporalPasts
from loom.activities.adapters.temporal.task_faults import FAILING_RUNS, TaskFault, task_fault
from loom.activities.ports import EventStream, StreamUnavailable
from loom.domain.core.errors import LoomError
from loom.domain.core.requests import AGENT_RUN, CREW_RUN
from loom.domain.core.tasks import Action, Notice, task_of_notice
from loom.outside_status import origin_from_outside
from loom.visibility import REPAIR

_log = structlog.get_logger("loom.worker")

EVERY: Final = 15.0
"""Seconds between two looks."""
MOST: Final = 200
"""The number of failing runs that one look tells of."""


@asynccontextmanager
async def failing_runs_told(stream: EventStream, client: Client, task_queue: str) -> AsyncIterator[None]:
    """Look every 15 seconds while the body is running."""
    looking = asyncio.create_task(_look(FailingRuns(stream, client, task_queue)))
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.wait({looking})


async def _look(runs: "FailingRuns") -> None:
    while True:
        await asyncio.sleep(EVERY)
        try:
            await runs.tell()
        except RPCError as error:
            if error.status is RPCStatusCode.INVALID_ARGUMENT:  # the server doesn't know this Search Attribute
                return
            _log.debug("failing_runs_unknown", error=str(error))


class FailingRuns:
    """The failing runs of a task queue. This worker tells of each fault once."""

    def __init__(self, stream: EventStream, client: Client, task_queue: str) -> None:
        self._stream = stream
        self._client = client
        self._told: set[tuple[str, datetime | None]] = set()
        self._query = f"WorkflowType IN ('{AGENT_RUN}', '{CREW_RUN}') AND TaskQueue = '{task_queue}' AND {FAILING_RUNS}"

    async def tell(self) -> None:
        """Tell of the runs that fail now. Raises RPCError if the server doesn't respond."""
        failing: set[tuple[str, datetime | None]] = set()
        async for execution in self._client.list_workflows(self._query, limit=MOST):
            try:
                fault = await task_fault(self._client, execution)
                if fault is None:
                    continue
                failing.add(key := (execution.run_id, fault.since))
                if key not in self._told:
                    await self._tell_of(execution, fault)
            except (LoomError, StreamUnavailable) as error:
                _log.debug("failing_run_untold", run_id=execution.id, error=str(error))
        self._told = failing

    async def _tell_of(self, execution: WorkflowExecution, fault: TaskFault) -> None:
        way_out = f"run `loom repair {shlex.quote(execution.id)}`"
        _log.error("workflow_task_fails", run_id=execution.id, error=fault.error, way_out=way_out)
        since = fault.since or datetime.now(UTC)
        said = {
            "waiting_on": REPAIR,
            "error": "WorkflowTaskFailed",
            "message": fault.error,
            "next_probe": None,
            "until": None,
            "way_out": way_out,
        }
        key = f"repair-{execution.run_id}-{since.isoformat()}"  # all workers write the same event
        notice = Notice(action=Action.PARKED, key=key, at=since, parameters=said, status="waiting")
        beginning = await TemporalPasts(self._client).beginning(execution.id)
        await self._stream.publish([task_of_notice(origin_from_outside(execution, beginning), notice)])
