"""Rebuild a run's tasks from its history. They have the same ids and contents as the tasks that activities published.

    history                                              tasks
    a prepared run                                       node.start
    notices, in an activity's input or local             their own actions
    a hook around the run                                node.hook
    a model call that started                            node.turn
    its reply, or its error                              node.model_call; an approval requested for each `ask`;
                                                         node.tool_call, node.tool_result of each call that doesn't run
    a crew's turn                                        node.turn, node.planning
    a tool call that started, its result                 node.tool_call, node.tool_result; tool.registered if it
                                                         created a tool
    an evaluated answer                                  node.model_call
    calls judged again, a compressed conversation        an approval requested for each `ask`; node.compression
    the end                                              node.complete, node.error

Text fragments are not rebuilt, because the reply contains the whole text. `node.manifest`, which describes a worker,
and the skipped skills in `node.start` are not rebuilt either. Values that were known only to the activity
(`created_at`, `ms`) are derived from the timestamps in the history. If an attempt's worker died, the attempt is assumed
to have published its first task. The result contains every published task, but it can also contain tasks that were
never published.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Final, Protocol, assert_never

from loom.domain.agents.hook_steps import HookResult
from loom.domain.core.errors import BY_NAME
from loom.domain.core.messages import JsonObject, ToolCall
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action, Notice, Origin, Task, task_of_notice
from loom.domain.core.tool_calls import PreparedCall, ToolResult, describe
from loom.domain.crews.log import plan_view
from loom.domain.history.facts import (
    ActivityAttempt,
    AttemptFailure,
    ExecutionStarted,
    Fact,
    History,
    PinnedSettings,
    PublishedNotices,
    RunEnded,
)
from loom.domain.machine.tool_results import settled_by_plan
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
    Sampled,
    SampleRequest,
    ToolRequest,
)
from loom.domain.run.stream_events import (
    answer_evaluated,
    approval_requested,
    asked_arguments,
    asked_for_proof,
    call_not_run,
    compression_segment,
    context_compressed,
    crew_planned,
    evaluation_segment,
    has_made_a_tool,
    hook_asked,
    milliseconds,
    model_failed,
    model_replied,
    model_sampled,
    model_segment,
    run_started,
    sampling_segment,
    scope_of,
    tool_called,
    tool_registered,
    tool_returned,
    tool_segment,
    turn_began,
    turn_scope,
    waits_for_person,
)

_BEFORE_THE_TURN: Final = "ManifestChangedError"


class Mask(Protocol):
    """Redacts the secrets in a task's content."""

    def clean(self, text: str) -> str:
        """Return the text without secrets."""
        ...

    def clean_arguments(self, arguments: JsonObject) -> JsonObject:
        """Return the arguments without secrets."""
        ...


def tasks_of(facts: Iterable[Fact], mask: Mask, *, earlier: Sequence[Fact] = ()) -> tuple[Task, ...]:
    """Return the tasks that follow from these facts, oldest first and without duplicates. The facts may refer to
    `earlier` facts of the same run.
    """
    known = History((*earlier, *facts))
    made: dict[str, Task] = {}
    for fact, origin in [*zip(known.facts, known.origins, strict=True)][len(earlier) :]:
        for task in _tasks(fact, origin, known, mask):
            made.setdefault(task.task_id, task)  # as in the stream, where a task that comes again changes nothing
    return tuple(sorted(made.values(), key=lambda task: task.created_at))


def _tasks(fact: Fact, origin: Origin, known: History, mask: Mask) -> Iterator[Task]:
    match fact:
        case ExecutionStarted():
            return
        case PublishedNotices(published=published):
            yield from (task_of_notice(origin, notice) for notice in published.notices)
        case RunEnded():
            yield task_of_notice(origin, _end(fact))
        case ActivityAttempt():
            yield from _done(fact, known, mask)
        case _:
            assert_never(fact)


def _done(attempt: ActivityAttempt, known: History, mask: Mask) -> Iterator[Task]:
    request = attempt.request
    if isinstance(request, PrepareRequest):
        if isinstance(attempt.outcome, Prepared):
            yield _start(request, attempt.outcome, attempt)
        return
    yield from (task_of_notice(request.origin, notice) for notice in request.notices)
    if attempt.began is not None:
        yield from _work(request, attempt, attempt.began, known, mask)


