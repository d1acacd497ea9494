"""Find out how children have ended, and which children have lost their parent."""

from collections.abc import AsyncIterator
from typing import Final

from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowFailureError
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
        description = await self._described(run_id)
        if description is None:
            return ChildOutcome(error=_ended_from_outside("NotFoundError", "the server no longer has it"))
        if description.status is WorkflowExecutionStatus.RUNNING:
            return None
        try:
            return ChildOutcome(result=await self._client.get_workflow_handle(run_id, result_type=RunResult).result())
        except WorkflowFailureError as error:
            if (result := result_in(error.cause)) is not None:
                return ChildOutcome(result=result)
            return ChildOutcome(error=_ended_from_outside(type(error.cause).__name__, str(error.cause)))

    async def orphans(self) -> AsyncIterator[str]:
        """See the port."""
        running = {run.id async for run in self._client.list_workflows(_RUNNING.format(self._task_queue))}
        for run_id in running:
            parent = run_id.rpartition("/")[0]
            if parent and parent not in running and await self._has_lost(run_id, parent):
                yield run_id

    async def abort(self, run_id: str, *, reason: str, by: str) -> None:
        """See the port."""
        try:
            await self._client.get_workflow_handle(run_id).signal("abort", {"reason": reason, "by": by})
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # it has ended by itself
                raise

    async def _has_lost(self, run_id: str, parent: str) -> bool:
        """Whether this parent started the run and is no longer running. The id alone doesn't show this, nor does the
        list, which may lag behind.
        """
        run = await self._described(run_id)
        if run is None or run.parent_id is None or not is_child(run_id, run.parent_id):
            return False
        described = await self._described(parent)
        return described is None or described.status is not WorkflowExecutionStatus.RUNNING

    async def _described(self, run_id: str) -> WorkflowExecutionDescription | None:
        try:
            return await self._client.get_workflow_handle(run_id).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return None


def _ended_from_outside(kind: str, why: str) -> RunError:
    return RunError(type=kind, message=f"the sub-agent's run was ended from outside: {why}")
