"""The whole machine of a run: two pure questions, `next_action(state)` and `evolve(state, event)`.

    phase      what next_action answers                      what brings the next phase
    STARTING   Prepare                                       RunPrepared            -> READY
    READY      BeginTurn                                     TurnBegan              -> THINKING, or the end at a limit
    THINKING   CallModel, or Backoff after a failure         ModelReplied           -> ACTING with tool calls, READY or
                                                                                       the end without
    ACTING     PlanCalls, AskPerson, RunTools: until every   the last result        -> READY
               call of the turn has a result
    any        Finish, once there is an outcome; AwaitResume, while somebody holds the run

Signals and updates are events like any other (`steering.py`); they may come at any moment between two actions or in
the middle of one. An event that does not fit the phase changes nothing.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from loom_domain.context import shortened
from loom_domain.limits import limit_hit, turns_used_up, warning
from loom_domain.messages import JsonObject, Message, ToolCall, reminder, user
from loom_domain.requests import RunError, RunRequest, RunStatus
from loom_domain.retries import Again, Failure, ShortenFirst, Tries, after_failure, count
from loom_domain.run_state import Outcome, Phase, RunState, expires_at
from loom_domain.run_steps import (
    Action,
    AskPerson,
    AsksExpired,
    AwaitResume,
    Backoff,
    BackoffEnded,
    BeginTurn,
    CallModel,
    CallsPlanned,
    Event,
    Finish,
    ModelFailed,
    ModelReplied,
    NoticesPublished,
    PlanCalls,
    Prepare,
    RunPrepared,
    RunRefused,
    RunTools,
    SignalIgnored,
    SteeringEvent,
    ToolsReturned,
    TurnBegan,
    WaitEnded,
)
from loom_domain.steering import expire, note, refusal, steer
from loom_domain.tasks import Action as TaskAction
from loom_domain.tool_calls import (
    DONE,
    CallPlan,
    Effect,
    OpenCall,
    ToolResult,
    Verdict,
    describe,
    failed,
    next_group,
    read_done,
    tool_message,
)
from loom_domain.transcript import TranscriptRef, transcript_of
from loom_domain.work import ModelReply

MAX_NUDGES: Final = 3
"""Answers in a row that may be empty or cut before the run gives up."""


def start(run_id: str, request: RunRequest, at: datetime) -> RunState:
    """The state of a run that has just been asked for."""
    return RunState(run_id=run_id, request=request, started_at=at)


def next_action(state: RunState) -> Action:
    """What the run does next."""
    if state.outcome is not None:
        return Finish(outcome=state.outcome)
    if state.hold is not None:
        return AwaitResume()
    match state.phase:
        case Phase.STARTING:
            return Prepare()
        case Phase.READY:
            return BeginTurn()
        case Phase.THINKING:
            return Backoff(until=state.retry_at) if state.retry_at else CallModel()
        case Phase.ACTING:
            return _next_for_calls(state)
        case _:
            assert_never(state.phase)


def _next_for_calls(state: RunState) -> Action:
    if stale := tuple(call for call in state.calls if call.stale and call.result is None):
        return PlanCalls(calls=stale)
    if state.asks:
        ends = [expiry for call in state.asks if (expiry := expires_at(state, call)) is not None]
        return AskPerson(calls=state.asks, until=min(ends, default=None))
    return RunTools(calls=next_group(state.calls, state.agent.parallel_limit))


def evolve(state: RunState, event: Event) -> RunState:  # noqa: C901, PLR0912 - one case an event: the table is the point
    """The run after `event`; an event that does not fit changes nothing."""
    match event:
        case RunPrepared(prepared=prepared):
            spec = prepared.spec.with_permissions(state.request.permissions)
            return replace(
                state,
                phase=Phase.READY,
                spec=spec,
                spec_digest=spec.digest,
                search_attributes=prepared.search_attributes,
                transcript=transcript_of([user(state.request.task)]),
            )
        case RunRefused(error=error):
            return _ended(state, Outcome(status=RunStatus.FAILED, error=error))
        case TurnBegan(at=at):
            return _begin_turn(state, at)
        case ModelReplied(reply=reply, at=at):
            return _take_reply(state, reply, at)
        case ModelFailed():
            return _take_failure(state, event)
        case BackoffEnded():
            return replace(state, retry_at=None)
        case CallsPlanned():
            return _take_plans(state, event)
        case ToolsReturned():
            return _take_results(state, event)
        case AsksExpired():
            return _settled(expire(state, event))
        case SignalIgnored(signal=signal, why=why, at=at):
            return note(state, TaskAction.IGNORED, at, signal=signal, why=why)
        case NoticesPublished(count=published):
            return replace(state, notices=state.notices[published:])
        case WaitEnded():
            return state
        case _:
            return _take_steering(state, event)


def _take_steering(state: RunState, event: SteeringEvent) -> RunState:
    """People's requests; a refused one only leaves a notice."""
    if why := refusal(state, event):
        return note(state, TaskAction.IGNORED, event.at, signal=type(event).__name__, why=why)
    return _settled(steer(state, event))


