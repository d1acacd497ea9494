"""Read runs' histories from a Temporal server and decode them into facts."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pydantic import AliasChoices, AliasPath, BaseModel, Field, ValidationError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import RawValue
from temporalio.converter import DataConverter, WorkflowSerializationContext
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.adapters.temporal.errors import own_message
from loom.activities.adapters.temporal.local_markers import local_activity
from loom.activities.memory.histories import Execution, Moved, UnreadableHistory
from loom.domain.agents.hook_steps import HookResult
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.repositories import IN_CLONE
from loom.domain.core.requests import RunResult
from loom.domain.core.tasks import Origin, Published, correlation_of
from loom.domain.core.tool_calls import ToolResult
from loom.domain.history.facts import (
    ActivityAttempt,
    ActivityOutcome,
    ActivityRequest,
    AttemptFailure,
    ExecutionStarted,
    Fact,
    PinnedSettings,
    PublishedNotices,
    RunEnded,
)
from loom.domain.history.quick_attempts import LocalCalls, quick_reads
from loom.domain.run.activity_payloads import (
    Compressed,
    CompressRequest,
    ConductRequest,
    Evaluated,
    EvaluateRequest,
    HookRequest,
    ModelReply,
    ModelRequest,
    PrepareCallsRequest,
    Prepared,
    PreparedCalls,
    PrepareRequest,
    PublishRequest,
    Sampled,
    SampleRequest,
    ToolRequest,
)
from loom.domain.tree.lineage import is_child

TYPES: Final[Mapping[str, tuple[type[ActivityRequest], type[ActivityOutcome]]]] = {
    "prepare_run": (PrepareRequest, Prepared),
    "run_hook": (HookRequest, HookResult),
    "call_model": (ModelRequest, ModelReply),
    "conduct_crew": (ConductRequest, ModelReply),
    "run_tool": (ToolRequest, ToolResult),
    "plan_calls": (PrepareCallsRequest, PreparedCalls),
    "compress_context": (CompressRequest, Compressed),
    "evaluate_answer": (EvaluateRequest, Evaluated),
    "sample_model": (SampleRequest, Sampled),
}
"""Maps each activity that contributes facts to its input and result types."""

_PUBLISH: Final = "publish"
_LOCAL: Final[Mapping[str, type[Any]]] = {_PUBLISH: Published, "run_tool": ToolResult}
"""The result types of the local activities that contribute facts."""

_NOT_BEGUN: Final = ("NotFoundError",)
_UNDECODABLE: Final = "Failed decoding"


class TemporalHistories:
    """An implementation of `Histories` that uses a Temporal client. The client's converter must be able to decode
    payloads from Loom's workers.
    """

    def __init__(self, client: Client, task_queue: str) -> None:
        """Read only runs on this task queue. Runs on other task queues are stored in another memory."""
        self._client = client
        self._task_queue = task_queue

    async def moved(self, since: datetime | None, until: datetime) -> AsyncIterator[Moved]:
        """See the port. Raises RPCError if the server can't be reached."""
        ended = f"(CloseTime <= '{_time(until)}'" + (f" AND CloseTime > '{_time(since)}')" if since else ")")
        own = f"WorkflowType IN ('AgentRun', 'CrewRun') AND TaskQueue = '{self._task_queue}'"
        query = f"{own} AND (ExecutionStatus = 'Running' OR {ended})"
        async for execution in self._client.list_workflows(query):
            if execution.status is WorkflowExecutionStatus.CONTINUED_AS_NEW:
                continue  # the run's last execution is also listed
            events = execution.history_length
            if execution.status is WorkflowExecutionStatus.RUNNING:
                events = (await self._client.get_workflow_handle(execution.id).describe()).history_length
            yield Moved(run_id=execution.id, events=events)

    async def executions(self, run_id: str, since: datetime | None = None) -> AsyncIterator[Execution]:
        """See the port. Executions that the server has already deleted are omitted."""
        found = await self._found(run_id, None)
        if found is None:
            raise UnreadableHistory(f"the server no longer has a history of run {run_id!r}")
        while found is not None:
            earlier = await self._found(run_id, found.before) if found.before else None
            yield Execution(
                facts=found.facts,
                earlier=earlier.facts if earlier else (),
                began=found.began,
                unfinished=found.unfinished,
            )
            if since is not None and found.began <= since:
                return
            found = earlier

    async def _found(self, run_id: str, execution: str | None) -> "_Found | None":
        events = await self._events(run_id, execution)
        if not events:
            return None
        reading = _Reading(self._converter(run_id), run_id)
        return _Found(
            began=_at(events[0]),
            before=events[0].workflow_execution_started_event_attributes.continued_execution_run_id,
            facts=await reading.facts(events),
            unfinished=reading.unfinished,
        )

    def _converter(self, run_id: str) -> DataConverter:
        """Return a converter that learns from what it decodes which tenant the run works for."""
        context = WorkflowSerializationContext(namespace=self._client.namespace, workflow_id=run_id)
        return self._client.data_converter.with_context(context)

    async def _events(self, run_id: str, execution: str | None) -> Sequence[HistoryEvent]:
        try:
            events = (await self._client.get_workflow_handle(run_id, run_id=execution).fetch_history()).events
            return [each for event in events for each in (await self._earlier_end(run_id, event) or (event,))]
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return ()

    async def _earlier_end(self, run_id: str, event: HistoryEvent) -> Sequence[HistoryEvent]:
        """If a retry took back an end of the run at this event, return the events of that end: what the run published
        last, and its close.
        """
        failed = event.workflow_task_failed_event_attributes
        if failed.cause != WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_RESET_WORKFLOW:
            return ()
        try:
            ended = await self._client.get_workflow_handle(run_id, run_id=failed.base_run_id).fetch_history()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            return ()
        *taken_back, close = ended.events
        published = EventType.EVENT_TYPE_MARKER_RECORDED
        return [*(e for e in taken_back if e.event_id > event.event_id and e.event_type == published), close]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """One execution on the server."""

    began: datetime
    before: str
    """The Temporal run ID of the execution before it, or an empty string."""
    facts: tuple[Fact, ...]
    unfinished: Mapping[str, ActivityAttempt]


