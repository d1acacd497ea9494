"""Process a turn's tool calls, starting with the model's answer and ending with the results in the conversation.

A call is open until it has a result. A call runs unless its prepared call, a person's decision, or the approval timeout
rules it out. If the rules change while a call is open, its prepared call becomes stale, and the call is checked again
before the run continues. When the last call of the turn has its result, all results are added to the conversation in
the order of the calls.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias, TypeGuard

from loom.domain.core.frozen import replace
from loom.domain.core.messages import JsonObject, ToolCall, canonical
from loom.domain.core.tool_calls import (
    LOST,
    Effect,
    ErrorType,
    OpenCall,
    PreparedCall,
    ToolResult,
    ToolSpec,
    Verdict,
    failed,
    kept_artifact,
    made_tool,
    next_group,
    tool_message,
)
from loom.domain.core.tool_names import ASK_USER, CREATE_TOOL, DONE, HANDED_ON, PYTHON, TODO
from loom.domain.machine.input_step import restarted, sampling_due, with_asks_noted, with_needed
from loom.domain.machine.proven_approvals import asked_for_proof
from loom.domain.run.actions import AskPerson, AwaitPerson, Backoff, PrepareCalls, RunChildren, RunTools, SampleModel
from loom.domain.run.events import CallsPrepared, ToolsReturned
from loom.domain.run.pending_approvals import digest_like, without_edit
from loom.domain.run.retry_policy import STORE_AWAY, TIMED_OUT, Again, Failure, RetryLimits, Tries, after_failure
from loom.domain.run.state import Phase, RunState, expires_at, with_calls
from loom.domain.run.stream_events import NOT_RUN, not_run_notice
from loom.domain.tools.loop_detection import call_steps, followed
from loom.domain.tools.todos import read_todos
from loom.domain.tree.tree import without_unbegun

UNKNOWN_OUTCOME: Final = (
    "Interrupted: the worker was lost while this ran, so its outcome is unknown. It may have taken effect in whole, in"
    " part or not at all, and it has not been tried again. Check what is there before you go on."
)
PATIENCE: Final = 2
"""The number of attempts that may fail because the record of effects is unavailable. The next attempt runs without the
record, and if that attempt's worker dies, the outcome is unknown. If an attempt that uses the record may already have
begun, the call waits until the record is available again.
"""

TEMPORARY: Final[frozenset[ErrorType]] = frozenset({"timeout", "unavailable", "execution", "unknown"})
"""The errors after which another attempt at the same call may succeed."""

OUT_OF_TIME: Final = (
    "The tool was stopped because it did not come back in time. It may have taken effect in part: check what is there"
    " before you go on."
)


def stopped_outcome(seconds: float) -> str:
    """Return what the model reads if a call was stopped because its worker stood still for so many seconds."""
    return (
        f"Interrupted: the worker stood still for {seconds:.0f} s while this ran, so it was stopped and its outcome is"
        " unknown. It may have taken effect in whole, in part or not at all, and it has not been tried again. Check"
        " what is there before you go on."
    )


def is_accounted(call: OpenCall) -> bool:
    """Whether the next attempt at the call records its effect."""
    return call.begun or call.away < PATIENCE


NextForCalls: TypeAlias = PrepareCalls | AskPerson | AwaitPerson | Backoff | SampleModel | RunTools | RunChildren


def next_for_calls(state: RunState) -> NextForCalls:
    """Return the next action for the open calls. If any calls are stale, the next action is to check them again."""
    if stale := tuple(call for call in state.calls.open if call.stale and call.result is None):
        return PrepareCalls(calls=stale)
    if state.asks:
        ends = [expiry for call in state.asks if (expiry := expires_at(state, call)) is not None]
        return AskPerson(calls=state.asks, until=min(ends, default=None))
    if state.question is not None:
        return AwaitPerson(call_id=state.question.call.id)
    if state.retry_at is not None:
        return Backoff(until=state.retry_at)
    exchanging = any(call.exchange is not None for call in state.calls.open)
    if exchanging and (sampling := sampling_due(state)) is not None:
        return SampleModel(call_id=sampling.call.id)
    group = next_group(state.calls.open, state.agent.parallel_limit)
    quick = tuple(call for call in group if call.call.name not in HANDED_ON)
    return RunTools(calls=quick) if quick else RunChildren(calls=group)


def may_read_quickly(state: RunState) -> bool:
    """Whether the activity that calls the model may also run the quick reads that the model asks for.

    It may not if the decision about a call needs something that this activity doesn't know: whether this is the last
    turn, the budget for tool calls, or the proofs of approvals.
    """
    if not state.environment.quick_reads or state.turn_state.is_final or state.answer.wrap_up is not None:
        return False
    has_budget = state.tree.limits is not None and state.tree.share.tool_calls is not None
    needs_proofs = state.signature_checks.proofs and bool(state.calls.grants)
    return not has_budget and not needs_proofs


def quick_calls(calls: Sequence[ToolCall], plans: Sequence[PreparedCall], limit: int, at: datetime) -> frozenset[str]:
    """Return the ids of the calls in a model's answer that may run in the activity that called the model: the quick
    reads in the group of calls that would run first. There are none if a call waits for a person or ends the run.
    `limit` is the maximum number of calls that run at the same time.
    """
    fresh = [opened(call, plan, at) for call, plan in zip(calls, plans, strict=True)]
    if any(call.call.name in (DONE, ASK_USER) or call.awaits_person for call in fresh):
        return frozenset()
    return frozenset(call.call.id for call in next_group(fresh, limit) if call.plan.is_quick and call.result is None)


def local_calls(state: RunState, calls: Sequence[OpenCall]) -> frozenset[str]:
    """Return the ids of those of these calls whose next attempts are local activities.

    The first call also publishes the run's notices. If there are any, it is an activity: history doesn't contain the
    requests of local activities, and the stream must follow from history.
    """
    return frozenset(call.call.id for call in calls[bool(state.notices.pending) :] if call.is_local)


def without_local_calls(state: RunState) -> RunState:
    """Return the run that an execution begins with. Its history doesn't contain the requests of calls that are already
    open, so these are activities.
    """
    if not any(call.plan.is_local for call in state.calls.open):
        return state
    return with_calls(state, lambda c: replace(c, plan=replace(c.plan, effect=c.plan.effect_of_tool)))


def opened(call: ToolCall, plan: PreparedCall, at: datetime, *, stale: bool = False) -> OpenCall:
    """Return a new open call. If its prepared call rules it out, the open call already has a result."""
    call = call if plan.arguments is None else replace(call, arguments=plan.arguments, malformed=None)
    result = intercepted(plan) or (None if stale else ruled_out(plan))
    asked_at = at if plan.verdict is Verdict.ASK and not plan.error and result is None else None
    return OpenCall(
        call=call,
        plan=plan if plan.result is None else replace(plan, result=None),
        asked_at=asked_at,
        result=result,
        stale=int(stale),
        attempt=2 if plan.is_quick and plan.result is None else 1,
    )


def with_quick_results(
    state: RunState, calls: Sequence[ToolCall], plans: Sequence[PreparedCall], at: datetime
) -> RunState:
    """Return the run with the results of the quick reads that came with the model's answer."""
    results = {call.id: plan.result for call, plan in zip(calls, plans, strict=True) if plan.result is not None}
    return _with_outcomes(state, ToolsReturned(outcomes=results, at=at)) if results else state


