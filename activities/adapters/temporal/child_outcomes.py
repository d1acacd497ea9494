"""Read how a child run has ended."""

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.failures import result_in
from loom.domain.core.requests import RunError, RunResult
from loom.domain.run.activity_payloads import ChildOutcome


class TemporalChildOutcomes:
    """An implementation of `ChildOutcomes` that uses a Temporal client."""

    def __init__(self, client: Client) -> None:
        self._client = client

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


def _ended_from_outside(kind: str, why: str) -> RunError:
    return RunError(type=kind, message=f"the sub-agent's run was ended from outside: {why}")
