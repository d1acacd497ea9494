"""Hooks before the first turn of a run and after its end.

If a hook requests a review, the run waits for approval of a pending call named `start_run`, whose argument is the task.
As with any tool call, a person can approve or deny this call, and the approval timeout applies.
"""

from datetime import datetime
from typing import Final

from loom.domain.agents.hook_steps import HookPoint, HookResult, Moment, next_step_after_run, steps_after_run
from loom.domain.core.frozen import replace
from loom.domain.core.messages import ToolCall, ask_digest, call_digest
from loom.domain.core.requests import RunError, RunStatus
from loom.domain.core.tasks import Action
from loom.domain.core.tool_calls import OpenCall, PreparedCall, Verdict
from loom.domain.core.tool_names import START_RUN
from loom.domain.machine.turn_start import ready
from loom.domain.permissions.risk import risk_of
from loom.domain.run.actions import AskPerson, RunHook
from loom.domain.run.events import HookFailed, HookReturned
from loom.domain.run.state import Outcome, Phase, RunState, ended, expires_at, note, with_calls

_CALL_ID: Final = "start"


def next_to_start(state: RunState) -> AskPerson | RunHook:
    """Return the next action before the first turn of a prepared run."""
    if state.asks:
        ends = [expiry for call in state.asks if (expiry := expires_at(state, call)) is not None]
        return AskPerson(calls=state.asks, until=min(ends, default=None))
    return RunHook(step=state.hooks_left[0])


def hook_ended(state: RunState, event: HookReturned | HookFailed) -> RunState:
    """Return the next state of a run whose current hook has returned or failed."""
    left = state.hooks_left[state.hooks_left.index(event.step) + 1 :]
    if state.outcome is not None:
        return _after_end(replace(state, hooks_left=left), event)
    if isinstance(event, HookFailed):
        return ended(state, Outcome(status=RunStatus.FAILED, error=_broken(event)))
    return _hook_returned(state, left, event)


def due_hook(state: RunState) -> HookPoint | None:
    """Return the hook that the run is waiting for."""
    if state.outcome is not None:
        return next_last_hook(state)
    return state.hooks_left[0] if state.phase is Phase.STARTING and state.hooks_left else None


def _hook_returned(state: RunState, left: tuple[HookPoint, ...], event: HookReturned) -> RunState:
    match event.answer:
        case HookResult(verdict="deny", reason=reason):
            return _refused(state, f"the hook {event.step.name} does not let this run start: {reason}", event.step.name)
        case HookResult(verdict="ask", reason=reason):
            return _asked(replace(state, hooks_left=left), f"hook {event.step.name}", reason, event.at)
        case HookResult(instead=True, text=text):
            return ended(state, Outcome(status=RunStatus.COMPLETED, output=text or "", is_final=True))
        case HookResult(text=text):
            return ready(_with_task(replace(state, hooks_left=left), text))


def start_decided(state: RunState) -> RunState:
    """Return the next state of a run after its start was approved or denied, or after the approval request has expired.
    Until then, return the run unchanged.
    """
    if state.outcome is not None:
        return state
    call, decision = state.calls.open[0], state.calls.open[0].decision
    if decision is None:
        return with_calls(state, lambda c: replace(c, stale=0))  # permission rules don't apply to this call
    if not decision.approved:
        by = f" by {decision.by}" if decision.by else ""
        return _refused(state, f"denied{by} before it started: {decision.reason or 'no reason given'}", decision.by)
    task = call.call.arguments.get("task")
    return ready(
        _with_task(replace(state, calls=replace(state.calls, open=())), task if isinstance(task, str) else None)
    )


def with_last_hooks(state: RunState) -> RunState:
    """Return a run that has an outcome, with the hooks that must still run after the run's end."""
    if state.spec is None:
        return state
    calls = replace(state.calls, open=()) if state.phase is Phase.STARTING else state.calls
    return replace(state, calls=calls, hooks_left=steps_after_run(state.spec.hooks, state.hooks_left))


def next_last_hook(state: RunState) -> HookPoint | None:
    """Return the next hook after the end of the run."""
    return None if state.outcome is None else next_step_after_run(state.hooks_left, state.outcome.status)


def _with_task(state: RunState, task: str | None) -> RunState:
    if task is None or not task.strip():
        return state
    return replace(state, request=replace(state.request, task=task))


def _refused(state: RunState, message: str, by: str) -> RunState:
    error = RunError(type="PermissionDeniedError", message=message, context={"by": by})
    return ended(replace(state, calls=replace(state.calls, open=())), Outcome(status=RunStatus.ABORTED, error=error))


def start_asked_again(state: RunState, at: datetime) -> RunState:
    """Return a run whose start waits for approval, with a new ask in place of the one that a reset has made void."""
    plan = state.calls.open[0].plan
    return _asked(state, plan.rule, plan.reason, at)


def _asked(state: RunState, rule: str, reason: str, at: datetime) -> RunState:
    call = ToolCall(id=_CALL_ID, name=START_RUN, arguments={"task": state.request.task})
    plan = PreparedCall(verdict=Verdict.ASK, rule=rule, reason=reason, digest=_digest(state, call))
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
    return replace(told, calls=replace(told.calls, open=(OpenCall(call=call, plan=plan, asked_at=at),)))


def _digest(state: RunState, call: ToolCall) -> str:
    checks = state.signature_checks
    if not checks.approvals_are_named:  # a release before 0.4.0 has prepared the run
        return call_digest(state.run_id, call)
    return ask_digest(state.run_id, state.environment.execution, 0, call, reset_at=checks.asks_renewed_at)


def _after_end(state: RunState, event: HookReturned | HookFailed) -> RunState:
    if event.step.moment is not Moment.AFTER or state.outcome is None:
        return state
    if isinstance(event, HookFailed):
        return replace(state, outcome=Outcome(status=RunStatus.FAILED, error=_broken(event), is_final=True))
    if event.answer.text is None:
        return state
    # Text that a hook removes from the output must not remain in the JSON value.
    return replace(state, outcome=replace(state.outcome, output=event.answer.text, structured=None, is_final=True))


def _broken(event: HookFailed) -> RunError:
    what = "withholds the result of" if event.step.moment is Moment.AFTER else "blocks"
    return RunError(
        type="HookFailedError",
        message=f"the hook {event.step.name} ({event.step.moment}) {what} this run: {event.failure.message}",
        context={"hook": event.step.name, "moment": event.step.moment},
    )
