"""Repair a run whose workflow task fails, because today's code can't replay its history.

The run is reset to its last sound workflow task, which is the newest one up to which this code can replay the history.
The server keeps what has reached the run since: signals and updates are handled again, in their order. A reset that
would repeat something is refused.
"""

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from temporalio.api.common.v1 import WorkflowExecution as ExecutionId
from temporalio.api.enums.v1 import EventType, ResetReapplyType
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowHistory

from loom.activities.adapters.temporal.errors import answered
from loom.activities.adapters.temporal.task_faults import task_fault
from loom.composition.replay import replay_error
from loom.domain.core.errors import RefusedError
from loom.domain.core.repositories import IN_CLONE
from loom.domain.core.tool_calls import Effect
from loom.domain.run.activity_payloads import ToolRequest
from loom.visibility import REPAIRED

_COMPLETED: Final = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
_ANSWERED: Final = EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
_CHILD: Final = EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED
_REQUESTS: Final = (
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
)
_NO_ENDS: Final = ("activity_task_scheduled", "activity_task_started", "activity_task_cancel_requested")
_DIVERGES: Final = "TMPRL1100"
"""The SDK's error code for a history that the code can't replay."""
_FAULTY: Final = re.compile(r"HistoryEvent\(id: (\d+)")
"""Matches the event at which a replay fails, in the SDK's description of the failure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """What a repair has done."""

    run_id: str
    error: str
    """Why the run's workflow task failed."""
    event: int
    """The workflow task in the history from which the run has gone on."""
    events: int
    """The number of events after it that the run has left."""
    requests: int
    """The number of signals and updates among them. The run handles them again."""
    model_calls: int
    """The number of model calls among them, which are made again."""


class RunRepair:
    """Repairs runs."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def one(self, description: WorkflowExecutionDescription) -> Repair:
        """Repair a run.

        Raises RefusedError if there is nothing to repair, or if the repair would repeat an effect or start a sub-agent
        twice.
        """
        run_id = description.id
        if description.status is not WorkflowExecutionStatus.RUNNING:
            raise RefusedError(f"run {run_id!r} has ended: `loom retry` continues it")
        with answered(run_id):
            fault = await task_fault(self._client, description)
            handle = self._client.get_workflow_handle(run_id, run_id=description.run_id)
            history = await handle.fetch_history()
        if fault is None:  # perhaps only the release that runs this can't replay it
            raise RefusedError(f"run {run_id!r} needs no repair: its workflow task doesn't fail")
        error = await self._error(history.events, run_id)
        if error is None:
            raise RefusedError(
                f"run {run_id!r} needs no reset, since this release can replay its history. Its workflow task fails"
                f" with {fault.error}: start workers of this release"
            )
        if _DIVERGES not in error:
            raise RefusedError(f"this release's workflow code fails with {error}: a reset of the run wouldn't help")
        task = await self._last_sound_task(history.events, run_id, error)
        left = [event for event in history.events if event.event_id > task]
        if (why := await self._repeats(history.events, task)) is not None:
            raise RefusedError(
                f"run {run_id!r} can be continued only from event {task}, and {why}: see what has been done, and"
                " continue it with `loom fork`"
            )
        await self._reset(run_id, description.run_id, task)
        return Repair(
            run_id=run_id,
            error=error,
            event=task,
            events=len(left),
            requests=sum(event.event_type in _REQUESTS for event in left),
            model_calls=sum(_activity(event) == "call_model" for event in left),
        )

    async def _last_sound_task(self, events: Sequence[HistoryEvent], run_id: str, error: str) -> int:
        """Return the id of the event that completed the newest workflow task up to which the history can be replayed.

        What the task itself did is left, so its events needn't be replayed.
        """
        faulty = _FAULTY.search(error)
        newest = int(faulty[1]) if faulty else events[-1].event_id
        for task in reversed([event for event in events if event.event_type == _COMPLETED]):
            if task.event_id > newest:
                continue
            started = task.workflow_task_completed_event_attributes.started_event_id
            if await self._error([event for event in events if event.event_id <= started], run_id) is None:
                return task.event_id
        raise RefusedError(f"not even the first workflow task of run {run_id!r} can be replayed: {error}")

    async def _error(self, events: Sequence[HistoryEvent], run_id: str) -> str | None:
        history = WorkflowHistory(workflow_id=run_id, events=History(events=events).events)
        return await replay_error(history, self._client.data_converter)

    async def _repeats(self, events: Sequence[HistoryEvent], task: int) -> str | None:
        """Return what would happen twice if the events after this task were left, or None.

        A call with an effect may be made again if the reply that contains it stays in the history: the call then has
        the same id, and the effect ledger knows it.
        """
        left = [event for event in events if event.event_id > task]
        if any(event.event_type == _CHILD for event in left):
            return "it has started a sub-agent since"
        if any(_activity(event) == "run_node" for event in left):
            return "it has run a node's function since"
        ended = {_ended(event) for event in events if event.event_id <= task}
        unended = [event for event in events if _activity(event) and event.event_id not in ended]
        answered_at = {_ended(event) for event in events if event.event_id <= task and event.event_type == _ANSWERED}
        replies = {_activity_id(event) for event in events if event.event_id in answered_at}
        async for request in self._calls(unended):
            stays = any(name.startswith(f"t{request.turn}-model") for name in replies)
            if request.effect is not Effect.READ and not (request.accounted and stays):
                return f"since then, it has called {request.tool} ({request.call_id})"
        return None

    async def _calls(self, events: Sequence[HistoryEvent]) -> AsyncIterator[ToolRequest]:
        for event in events:
            if _activity(event) == "run_tool":
                given = event.activity_task_scheduled_event_attributes.input.payloads
                (request,) = await self._client.data_converter.decode(given, [ToolRequest])
                yield request

    async def _reset(self, run_id: str, execution: str, task: int) -> None:
        request = ResetWorkflowExecutionRequest(
            namespace=self._client.namespace,
            workflow_execution=ExecutionId(workflow_id=run_id, run_id=execution),
            reason=REPAIRED,
            workflow_task_finish_event_id=task,
            reset_reapply_type=ResetReapplyType.RESET_REAPPLY_TYPE_ALL_ELIGIBLE,
            request_id=str(uuid5(NAMESPACE_URL, f"loom-repair:{execution}")),
            identity=self._client.identity,
        )
        with answered(run_id):
            # A second reset of the same execution would terminate what the first one has begun.
            if (await self._client.get_workflow_handle(run_id).describe()).run_id != execution:
                raise RefusedError(f"run {run_id!r} has gone on meanwhile")
            await self._client.workflow_service.reset_workflow_execution(request)


def _ended(event: HistoryEvent) -> int:
    """Return the id of the event that scheduled the activity which this event ended, or 0."""
    attributes = event.WhichOneof("attributes") or ""
    is_end = attributes.startswith("activity_task_") and not attributes.startswith(_NO_ENDS)
    return int(getattr(event, attributes).scheduled_event_id) if is_end else 0


def _activity(event: HistoryEvent) -> str:
    return event.activity_task_scheduled_event_attributes.activity_type.name.removesuffix(IN_CLONE)


def _activity_id(event: HistoryEvent) -> str:
    return event.activity_task_scheduled_event_attributes.activity_id
