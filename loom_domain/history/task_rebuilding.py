"""The tasks of a run, made again from its history: the same ids and the same contents as its activities told live.

    history                                              tasks
    a prepared run                                       node.start
    notices, in an activity's input or as told locally   whatever they say
    a hook around the run                                node.hook
    a model call that began                              node.turn
    its answer, or its error                             node.model_call; an approval requested for each ask
    a crew's step                                        node.turn, node.planning
    a tool call that began, its result                   node.tool_call, node.tool_result; tool.registered where it
                                                         made a tool
    an evaluated answer                                  node.model_call
    calls judged again, a compressed conversation        an approval requested for each ask; node.compression
    the end                                              node.complete, node.error

Pieces of text are not made again, since the whole text is in the answer, nor is `node.manifest`, which speaks of a
worker, nor which skills `node.start` said were left out. What only the activity knew is taken from history's own times
(`created_at`, `ms`). An attempt whose worker died is taken to have come as far as its first task; so here may be a task
that nobody saw live, but none is missing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Final, Protocol, assert_never

from loom.domain.agents.hook_steps import HookAnswer
from loom.domain.core.errors import BY_NAME
from loom.domain.core.messages import JsonObject, ToolCall
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action, Notice, Origin, Task, task_of, task_of_notice
from loom.domain.core.tool_calls import CallPlan, ToolResult, describe
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
from loom.domain.run.activity_payloads import (
    CallPlans,
    Compressed,
    CompressRequest,
    ConductRequest,
    Evaluated,
    EvaluateRequest,
    HookRequest,
    ModelReply,
    ModelRequest,
    PlanRequest,
    Prepared,
    PrepareRequest,
    ToolRequest,
)
from loom.domain.run.stream_events import (
    ask_facts,
    ask_key,
    asked_arguments,
    asks,
    call_facts,
    compression_segment,
    evaluation_facts,
    evaluation_segment,
    has_made_a_tool,
    hook_facts,
    hook_key,
    milliseconds,
    model_facts,
    model_segment,
    registered_facts,
    result_facts,
    run_facts,
    spent,
    tool_segment,
    turn_facts,
    where_of,
)

_BEFORE_THE_TURN: Final = "ManifestChangedError"


class Mask(Protocol):
    """Takes secrets out of what a task shows."""

    def clean(self, text: str) -> str:
        """The text without them."""
        ...

    def clean_arguments(self, arguments: JsonObject) -> JsonObject:
        """The arguments without them."""
        ...


def tasks_of(facts: Iterable[Fact], mask: Mask) -> tuple[Task, ...]:
    """Every task of a run, oldest first, each once, from all of its executions in their order."""
    known = History(facts)
    made = {task.task_id: task for fact in known.facts for task in _tasks(fact, known, mask)}
    return tuple(sorted(made.values(), key=lambda task: task.created_at))


def _tasks(fact: Fact, known: History, mask: Mask) -> Iterator[Task]:
    match fact:
        case ExecutionStarted():
            return
        case PublishedNotices(published=published):
            yield from (task_of_notice(known.origin, notice) for notice in published.notices)
        case RunEnded():
            yield task_of_notice(known.origin, _end(fact))
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


def _work(
    request: HookRequest
    | ModelRequest
    | ConductRequest
    | ToolRequest
    | PlanRequest
    | CompressRequest
    | EvaluateRequest,
    attempt: ActivityAttempt,
    began: datetime,
    known: History,
    mask: Mask,
) -> Iterator[Task]:
    match request:
        case HookRequest():
            return _hook(request, attempt, began, mask)
        case ModelRequest():
            return _model(request, attempt, began, known.pinned(request))
        case ConductRequest():
            return _crew_step(request, attempt, began)
        case ToolRequest():
            arguments = known.arguments.get(request.call_id, {}) if request.arguments is None else request.arguments
            return _tool(
                request, attempt, began, ToolCall(id=request.call_id, name=request.tool, arguments=arguments), mask
            )
        case PlanRequest():
            plans = attempt.outcome.plans if isinstance(attempt.outcome, CallPlans) else ()
            return _asks(
                request,
                f"t{request.turn}",
                zip(request.calls, plans, strict=False),
                request.spec.approval_timeout,
                attempt.ended,
            )
        case CompressRequest():
            return _compression(request, attempt, began, known.pinned(request))
        case EvaluateRequest():
            return _evaluation(request, attempt, began, known.pinned(request))
        case _:
            assert_never(request)


def _start(request: PrepareRequest, prepared: Prepared, attempt: ActivityAttempt) -> Task:
    said = run_facts(request.request, prepared.spec, request.lineage)
    above = request.lineage.task_id if request.lineage else None
    at = attempt.began or attempt.ended
    return task_of(
        request.origin, Action.START, "t0/start", at=at, status="running", parameters=said, parent_task_id=above
    )


def _hook(request: HookRequest, attempt: ActivityAttempt, began: datetime, mask: Mask) -> Iterator[Task]:
    step, said = request.step, {}
    match attempt.outcome:
        case AttemptFailure(type="HookFailedError" | "ManifestChangedError", message=message):
            status, said = "failed", {"message": message}
        case HookAnswer(verdict=verdict, reason=reason):
            status, said = "completed", {"verdict": verdict, "reason": mask.clean(reason)}
        case _:
            return
    shown = hook_facts(step, _ms(began, attempt.ended), **said)
    key = f"t{request.turn}/{hook_key(step)}"
    yield task_of(request.origin, Action.HOOK, key, at=attempt.ended, status=status, parameters=shown)


def _model(request: ModelRequest, attempt: ActivityAttempt, began: datetime, pinned: PinnedSettings) -> Iterator[Task]:
    where = where_of(model_segment(request.turn, request.attempt))
    outcome = attempt.outcome
    resent = isinstance(outcome, ModelReply) and all(
        said is None for said in (outcome.message, outcome.too_long, outcome.uncovered)
    )
    if not resent and not (isinstance(outcome, AttemptFailure) and outcome.type == _BEFORE_THE_TURN):
        said = turn_facts(request.origin, request.turn, request.stage)
        yield task_of(request.origin, Action.TURN, f"{where}/turn", at=began, parameters=said)
    named = model_facts(pinned.model, request)
    match outcome:
        case AttemptFailure(type=kind, message=message) if kind in BY_NAME:
            failure = {**named, "error": kind, "message": message}
            yield _model_call(request.origin, where, attempt.ended, "failed", failure)
        case ModelReply(too_long=too_long) if too_long is not None and too_long.trigger == "provider":
            yield _model_call(
                request.origin, where, attempt.ended, "failed", {**named, "error": "LLMContextLengthError"}
            )
        case ModelReply(message=message) if message is not None:
            took = spent(outcome.usage, outcome.cost_micros, _ms(began, attempt.ended))
            yield _model_call(request.origin, where, attempt.ended, "completed", {**named, **took})
            yield from _asks(
                request,
                where,
                zip(message.tool_calls, outcome.plans, strict=False),
                pinned.approval_timeout,
                attempt.ended,
            )
        case _:
            return


def _crew_step(request: ConductRequest, attempt: ActivityAttempt, began: datetime) -> Iterator[Task]:
    outcome, where = attempt.outcome, where_of(model_segment(request.turn, request.attempt))
    if isinstance(outcome, ModelReply) and outcome.message is None and outcome.uncovered is None:
        return
    yield task_of(
        request.origin, Action.TURN, f"{where}/turn", at=began, parameters=turn_facts(request.origin, request.turn)
    )
    if isinstance(outcome, ModelReply) and outcome.message is not None:
        said = plan_view(outcome.message, request.turn)
        yield task_of(request.origin, Action.PLANNING, f"{where}/plan", at=attempt.ended, parameters=said)


def _model_call(origin: Origin, where: str, at: datetime, status: str, said: JsonObject) -> Task:
    return task_of(origin, Action.MODEL_CALL, f"{where}/call", at=at, status=status, parameters=said)


def _asks(
    request: ModelRequest | PlanRequest,
    where: str,
    planned: Iterable[tuple[ToolCall, CallPlan]],
    timeout: float | None,
    at: datetime,
) -> Iterator[Task]:
    for call, plan in planned:
        if not asks(plan):
            continue
        said = ask_facts(call, plan, turn=request.turn, arguments=asked_arguments(call, plan), expires_in=timeout)
        key = f"{where}/{ask_key(call, plan)}"
        yield task_of(request.origin, Action.APPROVAL_REQUESTED, key, at=at, status="pending", parameters=said)


def _tool(
    request: ToolRequest, attempt: ActivityAttempt, began: datetime, call: ToolCall, mask: Mask
) -> Iterator[Task]:
    outcome = attempt.outcome
    if isinstance(outcome, ToolResult) and outcome.resend:
        return
    where = where_of(tool_segment(request.turn, request.call_id, request.attempt))
    named = call_facts(request)
    said = {
        "arguments": mask.clean_arguments(call.arguments),
        "summary": mask.clean(describe(call)),
        "effect": request.effect,
        **named,
    }
    yield task_of(request.origin, Action.TOOL_CALL, f"{where}/call", at=began, status="running", parameters=said)
    if isinstance(outcome, ToolResult):
        result = result_facts(outcome)
        key = f"{where}/result"
        yield task_of(
            request.origin,
            Action.TOOL_RESULT,
            key,
            at=attempt.ended,
            status=outcome.status,
            parameters=named,
            result=result,
        )
        if has_made_a_tool(request.tool, outcome):
            made = registered_facts(said["arguments"], request.origin.agent, request.turn)
            yield task_of(request.origin, Action.REGISTERED, f"{where}/registered", at=attempt.ended, parameters=made)


def _compression(
    request: CompressRequest, attempt: ActivityAttempt, began: datetime, pinned: PinnedSettings
) -> Iterator[Task]:
    where = where_of(compression_segment(request.turn, request.attempt))
    match attempt.outcome:
        case AttemptFailure(type=kind, message=message) if kind in BY_NAME:
            said = {**model_facts(pinned.model, request), "purpose": "compression"}
            yield _model_call(
                request.origin, where, attempt.ended, "failed", {**said, "error": kind, "message": message}
            )
        case Compressed(summary=summary) as shorter if summary is not None:
            said = {
                "turn": request.turn,
                "trigger": request.trigger,
                "pre_tokens": request.tokens,
                "post_tokens": shorter.tokens,
                "duration_ms": _ms(began, attempt.ended),
                "success": shorter.usage.model_calls > 0,
            }
            yield task_of(request.origin, Action.COMPRESSION, f"{where}/compressed", at=attempt.ended, parameters=said)
        case _:
            return


def _evaluation(
    request: EvaluateRequest, attempt: ActivityAttempt, began: datetime, pinned: PinnedSettings
) -> Iterator[Task]:
    outcome = attempt.outcome
    if isinstance(outcome, Evaluated) and not outcome.resend and outcome.uncovered is None:
        named = {"model": pinned.model, **evaluation_facts(request, outcome)}
        where = where_of(evaluation_segment(request.turn, request.attempt))
        took = spent(outcome.usage, outcome.cost_micros, _ms(began, attempt.ended))
        yield _model_call(request.origin, where, attempt.ended, "completed", {**named, **took})


def _end(ended: RunEnded) -> Notice:
    action = Action.ERROR if ended.result.status is RunStatus.FAILED else Action.COMPLETE
    return Notice(action=action, key="end", at=ended.at, status=ended.result.status, result=asdict(ended.result))


def _ms(began: datetime, ended: datetime) -> float:
    return milliseconds((ended - began).total_seconds())
