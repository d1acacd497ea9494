"""Map each action of the domain to an activity: its input, its options, and the event for its result."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from temporalio import workflow
from temporalio.common import Priority
from temporalio.exceptions import ActivityError, FailureError
from temporalio.workflow import ActivityCancellationType, ActivityConfig, ActivityHandle

from loom.activities.call_model import LanguageModel
from loom.activities.child_runs import ChildRuns
from loom.activities.compress_context import Compressor
from loom.activities.conduct_crew import CrewConductor
from loom.activities.evaluate_answer import Evaluator
from loom.activities.notifications import Notifier
from loom.activities.part_storing import PartKeeper
from loom.activities.plan_calls import CallReviewer
from loom.activities.prepare_run import Preparation
from loom.activities.publish import Progress
from loom.activities.run_hook import HookRunner
from loom.activities.run_node import NodeRunner
from loom.activities.run_tool import ToolRunner
from loom.activities.sample_model import Sampler
from loom.activities.tenants.gate import TenantGate
from loom.activities.workspace_steps import WorkspaceSteps
from loom.domain.agents.hook_steps import HookPoint, HookResult
from loom.domain.core.messages import Part
from loom.domain.core.notifications import Notification, NotifyRequest
from loom.domain.core.repositories import Checkout, ReturnedChange
from loom.domain.core.requests import RunError, RunRequest
from loom.domain.core.signatures import SignedStart
from loom.domain.core.tasks import Published
from loom.domain.core.tenants import ADMISSION_ID, Admission
from loom.domain.core.tool_calls import OpenCall, ToolResult, describe
from loom.domain.machine.activity_requests import (
    change_request,
    compress_request,
    evaluate_request,
    hook_request,
    model_request,
    numbered,
    origin_of,
    prepare_calls_request,
    prepare_request,
    push_request,
    sample_request,
    store_parts_request,
    summary_of,
    summary_of_compression,
    summary_of_evaluation,
    tool_activity_id,
    tool_request,
    workspace_request,
)
from loom.domain.run.activity_payloads import (
    ChildOutcome,
    ChildRequest,
    Compressed,
    Evaluated,
    ModelReply,
    Prepared,
    PreparedCalls,
    PublishRequest,
    Pushed,
    Sampled,
    StoredParts,
)
from loom.domain.run.events import (
    AnswerEvaluated,
    CallsPrepared,
    ChangePushed,
    ChangeStored,
    CompressionFailed,
    ContextCompressed,
    EvaluationFailed,
    Event,
    HookFailed,
    HookReturned,
    ModelFailed,
    ModelReplied,
    ModelSampled,
    PartsStored,
    RunAdmitted,
    RunPrepared,
    RunRefused,
    SamplingFailed,
    WorkspacePrepared,
)
from loom.domain.run.retry_policy import Failure
from loom.domain.run.state import RunState
from loom.domain.tree.tree import Child
from loom.workflows import options
from loom.workflows.changes import NOTIFY_BY_ACTIVITY, has_change

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class ScheduledActivity(Generic[_T]):
    """An activity that has been scheduled."""

    handle: ActivityHandle[_T]
    on_result: Callable[[_T], Event]
    on_failure: Callable[[Failure], Event]
    notices: int = 0
    """The number of notices that the activity publishes. It publishes the run's oldest notices."""


def _refused(failure: Failure) -> Event:
    """Return the event for a failure that ends the run. Retries are exhausted or wouldn't help."""
    return RunRefused(error=RunError(type=failure.type, message=failure.message, context=failure.context))


def priority_of(request: RunRequest, priority: int | None) -> Priority:
    """Return the options for a run with this priority. The server serves the tenants in turn."""
    return Priority(priority_key=priority, fairness_key=request.tenant)


def turn_group(state: RunState) -> Any:
    """Return a context manager. In the Web UI, activities that start in it are grouped under the current turn."""
    return workflow.create_event_group(f"t{state.turn}").scope()


def prepare(state: RunState, start: SignedStart | None) -> ScheduledActivity[Prepared]:
    """Prepare the run for its first turn. `start` is the signature of its start, if it has one."""
    request = replace(prepare_request(state), start=start)
    handle = workflow.start_activity_method(
        Preparation.prepare_run, request, **_named(state, options.PREPARE, "prepare", "prepare the run")
    )
    return ScheduledActivity(
        handle=handle, on_result=lambda prepared: RunPrepared(prepared=prepared), on_failure=_refused
    )


