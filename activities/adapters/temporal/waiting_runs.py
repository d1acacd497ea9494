"""Reach runs that wait for their tenant."""

from typing import Final

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from loom.domain.core.tenants import ADMISSION_ID, Admission

ADMITTED: Final[Admission] = "admitted"


class TemporalWaitingRuns:
    """`WaitingRuns` on a Temporal server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def wake(self, run_id: str) -> bool:
        """See the port. A run whose activity is between two attempts finds out by itself that it is admitted."""
        waiting = self._client.get_async_activity_handle(workflow_id=run_id, run_id=None, activity_id=ADMISSION_ID)
        try:
            await waiting.complete(ADMITTED)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return await self.is_running(run_id)
        return True

    async def is_running(self, run_id: str) -> bool:
        """See the port."""
        try:
            description = await self._client.get_workflow_handle(run_id).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return False
        return description.status is WorkflowExecutionStatus.RUNNING
