"""Read the inputs and results of a run's activities from a Temporal server, across continue-as-new."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistory
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.adapters.temporal.errors import answered, failure_message
from loom.activities.adapters.temporal.local_markers import local_activity
from loom.domain.agents.hook_steps import HookResult
from loom.domain.core.errors import BadRequest
from loom.domain.core.repositories import IN_CLONE
from loom.domain.core.requests import RunResult
from loom.domain.core.tasks import Published
from loom.domain.core.tool_calls import ToolResult
from loom.domain.history.past_turns import Beginning, ChildRun, CompressionAttempt, ModelAttempt, Record, ToolAttempt
from loom.domain.history.quick_attempts import LocalCalls, quick_reads
from loom.domain.run.activity_payloads import (
    ChildOutcome,
    ChildRequest,
    Compressed,
    CompressRequest,
    HookRequest,
    ModelReply,
    ModelRequest,
    Prepared,
    PrepareRequest,
    PublishRequest,
    ToolRequest,
)
from loom.domain.run.state import RunState
from loom.domain.tree.lineage import Lineage

_TYPES: Final[Mapping[str, tuple[type[Any], type[Any]]]] = {
    "prepare_run": (PrepareRequest, Prepared),
    "call_model": (ModelRequest, ModelReply),
    "conduct_crew": (ModelRequest, ModelReply),
    "run_tool": (ToolRequest, ToolResult),
    "compress_context": (CompressRequest, Compressed),
    "run_hook": (HookRequest, HookResult),
    "publish": (PublishRequest, Published),
}
"""The input and result types of each activity."""

_LOCAL: Final[Mapping[str, type[Any]]] = {"run_tool": ToolResult, "publish": Published}

_FIRST_EVENTS: Final = 20
"""Number of events to read from the start of a run. They include its preparation, unless the run had to wait for a
worker.
"""

_OF_TASKS: Final = {
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
}
"""The events of an execution that has begun to wait, and to which nothing has happened."""

_AT_ONCE: Final = 50
"""Number of events to decode before other tasks of the process may run."""

_BROKEN: Final = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: "activity_task_failed_event_attributes",
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: "activity_task_timed_out_event_attributes",
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: "activity_task_canceled_event_attributes",
}


class TemporalPasts:
    """An implementation of `Pasts` that uses a Temporal client. The client's converter must be able to decode payloads
    from Loom's workers.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def records(self, run_id: str) -> Sequence[Record]:
        """See the port."""
        converter = self._client.data_converter
        with answered(run_id):
            histories = [history async for history in executions(self._client, run_id)]
            try:
                records = [record for history in reversed(histories) for record in await _records(converter, history)]
                return [*records, *await _children(converter, reversed(histories))]
            except (ValueError, TypeError) as error:
                why = f"the history of run {run_id!r} is not the history of an agent or a crew: {error}"
                raise BadRequest(why, field="run_id") from error

    async def beginning(self, run_id: str) -> Beginning:
        """Return how the run's last execution started. Only its first events are read. If they can't be decoded, return
        an empty `Beginning`.
        """
        events = self._client.get_workflow_handle(run_id).fetch_history_events(page_size=_FIRST_EVENTS)
        try:
            with answered(run_id):
                await events.fetch_next_page()
            return await _beginning(self._client.data_converter, events.current_page or ())
        except (ValueError, TypeError, RuntimeError, ApplicationError):
            return Beginning()


async def _beginning(converter: DataConverter, events: Sequence[HistoryEvent]) -> Beginning:
    started = events[0].workflow_execution_started_event_attributes
    given = tuple(await converter.decode(started.input.payloads))
    preparing = {
        event.event_id
        for event in events
        if event.activity_task_scheduled_event_attributes.activity_type.name == "prepare_run"
    }
    completed = (event.activity_task_completed_event_attributes for event in events)
    came = next((each.result.payloads for each in completed if each.scheduled_event_id in preparing), ())
    prepared = await converter.decode(came, [Prepared] * len(came))
    return Beginning(
        given=given,
        goes_on=bool(started.continued_execution_run_id),
        prepared=next(iter(prepared), None),
        untouched=all(event.event_type in _OF_TASKS for event in events[1:]),
    )


async def executions(client: Client, run_id: str) -> AsyncIterator[WorkflowHistory]:
    """Yield the history of each execution, newest first. Executions that the server has deleted are omitted."""
    execution: str | None = None
    while True:
        try:
            history = await client.get_workflow_handle(run_id, run_id=execution).fetch_history()
        except RPCError as error:
            if execution is None or error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return
        yield history
        execution = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
        if not execution:
            return


