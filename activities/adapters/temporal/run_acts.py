"""Read from Temporal's history what people and programs have done to runs.

    event in the history             act
    execution started                start, or fork; not after continue-as-new
    execution of RunFiles started    write_file, if that is what it is for
    update accepted                  approve, deny, pause, … The run has accepted it.
    signaled                         the same, if it was sent as a signal
    cancel requested                 cancel
    terminated                       terminate
    workflow task failed by a reset  reset

The history contains every act, from any client, with the server's time. Reading it costs the run nothing. Executions
are read backwards from their newest event to the last one that was read before, so that each event is read once.

A reset repeats signals that came after the point of the reset. They are the same acts, and have the same keys.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from temporalio.api.common.v1 import Payload
from temporalio.api.common.v1 import WorkflowExecution as ExecutionId
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent, WorkflowExecutionStartedEventAttributes
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryReverseRequest,
)
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.converter import DataConverter, WorkflowSerializationContext
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.adapters.postgres.payloads import UNAVAILABLE
from loom.activities.adapters.temporal.run_index import TemporalRunIndex
from loom.activities.ports import StoreUnavailable
from loom.domain.audit.entries import STEERING, Act, AuditEntry, Source, content_digest
from loom.domain.core.approval_proofs import LONGEST
from loom.domain.core.errors import EncryptionKeyError
from loom.domain.core.requests import AGENT_RUN, CREW_RUN, STARTED_BY
from loom.domain.core.run_files import RUN_FILES

_AT_ONCE: Final = 200
_ACTS: Final = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
        EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
    }
)
"""The types of the events that may record an act. Most events of a history have other types."""
_RESET: Final = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW


@dataclass(frozen=True, kw_only=True, slots=True)
class RunExecution:
    """An execution of a run, and the length of its history in events."""

    run_id: str
    execution: str
    events: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadActs:
    """The acts that were found in a run's history."""

    entries: Sequence[AuditEntry]
    """The acts, oldest first."""
    read: Mapping[str, int]
    """How many events of each execution have been read by now."""
    until: datetime | None
    """When the newest event happened, by the server's clock. None: the server has deleted the history."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _ExecutionActs:
    """What was found in one execution."""

    acts: Sequence[AuditEntry]
    """Newest first."""
    newest: HistoryEvent | None
    before: str
    """The execution that it continues, if acts in that one may be unread, too."""


class TemporalRunActs:
    """Reads the acts of all runs on a task queue. All methods raise RPCError if the server can't be reached, and
    StoreUnavailable if content can't be read at the moment.
    """

    def __init__(self, client: Client, task_queue: str) -> None:
        """The client's converter must be able to decode payloads from Loom's workers."""
        self._client = client
        self.task_queue = task_queue

    async def server(self) -> str:
        """Return the ID of the namespace on its server."""
        return await TemporalRunIndex(self._client).server()

    async def executions(self, since: datetime | None) -> AsyncIterator[RunExecution]:
        """Yield the executions that haven't ended, and those that ended after `since`."""
        ended = "ExecutionStatus != 'Running'" + (f" AND CloseTime > '{since.isoformat()}'" if since else "")
        own = f"WorkflowType IN ('{AGENT_RUN}', '{CREW_RUN}', '{RUN_FILES}') AND TaskQueue = '{self.task_queue}'"
        async for each in self._client.list_workflows(f"{own} AND (ExecutionStatus = 'Running' OR ({ended}))"):
            if each.status is WorkflowExecutionStatus.CONTINUED_AS_NEW:
                continue  # it is read together with the execution after it
            events = each.history_length
            if each.status is WorkflowExecutionStatus.RUNNING:
                described = await self._client.get_workflow_handle(each.id, run_id=each.run_id).describe()
                events = described.history_length
            yield RunExecution(run_id=each.id, execution=each.run_id, events=events)

    async def acts(self, run_id: str, execution: str, read: Mapping[str, int], since: datetime | None) -> ReadActs:
        """Return the acts in an execution, and in the earlier ones that it continues, after `since`. Skip the events
        that have been `read` before: the first ones of each execution, by its ID.
        """
        found: list[AuditEntry] = []
        ends: dict[str, int] = {}
        until: datetime | None = None
        while execution:
            here = await self._acts_of(run_id, execution, read.get(execution, 0), since)
            if (newest := here.newest) is not None:
                ends[execution] = newest.event_id
                until = until or _at(newest)
            if here.acts:
                first = here.acts[-1]
                is_start = first.act in (Act.START, Act.FORK, Act.WRITE_FILE)
                tenant = first.tenant if is_start else await self._tenant(run_id, execution)
                found += [replace(entry, tenant=tenant) for entry in here.acts]
            execution = here.before
        return ReadActs(entries=found[::-1], read=ends, until=until)

    async def _acts_of(self, run_id: str, execution: str, known: int, since: datetime | None) -> "_ExecutionActs":
        """Return the acts in one execution after `since`, without its first `known` events."""
        earliest = 0 if since is None else round(since.timestamp() * 1e9)
        acts: list[AuditEntry] = []
        signals: dict[str, int] = {}
        newest, before = None, ""
        async with aclosing(self._newest_first(run_id, execution)) as events:
            async for event in events:
                newest = newest or event
                if event.event_id <= known or event.event_time.ToNanoseconds() < earliest:
                    break
                if event.event_type not in _ACTS:
                    continue
                before = event.workflow_execution_started_event_attributes.continued_execution_run_id
                if (entry := await self._entry(run_id, event)) is None:
                    continue
                if request_id := event.workflow_execution_signaled_event_attributes.request_id:
                    signals[request_id] = len(acts)
                if signals and (base := _base_of(event)):
                    originals = await self._originals(run_id, base)
                    for repeated in signals.keys() & originals.keys():
                        key, at = originals[repeated]
                        acts[signals[repeated]] = replace(acts[signals[repeated]], key=key, at=at)
                acts.append(entry)
        return _ExecutionActs(acts=acts, newest=newest, before=before)

    async def _originals(self, run_id: str, execution: str) -> dict[str, tuple[str, datetime]]:
        """Return the key and the time of each signal that a reset of this execution repeats, by request ID.

        These are the signals to the execution itself and to those that have continued it. If it was itself made by a
        reset, signals that were repeated then have the key and the time of their originals.
        """
        found: dict[str, tuple[str, datetime]] = {}
        others: set[str] = set()
        async with aclosing(self._newest_first(run_id, execution)) as events:
            async for event in events:
                if request_id := event.workflow_execution_signaled_event_attributes.request_id:
                    found[request_id] = _key(run_id, event), _at(event)
                continued = event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id
                others |= {other for other in (_base_of(event), continued) if other}
        for other in others:
            found |= await self._originals(run_id, other)
        return found

    async def _newest_first(self, run_id: str, execution: str) -> AsyncGenerator[HistoryEvent, None]:
        """Yield the events of an execution. Yield nothing if the server has deleted it."""
        token = b""
        while True:
            request = GetWorkflowExecutionHistoryReverseRequest(
                namespace=self._client.namespace,
                execution=ExecutionId(workflow_id=run_id, run_id=execution),
                maximum_page_size=_AT_ONCE,
                next_page_token=token,
            )
            try:
                page = await self._client.workflow_service.get_workflow_execution_history_reverse(request, retry=True)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                return
            for event in page.history.events:
                yield event
            if not (token := page.next_page_token):
                return

    async def _entry(self, run_id: str, event: HistoryEvent) -> AuditEntry | None:
        """Return the act that this event records, or None. Only the entry of a start contains the run's tenant."""
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                started = event.workflow_execution_started_event_attributes
                is_run = started.workflow_type.name != RUN_FILES
                return await (self._start(run_id, event) if is_run else self._file_access(run_id, event))
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED:
                asked = event.workflow_execution_update_accepted_event_attributes.accepted_request
                name, args, sender = asked.input.name, asked.input.args.payloads, asked.meta.identity
                source = Source.UPDATE
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
                sent = event.workflow_execution_signaled_event_attributes
                name, args, sender = sent.signal_name, sent.input.payloads, sent.identity
                source = Source.SIGNAL
                if above := sent.external_workflow_execution.workflow_id:
                    source, sender = Source.WORKFLOW, above
            case _:
                return _by_server(run_id, event)
        if name not in STEERING:
            return None
        content = await self._content(run_id, args[:1])
        return _entry(
            event,
            run_id,
            Act(name),
            source,
            identity=sender,
            by=_text(content, "by"),
            subject=_text(content, "call_id"),
            digest="" if content is None else content_digest(content),
            proof=proof if len(proof := _text(content, "proof")) <= LONGEST else "",
        )

    async def _start(self, run_id: str, event: HistoryEvent) -> AuditEntry | None:
        started = event.workflow_execution_started_event_attributes
        if started.continued_execution_run_id:
            return None
        request = await self._content(run_id, started.input.payloads[:1])
        memo = await self._content(run_id, [each] if (each := started.memo.fields.get(STARTED_BY)) else [])
        forked = request.get("forked_from") if isinstance(request, Mapping) else None
        parent = started.parent_workflow_execution.workflow_id
        return _entry(
            event,
            run_id,
            Act.START if forked is None else Act.FORK,
            Source.WORKFLOW if parent else Source.TEMPORAL,
            identity=parent or started.identity,
            tenant=_tenant_in(request, started),
            by=memo if isinstance(memo, str) else "",
            subject=_text(forked, "run_id") or _text(request, "agent") or _text(request, "crew"),
            digest="" if request is None else content_digest(request),
        )

    async def _file_access(self, workflow_id: str, event: HistoryEvent) -> AuditEntry | None:
        """Return the act of writing a file, or None."""
        started = event.workflow_execution_started_event_attributes
        request = await self._content(workflow_id, started.input.payloads[:1])
        if request is not None and _text(request, "operation") != "write":
            return None
        memo = await self._content(workflow_id, [each] if (each := started.memo.fields.get(STARTED_BY)) else [])
        entry = _entry(
            event,
            workflow_id,
            Act.WRITE_FILE,
            Source.TEMPORAL,
            identity=started.identity,
            tenant=_tenant_in(request, started),
            by=memo if isinstance(memo, str) else "",
            subject=_text(request, "path"),
            digest="" if request is None else content_digest(request),
        )
        return replace(entry, run_id=_text(request, "run_id") or workflow_id)

    async def _tenant(self, run_id: str, execution: str) -> str:
        """Return the tenant of a run, from the request in the first event of its execution."""
        request = GetWorkflowExecutionHistoryRequest(
            namespace=self._client.namespace,
            execution=ExecutionId(workflow_id=run_id, run_id=execution),
            maximum_page_size=1,
        )
        page = await self._client.workflow_service.get_workflow_execution_history(request, retry=True)
        started = page.history.events[0].workflow_execution_started_event_attributes
        content = await self._content(run_id, started.input.payloads[:1])
        return _tenant_in(content, started)

    async def _content(self, run_id: str, payloads: Sequence[Payload]) -> Any:
        """Return the decoded payload, {} if there is none, or None if it can't be decoded any more."""
        context = WorkflowSerializationContext(namespace=self._client.namespace, workflow_id=run_id)
        converter: DataConverter = self._client.data_converter.with_context(context)
        try:
            decoded = await converter.decode(list(payloads))
        except ApplicationError as error:
            if error.type == UNAVAILABLE:
                raise StoreUnavailable(error.message) from error
            return None
        except (EncryptionKeyError, ValueError, TypeError, RuntimeError):
            return None  # for example, the tenant was forgotten: that the act happened is recorded nevertheless
        return {} if not decoded or decoded[0] is None else decoded[0]