def await_admission(state: RunState) -> ScheduledActivity[Admission]:
    """Wait until the run's tenant has room for it. The history doesn't grow meanwhile."""
    handle = workflow.start_activity_method(
        TenantGate.await_admission,
        origin_of(state),
        **_named(state, options.ADMISSION, ADMISSION_ID, f"wait for tenant {state.request.tenant}"),
    )
    return ScheduledActivity(handle=handle, on_result=lambda _: RunAdmitted(), on_failure=_refused)


def prepare_workspace(state: RunState) -> ScheduledActivity[Checkout]:
    """Clone the run's repository."""
    request = workspace_request(state)
    handle = workflow.start_activity_method(
        WorkspaceSteps.prepare_workspace,
        request,
        **_named(state, options.CLONE, "clone", request.workspace.summary[:100]),
    )
    return ScheduledActivity(
        handle=handle,
        on_result=lambda checkout: WorkspacePrepared(checkout=checkout, at=workflow.now()),
        on_failure=_refused,
    )


def store_change(state: RunState) -> ScheduledActivity[ReturnedChange]:
    """Store the change to the run's repository."""
    request = change_request(state)
    handle = workflow.start_activity_method(
        WorkspaceSteps.store_change,
        request,
        **_named(state, options.RETURN_CHANGE, numbered("store-change", state.retries + 1), "store the change"),
    )
    return ScheduledActivity(
        handle=handle,
        on_result=lambda change: ChangeStored(change=change, at=workflow.now()),
        on_failure=lambda failure: ChangeStored(
            change=ReturnedChange(problem=f"the change wasn't stored: {failure.message}"), at=workflow.now()
        ),
    )


def push_change(state: RunState) -> ScheduledActivity[Pushed]:
    """Push the stored change to the run's repository."""
    request = push_request(state, workflow.now())
    summary = f"push the change to {request.branch}"
    handle = workflow.start_activity_method(
        WorkspaceSteps.push_change,
        request,
        **_named(state, options.RETURN_CHANGE, numbered("push-change", state.retries + 1), summary[:100]),
    )
    return ScheduledActivity(
        handle=handle,
        on_result=lambda pushed: ChangePushed(commit=pushed.commit, problem=pushed.problem, at=workflow.now()),
        on_failure=lambda failure: ChangePushed(
            problem=f"the change may not have been pushed: {failure.message}", at=workflow.now()
        ),
    )


async def leave_tenant(state: RunState) -> None:
    """Make room for another run of the tenant. If this fails, a waiting run finds out that this one has ended."""
    try:
        await workflow.execute_activity_method(
            TenantGate.leave_tenant,
            origin_of(state),
            **_named(state, options.LEAVE, "leave", f"make room for tenant {state.request.tenant}"),
        )
    except ActivityError as error:
        workflow.logger.warning("tenant not left: %s", error)


def run_hook(state: RunState, step: HookPoint) -> ScheduledActivity[HookResult]:
    """Call a user-defined hook before or after the run."""
    named = _named(state, _hook_options(step.timeout), numbered(f"{step.moment}-{step.name}", 1), str(step))
    return ScheduledActivity(
        handle=workflow.start_activity_method(HookRunner.run_hook, hook_request(state, step), **named),
        on_result=lambda answer: HookReturned(step=step, answer=answer, at=workflow.now()),
        on_failure=lambda failure: HookFailed(step=step, failure=failure, at=workflow.now()),
        notices=len(state.notices.pending),
    )


def store_parts(state: RunState) -> ScheduledActivity[StoredParts]:
    """Store the images, recordings and files of the messages that the model reads next."""
    count = len(state.incoming.due)
    summary = f"t{state.turn} · store {count} attachment{'s' * (count != 1)}"
    with turn_group(state):
        handle = workflow.start_activity_method(
            PartKeeper.store_parts, store_parts_request(state), **_named(state, options.STORE_PARTS, None, summary)
        )
    return ScheduledActivity(
        handle=handle,
        on_result=lambda stored: PartsStored(parts=stored.parts),
        on_failure=lambda failure: PartsStored(parts=(_not_stored(state, failure),)),
    )


def _not_stored(state: RunState, failure: Failure) -> Part:
    names = ", ".join(part.name or part.path or part.url or "a file" for part in state.incoming.due)
    return Part(type="text", text=f"({names} was attached, but can't be shown: {failure.message})")


