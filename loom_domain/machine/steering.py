"""Steer a running agent: approve, deny, pause, resume, abort, retry, send a message, or change the rules.

`refusal` returns the reason that a request cannot be carried out. `steered` carries out a request, or adds a notice
that gives the reason why the request cannot be carried out. Both functions depend only on the state, so each answer
applies to exactly one open call. An answer that is late, repeated, or outdated doesn't match any open call and has no
effect.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, assert_never

from loom.domain.agents.spec import AgentSpec
from loom.domain.core.approval_proofs import claims_in, mismatch
from loom.domain.core.errors import BadRequest
from loom.domain.core.frozen import replace
from loom.domain.core.messages import AGENT, JsonObject, canonical, user
from loom.domain.core.requests import ParkedOn, RunError, RunStatus
from loom.domain.core.tasks import Action
from loom.domain.core.tool_calls import Decision, OpenCall, ToolResult, failed
from loom.domain.machine.chatting import handling, message_heard, message_id_of
from loom.domain.machine.input_step import answered, refused_content
from loom.domain.machine.model_retry import retried
from loom.domain.machine.proven_approvals import with_grant_proof
from loom.domain.machine.reopening_rules import refused_reopening
from loom.domain.machine.tool_results import granted, not_run, settled
from loom.domain.permissions.judge import GUARD
from loom.domain.permissions.rules import parse_rules
from loom.domain.run.chat import Chat
from loom.domain.run.events import (
    AbortRequested,
    Approved,
    AsksExpired,
    Denied,
    MessageReceived,
    PauseRequested,
    PermissionsSet,
    ResumeRequested,
    RetryRequested,
    SteeringEvent,
)
from loom.domain.run.pending_approvals import digest_like, find_ask, open_asks, own_ask
from loom.domain.run.state import Hold, Outcome, Phase, RunState, expires_at, note, result_of, with_calls
from loom.domain.tree.signals import PARENT, with_answer
from loom.domain.tree.tree import TreeAsk

_NAMES: Final[Mapping[type[SteeringEvent], str]] = {
    AbortRequested: "abort",
    PauseRequested: "pause",
    ResumeRequested: "resume",
    RetryRequested: "retry",
    Approved: "approve",
    Denied: "deny",
    MessageReceived: "send_message",
    PermissionsSet: "set_permissions",
}


def name_of(event: SteeringEvent) -> str:
    """Return the signal's name in the public contract."""
    return _NAMES[type(event)]


def refusal(state: RunState, event: SteeringEvent) -> str | None:  # noqa: C901 - one case an event
    """Return the reason that this request cannot be carried out in the current state, or None."""
    if state.outcome is not None and not (state.is_answer or _reopens(event) or _ends_wait(state, event)):
        return f"the run has ended: {state.outcome.status}"
    match event:
        case Approved(call_id=call_id, digest=digest, arguments=arguments):
            return (
                _refused_answer(state, call_id, digest)
                or _refused_content(state, call_id, arguments)
                or _refused_proof(state, event)
            )
        case Denied(call_id=call_id):
            return _refused_answer(state, call_id, None)
        case PauseRequested():
            return "the run is already paused" if state.hold else None
        case ResumeRequested(by=by):
            return _refused_resume(state, by)
        case RetryRequested():
            return _refused_retry(state, event)
        case PermissionsSet(rules=rules):
            return _refused_rules(rules)
        case MessageReceived(parts=parts):
            return "a crew reads only text: send the message without `parts`" if parts and state.request.crew else None
        case AbortRequested():
            return None
        case _:
            assert_never(event)


def steered(state: RunState, event: SteeringEvent) -> RunState:
    """Return the next state of a run that has received a person's request. A refused request only adds a notice."""
    if why := refusal(state, event):
        return note(state, Action.IGNORED, event.at, signal=name_of(event), why=why)
    return settled(_carried_out(state, event))


