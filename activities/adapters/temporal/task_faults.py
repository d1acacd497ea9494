"""Find the runs whose workflow task fails again and again, and why it does.

The server sends such a task until it succeeds. Meanwhile the run can neither go on nor answer.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from temporalio.api.common.v1 import WorkflowExecution as ExecutionId
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionDescription, WorkflowExecutionStatus

from loom.activities.adapters.temporal.errors import answered, own_message
from loom.domain.core.errors import EncryptionKeyError
from loom.domain.core.messages import JsonObject

PROBLEMS: Final = "TemporalReportedProblems"
"""The Search Attribute with which the server marks an execution after two failures in a row (server 1.30 or newer)."""
FAILING: Final = "category=WorkflowTaskFailed"
"""Its value if these are failures, and not time-outs, as they occur if workers stand still."""
FAILING_RUNS: Final = f"ExecutionStatus = 'Running' AND {PROBLEMS} = '{FAILING}'"
"""The List Filter for executions whose workflow task fails."""
_SURE: Final = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR
_TRIES: Final = 3
"""The attempt at a workflow task from which on other causes count. A task may fail once by coincidence."""
_PAGE: Final = 30
_FAILED: Final = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
_COMPLETED: Final = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
_HARMLESS: Final = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskFault:
    """Why a run's workflow task fails."""

    error: str
    since: datetime | None

    def view(self) -> JsonObject:
        """Return the fault as JSON: `{"error", "since"}`."""
        return {"error": self.error, "since": None if self.since is None else self.since.isoformat()}


def is_failing(execution: WorkflowExecution) -> bool:
    """Whether the server says that the execution's workflow task fails."""
    is_running = execution.status is WorkflowExecutionStatus.RUNNING
    return is_running and FAILING in dict(execution.search_attributes).get(PROBLEMS, ())


def _attempt(execution: WorkflowExecution) -> int:
    """Return the number of the attempt at the execution's workflow task, if it is known."""
    if isinstance(execution, WorkflowExecutionDescription):
        return execution.raw_description.pending_workflow_task.attempt
    return _TRIES if is_failing(execution) else 0


async def task_fault(client: Client, execution: WorkflowExecution) -> TaskFault | None:
    """Return why an execution's workflow task fails, or None if it doesn't.

    Raises UnreachableError if the server doesn't respond.
    """
    attempt = _attempt(execution)
    if attempt < 2 or execution.status is not WorkflowExecutionStatus.RUNNING:
        return None
    async for event in _latest_first(client, execution):
        if event.event_type == _COMPLETED:
            return None
        failed = event.workflow_task_failed_event_attributes
        if event.event_type == _FAILED and failed.cause not in _HARMLESS:
            if failed.cause != _SURE and attempt < _TRIES:
                return None
            try:
                message = await own_message(client.data_converter, failed.failure)
            except EncryptionKeyError as unreadable:
                message = unreadable.message
            return TaskFault(error=message, since=event.event_time.ToDatetime(UTC))
    return None


async def _latest_first(client: Client, execution: WorkflowExecution) -> AsyncIterator[HistoryEvent]:
    """Yield the events of a history from its end. A run that can't go on may have received many signals since."""
    token = b""
    while True:
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=ExecutionId(workflow_id=execution.id, run_id=execution.run_id),
            maximum_page_size=_PAGE,
            next_page_token=token,
        )
        with answered(execution.id):
            found = await client.workflow_service.get_workflow_execution_history_reverse(request)
        for event in found.history.events:
            yield event
        if not (token := found.next_page_token):
            return
