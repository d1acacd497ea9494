"""Apply the approval policy to an approval, and keep it until enough people agree."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, Literal

from loom.activities.adapters.postgres.access import PostgresCallApprovals
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.client import LoomClient
from loom.domain.audit.entries import Act
from loom.domain.core.errors import AccessDeniedError, BadRequest, RefusedError, UnreachableError
from loom.domain.core.messages import JsonObject, canonical
from loom.inbox import PendingCall
from loom.serve.access.approval_policy import ApprovalPolicy, JudgedCall
from loom.serve.access.audit_trail import AuditTrail
from loom.serve.access.people import different_people
from loom.serve.access.roles import Caller, Operation
from loom.visibility import summary_of

AND: Final = ", "
"""Separates the names of several people in `by`. No caller's name contains a comma."""
LOOKS: Final = 10
PAUSE: Final = 0.1
"""How often a refused approval looks whether the same one was accepted, and the seconds between two looks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Approval:
    """What a caller wants to approve."""

    run_id: str
    call_id: str | None
    scope: Literal["once", "run"]
    arguments: JsonObject | None
    digest: str | None


class Approvals:
    """Approves calls as far as the policy allows it."""

    def __init__(
        self, client: LoomClient, policy: ApprovalPolicy, store: PostgresCallApprovals | None, audit: AuditTrail
    ) -> None:
        """`audit` gets approvals that wait for others. Raises BadRequest if the policy needs a place for first
        approvals, and there is none.
        """
        if store is None and any(rule.approvals > 1 for rule in policy.rules):
            raise BadRequest(
                "LOOM_APPROVAL_POLICY: calls that need several approvals need a database: set LOOM_DATABASE_URL",
                field="LOOM_APPROVAL_POLICY",
            )
        self._client = client
        self.policy = policy
        self._store = store
        self._audit = audit

    async def approve(self, asked: Approval, caller: Caller) -> JsonObject:
        """Approve a call, or record the caller's approval if more people must approve it.

        Raises AccessDeniedError if the caller may not approve this call, RefusedError if it isn't pending, and
        UnreachableError if the run doesn't say what is pending.
        """
        if not self.policy.rules:
            return await self._approved(asked, caller.name)
        call, tenant = await self._pending(asked)
        call_id, digest = str(call["call_id"]), str(call["digest"])
        asked = replace(asked, call_id=call_id, digest=digest)
        needed = self.policy.requirement(_judged(call, tenant, asked))
        started_by = await self._client.started_by(asked.run_id)
        needed.refuse(caller.name, started_by=started_by)
        if needed.approvals == 1 or self._store is None:
            return await self._approved(asked, caller.name)
        exact = (asked.run_id, call_id, str(call["asked_at"]), _decision(asked, digest))
        given = await self._store.add(*exact, caller.name)
        # The policy may be another one than when the first people approved.
        people = different_people(name for name in given if not needed.objection(name, started_by=started_by))
        if len(people) < needed.approvals:
            content = {"call_id": call_id, "scope": asked.scope, "arguments": asked.arguments, "digest": digest}
            self._audit.add(Act.APPROVE, content, caller=caller, run_id=asked.run_id, subject=call_id)
            return {"accepted": False, "run_id": asked.run_id, "approved_by": people, "approvals": needed.approvals}
        try:
            receipt = await self._approved(asked, AND.join(people))
        except RefusedError:
            # Another last approval of exactly this may have reached the run first.
            if not await _is_accepted(self._store, exact, caller.name):
                raise
            return {"accepted": True, "run_id": asked.run_id, "call_id": call_id, "tool": str(call["tool"])}
        await self._store.forget(asked.run_id, call_id, exact[-1])
        return receipt

    async def objection_by_hand(self, run_id: str, tool: str, risk: str, caller: Caller) -> str:
        """Return why the caller may not approve calls of this tool alone, and so not make one by hand where the run's
        rules ask. Empty if the caller may.
        """
        try:
            caller.refuse_unless_allowed(Operation.APPROVE)
        except AccessDeniedError as error:
            return error.message
        if not self.policy.rules:
            return ""
        run = summary_of(await TemporalRuns(self._client.temporal).described(run_id))
        needed = self.policy.requirement(JudgedCall(tool=tool, agent=run.agent or None, tenant=run.tenant, risk=risk))
        if needed.approvals > 1:
            return f"the approval policy requires {needed.approvals} people for such a call: have the agent make it"
        return needed.objection(caller.name, started_by=await self._client.started_by(run_id))

    async def views(self, calls: Collection[PendingCall]) -> Mapping[tuple[str, str], JsonObject]:
        """Return, by run and call, how many approvals each call needs, and who has approved it."""
        given = await self._store.of_runs({call.run_id for call in calls}) if self._store and calls else {}
        views: dict[tuple[str, str], JsonObject] = {}
        for call in calls:
            judged = JudgedCall(tool=call.tool, agent=call.agent, tenant=call.tenant, risk=call.risk)
            people = different_people(given.get((call.run_id, call.call_id, call.asked_at), ()))
            needed = self.policy.requirement(judged).approvals
            views[call.run_id, call.call_id] = {"approvals": needed, "approved_by": people}
        return views

    async def _approved(self, asked: Approval, by: str) -> JsonObject:
        return await self._client.approve(
            asked.run_id, asked.call_id, scope=asked.scope, arguments=asked.arguments, digest=asked.digest, by=by
        )

    async def _pending(self, asked: Approval) -> tuple[Mapping[str, Any], str]:
        status = await self._client.status(asked.run_id)
        if status.get("stale"):
            raise UnreachableError("no worker says what this call is, so the approval policy can't be applied")
        pending = [each for each in status["pending_approvals"] if asked.call_id in (None, each["call_id"])]
        if len(pending) != 1:
            which = "no call is pending" if not pending else "several calls are pending: name one with `call_id`"
            raise RefusedError(f"{which}; `GET /v1/approvals` lists them" if pending else which)
        if asked.digest not in (None, pending[0]["digest"]):
            raise RefusedError("the call has changed since you looked at it; look again")
        return pending[0], str(status.get("tenant") or "")


async def _is_accepted(store: PostgresCallApprovals, exact: tuple[str, str, str, bytes], name: str) -> bool:
    """Whether the run has accepted exactly this approval, which deletes the votes for it. Waits a moment for that."""
    for attempt in range(LOOKS):
        if attempt:
            await asyncio.sleep(PAUSE)
        if name not in await store.approvers(*exact):
            return True
    return False


def _judged(call: Mapping[str, Any], tenant: str, asked: Approval) -> JudgedCall:
    is_as_shown = asked.arguments is None and asked.scope == "once"
    risk = str(call.get("risk", "")) if is_as_shown else None
    # A rule that is allowed for the rest of a run also allows calls of its sub-agents, as far as theirs do.
    agent = str(call.get("agent", "")) if asked.scope == "once" else None
    return JudgedCall(tool=str(call["tool"]), agent=agent, tenant=tenant, risk=risk)


def _decision(asked: Approval, digest: str) -> bytes:
    """Return the hash of what exactly is approved. Only approvals of the same count together."""
    exact = {"digest": digest, "scope": asked.scope, "arguments": asked.arguments}
    return sha256(canonical(exact).encode("utf-8", "replace")).digest()