def _carried_out(state: RunState, event: SteeringEvent) -> RunState:  # noqa: C901 - one case an event
    match event:
        case Approved():
            return _approve(state, event)
        case Denied():
            return _deny(state, event)
        case AbortRequested():
            return _abort(state, event)
        case PauseRequested():
            return note(replace(state, hold=Hold(by=event.by, at=event.at)), Action.PAUSED, event.at, by=event.by)
        case ResumeRequested():
            return note(resumed(state, event.at), Action.RESUMED, event.at, by=event.by)
        case RetryRequested():
            reopens = _reopens(event) or _ends_wait(state, event)
            return replace(state, reopening=event) if reopens else retried(state, event)
        case MessageReceived():
            heard = _with_message(state, event)
            if heard is state:  # a chat already knows the message
                return state
            target = state.request.agent
            said: dict[str, Any] = {"text": event.text, "by": event.by}
            if state.chat is not None and not event.from_agent:
                said["message_id"] = message_id_of(state.chat, event)
            if event.parts:
                said["parts"] = [part.name or part.path or part.url for part in event.parts]
            return note(heard, Action.MESSAGE, event.at, target_agent=target, **said)
        case PermissionsSet():
            return _set_permissions(state, event)
        case _:
            assert_never(event)


def extent(state: RunState, event: SteeringEvent) -> JsonObject:
    """Return what a receipt adds about the request.

    For an approval, this is its scope, as far as it is known before the call is checked again. For a chat's message, it
    is what the chat does with it.
    """
    if isinstance(event, MessageReceived) and state.chat is not None and not event.from_agent:
        return _receipt(state, state.chat, event)
    if not isinstance(event, Approved) or event.arguments is not None:
        return {}
    # Several updates may have been accepted before the first one is carried out.
    if (ask := find_ask(state, event.call_id)) is None:
        return {}
    if event.scope == "once" or ask.for_run:
        return {"scope": event.scope}
    if ask.rule.startswith(GUARD):
        return {"scope": "once", "why": f"the guard against {ask.rule.removeprefix(GUARD)} asks each time"}
    return {"scope": "once", "why": "no rule can allow exactly this for the rest of the run"}


def _receipt(state: RunState, chat: Chat, event: MessageReceived) -> JsonObject:
    turn = chat.answers[-1].turn if chat.answers else 0
    return {"message_id": message_id_of(chat, event), "handling": handling(state, chat, event), "answered_turn": turn}


def asks_expired(state: RunState, event: AsksExpired) -> RunState:
    """Return the run's next state after asks may have expired. Expired asks count as denied."""
    for call in state.asks:
        expiry = expires_at(state, call)
        if expiry is not None and expiry <= event.at:
            reason = "nobody answered in time"
            state = _decide(state, call, Decision(approved=False, reason=reason, by="timeout", at=event.at))
    return settled(state)


def _refused_answer(state: RunState, call_id: str | None, digest: str | None) -> str | None:
    asks = open_asks(state)
    if call_id is None and len(asks) > 1:
        return f"{len(asks)} calls are waiting for approval; name one: {', '.join(ask.call_id for ask in asks)}"
    ask = find_ask(state, call_id)
    if ask is None:
        named = f"call {call_id!r} is not waiting" if call_id else "no call is waiting"
        return f"{named} for approval"
    if digest is not None and digest != ask.digest:
        # The right digest isn't told: whoever approves with it must have seen the call.
        return f"the digest {digest} is not that of call {ask.call_id!r}: look at the call before you approve it"
    return None


def _refused_content(state: RunState, call_id: str | None, arguments: JsonObject | None) -> str | None:
    ask = find_ask(state, call_id)
    return refused_content(ask, arguments) if ask is not None and ask.schema is not None else None


def _refused_proof(state: RunState, event: Approved) -> str | None:
    """Return the reason that an approval isn't proven, as far as the run can tell. Its worker verifies the proof."""
    ask = find_ask(state, event.call_id)
    if ask is None or not ask.execution:
        return None
    if not event.proof:
        return (
            "this approval isn't proven, and the workers accept no other (LOOM_APPROVAL_KEYS): approve through `loom"
            " serve`, or where LOOM_APPROVAL_KEY is set"
        )
    try:
        claims = claims_in(event.proof)
    except BadRequest as error:
        return error.message
    if (claims.run, claims.execution) != (ask.run_id, ask.execution):
        return "its proof is for another run, or for this run before it was reset"
    return mismatch(claims, digest=ask.digest, by=event.by, scope=event.scope, arguments=event.arguments)


