"""Runs: start and fork them, list them, read their status and result."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime
from typing import Annotated, Any, TypeAlias
from urllib.parse import quote

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import RunResult
from loom.serve.access.roles import Operation
from loom.serve.caller_runs import LONGEST_WAIT
from loom.serve.http_input import LONGEST_ID, RunId, StrictJsonRoute
from loom.serve.problems import RETRY_AFTER
from loom.serve.routes.bodies import ForkRun, StartRun
from loom.serve.routes.caller import FOLLOWS, Runs, needs
from loom.visibility import RunSummary

router = APIRouter(prefix="/v1/runs", tags=["runs"], route_class=StrictJsonRoute)


class Started(BaseModel):
    """A run that has started."""

    run_id: str


class RunPage(BaseModel):
    """A page of a list of runs, newest first."""

    runs: list[RunSummary]
    tasks: dict[str, str] | None = Field(None, exclude_if=lambda tasks: tasks is None)
    """The first 200 characters of each run's task, by run ID, if the request asks for `tasks`."""
    next: str | None
    """Pass it as `cursor` to get the next page. Null if this is the last page."""


Filter: TypeAlias = Annotated[str | None, Query(min_length=1, max_length=LONGEST_ID)]


@router.post("", status_code=201, openapi_extra=needs(Operation.START))
async def start_run(runs: Runs, body: StartRun, response: Response) -> Started:
    """Start a run. To be able to repeat the request safely, choose the run's ID."""
    run_id = await runs.start(body.given("run_id"), body.run_id)
    response.headers["Location"] = _path_of(run_id)
    return Started(run_id=run_id)


@router.get("", openapi_extra=needs(Operation.READ_RUNS))
async def list_runs(
    runs: Runs,
    *,
    status: Filter = None,
    session: Filter = None,
    tenant: Filter = None,
    below: Filter = None,
    waiting: Filter = None,
    cursor: Filter = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    tasks: Annotated[bool, Query(description="Also return the beginning of each run's task.")] = False,
) -> RunPage:
    """List runs, newest first. Sub-agents are listed only with `below`, the ID of the run that they belong to."""
    after = read_cursor(cursor) if cursor else None
    found = await runs.list(
        status=status, session=session, tenant=tenant, below=below, waiting=waiting, after=after, limit=limit
    )
    return RunPage(
        runs=found,
        tasks=await runs.task_summaries(found) if tasks else None,
        next=cursor_of(found[-1].started_at, found[-1].run_id) if len(found) == limit else None,
    )


@router.get("/{run_id}", openapi_extra=needs(Operation.READ_RUNS))
async def run_status(runs: Runs, run_id: RunId) -> dict[str, Any]:
    """Return the run's status, as the query `status` of the public contract does."""
    return dict(await runs.status(run_id))


@router.get(
    "/{run_id}/result",
    response_model=RunResult,
    responses={202: {"description": "The run hasn't ended."}},
    openapi_extra=needs(Operation.READ_RUNS),
    dependencies=FOLLOWS,
)
async def run_result(
    runs: Runs, run_id: RunId, wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT, allow_inf_nan=False)] = 0
) -> Any:
    """Return the run's result. Waits for at most `wait` seconds. If the run hasn't ended by then, the status is 202."""
    result = await runs.result(run_id, wait=wait)
    if result is None:
        return JSONResponse({"run_id": run_id, "ended": False}, 202, {"Retry-After": str(RETRY_AFTER)})
    return result


@router.post("/{run_id}/fork", status_code=201, openapi_extra=needs(Operation.FORK))
async def fork_run(runs: Runs, run_id: RunId, body: ForkRun, response: Response) -> Started:
    """Start a new run from a past turn of this one. It repeats none of this run's actions."""
    changes = body.given("turn", "message", "run_id")
    fork_id = await runs.fork(run_id, turn=body.turn, message=body.message, fork_id=body.run_id, changes=changes)
    response.headers["Location"] = _path_of(fork_id)
    return Started(run_id=fork_id)


def _path_of(run_id: str) -> str:
    return f"/v1/runs/{quote(run_id, safe=':')}"


def cursor_of(started_at: datetime, run_id: str) -> str:
    """Return the cursor for the runs after this one."""
    return urlsafe_b64encode(f"{started_at.isoformat()} {run_id}".encode()).decode()


def read_cursor(cursor: str) -> tuple[datetime, str]:
    """Return the start time and the ID of the last run of the page before. Raises BadRequest."""
    try:
        started_at, _, run_id = urlsafe_b64decode(cursor).decode().partition(" ")
        read = datetime.fromisoformat(started_at)
    except ValueError:
        read, run_id = None, ""
    if read is None or read.tzinfo is None or not run_id:
        raise BadRequest("cursor: pass the value of `next` in the page before, unchanged", field="cursor")
    return read, run_id
