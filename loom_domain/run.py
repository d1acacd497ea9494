"""The whole machine of a run: two pure questions, `next_action(state)` and `evolve(state, event)`.

    phase      what next_action answers                      what brings the next phase
    STARTING   Prepare                                       RunPrepared            -> READY
    READY      BeginTurn                                     TurnBegan              -> THINKING, or the end at a limit
    THINKING   CallModel, or Backoff after a failure;        ModelReplied           -> ACTING with tool calls, READY or
               CompressContext where it is put off                                     the end without
    ACTING     PlanCalls, AskPerson, RunTools: until every   the last result        -> READY
               call of the turn has a result
    any        Finish, once there is an outcome; AwaitResume, while somebody holds the run

What happens to the calls inside ACTING is in `acting.py`, what follows a failed model call in `thinking.py`, one that
is put off because the context is full in `compressing.py`. Signals and updates are events like any other
(`steering.py`); they may come at any moment between two actions or in the middle of one. An event that does not fit the
phase changes nothing. A final answer is held back while somebody holds the run or has written something unread.
"""

from dataclasses import replace
from datetime import datetime
from typing import Final, assert_never

from loom_domain.acting import end_calls, next_for_calls, opened, settled, take_plans, take_results, with_calls
from loom_domain.compressing import measured, nearly_full, put_off, take_compressed, take_compression_failure
from loom_domain.limits import limit_hit, turns_used_up, warning
from loom_domain.messages import Message, reminder, user
from loom_domain.requests import RunError, RunRequest, RunStatus
from loom_domain.retries import Tries
from loom_domain.run_state import Outcome, Phase, RunState, ended, question_of
from loom_domain.run_steps import (
    Action,
    AsksExpired,
    AwaitResume,
    Backoff,
    BackoffEnded,
    BeginTurn,
    CallModel,
    CallsPlanned,
    CompressContext,
    CompressionFailed,
    ContextCompressed,
    Event,
    Finish,
    ModelFailed,
    ModelReplied,
    NoticesPublished,
    Prepare,
    RunPrepared,
    RunRefused,
    SignalIgnored,
    SteeringEvent,
    ToolsReturned,
    TurnBegan,
    WaitEnded,
)
from loom_domain.steering import expire, name_of, note, refusal, steer
from loom_domain.tasks import Action as TaskAction
from loom_domain.thinking import resend, take_failure
from loom_domain.todos import forgotten
from loom_domain.tool_calls import ASK_USER, DONE, OpenCall, ToolResult, describe, failed, read_done
from loom_domain.transcript import transcript_of
from loom_domain.work import ModelReply, Prepared

MAX_EMPTY: Final = 3
"""Answers in a row that may be empty before the run fails."""
MAX_PIECES: Final = 10
"""Pieces of one answer that may be cut at the output limit before the run ends."""


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
            if state.retry_at is not None:
                return Backoff(until=state.retry_at)
            return CompressContext() if state.window.due else CallModel()
        case Phase.ACTING:
            return next_for_calls(state)
        case _:
            assert_never(state.phase)


def evolve(state: RunState, event: Event) -> RunState:  # noqa: C901, PLR0912 - one case an event: the table is the point
    """The run after `event`; an event that does not fit changes nothing."""
    match event:
        case RunPrepared(prepared=prepared):
            return _prepared(state, prepared)
        case RunRefused(error=error):
            return ended(state, Outcome(status=RunStatus.FAILED, error=error))
        case TurnBegan(at=at):
            return _begin_turn(state, at)
        case ModelReplied(reply=reply, at=at):
            return _take_reply(state, reply, at)
        case ModelFailed():
            return take_failure(state, event)
        case ContextCompressed():
            return take_compressed(state, event)
        case CompressionFailed():
            return take_compression_failure(state, event)
        case BackoffEnded():
            return replace(state, retry_at=None)
        case CallsPlanned():
            return take_plans(state, event)
        case ToolsReturned():
            return take_results(state, event)
        case AsksExpired():
            return settled(expire(state, event))
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
        return note(state, TaskAction.IGNORED, event.at, signal=name_of(event), why=why)
    return settled(steer(state, event))


def _prepared(state: RunState, prepared: Prepared) -> RunState:
    if state.phase is not Phase.STARTING:
        return state
    spec = prepared.spec.with_permissions(state.request.permissions)
    return replace(
        state,
        phase=Phase.READY,
        spec=spec,
        spec_digest=spec.digest,
        send_spec=spec != prepared.spec,
        search_attributes=prepared.search_attributes,
        ledger=prepared.ledger,
        transcript=transcript_of([user(state.request.task)]),
    )


def _begin_turn(state: RunState, at: datetime) -> RunState:
    if not isinstance(next_action(state), BeginTurn):
        return state
    if state.answer is not None and not state.inbox:
        return ended(state, state.answer)
    if outcome := limit_hit(state, at):
        return ended(state, outcome)
    heard = state.inbox
    if warn := warning(state, at):
        state = note(replace(state, warned=True), TaskAction.BUDGET, at, text=warn)
        heard = (*heard, reminder(warn))
    if full := nearly_full(state):
        state = note(replace(state, window=replace(state.window, warned=True)), TaskAction.BUDGET, at, text=full)
        heard = (*heard, reminder(full))
    if left := forgotten(state.todos, state.turn + 1):
        state = replace(state, todos=replace(state.todos, turn=state.turn + 1))
        heard = (*heard, reminder(left))
    return replace(
        state,
        phase=Phase.THINKING,
        turn=state.turn + 1,
        transcript=state.transcript.extended(heard),
        inbox=(),
        answer=None,
    )


