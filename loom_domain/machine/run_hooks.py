"""A run from its preparation to its first turn, and the hooks after its end.

A hook that asks lets a person decide as over a tool call: the call is `start_run`, with the task as its argument, and
`approve`, `deny` and time answer it like any other.
"""

from dataclasses import replace
from datetime import datetime
from typing import Final

from loom.domain.agents.hook_steps import (
    HookAnswer,
    HookStep,
    Moment,
    next_step_after_run,
    steps_after_run,
    steps_before_run,
)
from loom.domain.core.messages import ToolCall, call_digest, user
from loom.domain.core.requests import RunError, RunStatus
from loom.domain.core.tasks import Action
from loom.domain.core.tool_calls import CallPlan, OpenCall, Verdict
from loom.domain.core.tool_names import START_RUN
from loom.domain.core.transcript import transcript_of
from loom.domain.machine.steering import note
from loom.domain.permissions.risk import risk_of
from loom.domain.run.actions import AskPerson, Prepare, RunHook
from loom.domain.run.events import HookFailed, HookReturned
from loom.domain.run.state import Outcome, Phase, RunState, ended, expires_at

_CALL_ID: Final = "start"


def next_to_start(state: RunState) -> Prepare | AskPerson | RunHook:
    """What is due before the first turn."""
    if state.spec is None:
        return Prepare()
    if state.asks:
        ends = [expiry for call in state.asks if (expiry := expires_at(state, call)) is not None]
        return AskPerson(calls=state.asks, until=min(ends, default=None))
    return RunHook(step=state.hooks_left[0])


def prepared_to_start(state: RunState) -> RunState:
    """The run that has just been prepared: with its hooks to come, or ready."""
    return _ready(replace(state, hooks_left=steps_before_run(state.agent.hooks)))


def take_hook(state: RunState, event: HookReturned | HookFailed) -> RunState:
    """The run after a hook, whatever came of it; one that is not due changes nothing."""
    if event.step != _due(state):
        return state
    left = state.hooks_left[state.hooks_left.index(event.step) + 1 :]
    if state.outcome is not None:
        return _after_end(replace(state, hooks_left=left), event)
    if isinstance(event, HookFailed):
        return ended(state, Outcome(status=RunStatus.FAILED, error=_broken(event)))
    return _take_answer(state, left, event)


def _due(state: RunState) -> HookStep | None:
    if state.outcome is not None:
        return next_last_hook(state)
    return state.hooks_left[0] if state.phase is Phase.STARTING and state.hooks_left else None


def _take_answer(state: RunState, left: tuple[HookStep, ...], event: HookReturned) -> RunState:
    match event.answer:
        case HookAnswer(verdict="deny", reason=reason):
            return _refused(state, f"the hook {event.step.name} does not let this run start: {reason}", event.step.name)
        case HookAnswer(verdict="ask", reason=reason):
            return _asked(replace(state, hooks_left=left), event.step, reason, event.at)
        case HookAnswer(instead=True, text=text):
            return ended(state, Outcome(status=RunStatus.COMPLETED, output=text or "", is_final=True))
        case HookAnswer(text=text):
            return _ready(_with_task(replace(state, hooks_left=left), text))


def decided(state: RunState) -> RunState:
    """The run once a person, or time, has answered whether it may start; any other run as it is."""
    if state.phase is not Phase.STARTING or not state.calls or state.outcome is not None:
        return state
    call, decision = state.calls[0], state.calls[0].decision
    if decision is None:
        return replace(state, calls=(replace(call, stale=0),))  # rules decide nothing here
    if not decision.approved:
        by = f" by {decision.by}" if decision.by else ""
        return _refused(state, f"denied{by} before it started: {decision.reason or 'no reason given'}", decision.by)
    task = call.call.arguments.get("task")
    return _ready(_with_task(replace(state, calls=()), task if isinstance(task, str) else None))


def closing(state: RunState) -> RunState:
    """The run that has an outcome, with the hooks that are due after it."""
    if state.spec is None:
        return state
    calls = () if state.phase is Phase.STARTING else state.calls
    return replace(state, calls=calls, hooks_left=steps_after_run(state.spec.hooks, state.hooks_left))


def next_last_hook(state: RunState) -> HookStep | None:
    """The next hook after the end of the run."""
    return None if state.outcome is None else next_step_after_run(state.hooks_left, state.outcome.status)


def _ready(state: RunState) -> RunState:
    if state.hooks_left or state.calls:
        return state
    # A fork has a conversation already.
    begun = state.transcript if state.transcript.messages else transcript_of([user(state.request.task)])
    return replace(state, phase=Phase.READY, transcript=begun)


def _with_task(state: RunState, task: str | None) -> RunState:
    if task is None or not task.strip():
        return state
    return replace(state, request=replace(state.request, task=task))


def _refused(state: RunState, message: str, by: str) -> RunState:
    error = RunError(type="PermissionDeniedError", message=message, context={"by": by})
    return ended(replace(state, calls=()), Outcome(status=RunStatus.ABORTED, error=error))


def _asked(state: RunState, step: HookStep, reason: str, at: datetime) -> RunState:
    call = ToolCall(id=_CALL_ID, name=START_RUN, arguments={"task": state.request.task})
    plan = CallPlan(
        verdict=Verdict.ASK, rule=f"hook {step.name}", reason=reason, digest=call_digest(state.run_id, call)
    )
    told = note(
        state,
        Action.APPROVAL_REQUESTED,
        at,
        call_id=call.id,
        tool=call.name,
        arguments=call.arguments,
        reason=reason,
        rule=plan.rule,
        risk=risk_of(call.name, plan),
        digest=plan.digest,
        expires_in=state.agent.approval_timeout,
    )
    return replace(told, calls=(OpenCall(call=call, plan=plan, asked_at=at),))


def _after_end(state: RunState, event: HookReturned | HookFailed) -> RunState:
    if event.step.moment is not Moment.AFTER or state.outcome is None:
        return state
    if isinstance(event, HookFailed):
        return replace(state, outcome=Outcome(status=RunStatus.FAILED, error=_broken(event), is_final=True))
    if event.answer.text is None:
        return state
    # What a hook takes out of the text must not stay in the value that the text says.
    return replace(state, outcome=replace(state.outcome, output=event.answer.text, structured=None, is_final=True))


def _broken(event: HookFailed) -> RunError:
    what = "withholds the result of" if event.step.moment is Moment.AFTER else "blocks"
    return RunError(
        type="HookFailedError",
        message=f"the hook {event.step.name} ({event.step.moment}) {what} this run: {event.failure.message}",
        context={"hook": event.step.name, "moment": event.step.moment},
    )
