"""The whole machine of a run: two pure questions, `next_action(state)` and `evolve(state, event)`.

    phase      what next_action answers                      what brings the next phase
    STARTING   Prepare; then RunHook, and AskPerson where    the last hook's answer -> READY, or the end
               a hook wants the start reviewed
    READY      BeginTurn                                     TurnBegan              -> THINKING, or the end at a limit
    THINKING   CallModel, or Backoff after a failure;        ModelReplied           -> ACTING with tool calls, READY or
               CompressContext where it is put off                                     the end without
    ACTING     PlanCalls, AskPerson, RunTools, RunChildren:  the last result        -> READY
               until every call has a result
    EVALUATING EvaluateAnswer, where the run is to           AnswerEvaluated        -> the end
    any        Finish, once there is an outcome; AwaitResume, while somebody holds the run; AwaitBudget, while the
               parent is asked for more

What happens to the calls inside ACTING is in `acting.py`, what follows a failed model call in `thinking.py`, one that
is put off because the context is full in `compressing.py`, what follows when something is used up in `wrapping_up.py`.
Signals and updates are events like any other (`steering.py`), and so is what comes from the runs above and below
(`delegation.py`); they may come at any moment between two actions or in the middle of one. An event that does not fit
the phase changes nothing. A final answer is held back while somebody holds the run or has written something unread.
"""

from dataclasses import replace
from datetime import datetime
from typing import assert_never

from loom.domain.agents.reflection import Reflection
from loom.domain.core.requests import RunRequest, RunStatus
from loom.domain.core.tasks import Action as TaskAction
from loom.domain.core.tool_calls import describe, failed
from loom.domain.core.tool_names import ASK_USER, DONE
from loom.domain.core.transcript import transcript_of
from loom.domain.machine.answers import answered, before_turn, done_called, draft_criticised, text_answered, with_draft
from loom.domain.machine.compression_step import compression_failed, context_compressed, measured, put_off
from loom.domain.machine.delegation import after_tree_event
from loom.domain.machine.evaluation_step import answer_evaluated, evaluation_failed
from loom.domain.machine.limits import (
    charged,
    reserve_for_last_answer,
    turns_used_up,
    with_share_and_limits,
    within_tool_calls,
)
from loom.domain.machine.model_retry import model_failed, resend
from loom.domain.machine.run_hooks import closing, decided, hook_ended, next_to_start, prepared_to_start
from loom.domain.machine.steering import expire, name_of, note, refusal, steer
from loom.domain.machine.tool_results import (
    calls_planned,
    end_calls,
    next_for_calls,
    opened,
    settled,
    tools_returned,
    with_calls,
)
from loom.domain.machine.tree_sync import sync_relatives
from loom.domain.machine.turn_start import checked_limits, last_turn, next_turn
from loom.domain.machine.wrap_up import call_not_covered, last_answer_given, summing_up, time_ran_out
from loom.domain.run.actions import (
    Action,
    AwaitBudget,
    AwaitResume,
    Backoff,
    BeginTurn,
    CallModel,
    CompressContext,
    EvaluateAnswer,
    Finish,
)
from loom.domain.run.activity_payloads import Earlier, ModelReply, Prepared
from loom.domain.run.events import (
    AnswerEvaluated,
    AsksExpired,
    BackoffEnded,
    CallsPlanned,
    CompressionFailed,
    ContextCompressed,
    EvaluationFailed,
    Event,
    HookFailed,
    HookReturned,
    ModelFailed,
    ModelReplied,
    NoticesPublished,
    OwnEvent,
    RunPrepared,
    RunRefused,
    SignalIgnored,
    SteeringEvent,
    TimeRanOut,
    ToolsReturned,
    TurnBegan,
    WaitEnded,
)
from loom.domain.run.retry_policy import Tries
from loom.domain.run.state import Outcome, Phase, RunState, ended, question_of
from loom.domain.tree.events import TreeEvent
from loom.domain.tree.lineage import Lineage
from loom.domain.tree.tree import Tree, without_unbegun


def start(run_id: str, request: RunRequest, at: datetime, lineage: Lineage | None = None) -> RunState:
    """The state of a run that has just been asked for; `lineage` is that of one which another run has started."""
    return RunState(run_id=run_id, request=request, started_at=at, tree=Tree(lineage=lineage))


def next_action(state: RunState) -> Action:
    """What the run does next."""
    if state.outcome is not None:
        return Finish(outcome=state.outcome)
    if state.hold is not None:
        return AwaitResume()
    if any(want.run_id == state.run_id for want in state.tree.wants):
        return AwaitBudget()
    return _next_in_phase(state)


def _next_in_phase(state: RunState) -> Action:
    match state.phase:
        case Phase.STARTING:
            return next_to_start(state)
        case Phase.READY:
            return BeginTurn()
        case Phase.THINKING:
            return _next_for_model(state)
        case Phase.ACTING:
            return next_for_calls(state)
        case Phase.EVALUATING:
            return BeginTurn() if state.inbox else EvaluateAnswer()
        case _:
            assert_never(state.phase)


def _next_for_model(state: RunState) -> Action:
    if state.retry_at is not None:
        return Backoff(until=state.retry_at)
    return CompressContext() if state.window.due else CallModel()


def evolve(state: RunState, event: Event) -> RunState:
    """The run after `event`, with what its relatives have to know of it; an event that does not fit changes nothing."""
    return sync_relatives(
        after_tree_event(state, event) if isinstance(event, TreeEvent) else decided(_evolved(state, event))
    )


