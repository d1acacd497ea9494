"""Continue an ended run: reset its last execution to the workflow task that ended it, and send it a `retry`.

Each end is continued once. The server doesn't see to that: a second reset of the same execution begins a further one
and terminates what the first has begun. Temporal 1.32 does so even for the same request ID. Earlier servers return the
first reset's execution, but only while it's the current one. No field of the request makes a reset conditional. So a
retry does three things:

1. It claims the run: it starts a workflow that no worker takes, whose ID is derived from the run's. The server starts
   one at a time, and ends it after `CLAIM_LIMIT`, so that a client that dies holds up the next one only for so long.
2. It asks the server whether this end is already continued, and if so, by which retry.
3. Immediately before the reset, it makes sure that the ended execution is still the current one, and that the claim
   outlasts the reset.

What remains is a client that stands still between this last look and its reset until its claim has ended, while another
client retries the run. Programs that reset a run without a claim have no protection from each other, either.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

from temporalio.api.common.v1 import WorkflowExecution as ExecutionId
from temporalio.api.enums.v1 import EventType, PendingWorkflowTaskState
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle, WorkflowHistoryEventFilterType
from temporalio.converter import WorkflowSerializationContext
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.adapters.temporal.errors import answered
from loom.domain.core.errors import RefusedError, UnreachableError
from loom.domain.core.messages import JsonObject

REOPEN_TRIES: Final = 5
"""How often a run is reset for one retry. A run may end again before the retry reaches it."""
CLAIM: Final = "RunRetry"
"""The type of the workflow that claims a run, and the name of its task queue. No worker polls that queue."""
CLAIM_LIMIT: Final = timedelta(seconds=30)
"""How long the server keeps a claim whose client doesn't end it."""
PAUSE: Final = 0.1
"""Seconds between two looks at what another retry of the run does."""
RESET_LIMIT: Final = timedelta(seconds=10)
"""Timeout for a reset."""
STARTED: Final = PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED
"""The state of a workflow task that a worker has taken."""