async def facts_of(converter: DataConverter, run_id: str, events: Sequence[HistoryEvent]) -> tuple[Fact, ...]:
    """Return the facts from one execution, in order. Raises UnreadableHistory if the history can't be decoded."""
    return await _Reading(converter, run_id).facts(events)


class _Carried(BaseModel):
    """The needed fields of an execution's second argument: a carried state, which may contain megabytes of
    conversation, or the lineage of a sub-agent's first execution.
    """

    root_run_id: str = Field(
        "", validation_alias=AliasChoices("root_run_id", AliasPath("tree", "lineage", "root_run_id"))
    )
    execution: str = Field("", validation_alias=AliasPath("environment", "execution"))
    spec_digest: str = Field("", validation_alias=AliasChoices(AliasPath("conversation", "spec_digest"), "spec_digest"))
    """At the second place in a state that a release before 0.4 carried on."""
    model: str = Field("", validation_alias=AliasPath("spec", "model"))
    approval_timeout: float = Field(AgentSpec.approval_timeout, validation_alias=AliasPath("spec", "approval_timeout"))
    """Omitted from history if it is the default."""

    @property
    def pinned(self) -> Mapping[str, PinnedSettings]:
        """The settings of the spec, keyed by its digest."""
        settings = PinnedSettings(model=self.model, approval_timeout=self.approval_timeout)
        return {self.spec_digest: settings} if self.spec_digest and self.model else {}