def granted(state: RunState, grants: Iterable[str]) -> RunState:
    """Return the run with these allow rules added. Pending asks are checked again, because the new rules might cover
    them.
    """
    more = tuple(dict.fromkeys((*state.calls.grants, *grants)))
    if more == state.calls.grants:
        return state
    return with_calls(
        replace(state, calls=replace(state.calls, grants=more)),
        lambda c: replace(c, stale=c.stale + 1) if _is_judged_again(c) else c,
    )


def with_asks_renewed(state: RunState) -> RunState:
    """Return a run whose earlier approvals have become void. Pending asks are made again, with other digests."""
    state = replace(state, calls=replace(state.calls, rules_changed=state.phase is Phase.THINKING))
    return with_calls(state, lambda c: replace(c, stale=c.stale + 1) if _is_judged_again(c) else c)


def _is_judged_again(call: OpenCall) -> bool:
    return call.exchange is None and (call.awaits_person or (call.stale > 0 and call.result is None))


def calls_prepared(state: RunState, event: CallsPrepared) -> RunState:
    """Return the next state of a run whose calls were prepared again."""
    plans = dict(zip(event.call_ids, event.plans.plans, strict=True))
    before = state
    state = with_calls(state, lambda c: _replanned(before, c, plans[c.call.id], event.at) if c.call.id in plans else c)
    state = not_run(state, [call for call in state.calls.open if _is_newly_settled(before, call)], event.at)
    return settled(granted(state, _granted_by_edits(state, plans)))


