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
from loom.domain.core.tasks import Action, Notice, Task, task_of_notice
from loom.domain.core.tool_calls import CallPlan, ToolResult, describe
from loom.domain.crews.log import plan_view
from loom.domain.history.facts import Began, Did, Ended, Fact, Failed, History, Pinned, Told
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
    answer_evaluated,
    approval_requested,
    asked_arguments,
    compression_segment,
    context_compressed,
    crew_planned,
    evaluation_segment,
    has_made_a_tool,
    hook_asked,
    milliseconds,
    model_failed,
    model_replied,
    model_segment,
    run_started,
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
        case Began():
            return
        case Told(published=published):
            yield from (task_of_notice(known.origin, notice) for notice in published.notices)
        case Ended():
            yield task_of_notice(known.origin, _end(fact))
        case Did():
            yield from _done(fact, known, mask)
        case _:
            assert_never(fact)


def _done(did: Did, known: History, mask: Mask) -> Iterator[Task]:
    asked = did.asked
    if isinstance(asked, PrepareRequest):
        if isinstance(did.came, Prepared):
            yield _start(asked, did.came, did)
        return
    yield from (task_of_notice(asked.origin, notice) for notice in asked.notices)
    if did.began is not None:
        yield from _work(asked, did, did.began, known, mask)


def _work(
    asked: HookRequest | ModelRequest | ConductRequest | ToolRequest | PlanRequest | CompressRequest | EvaluateRequest,
    did: Did,
    began: datetime,
    known: History,
    mask: Mask,
) -> Iterator[Task]:
    match asked:
        case HookRequest():
            return _hook(asked, did, began, mask)
        case ModelRequest():
            return _model(asked, did, began, known.pinned(asked))
        case ConductRequest():
            return _crew_step(asked, did, began)
        case ToolRequest():
            arguments = known.arguments.get(asked.call_id, {}) if asked.arguments is None else asked.arguments
            return _tool(asked, did, began, ToolCall(id=asked.call_id, name=asked.tool, arguments=arguments), mask)
        case PlanRequest():
            plans = did.came.plans if isinstance(did.came, CallPlans) else ()
            return _asks(
                asked,
                turn_scope(asked.turn),
                zip(asked.calls, plans, strict=False),
                asked.spec.approval_timeout,
                did.ended,
            )
        case CompressRequest():
            return _compression(asked, did, began, known.pinned(asked))
        case EvaluateRequest():
            return _evaluation(asked, did, began, known.pinned(asked))
        case _:
            assert_never(asked)


def _start(asked: PrepareRequest, prepared: Prepared, did: Did) -> Task:
    event = run_started(asked.request, prepared.spec, asked.lineage)
    return event.task(asked.origin, turn_scope(0), did.began or did.ended)


def _hook(asked: HookRequest, did: Did, began: datetime, mask: Mask) -> Iterator[Task]:
    took = _ms(began, did.ended)
    match did.came:
        case Failed(type="HookFailedError" | "ManifestChangedError", message=message):
            event = hook_asked(asked.step, took, failure=message)
        case HookAnswer(verdict=verdict, reason=reason):
            event = hook_asked(asked.step, took, verdict=verdict, reason=mask.clean(reason))
        case _:
            return
    yield event.task(asked.origin, turn_scope(asked.turn), did.ended)


