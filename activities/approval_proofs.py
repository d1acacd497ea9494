"""Decide whether a call may run with the proofs of approvals that came with it.

Nothing that comes through Temporal shows that a call needs no proof: whoever reaches the server can change a run's
rules, its mode and its state. A worker therefore judges each call once more, by the rules in its own definition of the
run's agent, right before the call runs. What these don't allow, a proof must.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from temporalio.exceptions import ApplicationError

from loom.activities.approval_keys import ApprovalKeys
from loom.activities.ports import StoreUnavailable, Tool, UsedStarts
from loom.activities.toolbox.pipeline import judged_by_own_rules
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.approval_proofs import ApprovalClaims, digest_of_edit, execution_name
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import ToolCall, ask_digest
from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.obeyed import NO_FILES, WorkerFiles
from loom.domain.run.activity_payloads import ToolRequest
from loom.domain.run.retry_policy import STORE_AWAY

USES_REMEMBERED: Final = 10_000
"""The number of used proofs that a worker without a database remembers."""


class OwnRules:
    """The rules in this worker's own definitions of agents, without what requests and people have added."""

    def __init__(self, agents: Mapping[str, AgentSpec], default: AgentSpec) -> None:
        self._agents = agents
        self._default = default

    def of(self, agent: str) -> AgentSpec:
        """Return the agent as this worker defines it. A crew, or an unknown agent, has the default rules."""
        return self._agents.get(agent) or replace(self._default, name=agent)


class ProofCheck:
    """Decides whether a call may run, or needs a proof that it doesn't have."""

    def __init__(
        self,
        keys: ApprovalKeys,
        rules: OwnRules,
        *,
        used: UsedStarts | None = None,
        obeyed: Callable[[str], WorkerFiles] | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`used` records for all workers which call each proof has been used for. Without it, this worker remembers."""
        self._keys = keys
        self._rules = rules
        self._used = used
        self._remembered: OrderedDict[str, str] = OrderedDict()
        self._obeyed = obeyed
        self._clock = clock

    async def refusal(self, request: ToolRequest, call: ToolCall, tool: Tool | None) -> str | None:
        """Return the reason that this call may not run, or None.

        Raises ApplicationError if the database doesn't say whether the proof has been used. The call is then tried
        again.
        """
        if request.proof:
            try:
                claims = self._keys.verified(request.proof, self._clock())
            except BadRequest as error:
                return error.message
            return _wrong_call(claims, request, call) or await self._reused(claims, request)
        if not request.asked and self._is_allowed(request, call, tool):
            return None
        return (
            "this worker runs it only with an approval that is proven (LOOM_APPROVAL_KEYS): approve it through `loom"
            " serve`, or where LOOM_APPROVAL_KEY is set"
        )

    def _is_allowed(self, request: ToolRequest, call: ToolCall, tool: Tool | None) -> bool:
        """Whether the worker's own rules allow the call, with what was granted for the run by proven approvals."""
        if tool is None:
            return True  # it can't run
        own = replace(self._rules.of(request.origin.agent), workspace=request.workspace)
        obeyed = self._obeyed(request.workspace) if self._obeyed else NO_FILES
        judged = judged_by_own_rules(call, tool, own, self._granted(request), obeyed=obeyed)
        return judged is None or judged.verdict is Verdict.ALLOW

    def _granted(self, request: ToolRequest) -> tuple[str, ...]:
        grants: list[str] = []
        for proof in request.grant_proofs:
            try:
                claims = self._keys.verified(proof, self._clock())
            except BadRequest:
                continue
            if claims.scope == "run" and _is_of_run(claims, request):
                grants += claims.grants
        return tuple(grants)

    async def _reused(self, claims: ApprovalClaims, request: ToolRequest) -> str | None:
        """Let the proof count for this call alone, and return the reason if it was used for another one."""
        use = f"{_execution(request)}/t{request.turn}/{request.call_id}"
        name = f"approval-{claims.jti}"
        if self._used is None:
            used_for = self._remembered.setdefault(name, use)
            if len(self._remembered) > USES_REMEMBERED:
                self._remembered.popitem(last=False)
        else:
            try:
                used_for = await self._used.use(name, request.origin.run_id, use)
            except StoreUnavailable as error:
                why = f"the database doesn't say whether the proof of this approval has been used: {error}"
                raise ApplicationError(why, type=STORE_AWAY, non_retryable=True) from None
        return None if used_for == use else "the proof of this approval has been used for another call"


def _wrong_call(claims: ApprovalClaims, request: ToolRequest, call: ToolCall) -> str | None:
    """Return the reason that the proof isn't for this call, or None."""
    if not _is_of_run(claims, request):
        return "the proof of this approval is for another run, or for this run before it was reset"
    origin = request.origin
    digest = ask_digest(origin.run_id, origin.execution, request.turn, call, reset_at=origin.reset_at)
    is_exact = claims.arguments == digest_of_edit(call.arguments) if claims.arguments else claims.digest == digest
    if (claims.call, claims.tool) != (request.call_id, request.tool) or not is_exact:
        return "the proof of this approval is for another call, or for other arguments"
    return None


def _is_of_run(claims: ApprovalClaims, request: ToolRequest) -> bool:
    return (claims.run, claims.execution) == (request.origin.run_id, _execution(request))


def _execution(request: ToolRequest) -> str:
    return execution_name(request.origin.execution, request.origin.reset_at)