class TemporalRetries:
    """Retries of ended runs. The methods raise RunNotFoundError and UnreachableError as `TemporalRuns` does."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def reopen(self, run_id: str, execution: str, payload: JsonObject) -> JsonObject | None:
        """Continue the end of this execution: take back the workflow task that ended it, and send the run this `retry`
        before it decides again. Return None, or the `retry` that has already continued this end.

        If the execution was reset, but ended again without a retry, this continues its last end. Raises RefusedError if
        the server can't do that.
        """
        with answered(run_id):
            async with self._claimed(run_id) as until:
                for _ in range(REOPEN_TRIES):
                    task = await self._closing_task(run_id, execution)
                    following = await self._following(run_id, execution)
                    if following is None:
                        following = await self._reset(run_id, execution, task, until)
                    elif (earlier := await self._retry_in(run_id, following, payload["end"], until)) is not None:
                        return earlier
                    try:
                        # The server doesn't let a run end while it has an unread signal.
                        await self._handle(run_id, following).signal("retry", payload)
                    except RPCError as error:
                        if error.status is not RPCStatusCode.NOT_FOUND:
                            raise
                        execution = following
                    else:
                        return None
        raise UnreachableError(f"run {run_id!r} ended again before the retry reached it; try again")

    @asynccontextmanager
    async def _claimed(self, run_id: str) -> AsyncIterator[datetime]:
        """Wait until no other retry of this run is being carried out, and keep others waiting. Yield the time until
        which the claim lasts.
        """
        deadline = _now() + 2 * CLAIM_LIMIT
        while True:
            until = _now() + CLAIM_LIMIT
            try:
                claim: WorkflowHandle[Any, Any] = await self._client.start_workflow(
                    CLAIM, id=f"retry:{run_id}", task_queue=CLAIM, execution_timeout=CLAIM_LIMIT
                )
                break
            except WorkflowAlreadyStartedError:
                if _now() > deadline:
                    raise UnreachableError(f"other retries of run {run_id!r} take too long; try again") from None
                await asyncio.sleep(PAUSE)
        try:
            yield until
        finally:
            with suppress(RPCError):
                await claim.terminate("the retry has been sent")

    async def _closing_task(self, run_id: str, execution: str) -> int | None:
        events = self._handle(run_id, execution).fetch_history_events(
            event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT
        )
        return closing_task(await anext(events))

    async def _following(self, run_id: str, execution: str) -> str | None:
        """Return the execution that a reset has begun from the end of this one. None if it's the run's last one."""
        ended = await self._handle(run_id, execution).describe()
        if following := ended.raw_description.workflow_extended_info.reset_run_id:
            return following
        if (await self._handle(run_id).describe()).run_id != execution:
            raise RefusedError(f"run {run_id!r} has already gone on after this end")
        return None

    async def _retry_in(self, run_id: str, execution: str, end: int, until: datetime) -> JsonObject | None:
        """Return the first retry of this end that an execution has received since the reset that began it."""
        while _now() < until:
            described = await self._handle(run_id, execution).describe()
            is_deciding = described.raw_description.pending_workflow_task.state == STARTED
            found = await self._recorded_retry(run_id, execution, end)
            if found is not None or not is_deciding:
                return found
            # While a worker decides, the server keeps new signals out of the history.
            await asyncio.sleep(PAUSE)
        raise UnreachableError(f"run {run_id!r} doesn't show whether it was retried; try again")

    async def _recorded_retry(self, run_id: str, execution: str, end: int) -> JsonObject | None:
        context = WorkflowSerializationContext(namespace=self._client.namespace, workflow_id=run_id)
        converter = self._client.data_converter.with_context(context)
        has_begun = False
        async for event in self._handle(run_id, execution).fetch_history_events():
            # The events up to the reset are copies of those of the ended execution.
            has_begun = has_begun or event.workflow_task_failed_event_attributes.new_run_id == execution
            signal = event.workflow_execution_signaled_event_attributes
            if has_begun and signal.signal_name == "retry":
                given = await converter.decode(list(signal.input.payloads[:1]))
                if given and isinstance(given[0], Mapping) and given[0].get("end") == end:
                    return dict(given[0])
        return None

    async def _reset(self, run_id: str, execution: str, task: int | None, until: datetime) -> str:
        """Reset an ended execution to the workflow task that ended it, and return the id of the new execution."""
        if task is None:
            raise RefusedError(
                f"run {run_id!r} was ended from outside, and not by itself: continue it with `loom fork`"
            )
        request = ResetWorkflowExecutionRequest(
            namespace=self._client.namespace,
            workflow_execution=ExecutionId(workflow_id=run_id, run_id=execution),
            reason="loom retry",
            workflow_task_finish_event_id=task,
            request_id=str(uuid4()),
            identity=self._client.identity,
        )
        if _now() + RESET_LIMIT > until:
            raise UnreachableError(f"the retry of run {run_id!r} took too long, and changed nothing; try again")
        try:
            reset = await self._client.workflow_service.reset_workflow_execution(request, timeout=RESET_LIMIT)
        except RPCError as error:
            if error.status not in (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.FAILED_PRECONDITION):
                raise
            raise RefusedError(f"the server can't take back the end of run {run_id!r}: {error}") from error
        return reset.run_id

    def _handle(self, run_id: str, execution: str | None = None) -> WorkflowHandle[Any, Any]:
        return self._client.get_workflow_handle(run_id, run_id=execution)


def closing_task(event: HistoryEvent) -> int | None:
    """Return the id of the completed workflow task that ended an execution, or None if the server ended it."""
    match event.event_type:
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
            return event.workflow_execution_completed_event_attributes.workflow_task_completed_event_id
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
            return event.workflow_execution_failed_event_attributes.workflow_task_completed_event_id
        case _:
            return None


def _now() -> datetime:
    return datetime.now(UTC)