def _model(asked: ModelRequest, did: Did, began: datetime, pinned: Pinned) -> Iterator[Task]:
    origin, scope, came = asked.origin, scope_of(model_segment(asked.turn, asked.attempt)), did.came
    resent = isinstance(came, ModelReply) and all(
        said is None for said in (came.message, came.too_long, came.uncovered)
    )
    if not resent and not (isinstance(came, Failed) and came.type == _BEFORE_THE_TURN):
        yield turn_began(origin, asked.turn, asked.stage).task(origin, scope, began)
    match came:
        case Failed(type=kind, message=message) if kind in BY_NAME:
            yield model_failed(pinned.model, asked, error=kind, message=message).task(origin, scope, did.ended)
        case ModelReply(too_long=too_long) if too_long is not None and too_long.trigger == "provider":
            yield model_failed(pinned.model, asked, error="LLMContextLengthError").task(origin, scope, did.ended)
        case ModelReply(message=message) if message is not None:
            took = _ms(began, did.ended)
            replied = model_replied(pinned.model, asked, came.usage, came.cost_micros, ms=took)
            yield replied.task(origin, scope, did.ended)
            yield from _asks(
                asked, scope, zip(message.tool_calls, came.plans, strict=False), pinned.approval_timeout, did.ended
            )
        case _:
            return


def _crew_step(asked: ConductRequest, did: Did, began: datetime) -> Iterator[Task]:
    came, scope = did.came, scope_of(model_segment(asked.turn, asked.attempt))
    if isinstance(came, ModelReply) and came.message is None and came.uncovered is None:
        return
    yield turn_began(asked.origin, asked.turn).task(asked.origin, scope, began)
    if isinstance(came, ModelReply) and came.message is not None:
        yield crew_planned(plan_view(came.message, asked.turn)).task(asked.origin, scope, did.ended)


def _asks(
    asked: ModelRequest | PlanRequest,
    scope: str,
    planned: Iterable[tuple[ToolCall, CallPlan]],
    timeout: float | None,
    at: datetime,
) -> Iterator[Task]:
    for call, plan in planned:
        if waits_for_person(plan):
            arguments = asked_arguments(call, plan)
            event = approval_requested(call, plan, turn=asked.turn, arguments=arguments, expires_in=timeout)
            yield event.task(asked.origin, scope, at)


def _tool(asked: ToolRequest, did: Did, began: datetime, call: ToolCall, mask: Mask) -> Iterator[Task]:
    origin, came = asked.origin, did.came
    if isinstance(came, ToolResult) and came.resend:
        return
    scope = scope_of(tool_segment(asked.turn, asked.call_id, asked.attempt))
    arguments, summary = mask.clean_arguments(call.arguments), mask.clean(describe(call))
    yield tool_called(asked, arguments=arguments, summary=summary).task(origin, scope, began)
    if isinstance(came, ToolResult):
        yield tool_returned(asked, came).task(origin, scope, did.ended)
        if has_made_a_tool(asked.tool, came):
            yield tool_registered(asked, arguments).task(origin, scope, did.ended)


def _compression(asked: CompressRequest, did: Did, began: datetime, pinned: Pinned) -> Iterator[Task]:
    match did.came:
        case Failed(type=kind, message=message) if kind in BY_NAME:
            event = model_failed(pinned.model, asked, error=kind, message=message, purpose="compression")
        case Compressed(summary=summary, tokens=tokens, usage=usage) if summary is not None:
            took = _ms(began, did.ended)
            event = context_compressed(asked, tokens=tokens, ms=took, success=usage.model_calls > 0)
        case _:
            return
    yield event.task(asked.origin, scope_of(compression_segment(asked.turn, asked.attempt)), did.ended)


def _evaluation(asked: EvaluateRequest, did: Did, began: datetime, pinned: Pinned) -> Iterator[Task]:
    came = did.came
    if isinstance(came, Evaluated) and not came.resend and came.uncovered is None:
        event = answer_evaluated(pinned.model, asked, came, ms=_ms(began, did.ended))
        yield event.task(asked.origin, scope_of(evaluation_segment(asked.turn, asked.attempt)), did.ended)


def _end(ended: Ended) -> Notice:
    action = Action.ERROR if ended.result.status is RunStatus.FAILED else Action.COMPLETE
    return Notice(action=action, key="end", at=ended.at, status=ended.result.status, result=asdict(ended.result))


def _ms(began: datetime, ended: datetime) -> float:
    return milliseconds((ended - began).total_seconds())