def _refused_resume(state: RunState, by: str) -> str | None:
    if state.hold is None:
        return "the run is not paused"
    if by == PARENT and state.hold.by != PARENT:
        return "the run was paused separately from the run above it, so it must also be resumed separately"
    return None


def _reopens(event: SteeringEvent) -> bool:
    """Whether this request takes up an ended run. `machine.reopening` carries it out once the run has an outcome."""
    return isinstance(event, RetryRequested) and event.end is not None


def _ends_wait(state: RunState, event: SteeringEvent) -> bool:
    """Whether this request ends the wait of an ended run until the change to its repository is returned."""
    return state.returning is not None and isinstance(event, AbortRequested | RetryRequested)


def _refused_retry(state: RunState, event: RetryRequested) -> str | None:
    if event.end not in (None, state.retries + 1):
        return f"the run has already gone on after its end {event.end}"
    if state.outcome is not None and state.returning is not None:
        return refused_reopening(result_of(state, state.outcome), event)
    if event.end is not None:
        return None
    gone_on = ": a retry has already continued it" if state.retries or state.reopening is not None else ""
    if event.changes_ended_run:
        return f"the run has not ended{gone_on}: only a run that has ended takes `max_turns`, `budget` and `message`"
    if state.parked is not None or (state.phase is Phase.THINKING and state.retry_at is not None):
        return None
    parked_below = [child.run_id for child in state.tree.running if child.waiting_on in tuple(ParkedOn)]
    if parked_below:
        return f"the run waits for its sub-agents; retry {', '.join(parked_below)}"
    return f"the run is not waiting for its provider or its operator{gone_on}"


def _refused_rules(rules: Any) -> str | None:
    try:
        parse_rules(rules)
    except BadRequest as error:
        return error.message
    return None


def _asked(state: RunState, call_id: str | None) -> TreeAsk:
    ask = find_ask(state, call_id)
    if ask is None:
        raise ValueError(f"no open ask {call_id!r}; ask `refusal` first")
    return ask


def _own(state: RunState, ask: TreeAsk) -> OpenCall | None:
    """Return the run's own call, or None for a sub-agent's call. The sub-agent receives the answer as a signal."""
    if ask.run_id != state.run_id:
        return None
    return next(call for call in state.asks if call.call.id == ask.call_id)


def _handed_down(state: RunState, ask: TreeAsk, signal: str, **answer: Any) -> RunState:
    given = {name: value for name, value in answer.items() if value not in ("", None)}
    return replace(state, tree=with_answer(state.tree, ask, signal, given))


def _approve(state: RunState, event: Approved) -> RunState:
    ask = _asked(state, event.call_id)
    if (call := _own(state, ask)) is None:
        answer = {"scope": event.scope, "arguments": event.arguments, "digest": ask.digest, "by": event.by}
        answer["proof"] = event.proof
        return _handed_down(state, ask, "approve", **answer)
    if call.exchange is not None:
        decision = Decision(approved=True, by=event.by, at=event.at)
        return answered(_decision_noted(state, call, decision, ask.digest), call, decision, event.arguments)
    # Don't compare with `==`, because True == 1.
    edited = event.arguments is not None and canonical(event.arguments) != canonical(call.call.arguments)
    # If an approval changes the arguments, the rules that it adds depend on the call prepared with the new arguments.
    scope = event.scope if edited or call.plan.grants else "once"
    decision = Decision(approved=True, scope=scope, by=event.by, at=event.at, edited=edited, proof=event.proof)
    if edited and event.arguments is not None:
        changed = replace(call.call, arguments=event.arguments, malformed=None)
        plan = replace(call.plan, digest=digest_like(call.plan.digest, state, changed))
        call = replace(call, call=changed, plan=plan, stale=1)
    state = _decide(state, call, decision)
    return state if edited or scope == "once" else granted(with_grant_proof(state, event.proof), call.plan.grants)