def _begin_turn(state: RunState, at: datetime) -> RunState:
    if outcome := limit_hit(state, at):
        return _ended(state, outcome)
    warn = warning(state, at)
    heard = (*state.inbox, reminder(warn)) if warn else state.inbox
    return replace(
        state,
        phase=Phase.THINKING,
        turn=state.turn + 1,
        transcript=state.transcript.extended(heard),
        inbox=(),
        warned=state.warned or warn is not None,
    )


def _take_reply(state: RunState, reply: ModelReply, at: datetime) -> RunState:
    if reply.message is None:
        tries = replace(state.tries, resent=state.tries.resent + 1)
        return replace(state, tries=tries, known=TranscriptRef(), send_spec=True)
    transcript = state.transcript.extended([reply.message])
    known_cost = state.cost_micros is not None and reply.cost_micros is not None
    state = replace(
        state,
        phase=Phase.READY,
        tries=Tries(),
        transcript=transcript,
        known=transcript.ref,
        produced=frozenset(),
        send_spec=False,
        rules_changed=False,
        usage=state.usage + reply.usage,
        cost_micros=(state.cost_micros or 0) + (reply.cost_micros or 0) if known_cost else None,
        calls=tuple(
            _opened(call, plan, at, stale=state.rules_changed)
            for call, plan in zip(reply.message.tool_calls, reply.plans, strict=True)
        ),
    )
    return _act(state) if state.calls else _answer(state, reply.message, cut=reply.stop == "length")


def _opened(call: ToolCall, plan: CallPlan, at: datetime, *, stale: bool = False) -> OpenCall:
    asked_at = at if plan.verdict is Verdict.ASK and not plan.error else None
    return OpenCall(call=call, plan=plan, asked_at=asked_at, result=None if stale else _ruled_out(plan), stale=stale)


def _ruled_out(plan: CallPlan) -> ToolResult | None:
    """The result of a call that its plan keeps from running."""
    if plan.error:
        return failed(plan.error, plan.error_type or "validation")
    if plan.verdict is Verdict.DENY:
        return failed(f"Not permitted: {plan.reason}. Find another way.", "permission")
    return None


def _act(state: RunState) -> RunState:
    done = next((c for c in state.calls if c.call.name == DONE and not c.plan.error), None)
    if done is not None:
        text = read_done(done.call).output or _said(state)
        state = _end_calls(state, done.call.id, "not run: the run was ended by `done`")
        return _ended(state, Outcome(status=RunStatus.COMPLETED, output=text, explicit=True))
    if state.turn >= state.max_turns:
        wanted = tuple(describe(call.call) for call in state.calls)
        return _ended(_end_calls(state, "", "not run: the run's turns are used up"), turns_used_up(state, wanted))
    return _settled(replace(state, phase=Phase.ACTING, nudges=0, partial=""))


def _said(state: RunState) -> str:
    return state.transcript.messages[-1].text


def _answer(state: RunState, message: Message, *, cut: bool) -> RunState:
    text = state.partial + message.text
    if cut:
        return _nudged(replace(state, partial=text), "Your answer was cut. Go on exactly where it stopped.", "cut")
    if not text.strip():
        return _nudged(state, "Your answer was empty. Use a tool, or give the final answer.", "empty")
    state = replace(state, partial="", nudges=0)
    if state.inbox:
        return state
    if state.agent.require_done_tool:
        note_to_model = "Call the `done` tool with the result when the task is finished; go on otherwise."
        return replace(state, inbox=(reminder(note_to_model),))
    return _ended(state, Outcome(status=RunStatus.COMPLETED, output=text))


def _nudged(state: RunState, text: str, what: str) -> RunState:
    if state.nudges + 1 < MAX_NUDGES:
        return replace(state, nudges=state.nudges + 1, inbox=(*state.inbox, reminder(text)))
    error = RunError(type="LLMBadResponseError", message=f"the model's answer was {what} {MAX_NUDGES} times in a row")
    return _ended(state, Outcome(status=RunStatus.FAILED, output=state.partial, error=error))


