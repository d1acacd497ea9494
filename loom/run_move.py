"""Move runs that wait to another server, with their state.

A history can't be moved between Temporal servers. The state of a run can: this module replays the history without a
worker, takes the state that the run has at its end, and starts the run with it on the other server, under the same id
(`workflows/moved_run.py`). Once a worker there has admitted the run, it ends the run on the old server, and sends on
the signals that have reached the run there meanwhile. Payloads, artifacts and memory are in Postgres, and must have
been copied before.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final

from temporalio import workflow
from temporalio.api.common.v1 import Payloads
from temporalio.api.common.v1 import WorkflowExecution as ExecutionId
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import RequestCancelWorkflowExecutionRequest, SignalWorkflowExecutionRequest
from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowHistoryEventFilterType,
)
from temporalio.converter import DataConverter, WorkflowSerializationContext
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from loom.activities.adapters.temporal.errors import answered, no_run
from loom.activities.adapters.temporal.run_history import executions
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.composition.replay import has_begun, replayer
from loom.domain.core.errors import RefusedError
from loom.domain.core.requests import AGENT_RUN, RunResult
from loom.domain.machine.transitions import next_action
from loom.domain.run.actions import AskPerson, AwaitMessage, AwaitPerson, AwaitResume, Backoff
from loom.domain.run.events import Event
from loom.domain.run.state import RunState, waiting_on
from loom.workflows.activity_dispatch import priority_of
from loom.workflows.agent_run import AgentRun
from loom.workflows.moved_run import MOVED_RUN
from loom.workflows.options import TASK_TIMEOUT
from loom.workflows.validation import read_state

MOVED_FROM: Final = "moved_from"
"""The memo of a moved run that names its last execution on the other server."""
_WAITS: Final = (AskPerson, AwaitMessage, AwaitPerson, AwaitResume, Backoff)
ADMITTED_WITHIN: Final = 30.0
"""Seconds within which a worker of the new server must have admitted a run."""
_SOON: Final = 0.1
_DONE: Final = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
_SIGNALED: Final = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
_CANCEL_REQUESTED: Final = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED


@dataclass(frozen=True, kw_only=True, slots=True)
class MovedRunReport:
    """What has become of a run that was to be moved."""

    run_id: str
    moved: bool
    waiting_on: str | None
    reason: str | None
    """Why the run can't be moved, or None if it was."""