def _work(  # noqa: C901 - one case a request
    request: HookRequest
    | ModelRequest
    | ConductRequest
    | ToolRequest
    | PrepareCallsRequest
    | CompressRequest
    | EvaluateRequest
    | SampleRequest,
    attempt: ActivityAttempt,
    began: datetime,
    known: History,
    mask: Mask,
) -> Iterator[Task]:
    match request:
        case HookRequest():
            return _hook(request, attempt, began, mask)
        case ModelRequest():
            return _model(request, attempt, began, known.pinned(request), mask)
        case ConductRequest():
            return _crew_step(request, attempt, began, mask)
        case ToolRequest():
            arguments = known.arguments.get(request.call_id, {}) if request.arguments is None else request.arguments
            return _tool(
                request, attempt, began, ToolCall(id=request.call_id, name=request.tool, arguments=arguments), mask
            )
        case PrepareCallsRequest():
            plans = attempt.outcome.plans if isinstance(attempt.outcome, PreparedCalls) else ()
            return _asks(
                request,
                turn_scope(request.turn),
                zip(request.calls, plans, strict=False),
                request.spec.approval_timeout,
                attempt.ended,
            )
        case CompressRequest():
            return _compression(request, attempt, began, known.pinned(request))
        case EvaluateRequest():
            return _evaluation(request, attempt, began, known.pinned(request))
        case SampleRequest():
            return _sampling(request, attempt, began)
        case _:
            assert_never(request)


def _start(request: PrepareRequest, prepared: Prepared, attempt: ActivityAttempt) -> Task:
    event = run_started(request.request, prepared.spec, request.lineage)
    origin = replace(request.origin, execution=prepared.execution)
    return event.task(origin, turn_scope(0), attempt.began or attempt.ended)


def _hook(request: HookRequest, attempt: ActivityAttempt, began: datetime, mask: Mask) -> Iterator[Task]:
    took = _ms(began, attempt.ended)
    match attempt.outcome:
        case AttemptFailure(type="HookFailedError" | "ManifestChangedError", message=message):
            event = hook_asked(request.step, took, failure=message)
        case HookResult(verdict=verdict, reason=reason):
            event = hook_asked(request.step, took, verdict=verdict, reason=mask.clean(reason))
        case _:
            return
    yield event.task(request.origin, turn_scope(request.turn), attempt.ended)


def _model(
    request: ModelRequest, attempt: ActivityAttempt, began: datetime, pinned: PinnedSettings, mask: Mask
) -> Iterator[Task]:
    origin, scope, outcome = request.origin, scope_of(model_segment(request.turn, request.attempt)), attempt.outcome
    if outcome != ModelReply() and not (isinstance(outcome, AttemptFailure) and outcome.type == _BEFORE_THE_TURN):
        yield turn_began(origin, request.turn, request.stage).task(origin, scope, began)
    match outcome:
        case AttemptFailure(type=kind, message=message) if kind in BY_NAME:
            yield model_failed(pinned.model, request, error=kind, message=message).task(origin, scope, attempt.ended)
        case ModelReply(too_long=too_long) if too_long is not None and too_long.trigger == "provider":
            yield model_failed(pinned.model, request, error="LLMContextLengthError").task(origin, scope, attempt.ended)
        case ModelReply(message=message) if message is not None:
            took = _ms(began, attempt.ended)
            usage, cost = outcome.usage, outcome.cost_micros
            replied = model_replied(pinned.model, request, usage, cost, ms=took, message=message)
            yield replied.task(origin, scope, attempt.ended)
            yield from _asks(
                request,
                scope,
                zip(message.tool_calls, outcome.plans, strict=False),
                pinned.approval_timeout,
                attempt.ended,
            )
            yield from _not_run(request, zip(message.tool_calls, outcome.plans, strict=False), mask, attempt.ended)
        case _:
            return


def _crew_step(request: ConductRequest, attempt: ActivityAttempt, began: datetime, mask: Mask) -> Iterator[Task]:
    outcome, scope = attempt.outcome, scope_of(model_segment(request.turn, request.attempt))
    if isinstance(outcome, ModelReply) and outcome.message is None and outcome.uncovered is None:
        return
    yield turn_began(request.origin, request.turn).task(request.origin, scope, began)
    if isinstance(outcome, ModelReply) and outcome.message is not None:
        yield crew_planned(plan_view(outcome.message, request.turn)).task(request.origin, scope, attempt.ended)
        yield from _not_run(request, zip(outcome.message.tool_calls, outcome.plans, strict=False), mask, attempt.ended)