class _Reading:
    """Reads one execution, starting with its first event."""

    def __init__(self, converter: DataConverter, run_id: str) -> None:
        self._converter = converter
        self._run_id = run_id
        self._asked: dict[int, tuple[str, Any]] = {}
        self._began: dict[int, datetime] = {}
        self._scheduled: dict[int, tuple[str, datetime]] = {}
        """The activities that haven't ended, with their ids."""
        self._local = LocalCalls()

    async def facts(self, events: Sequence[HistoryEvent]) -> tuple[Fact, ...]:
        """Return the facts in these events, in order. Raises UnreadableHistory if they can't be decoded."""
        try:
            return tuple([fact for event in events for fact in await self._facts(event)])
        except (ValueError, TypeError, RuntimeError) as error:
            raise UnreadableHistory(f"the history of run {self._run_id!r} cannot be decoded: {error}") from error

    @property
    def unfinished(self) -> Mapping[str, ActivityAttempt]:
        """The activities that hadn't ended at the last event, by activity ID."""
        return {
            activity_id: ActivityAttempt(request=self._asked[scheduled][1], began=at, ended=at)
            for scheduled, (activity_id, at) in self._scheduled.items()
        }

    async def _facts(self, event: HistoryEvent) -> Sequence[Fact]:
        fact = await self._fact(event)
        if not isinstance(fact, ActivityAttempt):
            return () if fact is None else (fact,)
        if not isinstance(fact.request, ModelRequest) or not isinstance(fact.outcome, ModelReply):
            return (fact,)
        reads = [_quick_attempt(*each, fact.ended) for each in quick_reads(fact.request, fact.outcome)]
        answered = min((read.began for read in reads if read.began), default=fact.ended)
        return (replace(fact, ended=answered), *reads)

    async def _fact(self, event: HistoryEvent) -> Fact | None:
        match event.event_type:
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                return await self._begun(event)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                return await self._ask(event)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED:
                started = event.activity_task_started_event_attributes
                self._began[started.scheduled_event_id] = _at(event)
            case EventType.EVENT_TYPE_MARKER_RECORDED:
                return await self._done_locally(event)
            case _:
                return await self._over(event)
        return None

    async def _over(self, event: HistoryEvent) -> Fact | None:
        match event.event_type:
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                done = event.activity_task_completed_event_attributes
                name, asked = self._asked.get(done.scheduled_event_id, ("", None))
                came = await self._read(done.result, TYPES[name][1]) if name else None
                if isinstance(asked, ModelRequest) and isinstance(came, ModelReply):
                    self._local.answered(asked, came)
                return self._did(done.scheduled_event_id, event, came)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED:
                failed = event.activity_task_failed_event_attributes
                return await self._failed(failed.scheduled_event_id, event, failed.failure)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT:
                return self._did(event.activity_task_timed_out_event_attributes.scheduled_event_id, event, None)
            case EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED:
                return self._did(event.activity_task_canceled_event_attributes.scheduled_event_id, event, None)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
                result = event.workflow_execution_completed_event_attributes.result
                return await self._ended(event, result)
            case EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
                failure = event.workflow_execution_failed_event_attributes.failure
                return await self._ended(event, failure.application_failure_info.details)
            case _:
                return None

    async def _begun(self, event: HistoryEvent) -> ExecutionStarted:
        started = event.workflow_execution_started_event_attributes
        payloads = list(started.input.payloads)
        given = await self._converter.decode(payloads[:1])
        request = given[0] if given and isinstance(given[0], Mapping) else {}
        carried = await self._carried(payloads[1:2])
        metadata = request.get("metadata")
        delegated = is_child(self._run_id, started.parent_workflow_execution.workflow_id)
        origin = Origin(
            run_id=self._run_id,
            root_run_id=carried.root_run_id if delegated else "",
            session_id=_text(request.get("session_id")),
            agent=_text(request.get("agent")) or "default",
            correlation_id=correlation_of(metadata if isinstance(metadata, Mapping) else {}),
            execution=carried.execution,
            tenant=_text(request.get("tenant")),
            user_id=_text(request.get("user_id")),
        )
        return ExecutionStarted(origin=origin, pinned=carried.pinned)

    async def _carried(self, payloads: Sequence[Payload]) -> _Carried:
        """Read an execution's second argument. The first execution of a run has none."""
        given = await self._converter.decode(payloads, [RawValue] * len(payloads))
        try:
            return _Carried.model_validate_json(given[0].payload.data) if given else _Carried()
        except ValidationError:
            return _Carried()

    async def _ask(self, event: HistoryEvent) -> PublishedNotices | None:
        scheduled = event.activity_task_scheduled_event_attributes
        name = scheduled.activity_type.name.removesuffix(IN_CLONE)
        if name in TYPES:
            self._asked[event.event_id] = (name, await self._read(scheduled.input, TYPES[name][0]))
            self._scheduled[event.event_id] = (scheduled.activity_id, _at(event))
        if name == _PUBLISH:
            request: PublishRequest = await self._read(scheduled.input, PublishRequest)
            return PublishedNotices(published=Published(notices=request.notices))
        return None

    async def _done_locally(self, event: HistoryEvent) -> PublishedNotices | ActivityAttempt | None:
        done = await local_activity(self._converter, event, _LOCAL)
        if done is None:
            return None
        if isinstance(done.result, Published):
            return PublishedNotices(published=done.result)
        request = self._local.request(done.activity_id)
        if request is None:
            return None
        return _quick_attempt(request, done.result, done.ended)

    async def _ended(self, event: HistoryEvent, payloads: Payloads) -> RunEnded | None:
        if not payloads.payloads:
            return None
        result = await self._read(payloads, RunResult)
        return RunEnded(result=result, at=_at(event)) if isinstance(result, RunResult) else None

    async def _failed(self, scheduled: int, event: HistoryEvent, failure: Failure) -> ActivityAttempt | None:
        kind, message = failure.application_failure_info.type, await own_message(self._converter, failure)
        if kind in _NOT_BEGUN or message.startswith(_UNDECODABLE):
            self._began.pop(scheduled, None)
        return self._did(scheduled, event, AttemptFailure(type=kind, message=message))

    def _did(self, scheduled: int, event: HistoryEvent, came: Any) -> ActivityAttempt | None:
        if scheduled not in self._asked:
            return None
        self._scheduled.pop(scheduled, None)
        _, request = self._asked[scheduled]
        return ActivityAttempt(request=request, outcome=came, began=self._began.get(scheduled), ended=_at(event))

    async def _read(self, payloads: Payloads, kind: Any) -> Any:
        (value,) = await self._converter.decode(list(payloads.payloads[:1]), [kind])
        return value


def _quick_attempt(request: ToolRequest, result: ToolResult | None, ended: datetime) -> ActivityAttempt:
    spent = sum(result.stage_ms) if result is not None else 0.0
    return ActivityAttempt(request=request, outcome=result, began=ended - timedelta(milliseconds=spent), ended=ended)


def _at(event: HistoryEvent) -> datetime:
    return event.event_time.ToDatetime(tzinfo=UTC)


def _time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