def _take_failure(state: RunState, event: ModelFailed) -> RunState:
    tries = count(state.tries, event.failure)
    match after_failure(state.tries, event.failure):
        case Again(delay=delay):
            return replace(state, tries=tries, retry_at=event.at + timedelta(seconds=delay) if delay else None)
        case ShortenFirst():
            shorter = transcript_of(shortened(state.transcript.messages))
            state = note(state, TaskAction.COMPRESSION, event.at, trigger=event.failure.type, how="tool results cut")
            return replace(state, tries=tries, transcript=shorter, known=TranscriptRef(), send_spec=True)
        case _:
            return _ended(state, Outcome(status=RunStatus.FAILED, error=_error_of(event.failure, tries)))


def _error_of(failure: Failure, tries: Tries) -> RunError:
    attempts = f" (after {tries.failed + tries.lost} attempts)" if tries.failed + tries.lost > 1 else ""
    return RunError(type=failure.type, message=f"{failure.message}{attempts}", context=failure.context)


def _take_plans(state: RunState, event: CallsPlanned) -> RunState:
    plans = dict(zip(event.call_ids, event.plans.plans, strict=True))
    return _settled(replace(state, calls=tuple(_replanned(call, plans, event.at) for call in state.calls)))


def _replanned(call: OpenCall, plans: Mapping[str, CallPlan], at: datetime) -> OpenCall:
    plan = plans.get(call.call.id)
    if plan is None or call.result is not None:
        return call
    fresh = _opened(call.call, plan, at)
    return replace(fresh, decision=call.decision, asked_at=call.asked_at or fresh.asked_at, attempt=call.attempt)


def _take_results(state: RunState, event: ToolsReturned) -> RunState:
    came = event.outcomes
    calls = tuple(_returned(call, came[call.call.id]) if call.call.id in came else call for call in state.calls)
    finished = {call.call.id for call in calls if call.result is not None} & came.keys()
    return _settled(
        replace(
            state,
            calls=calls,
            produced=state.produced | {name for name in finished if isinstance(came[name], ToolResult)},
            tool_calls=state.tool_calls + len(finished),
        )
    )


def _returned(call: OpenCall, outcome: ToolResult | Failure) -> OpenCall:
    if isinstance(outcome, ToolResult):
        return replace(call, attempt=call.attempt + 1, inline=True) if outcome.resend else replace(call, result=outcome)
    if outcome.kind == "provider":
        return replace(call, result=failed(f"The tool broke: {outcome.message}", "unknown"))
    again = isinstance(after_failure(Tries(lost=call.attempt - 1), outcome), Again)
    if outcome.kind == "lost" and (call.plan.effect is Effect.ONCE or not again):
        return replace(call, result=failed(UNKNOWN_OUTCOME, "lost"))
    return replace(call, attempt=call.attempt + 1)


UNKNOWN_OUTCOME: Final = (
    "Interrupted: the worker was lost while this ran, so its outcome is unknown. It may have taken effect in whole, in"
    " part or not at all, and it has not been tried again. Check what is there before you go on."
)


def _settled(state: RunState) -> RunState:
    """Once every call of the turn has its result, the results join the conversation."""
    if state.phase is not Phase.ACTING or any(call.result is None for call in state.calls):
        return state
    return _observed(replace(state, phase=Phase.READY))


def _observed(state: RunState) -> RunState:
    answers = [
        tool_message(call.call, call.result, _decision_of(call)) for call in state.calls if call.result is not None
    ]
    return replace(state, calls=(), transcript=state.transcript.extended(answers))


def _decision_of(call: OpenCall) -> JsonObject:
    if call.decision is None:
        return {}
    decision = call.decision
    return {"approved": decision.approved, "scope": decision.scope, "by": decision.by, "rule": call.plan.rule}


def _end_calls(state: RunState, done_id: str, text: str) -> RunState:
    """Every open call answered, so that the conversation stays well formed."""
    closed = tuple(_closed(call, done_id, text) for call in state.calls)
    return _observed(replace(state, calls=closed))


def _closed(call: OpenCall, done_id: str, text: str) -> OpenCall:
    if call.call.id == done_id:
        return replace(call, result=ToolResult(content="The run is done."))
    return call if call.result is not None else replace(call, result=failed(text, "aborted"))


def _ended(state: RunState, outcome: Outcome) -> RunState:
    return state if state.outcome is not None else replace(state, outcome=outcome)


def closed(state: RunState) -> RunState:
    """The state of a finished run: calls that never ran are answered as such."""
    return _end_calls(state, "", "not run: the run ended before") if state.calls else state
