"""What waits for a person."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel

from loom.serve.access.roles import Operation
from loom.serve.http_input import LONGEST_ID, RunId
from loom.serve.routes.caller import Runs, needs

router = APIRouter(prefix="/v1", tags=["approvals"])


MOST_LISTED: Final = 1_000
"""Maximum number of entries in one list."""


class WaitingList(BaseModel):
    """What waits for a person, oldest first. The fields of an entry depend on its `kind`."""

    waiting: list[dict[str, Any]]


@router.get("/inbox", openapi_extra=needs(Operation.READ_RUNS))
async def list_waiting(
    runs: Runs,
    agent: Annotated[str | None, Query(min_length=1, max_length=LONGEST_ID)] = None,
    tenant: Annotated[str | None, Query(min_length=1, max_length=LONGEST_ID)] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = MOST_LISTED,
) -> WaitingList:
    """List the calls and questions of all runs that wait for a person, oldest first.

    A call of a sub-agent is listed once, at the root of its tree. If a call writes a file that the service can read,
    `change` is the difference. `approvals` is the number of people who must approve a call, and `approved_by` names
    those who have.
    """
    return WaitingList(waiting=[dict(each) for each in await runs.pending(agent=agent, tenant=tenant, limit=limit)])


router.add_api_route(
    "/approvals",
    list_waiting,
    name="list_approvals",
    description="The same as `/v1/inbox`.",
    openapi_extra=needs(Operation.READ_RUNS),
)


@router.get("/runs/{run_id}/approvals", openapi_extra=needs(Operation.READ_RUNS))
async def list_run_approvals(runs: Runs, run_id: RunId) -> WaitingList:
    """List the calls of this run and its sub-agents, and the run's question, that wait for a person."""
    return WaitingList(waiting=[dict(each) for each in await runs.pending_in(run_id)])
