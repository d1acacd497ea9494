"""Collect the input that an MCP server needs during a tool call.

    call ──▶ needs input ──▶ ask a person ──▶ call goes on with the answers ──▶ result, or needs input again
                       └──▶ call the run's model ──▶┘

The run waits between two attempts of the call, so no worker is occupied, and the question survives every worker.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

from loom.domain.core.frozen import replace
from loom.domain.core.messages import JsonObject
from loom.domain.core.tasks import Action, Notice
from loom.domain.core.tool_calls import Decision, OpenCall, failed
from loom.domain.core.tool_input import MOST_ROUNDS, Exchange, InputAnswer, NeededInput, wrong_answer
from loom.domain.machine.limits import charged, charged_for_failure
from loom.domain.run.events import ModelSampled, SamplingFailed
from loom.domain.run.pending_approvals import own_ask
from loom.domain.run.retry_policy import Failure
from loom.domain.run.state import RunState, noticed, with_calls
from loom.domain.tree.tree import TreeAsk

NOT_COVERED: Final = "what is left of the run's budget may not cover the model call"


def with_needed(call: OpenCall, needed: NeededInput, at: datetime | None) -> OpenCall:
    """Return a call whose attempt ended because its MCP server needs input."""
    exchange = Exchange(needed=needed) if call.exchange is None else call.exchange.asked(needed)
    if exchange.round > MOST_ROUNDS:
        why = f"the MCP server asked for input {MOST_ROUNDS} times in this call, so Loom has ended it: try another way"
        return replace(call, result=failed(why, "execution"))
    return replace(call, exchange=exchange, asked_at=at, attempt=call.attempt + 1, begun=False, lost=0, away=0)


def restarted(call: OpenCall, failure: Failure) -> OpenCall:
    """Return a call whose attempt has failed. If the worker that kept the call open is lost, another worker makes the
    next attempt.
    """
    if call.exchange is None or not (failure.kind == "lost" or failure.type == "NoWorker"):
        return call
    return replace(call, exchange=call.exchange.restarted())


def with_asks_noted(state: RunState, calls: Iterable[str], at: datetime | None) -> RunState:
    """Return the run with a notice for each of these calls that waits for a person's answer."""
    for call in state.asks:
        if call.call.id in calls and call.exchange is not None and at is not None:
            ask = own_ask(state, call)
            told = {
                "turn": state.turn,
                "call_id": ask.call_id,
                "tool": ask.tool,
                "reason": ask.reason,
                "risk": ask.risk,
                "digest": ask.digest,
                "for_run": [],
                "expires_in": state.agent.approval_timeout,
                "question": ask.question,
                "schema": ask.schema,
                "url": ask.url,
            }
            parameters = {name: value for name, value in told.items() if value not in ("", None)}
            key = f"ask-{ask.call_id}-{ask.digest}"
            notice = Notice(action=Action.APPROVAL_REQUESTED, key=key, at=at, status="pending", parameters=parameters)
            state = noticed(state, notice)
    return state


def refused_content(ask: TreeAsk, arguments: JsonObject | None) -> str | None:
    """Return the reason that a person's approval doesn't answer an MCP server's question, or None."""
    return wrong_answer(ask.schema, arguments or {}) if ask.schema is not None else None


def answered(state: RunState, call: OpenCall, decision: Decision, content: JsonObject | None) -> RunState:
    """Return the run after a person has decided on an MCP server's request, or nobody has in time."""
    exchange = call.exchange
    if exchange is None or (request := exchange.open) is None:
        return state
    if decision.approved and request.kind == "sampling":
        exchange = exchange.approved()
    elif decision.approved:
        answer = InputAnswer(key=request.key, kind=request.kind, action="accept", content=content or {})
        exchange = exchange.answered(answer)
    else:
        action: Literal["cancel", "decline"] = "cancel" if decision.by == "timeout" else "decline"
        reason = decision.reason or "a person declined"
        exchange = exchange.answered(InputAnswer(key=request.key, kind=request.kind, action=action, reason=reason))
    return _with_exchange(state, call, exchange, decision.at)


def sampling_due(state: RunState) -> OpenCall | None:
    """Return the call whose MCP server may call the run's model now."""
    waiting = (call for call in state.calls.open if call.exchange is not None and call.result is None)
    return next((call for call in waiting if call.exchange and (to := call.exchange.open) and not to.asks), None)


def model_sampled(state: RunState, event: ModelSampled) -> RunState:
    """Return the run after its model has answered an MCP server, or the budget hasn't covered that."""
    done = event.sampled
    if done.uncovered is not None:
        return _without_sample(state, event.call_id, NOT_COVERED, event.at)
    state = charged(state, done.usage, done.cost_micros, event.at)
    content = {"text": done.text, "model": state.agent.model, "stop": done.stop}
    return _with_sample(state, event.call_id, "accept", event.at, content=content)


def sampling_failed(state: RunState, event: SamplingFailed) -> RunState:
    """Return the run after its model couldn't answer an MCP server. The server decides what follows."""
    state = charged_for_failure(state, event.failure, event.at)
    return _without_sample(state, event.call_id, f"the model call failed: {event.failure.message}", event.at)


def _without_sample(state: RunState, call_id: str, why: str, at: datetime) -> RunState:
    return _with_sample(state, call_id, "cancel", at, reason=why)


def _with_sample(
    state: RunState,
    call_id: str,
    action: Literal["accept", "cancel"],
    at: datetime,
    *,
    content: JsonObject | None = None,
    reason: str = "",
) -> RunState:
    call = next((each for each in state.calls.open if each.call.id == call_id), None)
    if call is None or call.exchange is None or (request := call.exchange.open) is None:
        return state
    answer = InputAnswer(key=request.key, kind=request.kind, action=action, content=content or {}, reason=reason)
    return _with_exchange(state, call, call.exchange.answered(answer), at)


def _with_exchange(state: RunState, call: OpenCall, exchange: Exchange, at: datetime) -> RunState:
    asked_next = exchange.open is not None and exchange.open.asks
    changed = replace(call, exchange=exchange, asked_at=at if asked_next else call.asked_at)
    state = with_calls(state, lambda c: changed if c.call.id == call.call.id else c)
    return with_asks_noted(state, (call.call.id,), at) if asked_next else state
