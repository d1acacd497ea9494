"""Pending approvals: the calls in a run and its descendants that are waiting for a person, each with a unique id."""

from typing import Any, Final

from loom.domain.core.approval_proofs import execution_name
from loom.domain.core.frozen import replace
from loom.domain.core.messages import ASK_DIGEST_LENGTH, JsonObject, ToolCall, ask_digest, call_digest, canonical
from loom.domain.core.tool_calls import OpenCall
from loom.domain.core.tool_input import Exchange
from loom.domain.permissions.risk import risk_of
from loom.domain.run.state import RunState, expires_at
from loom.domain.tree.tree import TreeAsk

LONGEST_TEXT: Final = 2000
"""The maximum length of a text in the arguments that are sent to ancestor runs. The run that made the call has the full
text.
"""


def open_asks(state: RunState) -> tuple[TreeAsk, ...]:
    """Return all asks of the run and its descendants, with the run's own asks first."""
    return (*(own_ask(state, call) for call in state.asks), *state.tree.asks)


def find_ask(state: RunState, call_id: str | None) -> TreeAsk | None:
    """Return the ask with this id. If no id is given, return the only ask."""
    asks = open_asks(state)
    if call_id is None:
        return asks[0] if len(asks) == 1 else None
    return next((ask for ask in asks if ask.call_id == call_id), None)


def digest_like(known: str, state: RunState, call: ToolCall) -> str:
    """Return the digest by which people approve a call of this turn, in the form of another digest. Workers of earlier
    releases have prepared calls with the shorter form.
    """
    if len(known) < ASK_DIGEST_LENGTH:
        return call_digest(state.run_id, call)
    reset_at = state.signature_checks.asks_renewed_at
    return ask_digest(state.run_id, state.environment.execution, state.turn, call, reset_at=reset_at)


def without_edit(state: RunState, call: OpenCall) -> ToolCall:
    """Return a call of this turn with the arguments that it had before a person changed them."""
    made = next(each for each in state.transcript.messages[-1].tool_calls if each.id == call.call.id)
    return made if call.plan.arguments is None else replace(made, arguments=call.plan.arguments)


def own_ask(state: RunState, call: OpenCall) -> TreeAsk:
    """Return the ask for one of the run's own calls."""
    expiry = expires_at(state, call)
    ask = TreeAsk(
        call_id=call.call.id,
        run_id=state.run_id,
        agent=state.request.agent,
        depth=state.tree.depth,
        tool=call.call.name,
        arguments=call.call.arguments,
        reason=call.plan.reason,
        rule=call.plan.rule,
        risk=risk_of(call.call.name, call.plan),
        digest=call.plan.digest,
        for_run=call.plan.grants,
        asked_at=call.asked_at.isoformat() if call.asked_at else None,
        expires_at=expiry.isoformat() if expiry else None,
        execution=_execution(state) if state.signature_checks.proofs else "",
    )
    return ask if call.exchange is None else _of_server(ask, call.exchange, state)


def _execution(state: RunState) -> str:
    return execution_name(state.environment.execution, state.signature_checks.asks_renewed_at)


def _of_server(ask: TreeAsk, exchange: Exchange, state: RunState) -> TreeAsk:
    """Return the ask of an MCP server for input. Its digest binds the answer to the question."""
    request = exchange.open
    if request is None:
        return ask
    return replace(
        ask,
        reason=f"its MCP server asks: {request.message}",
        rule="",
        digest=exchange.digest(_renewed(ask.digest or ask.call_id, state)),
        for_run=(),
        question=request.message,
        schema=request.schema if request.kind == "form" else None,
        url=request.url,
        execution="",  # the call is already approved, and an answer is not an approval
    )


def _renewed(digest: str, state: RunState) -> str:
    """Return the digest of a call that its server has begun, so that it can't be prepared again after a reset."""
    reset_at = state.signature_checks.asks_renewed_at
    return f"{digest}@{reset_at}" if reset_at else digest


def shortened_for_ancestors(ask: TreeAsk) -> TreeAsk:
    """Truncate long texts in an ask before it is sent to ancestor runs."""
    shorter = _all_cut(ask.arguments)
    return replace(ask, arguments=shorter, cut=ask.cut or canonical(shorter) != canonical(ask.arguments))


def _all_cut(arguments: JsonObject) -> JsonObject:
    return {name: _cut(value) for name, value in arguments.items()}


def _cut(value: Any) -> Any:
    match value:
        case str() if len(value) > LONGEST_TEXT:
            return f"{value[:LONGEST_TEXT]}… ({len(value)} characters)"
        case list() | tuple():
            return [_cut(each) for each in value]
        case dict():
            return _all_cut(value)
        case _:
            return value