def _asks(
    request: ModelRequest | PrepareCallsRequest,
    scope: str,
    planned: Iterable[tuple[ToolCall, PreparedCall]],
    timeout: float | None,
    at: datetime,
) -> Iterator[Task]:
    for call, plan in planned:
        if waits_for_person(plan):
            arguments = asked_arguments(call, plan)
            event = approval_requested(call, plan, turn=request.turn, arguments=arguments, expires_in=timeout)
            yield event.task(request.origin, scope, at)


def _not_run(
    request: ModelRequest | ConductRequest, planned: Iterable[tuple[ToolCall, PreparedCall]], mask: Mask, at: datetime
) -> Iterator[Task]:
    for call, plan in planned:
        if (result := settled_by_plan(plan)) is not None:
            for event in call_not_run(
                call,
                plan,
                replace(result, content=mask.clean(result.content)),
                turn=request.turn,
                arguments=mask.clean_arguments(asked_arguments(call, plan)),
                summary=mask.clean(describe(call)),
            ):
                yield event.task(request.origin, turn_scope(request.turn), at)


def _tool(
    request: ToolRequest, attempt: ActivityAttempt, began: datetime, call: ToolCall, mask: Mask
) -> Iterator[Task]:
    origin, outcome = request.origin, attempt.outcome
    if isinstance(outcome, ToolResult) and outcome.resend:
        return
    scope = scope_of(tool_segment(request.turn, request.call_id, request.attempt))
    arguments, summary = mask.clean_arguments(call.arguments), mask.clean(describe(call))
    if isinstance(outcome, ToolResult) and outcome.unproven:
        asked = asked_for_proof(request, call, why=outcome.unproven, arguments=arguments)
        yield asked.task(origin, scope, attempt.ended)
        return
    yield tool_called(request, arguments=arguments, summary=summary).task(origin, scope, began)
    if isinstance(outcome, ToolResult) and outcome.needs is None:
        yield tool_returned(request, outcome).task(origin, scope, attempt.ended)
        if has_made_a_tool(request.tool, outcome):
            yield tool_registered(request, arguments).task(origin, scope, attempt.ended)


def _compression(
    request: CompressRequest, attempt: ActivityAttempt, began: datetime, pinned: PinnedSettings
) -> Iterator[Task]:
    match attempt.outcome:
        case AttemptFailure(type=kind, message=message) if kind in BY_NAME:
            event = model_failed(pinned.model, request, error=kind, message=message, purpose="compression")
        case Compressed(summary=summary, usage=usage) as done if summary is not None:
            event = context_compressed(
                pinned.model,
                request,
                tokens=done.tokens,
                usage=usage,
                cost_micros=done.cost_micros,
                ms=_ms(began, attempt.ended),
                success=usage.model_calls > 0,
            )
        case _:
            return
    yield event.task(request.origin, scope_of(compression_segment(request.turn, request.attempt)), attempt.ended)


def _evaluation(
    request: EvaluateRequest, attempt: ActivityAttempt, began: datetime, pinned: PinnedSettings
) -> Iterator[Task]:
    outcome = attempt.outcome
    if isinstance(outcome, Evaluated) and not outcome.resend and outcome.uncovered is None:
        event = answer_evaluated(pinned.model, request, outcome, ms=_ms(began, attempt.ended))
        yield event.task(request.origin, scope_of(evaluation_segment(request.turn, request.attempt)), attempt.ended)


def _sampling(request: SampleRequest, attempt: ActivityAttempt, began: datetime) -> Iterator[Task]:
    outcome = attempt.outcome
    if isinstance(outcome, Sampled) and outcome.uncovered is None:
        event = model_sampled(request, outcome, ms=_ms(began, attempt.ended))
        scope = scope_of(sampling_segment(request.turn, request.call_id, request.attempt))
        yield event.task(request.origin, scope, attempt.ended)


def _end(ended: RunEnded) -> Notice:
    action = Action.ERROR if ended.result.status is RunStatus.FAILED else Action.COMPLETE
    result = ended.result
    return Notice(action=action, key=result.end_key, at=ended.at, status=result.status, result=asdict(result))


def _ms(began: datetime, ended: datetime) -> float:
    return milliseconds((ended - began).total_seconds())