def _deny(state: RunState, event: Denied) -> RunState:
    ask = _asked(state, event.call_id)
    if (call := _own(state, ask)) is None:
        return _handed_down(state, ask, "deny", reason=event.reason, by=event.by)
    return _decide(state, call, Decision(approved=False, reason=event.reason, by=event.by, at=event.at))


def _decide(state: RunState, call: OpenCall, decision: Decision) -> RunState:
    if call.exchange is not None:
        digest = own_ask(state, call).digest
        return answered(_decision_noted(state, call, decision, digest), call, decision, None)
    decided = replace(call, decision=decision)
    if not decision.approved:
        reason = decision.reason or "no reason given"
        by = f" by {decision.by}" if decision.by else ""
        text = f"Denied{by}: {reason}. Do not try the same again; find another way or ask what is wanted."
        decided = replace(decided, result=failed(text, "permission"))
    state = with_calls(state, lambda c: decided if c.call.id == call.call.id else c)
    state = _decision_noted(state, call, decision, call.plan.digest)
    return not_run(state, [decided], decision.at)


def _decision_noted(state: RunState, call: OpenCall, decision: Decision, digest: str) -> RunState:
    return note(
        state,
        Action.APPROVAL_DECIDED,
        decision.at,
        call_id=call.call.id,
        tool=call.call.name,
        approved=decision.approved,
        scope=decision.scope,
        edited=decision.edited,
        by=decision.by,
        reason=decision.reason,
        rule=call.plan.rule,
        digest=digest,
    )


def _with_message(state: RunState, event: MessageReceived) -> RunState:
    """Return the next state of a run that has received a message. The message answers the open question, or the model
    receives it when the next turn begins.
    """
    question = state.question
    if state.chat is not None and not event.from_agent:
        return message_heard(state, state.chat, event)
    state = replace(state, incoming=state.incoming.added(event.parts))
    if event.from_agent:
        return replace(state, inbox=(*state.inbox, user(event.text, by=event.by, kind=AGENT)))
    if question is None:
        return replace(state, inbox=(*state.inbox, user(event.text, by=event.by)))
    by = f"{event.by} answers" if event.by else "The answer"
    answer = ToolResult(content=f"{by}: {event.text}")
    return with_calls(state, lambda c: replace(c, result=answer) if c.call.id == question.call.id else c)


def _abort(state: RunState, event: AbortRequested) -> RunState:
    why = f": {event.reason}" if event.reason else ""
    by = f" by {event.by}" if event.by else ""
    if state.returning is not None:  # the run has ended, and only its end waits
        return replace(state, returning=replace(state.returning, given_up=f"aborted{by}{why}"))
    done = f"Until then: {state.turn} turns, {state.spending.tool_calls} finished tool calls."
    error = RunError(
        type="ExecutionAbortedError",
        message=f"aborted{by}{why}. {done}",
        context={"reason": event.reason, "by": event.by},
    )
    return replace(state, hold=None, outcome=Outcome(status=RunStatus.ABORTED, error=error))


def resumed(state: RunState, at: datetime) -> RunState:
    """Return the next state of a run that is resumed. The approval timeout restarts for all open asks."""
    return with_calls(
        replace(state, hold=None),
        lambda c: replace(c, asked_at=at) if c.asked_at and c.result is None and _is_undecided(c) else c,
    )


def _is_undecided(call: OpenCall) -> bool:
    return call.decision is None or call.exchange is not None


def _set_permissions(state: RunState, event: PermissionsSet) -> RunState:
    request = replace(state.request, permissions={**state.request.permissions, **event.rules})
    spec = state.spec.with_permissions(event.rules) if state.spec is not None else None
    return under_other_rules(replace(state, request=request), spec)


def under_other_rules(state: RunState, spec: AgentSpec | None) -> RunState:
    """Return the run with different permission rules. Calls that have not run are checked again."""
    state = replace(state, calls=replace(state.calls, rules_changed=state.phase is Phase.THINKING))
    if spec is not None:
        state = replace(state, spec=spec, conversation=state.conversation.with_spec(spec.digest))
    # A call that its MCP server has begun can't be taken back, so it isn't checked again.
    return with_calls(state, lambda c: replace(c, stale=c.stale + 1) if c.result is None and not c.exchange else c)