def call_model(state: RunState) -> ScheduledActivity[ModelReply]:
    """Get the next message from the model, or from the crew's definition or the node's function in its place."""
    request, agent = model_request(state, _execution(state)), state.agent
    config = options.MODEL if agent.node is None else _tool_options(agent.node.timeout, None)
    # A call that was postponed for a compression has already used its id, so the call needs a new id afterwards.
    key = numbered(f"t{request.turn}-model", request.attempt + state.window.attempts)
    with turn_group(state):
        handle = workflow.start_activity_method(
            NodeRunner.run_node
            if agent.node is not None
            else CrewConductor.conduct_crew
            if agent.crew is not None
            else LanguageModel.call_model
            if state.checkout is None
            else LanguageModel.call_model_in_clone,
            request,
            **_named(state, _with_lease(state, config), key, summary_of(state)),
        )
    return ScheduledActivity(
        handle=handle,
        on_result=lambda reply: ModelReplied(reply=reply, at=workflow.now()),
        on_failure=lambda failure: ModelFailed(failure=failure, at=workflow.now()),
        notices=len(request.notices),
    )


def compress(state: RunState) -> ScheduledActivity[Compressed]:
    """Compress the context for the next call."""
    request = compress_request(state)
    key = numbered(f"t{request.turn}-compress", request.attempt)
    with turn_group(state):
        handle = workflow.start_activity_method(
            Compressor.compress_context,
            request,
            **_named(state, options.COMPRESS, key, summary_of_compression(state)),
        )
    return ScheduledActivity(
        handle=handle,
        on_result=lambda compressed: ContextCompressed(compressed=compressed, at=workflow.now()),
        on_failure=lambda failure: CompressionFailed(failure=failure, at=workflow.now()),
        notices=len(request.notices),
    )


def evaluate(state: RunState) -> ScheduledActivity[Evaluated]:
    """Rate the answer."""
    request = evaluate_request(state)
    key = numbered(f"t{request.turn}-evaluate", request.attempt)
    with turn_group(state):
        handle = workflow.start_activity_method(
            Evaluator.evaluate_answer, request, **_named(state, options.EVALUATE, key, summary_of_evaluation(state))
        )
    return ScheduledActivity(
        handle=handle,
        on_result=lambda evaluated: AnswerEvaluated(evaluated=evaluated, at=workflow.now()),
        on_failure=lambda failure: EvaluationFailed(failure=failure, at=workflow.now()),
        notices=len(request.notices),
    )


def sample(state: RunState, call_id: str) -> ScheduledActivity[Sampled]:
    """Call the model for an MCP server."""
    request = sample_request(state, call_id)
    key = numbered(f"t{request.turn}-sample-{call_id}", request.attempt)
    with turn_group(state):
        handle = workflow.start_activity_method(
            Sampler.sample_model,
            request,
            **_named(state, options.SAMPLE, key, f"t{request.turn} · model {request.model} for {request.tool}"),
        )
    return ScheduledActivity(
        handle=handle,
        on_result=lambda sampled: ModelSampled(call_id=call_id, sampled=sampled, at=workflow.now()),
        on_failure=lambda failure: SamplingFailed(call_id=call_id, failure=failure, at=workflow.now()),
        notices=len(request.notices),
    )


def plan_calls(state: RunState, calls: tuple[OpenCall, ...]) -> ScheduledActivity[PreparedCalls]:
    """Check calls again after permission rules have changed."""
    request = prepare_calls_request(state, calls)
    summary = f"t{request.turn} · judge again: {', '.join(c.call.name for c in calls)}"
    with turn_group(state):
        handle = workflow.start_activity_method(
            CallReviewer.plan_calls if state.checkout is None else CallReviewer.plan_calls_in_clone,
            request,
            **_named(state, options.PLAN if state.checkout is None else options.PLAN_IN_CLONE, None, summary),
        )
    ids = tuple(c.call.id for c in calls)
    return ScheduledActivity(
        handle=handle,
        on_result=lambda plans: CallsPrepared(call_ids=ids, plans=plans, at=workflow.now()),
        on_failure=_refused,
        notices=len(request.notices),
    )


def run_tool(state: RunState, call: OpenCall, *, with_notices: bool) -> ActivityHandle[ToolResult]:
    """Execute one call. If several calls run in parallel, the first one also publishes the notices."""
    request = tool_request(state, call, _execution(state), with_notices=with_notices)
    config = _tool_options(call.plan.timeout, call.plan.queue)
    if state.checkout is not None:
        own = timedelta(seconds=call.plan.timeout) + options.TOOL_GRACE
        config["start_to_close_timeout"] = own + options.CLONE_WAIT
    if call.exchange is not None and call.exchange.needed.queue:
        # Only this worker has the call. If it doesn't respond, it's gone.
        config["task_queue"] = call.exchange.needed.queue
        config["schedule_to_start_timeout"] = options.OWN_QUEUE
    return workflow.start_activity_method(
        ToolRunner.run_tool if state.checkout is None else ToolRunner.run_tool_in_clone,
        request,
        **_named(
            state,
            _with_lease(state, config),
            tool_activity_id(request.turn, request.call_id, request.attempt),
            _summary_of_call(state, call),
        ),
    )