def _take_reply(state: RunState, reply: ModelReply, at: datetime) -> RunState:
    if state.phase is not Phase.THINKING:
        return state
    if reply.too_long is not None:
        return put_off(state, reply.too_long, reply.collapsed)
    if reply.message is None:
        return resend(state)
    transcript = state.transcript.extended([reply.message])
    state = replace(
        _charged(state, reply, at),
        phase=Phase.READY,
        tries=Tries(),
        retry_at=None,
        window=measured(state.window, reply),
        transcript=transcript,
        known=transcript.ref,
        produced=frozenset(),
        send_spec=state.rules_changed,
        rules_changed=False,
        calls=tuple(
            opened(call, plan, at, stale=state.rules_changed)
            for call, plan in zip(reply.message.tool_calls, reply.plans, strict=True)
        ),
    )
    return _act(state, at) if state.calls else _answer(state, reply.message, cut=reply.stop == "length")


def _charged(state: RunState, reply: ModelReply, at: datetime) -> RunState:
    usage = state.usage + reply.usage
    if state.cost_micros is not None and reply.cost_micros is not None:
        return replace(state, usage=usage, cost_micros=state.cost_micros + reply.cost_micros)
    if state.cost_micros is not None and state.request.budget.cost_usd is not None:
        text = "The price of this model is unknown: the budget in dollars cannot be kept. Set one in tokens."
        state = note(state, TaskAction.BUDGET, at, text=text)
    return replace(state, usage=usage, cost_micros=None)


def _act(state: RunState, at: datetime) -> RunState:
    done = next((c for c in state.calls if c.call.name == DONE and not c.plan.error), None)
    if done is not None:
        return _done(state, done)
    if state.turn >= state.max_turns:
        wanted = tuple(describe(call.call) for call in state.calls)
        return ended(end_calls(state, "not run: the run's turns are used up"), turns_used_up(state, wanted))
    return settled(replace(_told_questions(state, at), phase=Phase.ACTING, nudges=0, partial=""))


def _told_questions(state: RunState, at: datetime) -> RunState:
    for call in state.calls:
        if call.call.name == ASK_USER and call.result is None:
            asked = {"text": question_of(call), "by": state.request.agent, "call_id": call.call.id}
            state = note(state, TaskAction.MESSAGE, at, **asked)
    return state


def _done(state: RunState, done: OpenCall) -> RunState:
    text = read_done(done.call).output or state.transcript.messages[-1].text
    said = "Not yet: a message has come in. Read it first, then call `done` again." if state.inbox else "Done."
    state = with_calls(state, lambda c: replace(c, result=ToolResult(content=said)) if c is done else c)
    state = replace(end_calls(state, "not run: `done` was called beside this"), nudges=0, partial="")
    return _answered(state, Outcome(status=RunStatus.COMPLETED, output=text, explicit=True))


def _answer(state: RunState, message: Message, *, cut: bool) -> RunState:
    text = state.partial + message.text
    if cut:
        return _continued(replace(state, partial=text))
    if not text.strip():
        return _asked_again(state)
    state = replace(state, partial="", nudges=0)
    if state.agent.require_done_tool and not state.inbox:
        note_to_model = "Call the `done` tool with the result when the task is finished; go on otherwise."
        return replace(state, inbox=(reminder(note_to_model),))
    return _answered(state, Outcome(status=RunStatus.COMPLETED, output=text))


def _answered(state: RunState, outcome: Outcome) -> RunState:
    """The run ends with an answer, unless somebody holds it or has written something that the answer cannot know."""
    if state.hold is not None or state.inbox:
        return replace(state, answer=outcome)
    return ended(state, outcome)


def _continued(state: RunState) -> RunState:
    """An answer that ran into the output limit goes on in the next turn; its pieces become one text."""
    if state.nudges + 1 < MAX_PIECES:
        return _nudged(state, "Your answer was cut. Go on exactly where it stopped.")
    message = f"the answer was still not complete after {MAX_PIECES} pieces; allow more output tokens, or ask for less"
    error = RunError(type="MaxOutputReached", message=message, context={"limit": "output_tokens"})
    return ended(state, Outcome(status=RunStatus.LIMIT_REACHED, output=state.partial, error=error))


def _asked_again(state: RunState) -> RunState:
    if state.nudges + 1 < MAX_EMPTY:
        return _nudged(state, "Your answer was empty. Use a tool, or give the final answer.")
    error = RunError(type="LLMBadResponseError", message=f"the model answered with nothing {MAX_EMPTY} times in a row")
    return ended(state, Outcome(status=RunStatus.FAILED, output=state.partial, error=error))


def _nudged(state: RunState, text: str) -> RunState:
    return replace(state, nudges=state.nudges + 1, inbox=(*state.inbox, reminder(text)))


def closed(state: RunState) -> RunState:
    """The state of a finished run: every call answered, with what is known of it."""
    unasked = failed("not run: the run ended while this waited for approval", "aborted")
    state = with_calls(state, lambda c: replace(c, result=unasked) if c.awaits_person else c)
    return end_calls(state, "not finished: the run ended before. If this had begun, it may have taken effect in part.")