def _by_server(run_id: str, event: HistoryEvent) -> AuditEntry | None:
    """Return what the server was asked to do to the run, or None."""
    match event.event_type:
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED:
            asked = event.workflow_execution_cancel_requested_event_attributes
            act, sender, above = Act.CANCEL, asked.identity, asked.external_workflow_execution.workflow_id
            subject, reason = "", asked.cause
        case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
            ended = event.workflow_execution_terminated_event_attributes
            act, sender, above, subject, reason = Act.TERMINATE, ended.identity, "", "", ended.reason
        case EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            reset = event.workflow_task_failed_event_attributes
            if reset.cause != _RESET:
                return None
            act, sender, above, subject = Act.RESET, reset.identity, "", reset.base_run_id
            reason = reset.failure.message
        case _:
            return None
    return _entry(
        event,
        run_id,
        act,
        Source.WORKFLOW if above else Source.TEMPORAL,
        identity=above or sender,
        subject=subject,
        digest=content_digest({"reason": reason}),
    )


def _base_of(event: HistoryEvent) -> str:
    """Return the execution that was reset, if this event is the reset."""
    failed = event.workflow_task_failed_event_attributes
    return failed.base_run_id if failed.cause == _RESET else ""


def _key(run_id: str, event: HistoryEvent) -> str:
    """Return the key of an event. A reset copies events with their number and time, so their keys stay the same."""
    return f"{run_id} {event.event_id} {event.event_time.ToNanoseconds()}"


def _entry(event: HistoryEvent, run_id: str, act: Act, source: Source, **known: str) -> AuditEntry:
    return AuditEntry(key=_key(run_id, event), at=_at(event), act=act, source=source, run_id=run_id, **known)


def _tenant_in(request: Any, started: WorkflowExecutionStartedEventAttributes) -> str:
    return _text(request, "tenant") or started.priority.fairness_key


def _text(content: Any, name: str) -> str:
    value = content.get(name) if isinstance(content, Mapping) else None
    return value if isinstance(value, str) else ""


def _at(event: HistoryEvent) -> datetime:
    return event.event_time.ToDatetime(tzinfo=UTC)