def _is_newly_settled(before: RunState, call: OpenCall) -> bool:
    """Whether checking the call again has settled it. The activity that checked it first has told what it settled."""
    earlier = next(each for each in before.calls.open if each.call.id == call.call.id)
    return call.result is not None and earlier.result is None and settled_by_plan(earlier.plan) is None


def not_run(state: RunState, calls: Iterable[OpenCall], at: datetime) -> RunState:
    """Return the run with a notice for each of these calls, which have a result that no activity has reported."""
    told = [
        # A reset may undo the run's end, so a later notice could have the same number.
        not_run_notice(
            c.call,
            c.result,
            turn=state.turn,
            at=at,
            attempt=c.attempt if c.begun or c.attempt > 1 else NOT_RUN,
            key="" if state.outcome is None else f"end{state.retries}-{c.call.id}",
        )
        for c in calls
        if c.result is not None
    ]
    return replace(state, notices=replace(state.notices, not_run=(*state.notices.not_run, *told))) if told else state


def _replanned(state: RunState, call: OpenCall, plan: PreparedCall, at: datetime) -> OpenCall:
    if not call.stale or call.result is not None:
        return call
    if call.stale > 1:  # the rules changed again while these calls were being prepared
        return replace(call, stale=1)
    if plan.error and call.decision is not None and call.decision.edited:
        return _asked_again(state, call, plan.error, at)
    if call.plan.arguments is not None:  # interceptors run only once, when the model makes the call
        plan = replace(plan, arguments=call.plan.arguments, interceptor=call.plan.interceptor)
    is_edited = call.decision is not None and call.decision.edited
    fresh = opened(call.call, replace(plan, arguments=None) if is_edited else plan, at)
    asked_at = fresh.asked_at and (call.asked_at or fresh.asked_at)
    result = fresh.result and _with_edit(fresh.result, call)
    return replace(call, plan=plan, stale=0, asked_at=asked_at, result=result)


def _asked_again(state: RunState, call: OpenCall, error: str, at: datetime) -> OpenCall:
    """Restore the original ask, because the call cannot run with the arguments that a person provided."""
    asked = without_edit(state, call)
    reason = f"the changed arguments cannot be carried out ({error}); these are the model's own again"
    plan = replace(call.plan, digest=digest_like(call.plan.digest, state, asked), reason=reason)
    return replace(call, call=asked, plan=plan, decision=None, asked_at=at, stale=0)


def _with_edit(result: ToolResult, call: OpenCall) -> ToolResult:
    if call.decision is None or not call.decision.edited:
        return result
    edit = f"A person changed the arguments to {canonical(call.call.arguments)}."
    return replace(result, content=f"{edit} {result.content}")


def _granted_by_edits(state: RunState, plans: Mapping[str, PreparedCall]) -> tuple[str, ...]:
    """Return the rules that are granted by run-wide approvals with changed arguments. The new prepared calls determine
    these rules.
    """
    return tuple(
        grant
        for call in state.calls.open
        if call.call.id in plans and not call.stale and call.decision is not None
        if call.decision.approved and call.decision.edited and call.decision.scope == "run"
        for grant in call.plan.grants
    )


def intercepted(plan: PreparedCall) -> ToolResult | None:
    """Return the result of a call that an interceptor has answered or stopped, or None."""
    if plan.stopped:
        return failed(f"Not permitted: {plan.stopped}. Find another way.", "permission")
    return None if plan.answer is None else ToolResult(content=plan.answer)


def settled_by_plan(plan: PreparedCall) -> ToolResult | None:
    """Return the result of a call that never runs, because its prepared call answers it or rules it out, or None."""
    return intercepted(plan) or ruled_out(plan)


def ruled_out(plan: PreparedCall) -> ToolResult | None:
    """Return the result of a call that its prepared call rules out, or None."""
    if plan.error:
        return failed(plan.error, plan.error_type or "validation")
    if plan.verdict is Verdict.DENY:
        return failed(f"Not permitted: {plan.reason}. Find another way.", "permission")
    return None


def tools_returned(state: RunState, event: ToolsReturned) -> RunState:
    """Return the next state of a run after attempts at tool calls have ended."""
    return _with_outcomes(state if state.outcome is None else _with_cancelled_begun(state, event), event)