def _evolved(state: RunState, event: OwnEvent) -> RunState:  # noqa: C901, PLR0912 - one case an event: the table is the point
    match event:
        case RunPrepared(prepared=prepared):
            return _prepared(state, prepared)
        case RunRefused(error=error):
            return ended(state, Outcome(status=RunStatus.FAILED, error=error))
        case HookReturned() | HookFailed():
            return hook_ended(state, event)
        case TurnBegan(at=at):
            return _begin_turn(state, at)
        case ModelReplied(reply=reply, at=at):
            return _model_replied(state, reply, at)
        case ModelFailed():
            return model_failed(state, event)
        case ContextCompressed():
            return context_compressed(state, event)
        case CompressionFailed():
            return compression_failed(state, event)
        case AnswerEvaluated():
            return answer_evaluated(state, event)
        case EvaluationFailed():
            return evaluation_failed(state, event)
        case BackoffEnded():
            return replace(state, retry_at=None)
        case CallsPlanned():
            return calls_planned(state, event)
        case ToolsReturned():
            return tools_returned(state, event)
        case AsksExpired():
            return settled(expire(state, event))
        case TimeRanOut(at=at):
            return time_ran_out(state, at)
        case SignalIgnored(signal=signal, why=why, at=at):
            return note(state, TaskAction.IGNORED, at, signal=signal, why=why)
        case NoticesPublished(count=published):
            return replace(state, notices=state.notices[published:])
        case WaitEnded():
            return state
        case _:
            return _steered(state, event)


def _steered(state: RunState, event: SteeringEvent) -> RunState:
    """People's requests; a refused one only leaves a notice."""
    if why := refusal(state, event):
        return note(state, TaskAction.IGNORED, event.at, signal=name_of(event), why=why)
    return settled(steer(state, event))


def _prepared(state: RunState, prepared: Prepared) -> RunState:
    if state.spec is not None:
        return state
    spec = prepared.spec.with_permissions(state.request.permissions)
    if state.tree.lineage is not None:
        spec = replace(spec, above=state.tree.lineage.above)
    if prepared.earlier is not None:
        state = _forked(state, prepared.earlier)
    resolved = replace(
        state,
        request=replace(state.request, budget=state.request.budget.or_else(spec.budget)),
        spec=spec,
        spec_digest=spec.digest,
        send_spec=spec != prepared.spec,
        search_attributes=prepared.search_attributes,
        ledger=prepared.ledger,
        tree=with_share_and_limits(state.tree, state.request.budget, prepared.limits),
        reflection=Reflection(stage="draft" if spec.pattern == "reflect" else ""),
    )
    return prepared_to_start(resolved)


def _forked(state: RunState, earlier: Earlier) -> RunState:
    transcript = transcript_of(earlier.messages)
    return replace(state, transcript=transcript, known=transcript.ref, todos=earlier.todos, artifacts=earlier.artifacts)


def _begin_turn(state: RunState, at: datetime) -> RunState:
    if not isinstance(next_action(state), BeginTurn):
        return state
    if state.answer is not None and not state.inbox:
        return answered(state, state.answer, at)
    if state.wrap_up is None:
        state = checked_limits(state, at)
    if not isinstance(next_action(state), BeginTurn):
        return state
    state = before_turn(state)
    return next_turn(state, at) if state.wrap_up is None else last_turn(state, state.wrap_up)


def _model_replied(state: RunState, reply: ModelReply, at: datetime) -> RunState:
    if state.phase is not Phase.THINKING:
        return state
    if reply.uncovered is not None:
        return with_draft(state, at) or call_not_covered(state, reply.uncovered, at)
    if reply.too_long is not None:
        return put_off(state, reply.too_long, reply.collapsed)
    if reply.message is None:
        return resend(state)
    transcript = state.transcript.extended([*reply.recalled, reply.message])
    state = replace(
        charged(state, reply.usage, reply.cost_micros, at),
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
    if reply.reserved is not None:
        state = replace(state, tree=replace(state.tree, kept=reserve_for_last_answer(state, reply.reserved)))
    if state.wrap_up is not None:
        return last_answer_given(end_calls(state, "not run: the run has come to its end"), state.wrap_up, reply)
    if state.reflection.stage == "critique":
        return draft_criticised(state, reply, at)
    return _act(state, reply, at) if state.calls else text_answered(state, reply, reply.message.text, at)


def _act(state: RunState, reply: ModelReply, at: datetime) -> RunState:
    done = next((c for c in state.calls if c.call.name == DONE and not c.plan.error), None)
    if done is not None:
        return done_called(state, done, reply, at)
    if state.turn_state.is_final:
        wanted = tuple(describe(call.call) for call in state.calls)
        state = end_calls(state, "not run: the run's turns are used up")
        return with_draft(state, at) or summing_up(state, turns_used_up(state, wanted), at)
    state = within_tool_calls(state)
    return settled(replace(_told_questions(state, at), phase=Phase.ACTING, nudges=0, partial=""))


def _told_questions(state: RunState, at: datetime) -> RunState:
    for call in state.calls:
        if call.call.name == ASK_USER and call.result is None:
            asked = {"text": question_of(call), "by": state.request.agent, "call_id": call.call.id}
            state = note(state, TaskAction.MESSAGE, at, **asked)
    return state


def closed(state: RunState) -> RunState:
    """The state of a finished run: every call answered, with what is known of it."""
    state = closing(state)
    state = replace(state, tree=without_unbegun(state.tree))
    unasked = failed("not run: the run ended while this waited for approval", "aborted")
    state = with_calls(state, lambda c: replace(c, result=unasked) if c.awaits_person else c)
    return end_calls(state, "not finished: the run ended before. If this had begun, it may have taken effect in part.")
