"""Ask again for calls whose workers have refused the proof of their approval, or found none."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from loom.domain.core.frozen import replace
from loom.domain.core.messages import ask_digest
from loom.domain.core.tasks import Action
from loom.domain.core.tool_calls import OpenCall, Verdict
from loom.domain.run.pending_approvals import without_edit
from loom.domain.run.state import RunState, note, with_calls

RULE: Final = "proof"
"""The rule of an ask for a call that the rules of the run allow, but those of the worker don't."""


def with_grant_proof(state: RunState, proof: str) -> RunState:
    """Return the run with the proof of an approval that is for the rest of the run."""
    if not proof or proof in state.calls.grant_proofs:
        return state
    return replace(state, calls=replace(state.calls, grant_proofs=(*state.calls.grant_proofs, proof)))


def without_grants(state: RunState) -> RunState:
    """Return the run without what people have approved for its rest."""
    return replace(state, calls=replace(state.calls, grants=(), grant_proofs=()))


def asked_for_proof(state: RunState, refused: Mapping[str, str], at: datetime | None) -> RunState:
    """Return the run waiting for a person again with each of these calls, which hasn't run. `refused` says why.

    What was approved for the rest of the run no longer counts, because the workers may not be able to verify it either.
    """
    at = at or state.began_at
    checks = replace(state.signature_checks, proofs=True)
    state = without_grants(replace(state, signature_checks=checks))
    state = with_calls(state, lambda c: _asked_again(state, c, refused[c.call.id], at) if c.call.id in refused else c)
    for call_id, why in refused.items():
        state = note(state, Action.IGNORED, at, signal="approve", call_id=call_id, why=why)
    return state


def _asked_again(state: RunState, call: OpenCall, why: str, at: datetime) -> OpenCall:
    # Whoever has sent the approval may not change the call.
    made = without_edit(state, call) if call.decision is not None and call.decision.edited else call.call
    reset_at = state.signature_checks.asks_renewed_at
    plan = replace(
        call.plan,
        verdict=Verdict.ASK,
        rule=call.plan.rule if call.plan.verdict is Verdict.ASK else RULE,
        reason=why,
        digest=ask_digest(state.run_id, state.environment.execution, state.turn, made, reset_at=reset_at),
        effect=call.plan.effect_of_tool,
    )
    # A call that its MCP server has begun is made again from its beginning.
    return replace(call, call=made, plan=plan, decision=None, asked_at=at, exchange=None, attempt=call.attempt + 1)
