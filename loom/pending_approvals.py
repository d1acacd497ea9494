"""The calls that wait for a person's decision, as the status of a run lists them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from loom.domain.core.errors import RefusedError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import ENDED

if TYPE_CHECKING:
    from loom.activities.approval_keys import ProvenCall


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingApproval:
    """A tool call that is waiting for a person's decision."""

    call_id: str
    """The id of the call in the run that was asked. The call of a sub-agent has the names of the runs between them
    before it.
    """
    made_by: str = ""
    """The run that makes the call."""
    agent: str = ""
    """The agent that makes the call."""
    depth: int = 0
    """The sub-agent's nesting level; 0 is the run that was asked."""
    tool: str
    """The name of the tool."""
    arguments: JsonObject = field(default_factory=dict)
    """The arguments of the call, by name. Secrets are masked."""
    is_cut: bool = False
    """Whether long texts in `arguments` are truncated. The run in `made_by` has them in full."""
    risk: str = ""
    """What the call can do. Empty if the worker doesn't know."""
    reason: str = ""
    """Why the call needs an approval."""
    rule: str = ""
    """The permission rule that asks. Empty if no rule does."""
    digest: str = ""
    """Stands for the exact call. An approval that names it approves no other call."""
    for_run: tuple[str, ...] = ()
    """The allow rules that an approval for the rest of the run would add."""
    asked_at: str = ""
    """When the call began to wait, in ISO 8601. Empty if the worker doesn't know."""
    expires_at: datetime | None = None
    """When the call is denied if nobody has decided."""
    question: str = ""
    """The question of an MCP server. An approval with `arguments` answers it."""
    schema: JsonObject | None = None
    """The JSON Schema of the form's fields, if the question is a form."""
    url: str = ""
    """The address that the person must open, if the server asks for that."""
    execution: str = ""
    """What the proof of an approval names the run's execution by. Empty if the call needs no proof."""

    @property
    def key(self) -> tuple[str, str]:
        """The unique key of this approval."""
        return (self.call_id, self.digest)

    @property
    def name(self) -> str:
        """The name of this approval in messages."""
        return f"{self.tool} ({self.call_id})"

    def proven(self, run_id: str, digest: str) -> "ProvenCall":
        """Return what the proof of an approval states about this call. `run_id` is the run that was asked."""
        from loom.activities.approval_keys import ProvenCall  # noqa: PLC0415 - only for whoever proves approvals

        between = self.made_by.removeprefix(run_id).removeprefix("/")
        return ProvenCall(
            run=self.made_by,
            execution=self.execution,
            call=self.call_id.removeprefix(f"{between}/") if between else self.call_id,
            tool=self.tool,
            digest=digest,
            grants=self.for_run,
        )

    @property
    def reference(self) -> JsonObject:
        """What a receipt says about the call that was decided."""
        return {"call_id": self.call_id, "tool": self.tool}


def read_approval(given: Mapping[str, Any]) -> PendingApproval:
    """Read an approval from an entry in `pending_approvals` or from the parameters of an approval event."""
    return PendingApproval(**approval_fields(given))


def chosen_call(status: JsonObject, call_id: str | None) -> PendingApproval:
    """Return the pending call with this id. Without an id, return the only pending call.

    `status` is the run's own answer. Raises RefusedError if there is no such call, or if several are pending and
    none is named.
    """
    pending = [read_approval(each) for each in status["pending_approvals"]]
    if call_id is None and len(pending) > 1:
        listed = ", ".join(f"{call.call_id} ({call.tool})" for call in pending)
        raise RefusedError(f"{len(pending)} calls are waiting for approval; name one: {listed}")
    for call in pending:
        if call_id in (None, call.call_id):
            return call
    if status["status"] in ENDED:
        raise RefusedError(f"the run has ended: {status['status']}")
    named = "no call is waiting" if call_id is None else f"call {call_id!r} is not waiting"
    raise RefusedError(f"{named} for approval")


def approval_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `PendingApproval`."""
    expires_at = given.get("expires_at")
    return {
        "call_id": str(given["call_id"]),
        "made_by": str(given.get("run_id") or ""),
        "agent": str(given.get("agent", "")),
        "depth": int(given.get("depth") or 0),
        "tool": str(given.get("tool", "")),
        "arguments": given.get("arguments") or {},
        "is_cut": bool(given.get("cut")),
        "risk": str(given.get("risk", "")),
        "reason": str(given.get("reason", "")),
        "rule": str(given.get("rule", "")),
        "digest": str(given.get("digest", "")),
        "for_run": tuple(given.get("for_run") or ()),
        "asked_at": str(given.get("asked_at") or ""),
        "expires_at": datetime.fromisoformat(expires_at) if isinstance(expires_at, str) else None,
        "question": str(given.get("question") or ""),
        "schema": given.get("schema"),
        "url": str(given.get("url") or ""),
        "execution": str(given.get("execution") or ""),
    }