async def _records(converter: DataConverter, history: WorkflowHistory) -> list[Record]:
    """Return the activities in one history, ordered by their end times. Activities that are still running come last."""
    open_ones: dict[int, tuple[str, Any]] = {}
    records: list[Record] = []
    local = LocalCalls()
    for number, event in enumerate(history.events):
        if not number % _AT_ONCE:  # a long history must not keep a worker from its heartbeats
            await asyncio.sleep(0)
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
            started = event.workflow_execution_started_event_attributes
            carried = started.input.payloads[1:2] if started.continued_execution_run_id else []
            records += await converter.decode(carried, [RunState] * len(carried))
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            if (name := scheduled.activity_type.name.removesuffix(IN_CLONE)) in _TYPES:
                hints = [_TYPES[name][0]]
                (given,) = await converter.decode(scheduled.input.payloads, hints)
                open_ones[event.event_id] = (name, given)
                if isinstance(given, PrepareRequest):
                    records.append(given.request)
        elif (ended := await _ended(converter, event, open_ones, local)) is not None:
            records += [ended, *_quick_attempts(ended)]
    return [*records, *(record for name, given in open_ones.values() if (record := _record(name, given)) is not None)]


async def _ended(
    converter: DataConverter, event: HistoryEvent, open_ones: dict[int, tuple[str, Any]], local: LocalCalls
) -> Record | None:
    if event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED:
        return await _ended_locally(converter, event, local)
    if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
        completed = event.activity_task_completed_event_attributes
        if completed.scheduled_event_id not in open_ones:
            return None
        name, given = open_ones.pop(completed.scheduled_event_id)
        hints = [_TYPES[name][1]]
        (came,) = await converter.decode(completed.result.payloads, hints)
        if isinstance(came, ModelReply):
            local.answered(given, came)
        return _record(name, given, came)
    if event.event_type in _BROKEN:
        broken = getattr(event, _BROKEN[event.event_type])
        if broken.scheduled_event_id in open_ones:
            name, given = open_ones.pop(broken.scheduled_event_id)
            failure = getattr(broken, "failure", None)
            why = "cancelled" if failure is None else await failure_message(converter, failure)
            return _record(name, given, error=why or "failed")
    return None


def _quick_attempts(ended: Record) -> Iterable[ToolAttempt]:
    if isinstance(ended, ModelAttempt) and ended.reply is not None:
        for asked, result in quick_reads(ended.request, ended.reply):
            yield ToolAttempt(request=asked, result=result, error="" if result is not None else "not done in time")


async def _ended_locally(
    converter: DataConverter, event: HistoryEvent, local: LocalCalls
) -> ToolAttempt | Published | None:
    done = await local_activity(converter, event, _LOCAL)
    if done is None:
        return None
    if isinstance(done.result, Published):
        return done.result
    if (request := local.request(done.activity_id)) is None:
        return None
    why = "" if done.failure is None else await failure_message(converter, done.failure) or "failed"
    return ToolAttempt(request=request, result=done.result, error=why)


async def _children(converter: DataConverter, histories: Iterable[WorkflowHistory]) -> list[ChildRun]:
    """Return the child runs that have ended with a result, successfully or not. If a run continues as new, its child
    may start and end in different executions.
    """
    begun: dict[str, Lineage] = {}
    ended: list[ChildRun] = []
    for history in histories:
        followed: dict[int, str] = {}
        for event in history.events:
            if event.event_type == EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED:
                asked = event.start_child_workflow_execution_initiated_event_attributes
                (begun[asked.workflow_id],) = await converter.decode(asked.input.payloads[1:2], [Lineage])
            elif event.activity_task_scheduled_event_attributes.activity_type.name == "await_child":
                given = event.activity_task_scheduled_event_attributes.input.payloads
                followed[event.event_id] = (await converter.decode(given, [ChildRequest]))[0].run_id
            elif (came := await _result_below(converter, event, followed)) is not None and came[0] in begun:
                name, result = came
                ended.append(ChildRun(run_id=name, lineage=begun[name], result=result))
    return ended


async def _result_below(
    converter: DataConverter, event: HistoryEvent, followed: Mapping[int, str]
) -> tuple[str, RunResult] | None:
    """If this event ends a child run, return its id and its result. Return None for other events and if there is no
    result.

    If a run failed, its failure contains the result. `followed` has the child runs that activities wait for.
    """
    match event.event_type:
        case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED:
            completed = event.child_workflow_execution_completed_event_attributes
            name, payloads = completed.workflow_execution.workflow_id, completed.result.payloads[:1]
        case EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED:
            failed = event.child_workflow_execution_failed_event_attributes
            details = failed.failure.application_failure_info.details
            name, payloads = failed.workflow_execution.workflow_id, details.payloads[:1]
        case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED if (
            done := event.activity_task_completed_event_attributes
        ).scheduled_event_id in followed:
            (outcome,) = await converter.decode(done.result.payloads, [ChildOutcome])
            return None if outcome.result is None else (followed[done.scheduled_event_id], outcome.result)
        case _:
            return None
    results = await converter.decode(payloads, [RunResult])
    return (name, results[0]) if results else None


def _record(name: str, given: Any, came: Any = None, *, error: str = "") -> Record | None:
    match name:
        case "call_model" | "conduct_crew":
            return ModelAttempt(request=given, reply=came, error=error)
        case "run_tool":
            return ToolAttempt(request=given, result=came, error=error)
        case "compress_context":
            return CompressionAttempt(request=given, done=came, error=error)
        case "run_hook" | "publish":
            return Published(notices=given.notices)
        case _:
            return came if isinstance(came, Prepared) else None
