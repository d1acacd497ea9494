"""Find out how children have ended, and which children have lost their parent."""

from collections.abc import AsyncIterator
from typing import Final

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.failures import result_in
from loom.domain.core.requests import RunError, RunResult
from loom.domain.run.activity_payloads import ChildOutcome
from loom.domain.tree.lineage import is_child

_RUNNING: Final = "WorkflowType IN ('AgentRun', 'CrewRun') AND ExecutionStatus = 'Running' AND TaskQueue = '{}'"


class TemporalChildRuns:
    """An implementation of `ChildRunsOnServer` that uses a Temporal client."""

    def __init__(self, client: Client, task_queue: str) -> None:
        """Look for lost children only on this task queue."""
        self._client = client
        self._task_queue = task_queue

    async def outcome(self, run_id: str) -> ChildOutcome | None:
        """See the port."""
        handle = self._client.get_workflow_handle(run_id, result_type=RunResult)
        try:
            if (await handle.describe()).status is WorkflowExecutionStatus.RUNNING:
                return None
            return ChildOutcome(result=await handle.result())
        except WorkflowFailureError as error:
            if (result := result_in(error.cause)) is not None:
                return ChildOutcome(result=result)
            return ChildOutcome(error=_ended_from_outside(type(error.cause).__name__, str(error.cause)))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return ChildOutcome(error=_ended_from_outside("NotFoundError", "the server no longer has it"))

    async def orphans(self) -> AsyncIterator[str]:
        """See the port."""
        runs = [run async for run in self._client.list_workflows(_RUNNING.format(self._task_queue))]
        running = {run.id for run in runs}
        for run in runs:
            parent = run.parent_id or ""
            if is_child(run.id, parent) and parent not in running and not await self._is_running(parent):
                yield run.id

    async def abort(self, run_id: str, *, reason: str, by: str) -> None:
        """See the port."""
        try:
            await self._client.get_workflow_handle(run_id).signal("abort", {"reason": reason, "by": by})
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # it has ended by itself
                raise

    async def _is_running(self, run_id: str) -> bool:
        try:
            description = await self._client.get_workflow_handle(run_id).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        return description.status is WorkflowExecutionStatus.RUNNING


def _ended_from_outside(kind: str, why: str) -> RunError:
    return RunError(type=kind, message=f"the sub-agent's run was ended from outside: {why}")