def _with_outcomes(state: RunState, event: ToolsReturned) -> RunState:
    came = {
        call.call.id: event.outcomes[call.call.id]
        for call in state.calls.open
        if call.call.id in event.outcomes and call.result is None and not call.awaits_person
    }
    if refused := {name: outcome.unproven for name, outcome in came.items() if _is_unproven(outcome)}:
        state = asked_for_proof(state, refused, event.at)
        came = {name: outcome for name, outcome in came.items() if name not in refused}
    ledger = state.environment.ledger
    attempts = state.agent.tool_attempts if came else 1
    state = with_calls(
        state,
        lambda c: _repeated(_returned(c, came[c.call.id], event, ledger=ledger), attempts) if c.call.id in came else c,
    )
    if any(call.exchange is not None for call in state.calls.open):
        state = with_asks_noted(state, came, event.at)
    finished = {call.call.id for call in state.calls.open if call.result is not None} & came.keys()
    state = _with_side_results(state, [call for call in state.calls.open if call.call.id in finished])
    produced = state.conversation.produced | {name for name in finished if _is_result(came[name])}
    return settled(
        replace(
            state,
            conversation=replace(state.conversation, produced=produced),
            spending=replace(state.spending, tool_calls=state.spending.tool_calls + len(finished)),
            retry_at=_retry_at(state, came, event.at),
        )
    )


def _with_cancelled_begun(state: RunState, event: ToolsReturned) -> RunState:
    """Return an ended run in which the calls that were cancelled at its end may have begun."""
    action = next_for_calls(state)
    cancelled = {c.call.id for c in action.calls} - event.outcomes.keys() if isinstance(action, RunTools) else set()
    return with_calls(state, lambda c: replace(c, begun=True) if c.call.id in cancelled else c)


def _is_unproven(outcome: ToolResult | Failure) -> TypeGuard[ToolResult]:
    return isinstance(outcome, ToolResult) and bool(outcome.unproven)


def _is_result(outcome: ToolResult | Failure) -> bool:
    """Whether a worker has this result of a call, and has cached it."""
    return isinstance(outcome, ToolResult) and outcome.needs is None


def _with_side_results(state: RunState, finished: Sequence[OpenCall]) -> RunState:
    """Return the run with the side results of calls: artifacts, an interpreter, a to-do list, and new tools."""
    for call in finished:
        result = call.result
        if result is None:
            continue
        if result.artifact:
            kept = kept_artifact(call.call.id, call.call.name, result)
            state = replace(state, work=replace(state.work, artifacts=(*state.work.artifacts, kept)))
        if result.session or (call.call.name == PYTHON and result.error_type == "lost"):
            state = replace(state, work=replace(state.work, session=result.session or LOST))
        if call.call.name == TODO and result.status == "success":
            state = replace(state, work=replace(state.work, todos=read_todos(call.call.arguments, state.turn)))
        if call.call.name == CREATE_TOOL and result.status == "success":
            state = _with_tool(state, made_tool(call.call.arguments))
    return state


def _with_tool(state: RunState, made: ToolSpec) -> RunState:
    """Return the run with a new tool added.

    If a tool with this name already exists, the existing tool is kept, because its approvals must not apply to a
    different tool.
    """
    if any(tool.name == made.name for tool in state.agent.tools):
        return state
    spec = state.agent.with_tool(made)
    return replace(state, spec=spec, conversation=state.conversation.with_spec(spec.digest))


def _returned(call: OpenCall, outcome: ToolResult | Failure, event: ToolsReturned, *, ledger: bool) -> OpenCall:
    if isinstance(outcome, ToolResult):
        if outcome.needs is not None:
            return with_needed(call, outcome.needs, event.at)
        return replace(call, attempt=call.attempt + 1, inline=True) if outcome.resend else replace(call, result=outcome)
    if call.call.id in event.local:  # it took too long; an activity has the time that the tool needs
        return replace(call, attempt=call.attempt + 1)
    if outcome.kind == "provider":
        return replace(call, result=_broken(outcome))
    lost = call.lost + (outcome.kind == "lost")
    may_retry = isinstance(after_failure(Tries(lost=call.lost), outcome), Again)
    began = outcome.kind == "lost" or outcome.context.get("has_run") is True
    # With a record of effects, the next attempt looks up this attempt's outcome. Otherwise, the outcome is unknown.
    if not may_retry or (began and call.effect is Effect.ONCE and not (ledger and is_accounted(call))):
        return replace(call, result=failed(UNKNOWN_OUTCOME, "lost"))
    away = call.away + (outcome.type == STORE_AWAY)
    again = replace(call, attempt=call.attempt + 1, begun=call.begun or began, away=away, lost=lost)
    return again if call.exchange is None else restarted(again, outcome)


