"""Control a run: decide on its calls, answer its questions, stop it, and let it go on."""

from typing import Any, TypeAlias

from fastapi import APIRouter, Response

from loom.serve.access.roles import Operation
from loom.serve.http_input import RunId, StrictJsonRoute
from loom.serve.routes.bodies import Abort, Approve, Deny, NewMessage, Nothing, Permissions, Retry
from loom.serve.routes.caller import Runs, needs

router = APIRouter(prefix="/v1/runs/{run_id}", tags=["control"], route_class=StrictJsonRoute)

Receipt: TypeAlias = dict[str, Any]
"""`{"accepted", "run_id", "status"}`, or `queued` instead of `status` if no worker has answered."""


@router.post("/approve", openapi_extra=needs(Operation.APPROVE))
async def approve_call(runs: Runs, run_id: RunId, response: Response, body: Approve | None = None) -> Receipt:
    """Approve a pending tool call.

    If the approval policy wants more people to approve this call, the status is 202, and `approved_by` names those who
    have approved it.
    """
    receipt = await runs.approve(run_id, **(body or Approve()).given())
    response.status_code = 200 if receipt["accepted"] else 202
    return dict(receipt)


@router.post("/deny", openapi_extra=needs(Operation.DENY))
async def deny_call(runs: Runs, run_id: RunId, body: Deny | None = None) -> Receipt:
    """Deny a pending tool call. The run continues without it."""
    return dict(await runs.deny(run_id, **(body or Deny()).given()))


@router.post("/pause", openapi_extra=needs(Operation.PAUSE))
async def pause_run(runs: Runs, run_id: RunId, body: Nothing | None = None) -> Receipt:
    """Pause a run. It starts no new model calls or tool calls until it is resumed."""
    del body
    return dict(await runs.pause(run_id))


@router.post("/resume", openapi_extra=needs(Operation.RESUME))
async def resume_run(runs: Runs, run_id: RunId, body: Nothing | None = None) -> Receipt:
    """Resume a paused run."""
    del body
    return dict(await runs.resume(run_id))


@router.post("/abort", openapi_extra=needs(Operation.ABORT))
async def abort_run(runs: Runs, run_id: RunId, body: Abort | None = None) -> Receipt:
    """Abort a run and cancel its current work."""
    return dict(await runs.abort(run_id, **(body or Abort()).given()))


@router.post("/messages", openapi_extra=needs(Operation.SEND))
async def send_message(runs: Runs, run_id: RunId, body: NewMessage) -> Receipt:
    """Answer the agent's question, or send it a message that it reads when its next turn starts."""
    return dict(await runs.send(run_id, body.text, parts=body.given("text").get("parts")))


@router.post("/permissions", openapi_extra=needs(Operation.GRANT))
async def set_permissions(runs: Runs, run_id: RunId, body: Permissions) -> Receipt:
    """Merge permission rules into the run's own rules. Pending calls are judged again."""
    return dict(await runs.set_permissions(run_id, body.rules))


@router.post("/retry", openapi_extra=needs(Operation.RETRY))
async def retry_run(runs: Runs, run_id: RunId, body: Retry | None = None) -> Receipt:
    """Let a run go on that waits for its provider, or that has failed, was aborted, or has reached a limit."""
    return dict(await runs.retry(run_id, **(body or Retry()).given()))
