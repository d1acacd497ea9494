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
                asked, f"t{asked.turn}", zip(asked.calls, plans, strict=False), asked.spec.approval_timeout, did.ended
            )
        case CompressRequest():
            return _compression(asked, did, began, known.pinned(asked))
        case EvaluateRequest():
            return _evaluation(asked, did, began, known.pinned(asked))
        case _:
            assert_never(asked)


def _start(asked: PrepareRequest, prepared: Prepared, did: Did) -> Task:
    said = run_facts(asked.request, prepared.spec, asked.lineage)
    above = asked.lineage.task_id if asked.lineage else None
    at = did.began or did.ended
    return task_of(
        asked.origin, Action.START, "t0/start", at=at, status="running", parameters=said, parent_task_id=above
    )


def _hook(asked: HookRequest, did: Did, began: datetime, mask: Mask) -> Iterator[Task]:
    step, said = asked.step, {}
    match did.came:
        case Failed(type="HookFailedError" | "ManifestChangedError", message=message):
            status, said = "failed", {"message": message}
        case HookAnswer(verdict=verdict, reason=reason):
            status, said = "completed", {"verdict": verdict, "reason": mask.clean(reason)}
        case _:
            return
    shown = hook_facts(step, _ms(began, did.ended), **said)
    key = f"t{asked.turn}/{hook_key(step)}"
    yield task_of(asked.origin, Action.HOOK, key, at=did.ended, status=status, parameters=shown)


def _model(asked: ModelRequest, did: Did, began: datetime, pinned: Pinned) -> Iterator[Task]:
    where = where_of(model_segment(asked.turn, asked.attempt))
    came = did.came
    resent = isinstance(came, ModelReply) and all(
        said is None for said in (came.message, came.too_long, came.uncovered)
    )
    if not resent and not (isinstance(came, Failed) and came.type == _BEFORE_THE_TURN):
        said = turn_facts(asked.origin, asked.turn, asked.stage)
        yield task_of(asked.origin, Action.TURN, f"{where}/turn", at=began, parameters=said)
    named = model_facts(pinned.model, asked)
    match came:
        case Failed(type=kind, message=message) if kind in BY_NAME:
            failure = {**named, "error": kind, "message": message}
            yield _model_call(asked.origin, where, did.ended, "failed", failure)
        case ModelReply(too_long=too_long) if too_long is not None and too_long.trigger == "provider":
            yield _model_call(asked.origin, where, did.ended, "failed", {**named, "error": "LLMContextLengthError"})
        case ModelReply(message=message) if message is not None:
            took = spent(came.usage, came.cost_micros, _ms(began, did.ended))
            yield _model_call(asked.origin, where, did.ended, "completed", {**named, **took})
            yield from _asks(
                asked, where, zip(message.tool_calls, came.plans, strict=False), pinned.approval_timeout, did.ended
            )
        case _:
            return


def _crew_step(asked: ConductRequest, did: Did, began: datetime) -> Iterator[Task]:
    came, where = did.came, where_of(model_segment(asked.turn, asked.attempt))
    if isinstance(came, ModelReply) and came.message is None and came.uncovered is None:
        return
    yield task_of(asked.origin, Action.TURN, f"{where}/turn", at=began, parameters=turn_facts(asked.origin, asked.turn))
    if isinstance(came, ModelReply) and came.message is not None:
        said = plan_view(came.message, asked.turn)
        yield task_of(asked.origin, Action.PLANNING, f"{where}/plan", at=did.ended, parameters=said)


def _model_call(origin: Origin, where: str, at: datetime, status: str, said: JsonObject) -> Task:
    return task_of(origin, Action.MODEL_CALL, f"{where}/call", at=at, status=status, parameters=said)


def _asks(
    asked: ModelRequest | PlanRequest,
    where: str,
    planned: Iterable[tuple[ToolCall, CallPlan]],
    timeout: float | None,
    at: datetime,
) -> Iterator[Task]:
    for call, plan in planned:
        if not asks(plan):
            continue
        said = ask_facts(call, plan, turn=asked.turn, arguments=asked_arguments(call, plan), expires_in=timeout)
        key = f"{where}/{ask_key(call, plan)}"
        yield task_of(asked.origin, Action.APPROVAL_REQUESTED, key, at=at, status="pending", parameters=said)


def _tool(asked: ToolRequest, did: Did, began: datetime, call: ToolCall, mask: Mask) -> Iterator[Task]:
    came = did.came
    if isinstance(came, ToolResult) and came.resend:
        return
    where = where_of(tool_segment(asked.turn, asked.call_id, asked.attempt))
    named = call_facts(asked)
    said = {
        "arguments": mask.clean_arguments(call.arguments),
        "summary": mask.clean(describe(call)),
        "effect": asked.effect,
        **named,
    }
    yield task_of(asked.origin, Action.TOOL_CALL, f"{where}/call", at=began, status="running", parameters=said)
    if isinstance(came, ToolResult):
        result = result_facts(came)
        key = f"{where}/result"
        yield task_of(
            asked.origin, Action.TOOL_RESULT, key, at=did.ended, status=came.status, parameters=named, result=result
        )
        if has_made_a_tool(asked.tool, came):
            made = registered_facts(said["arguments"], asked.origin.agent, asked.turn)
            yield task_of(asked.origin, Action.REGISTERED, f"{where}/registered", at=did.ended, parameters=made)


def _compression(asked: CompressRequest, did: Did, began: datetime, pinned: Pinned) -> Iterator[Task]:
    where = where_of(compression_segment(asked.turn, asked.attempt))
    match did.came:
        case Failed(type=kind, message=message) if kind in BY_NAME:
            said = {**model_facts(pinned.model, asked), "purpose": "compression"}
            yield _model_call(asked.origin, where, did.ended, "failed", {**said, "error": kind, "message": message})
        case Compressed(summary=summary) as shorter if summary is not None:
            said = {
                "turn": asked.turn,
                "trigger": asked.trigger,
                "pre_tokens": asked.tokens,
                "post_tokens": shorter.tokens,
                "duration_ms": _ms(began, did.ended),
                "success": shorter.usage.model_calls > 0,
            }
            yield task_of(asked.origin, Action.COMPRESSION, f"{where}/compressed", at=did.ended, parameters=said)
        case _:
            return


def _evaluation(asked: EvaluateRequest, did: Did, began: datetime, pinned: Pinned) -> Iterator[Task]:
    came = did.came
    if isinstance(came, Evaluated) and not came.resend and came.uncovered is None:
        named = {"model": pinned.model, **evaluation_facts(asked, came)}
        where = where_of(evaluation_segment(asked.turn, asked.attempt))
        took = spent(came.usage, came.cost_micros, _ms(began, did.ended))
        yield _model_call(asked.origin, where, did.ended, "completed", {**named, **took})


def _end(ended: Ended) -> Notice:
    action = Action.ERROR if ended.result.status is RunStatus.FAILED else Action.COMPLETE
    return Notice(action=action, key="end", at=ended.at, status=ended.result.status, result=asdict(ended.result))


def _ms(began: datetime, ended: datetime) -> float:
    return milliseconds((ended - began).total_seconds())