def read_locally(state: RunState, call: OpenCall) -> ActivityHandle[ToolResult]:
    """Execute one call in a local activity. Only runs of development versions of 0.4 do this."""
    config = options.LOCAL_READ.copy()
    config["activity_id"] = tool_activity_id(state.turn, call.call.id, call.attempt)
    config["summary"] = _summary_of_call(state, call)
    request = tool_request(state, call, _execution(state), with_notices=False, local=True)
    return workflow.start_local_activity_method(ToolRunner.run_tool, request, **config)


def _execution(state: RunState) -> str:
    first = state.environment.first_execution or workflow.info().first_execution_run_id
    return first.replace("-", "")[:20]


def _summary_of_call(state: RunState, call: OpenCall) -> str:
    return f"t{state.turn} · {describe(call.call)}"


def await_child(state: RunState, child: Child) -> ActivityHandle[ChildOutcome]:
    """Find out how a child ends that an earlier execution has started."""
    named = _named(state, options.CHILD, f"await-{child.name}", f"wait for {child.description}"[:100])
    return workflow.start_activity_method(ChildRuns.await_child, ChildRequest(run_id=child.run_id), **named)


async def publish(state: RunState, request: PublishRequest, *, local: bool) -> Published | None:
    """Publish notices to the stream. Return None if that failed. Before 0.2.0, the activity had no result."""
    try:
        if local:
            return await workflow.execute_local_activity_method(Progress.publish, request, **options.PUBLISH_LOCALLY)
        named = _named(state, options.PUBLISH, None, f"t{request.turn} · tell the stream")
        return await workflow.execute_activity_method(Progress.publish, request, **named)
    except FailureError as error:  # in a replay, a local activity's time-out isn't wrapped in an ActivityError
        workflow.logger.warning("notices not published: %s", error)
        return None


async def notify(state: RunState, notification: Notification) -> bool:
    """Start the workflow that notifies people. Return whether the server has taken it."""
    plan = state.environment.notify
    if plan is None:
        return False
    execution = workflow.info().first_execution_run_id
    request = NotifyRequest(notification=replace(notification, execution=execution), plan=plan)
    try:
        if has_change(NOTIFY_BY_ACTIVITY):
            named = _named(state, options.NOTIFY, None, f"announce {notification.event}")
            await workflow.execute_activity_method(Notifier.notify, request, **named)
        else:
            await workflow.execute_local_activity_method(Notifier.notify, request, **options.NOTIFY_LOCALLY)
    except FailureError as error:  # in a replay, a local activity's time-out isn't wrapped in an ActivityError
        workflow.logger.warning("%s not notified: %s", notification.event, error)
        return False
    return True


def _hook_options(patience: float) -> ActivityConfig:
    """Return the options for one hook. A failed hook is not retried."""
    return ActivityConfig(
        start_to_close_timeout=timedelta(seconds=patience) + options.HOOK_GRACE,
        heartbeat_timeout=options.HEARTBEAT,
        retry_policy=options.IDEMPOTENT,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )


def _tool_options(timeout: float, queue: str | None) -> ActivityConfig:
    """Return the options for one tool call with a timeout of `timeout` seconds."""
    config = ActivityConfig(
        start_to_close_timeout=timedelta(seconds=timeout) + options.TOOL_GRACE,
        heartbeat_timeout=options.HEARTBEAT,
        retry_policy=options.ONCE,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )
    if queue is not None:
        config["task_queue"] = queue
    return config


def _with_lease(state: RunState, config: ActivityConfig) -> ActivityConfig:
    """Return the options with a shorter heartbeat timeout if the run's workers keep leases."""
    one = config.copy()
    if state.environment.ledger:
        one["heartbeat_timeout"] = options.LEASED_HEARTBEAT
    return one


def _named(state: RunState, config: ActivityConfig, activity_id: str | None, summary: str) -> ActivityConfig:
    """Return the options with the activity's id, summary and priority. An explicit id stays unique across
    continue-as-new.
    """
    one = config.copy()
    # Activities inherit the workflow's priority, but only LoomClient sets one when it starts the workflow.
    one["priority"] = priority_of(state.request, state.priority)
    if activity_id is not None:
        one["activity_id"] = activity_id
    one["summary"] = summary
    return one