class RunMove:
    """Moves runs from one server to another. No worker may serve the old one meanwhile."""

    def __init__(self, source: Client, target: Client, *, task_queue: str, address: str) -> None:
        """`address` is that of the new server. The reason for the end of the old runs names it."""
        self._source = source
        self._target = target
        self._task_queue = task_queue
        self._address = address

    async def all(self) -> AsyncGenerator[MovedRunReport]:
        """Move each run in progress that waits and is not a sub-agent. Crews aren't moved, either.

        Moves that were interrupted at their end are finished without a report.
        """
        query = f"WorkflowType = '{AGENT_RUN}' AND ExecutionStatus IN ('Running', 'Terminated')"
        async for execution in TemporalRuns(self._source).found(query):
            if execution.parent_id is not None:
                continue
            if execution.status is WorkflowExecutionStatus.RUNNING:
                yield await self.one(execution.id)
            else:
                with answered(execution.id):
                    await self._was_moved(execution)

    async def one(self, run_id: str) -> MovedRunReport:
        """Move a run. A second call finishes a move that was interrupted.

        Raises RunNotFoundError if the old server has no such run, and UnreachableError if a server doesn't respond.
        """
        with answered(run_id):
            described = await self._source.get_workflow_handle(run_id).describe()
            if described.status is not WorkflowExecutionStatus.RUNNING:
                if not await self._was_moved(described):
                    return _kept(run_id, "it has ended")
                return MovedRunReport(run_id=run_id, moved=True, waiting_on=None, reason=None)
            histories = [history async for history in executions(self._source, run_id)]
        if not histories:
            raise no_run(run_id)
        try:
            state = await state_at_end(histories[0], self._source)
        except RefusedError as error:
            return _kept(run_id, error.message)
        first = histories[-1].events[0].workflow_execution_started_event_attributes.first_execution_run_id
        # Effects are recorded under this id. Under the new server's, a call that has begun would be made again.
        environment = replace(state.environment, first_execution=state.environment.first_execution or first)
        state = replace(state, environment=environment)
        request, *_ = await _input_of(histories[-1], self._source)
        return await self._moved(state, request, described)

    async def _moved(self, state: RunState, request: Any, here: WorkflowExecutionDescription) -> MovedRunReport:
        run_id, execution = here.id, here.run_id
        there = self._target.get_workflow_handle(run_id)
        with answered(run_id):
            if not await _is_admitted(there, execution):
                try:
                    await self._target.start_workflow(
                        MOVED_RUN,
                        args=[request, state],
                        id=run_id,
                        task_queue=self._task_queue,
                        task_timeout=TASK_TIMEOUT,
                        memo={**await here.memo(), MOVED_FROM: execution},  # it names who has started the run
                        priority=priority_of(state.request, state.request.priority),
                    )
                except WorkflowAlreadyStartedError:
                    if (await (await there.describe()).memo()).get(MOVED_FROM) != execution:
                        return _kept(run_id, f"{self._address} has another run with this id")
                if (reason := await self._refusal(there)) is not None:
                    return _kept(run_id, reason)
            old = self._source.get_workflow_handle(run_id, run_id=execution)
            await old.terminate(reason=self._end)
            await self._send_on(await old.fetch_history(), execution)
        return MovedRunReport(run_id=run_id, moved=True, waiting_on=waiting_on(state), reason=None)

    @property
    def _end(self) -> str:
        """The reason for the end of an old run."""
        return f"moved to {self._address}"

    async def _was_moved(self, ended: WorkflowExecution) -> bool:
        """Whether a run on the old server ended because it was moved. If so, finish the move."""
        old = self._source.get_workflow_handle(ended.id, run_id=ended.run_id)
        close = WorkflowHistoryEventFilterType.CLOSE_EVENT
        last = await anext(old.fetch_history_events(event_filter_type=close), None)
        if last is None or last.workflow_execution_terminated_event_attributes.reason != self._end:
            return False
        await self._send_on(await old.fetch_history(), ended.run_id)
        return True

    async def _send_on(self, history: WorkflowHistory, execution: str) -> None:
        """Send the run the requests that its state doesn't contain yet. A second call sends none of them twice.

        `execution` is the one that was moved. If the new server has already deleted a part of the run's history, it may
        have received them there. Nothing is sent then.
        """
        if not (unhandled := _unhandled(history)):
            return
        run_id = history.workflow_id
        try:
            there = await self._target.get_workflow_handle(run_id).describe()
            if there.status is not WorkflowExecutionStatus.RUNNING or (await there.memo()).get(MOVED_FROM) != execution:
                return  # the run has ended there, or another one has its id
            chain = [each async for each in executions(self._target, run_id)]
            if chain[-1].events[0].workflow_execution_started_event_attributes.continued_execution_run_id:
                return
            senders = {_identity(event) for each in chain for event in each.events}
            for event in unhandled:
                if _sender(event, history) not in senders:
                    await self._send(event, history)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            # The run has ended there, and no request changes that.

    async def _send(self, event: HistoryEvent, history: WorkflowHistory) -> None:
        """Send one request. The server recognizes its id only until the run continues as new. Its sender is recorded in
        the run's history.
        """
        there = ExecutionId(workflow_id=history.workflow_id)
        request_id, sender = f"{history.run_id}/{event.event_id}", _sender(event, history)
        if event.event_type == _CANCEL_REQUESTED:
            cancellation = RequestCancelWorkflowExecutionRequest(
                namespace=self._target.namespace, workflow_execution=there, identity=sender, request_id=request_id
            )
            await self._target.workflow_service.request_cancel_workflow_execution(cancellation, retry=True)
            return
        sent = event.workflow_execution_signaled_event_attributes
        content = await _converter(self._source, history).decode(sent.input.payloads)
        request = SignalWorkflowExecutionRequest(
            namespace=self._target.namespace,
            workflow_execution=there,
            signal_name=sent.signal_name,
            input=Payloads(payloads=await _converter(self._target, history).encode(content)),
            header=sent.header,  # with the signature of whoever has sent it
            identity=sender,
            request_id=request_id,
        )
        await self._target.workflow_service.signal_workflow_execution(request, retry=True)

    async def _refusal(self, there: WorkflowHandle[Any, Any]) -> str | None:
        """Wait until a worker has admitted the run. Return the reason if none has. Then no worker will admit it later,
        so that it doesn't live on both servers.
        """
        until = monotonic() + ADMITTED_WITHIN
        while (described := await there.describe()).workflow_type == MOVED_RUN:
            if described.status is not WorkflowExecutionStatus.RUNNING:
                try:
                    await there.result()
                except WorkflowFailureError as error:
                    return str(error.cause)
            if monotonic() > until and await self._withdrawn(described):
                return f"no worker of {self._address} has admitted it: start one with `loom worker`, and try again"
            await asyncio.sleep(_SOON)
        return None

    async def _withdrawn(self, described: WorkflowExecutionDescription) -> bool:
        """End the run on the new server. Return False if a worker has admitted it meanwhile."""
        waiting = self._target.get_workflow_handle(described.id, run_id=described.run_id)
        try:
            await waiting.terminate(reason="no worker has admitted it in time")
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return True


