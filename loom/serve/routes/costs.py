"""What runs cost."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from loom.domain.history.costs import CostGroup, CostKey
from loom.periods import read_since
from loom.serve.access.roles import Operation
from loom.serve.http_input import LONGEST_ID
from loom.serve.routes.caller import Runs, needs

router = APIRouter(prefix="/v1", tags=["runs"])


class CostReport(BaseModel):
    """What runs cost, in US dollars."""

    by: CostKey
    since: datetime | None
    groups: list[CostGroup]
    """The most expensive group first, or the days in their order."""
    total: CostGroup
    is_complete: bool
    """Whether all runs were counted. If false, the newest ones were."""


@router.get("/costs", openapi_extra=needs(Operation.READ_RUNS))
async def read_costs(
    runs: Runs,
    by: CostKey = CostKey.AGENT,
    since: Annotated[
        str | None,
        Query(
            description="Leave out runs that ended earlier: `30m`, `24h`, `7d`, `4w`, or a date.",
            min_length=1,
            max_length=LONGEST_ID,
        ),
    ] = None,
    tenant: Annotated[str | None, Query(min_length=1, max_length=LONGEST_ID)] = None,
) -> CostReport:
    """Add up what runs cost. Each run counts with its own model calls, so sub-agents aren't counted twice."""
    begin = read_since(since, datetime.now(UTC)) if since else None
    return CostReport(**asdict(await runs.costs(by, since=begin, tenant=tenant)), since=begin)