def _repeated(call: OpenCall, attempts: int) -> OpenCall:
    """Return a call whose tool has failed, ready for another attempt if that is harmless and the agent allows it."""
    result = call.result
    if result is None or result.error_type not in TEMPORARY or call.failures + 1 >= attempts:
        return call
    if call.plan.effect is Effect.ONCE or call.exchange is not None:
        return call
    return replace(call, result=None, attempt=call.attempt + 1, failures=call.failures + 1, begun=False)


def _broken(failure: Failure) -> ToolResult:
    if failure.type == TIMED_OUT:
        return failed(OUT_OF_TIME, "timeout")
    return failed(f"The tool broke: {failure.message}", "unknown")


def _retry_at(state: RunState, came: Mapping[str, ToolResult | Failure], at: datetime | None) -> datetime | None:
    """Return the time of the next attempt after a tool has failed or a part of Loom was unavailable. The delay limits
    the number of attempts in history.
    """
    waits = [
        decision.delay
        for call in state.calls.open
        if call.result is None
        if isinstance(failure := came.get(call.call.id), Failure) and failure.kind == "infrastructure"
        # `attempt` already includes the attempt that has just failed.
        if isinstance(decision := after_failure(Tries(away=call.attempt - 2), failure), Again)
    ]
    agent = state.agent
    limits = RetryLimits(first_delay=agent.first_retry_delay, longest_delay=agent.longest_retry_delay)
    waits += [
        limits.delay(call.failures - 1)
        for call in state.calls.open
        if call.result is None and call.failures and _has_failed(came.get(call.call.id))
    ]
    return at + timedelta(seconds=max(waits)) if waits and at is not None else None


def _has_failed(outcome: ToolResult | Failure | None) -> bool:
    """Whether an attempt has ended because its tool failed."""
    if isinstance(outcome, Failure):
        return outcome.kind == "provider"
    return outcome is not None and outcome.is_final


def settled(state: RunState) -> RunState:
    """If every call in the turn has a result, return the run with all results added to the conversation. Otherwise,
    return the run unchanged.
    """
    if state.phase is not Phase.ACTING or any(call.result is None for call in state.calls.open):
        return state
    if window := state.agent.loop_window:
        repetition = followed(state.work.repetition, call_steps(state.calls.open), window)
        state = replace(state, work=replace(state.work, repetition=repetition))
    return _observed(replace(state, phase=Phase.READY, retry_at=None))


def end_calls(state: RunState, at: datetime, text: str, *, unasked: str = "") -> RunState:
    """Return the run with a result for every call, so that the conversation is valid.

    A call without a result receives the error `text`, or `unasked` if it waits for approval. People are told of it.
    """
    unfinished = [call for call in state.calls.open if call.result is None]
    results = {
        c.call.id: failed(unasked if unasked and c.awaits_person and c.exchange is None else text, "aborted")
        for c in unfinished
    }
    ended = with_calls(state, lambda c: replace(c, result=results.get(c.call.id, c.result)))
    return _observed(not_run(ended, [call for call in ended.calls.open if call.call.id in results], at))


def with_calls_ended(state: RunState, at: datetime, text: str) -> RunState:
    """Return a run that has an outcome, with a result for every call. A call that was running receives `text`."""
    if state.tree.children:
        state = replace(state, tree=without_unbegun(state.tree))
    return end_calls(state, at, text, unasked="not run: the run ended while this waited for approval")


def _observed(state: RunState) -> RunState:
    answers = [
        tool_message(call.call, call.result, _decision_of(call)) for call in state.calls.open if call.result is not None
    ]
    return replace(state, calls=replace(state.calls, open=()), conversation=state.conversation.extended(answers))


def _decision_of(call: OpenCall) -> JsonObject:
    if call.decision is None:
        return {}
    decision = call.decision
    return {"approved": decision.approved, "scope": decision.scope, "by": decision.by, "rule": call.plan.rule}