async def _is_admitted(there: WorkflowHandle[Any, Any], execution: str) -> bool:
    """Whether a move that was interrupted has brought this execution already. The run may even have ended since."""
    try:
        described = await there.describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return described.workflow_type != MOVED_RUN and (await described.memo()).get(MOVED_FROM) == execution


def _kept(run_id: str, reason: str) -> MovedRunReport:
    return MovedRunReport(run_id=run_id, moved=False, waiting_on=None, reason=reason)


async def state_at_end(history: WorkflowHistory, client: Client) -> RunState:
    """Return the state of a run that waits, at the end of its history. Raises RefusedError if it can't be moved."""
    if _unhandled(history):
        raise RefusedError("it has requests that no worker has handled: start a worker, and try again")
    if has_begun(history):
        recorder = _StateRecorder()
        outcome = await replayer(client.data_converter, recorder).replay_workflow(
            history, raise_on_replay_failure=False
        )
        if outcome.replay_failure is not None or recorder.state is None:
            raise RefusedError(f"its history can't be replayed: {outcome.replay_failure}")
        state = recorder.state
    else:  # a chat that rests until its next message
        _, carried = await _input_of(history, client)
        state = read_state(carried)
    if state.spec is None or state.outcome is not None or not isinstance(next_action(state), _WAITS):
        raise RefusedError(f"it is at work: run `loom pause {state.run_id}` while a worker runs, and try again")
    if state.tree.running:
        raise RefusedError("it has sub-agents at work: wait for them, or abort it")
    return state


def _unhandled(history: WorkflowHistory) -> Sequence[HistoryEvent]:
    """Return the signals and the cancellation that have arrived since the last workflow task."""
    last = max((number for number, event in enumerate(history.events) if event.event_type == _DONE), default=-1)
    return [event for event in history.events[last + 1 :] if event.event_type in (_SIGNALED, _CANCEL_REQUESTED)]


def _sender(event: HistoryEvent, history: WorkflowHistory) -> str:
    """Return the identity under which a request is sent on: the one that sent it, and the event on the old server."""
    return f"{_identity(event)} (moved: {history.run_id}/{event.event_id})"


def _identity(event: HistoryEvent) -> str:
    """Return who has sent a signal or a cancellation. For any other event, return an empty text."""
    if event.event_type == _CANCEL_REQUESTED:
        return event.workflow_execution_cancel_requested_event_attributes.identity
    return event.workflow_execution_signaled_event_attributes.identity


def _converter(client: Client, history: WorkflowHistory) -> DataConverter:
    context = WorkflowSerializationContext(namespace=client.namespace, workflow_id=history.workflow_id)
    return client.data_converter.with_context(context)


async def _input_of(history: WorkflowHistory, client: Client) -> list[Any]:
    started = history.events[0].workflow_execution_started_event_attributes
    return await client.data_converter.decode(started.input.payloads)


class _StateRecorder(Interceptor):
    """Keeps the state of the run that is replayed."""

    def __init__(self) -> None:
        self.state: RunState | None = None

    def workflow_interceptor_class(
        self,
        input: WorkflowInterceptorClassInput,  # noqa: A002 - the SDK's name
    ) -> type[WorkflowInboundInterceptor]:
        """See base class."""
        recorder = self

        class Inbound(WorkflowInboundInterceptor):
            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002
                run = workflow.instance()
                if isinstance(run, AgentRun):
                    run.observer = recorder
                    recorder.state = run.state
                return await super().execute_workflow(input)

        return Inbound

    def advanced(self, before: RunState, event: Event, after: RunState) -> None:
        """Keep the new state. See `RunObserver`."""
        self.state = after

    def ended(self, result: RunResult) -> None:
        """See `RunObserver`."""
