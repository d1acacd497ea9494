"""The signature of a request that a run receives. `workflows/signing.py` notes it before the handler runs.

A run decides only with the public key that its preparation recorded, so a replay decides the same.
"""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeVar

from temporalio import workflow
from temporalio.api.common.v1 import Payload

from loom.activities.signatures import rejection_of, signature_in
from loom.domain.core.errors import BadRequest
from loom.domain.core.signatures import (
    Signature,
    SignedStart,
    Statement,
    digest_of_arguments,
    fingerprint_of,
    microseconds,
)
from loom.domain.core.tool_calls import Verdict
from loom.domain.run.events import Approved, PermissionsSet, SteeringEvent
from loom.domain.run.state import RunState
from loom.domain.tree.events import AncestryChanged, TreeEvent

_Event = TypeVar("_Event", bound=SteeringEvent | TreeEvent)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    """The request that a handler is handling."""

    signature: Signature | None
    arguments: Sequence[Any]


_OUTDATED: Final = "was signed before this run began, or before it was reset (compare the clocks of the machines)"

_current_request: Final[ContextVar[_Request]] = ContextVar("current_request")


def remember_request(headers: Mapping[str, Payload], arguments: Sequence[Any]) -> None:
    """Note the request that the current task handles. Every handler runs in a task of its own."""
    _current_request.set(_Request(signature=signature_in(headers), arguments=arguments))


def signed_start(arguments: Sequence[Any]) -> SignedStart | None:
    """Return the signature that came with the start of this run, or None. It has not been verified."""
    info = workflow.info()
    if (signature := signature_in(info.headers)) is None:
        return None
    digest = digest_of_arguments(list(arguments))
    return SignedStart(
        statement=Statement(kind="start", name=info.workflow_type, run_id=info.workflow_id, arguments=digest),
        signature=signature,
        began_at=microseconds(info.workflow_start_time),
        execution=info.original_execution_run_id,
    )


def has_signed_start() -> bool:
    """Whether a signature came with the start of this run, valid or not."""
    return signature_in(workflow.info().headers) is not None


def refuse_unnamed_approval(state: RunState, event: SteeringEvent) -> None:
    """Raise BadRequest for a signed approval that names neither its call nor the call's digest.

    The owner's signature would hold for a call that the owner hasn't seen, if the server delivers the request later.
    Runs from before this rule don't have it: their histories may contain such approvals.
    """
    request = _current_request.get(None)
    is_signed = request is not None and request.signature is not None
    is_unnamed = isinstance(event, Approved) and event.call_id is None and event.digest is None
    if is_unnamed and is_signed and state.signature_checks.approvals_are_named:
        raise BadRequest(
            "a signed approval must name what it approves: send the `call_id` and the `digest` of a call in"
            " `pending_approvals` of the run's status, or use `loom approve` or LoomClient, which do so",
            field="call_id",
        )


def verified_fingerprint(state: RunState, kind: Literal["signal", "update"], name: str) -> str:
    """Return the fingerprint of the signature of the request that is being handled.

    Raises BadRequest if the signature is missing, invalid, too old, or used before.
    """
    request = _current_request.get(None)
    if request is None or request.signature is None:
        raise _refused(state, name, "carries no signature")
    digest = digest_of_arguments(list(request.arguments))
    statement = Statement(kind=kind, name=name, run_id=state.run_id, arguments=digest)
    if reason := rejection_of(
        statement, request.signature, state.signature_checks, began_at=state.began_at, now=workflow.now()
    ):
        raise _refused(state, name, reason)
    return fingerprint_of(statement, request.signature.at)


def without_outdated(state: RunState, name: str, event: _Event) -> _Event:
    """Return a request without what it permits, if it was signed before the run began, or before its latest reset.

    What a person has permitted doesn't hold for another run with the same id, nor for what a run does after a reset. A
    digest binds an approval to the call as it is now, so its time doesn't matter. What a person forbids always holds.
    Raises BadRequest if nothing is left of the request.
    """
    request = _current_request.get(None)
    if request is None or request.signature is None or request.signature.at >= state.signature_checks.permits_since:
        return event
    match event:
        case Approved(digest=None) | AncestryChanged():
            raise _refused(state, name, _OUTDATED)
        case PermissionsSet(rules=rules) if Verdict.ALLOW in rules.values():
            kept = {rule: verdict for rule, verdict in rules.items() if verdict != Verdict.ALLOW}
            if not kept:
                raise _refused(state, name, _OUTDATED)
            return replace(event, rules=kept)
        case _:
            return event


def _refused(state: RunState, name: str, reason: str) -> BadRequest:
    widened = state.signature_checks.widened
    why = "because only a signature allowed its workspace or mode" if widened else "LOOM_REQUIRE_SIGNED"
    return BadRequest(
        f"this run takes only signed requests ({why}), and this `{name}` {reason}: send it with `loom` or"
        " LoomClient and the worker's key (LOOM_HOME or LOOM_SIGNING_KEY)",
        field="signature" if widened else "LOOM_REQUIRE_SIGNED",
    )
