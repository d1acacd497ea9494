"""Who the caller is and may do, for pages and programs that offer only what will be allowed."""

from urllib.parse import quote

from fastapi import APIRouter, Request
from pydantic import BaseModel

from loom.serve.access.roles import Operation, Role
from loom.serve.routes.caller import Runs, needs

router = APIRouter(prefix="/v1", tags=["access"])


class Me(BaseModel):
    """The caller."""

    name: str
    role: Role
    tenant: str | None
    may: list[Operation]
    """What the role includes. An approval policy may still refuse an approval."""
    temporal_ui: str | None
    """The address of a run in Temporal's Web UI, without the run's ID. Null if it isn't known, or if the caller has a
    tenant.
    """


@router.get("/me", openapi_extra=needs(Operation.READ_RUNS))
async def read_caller(request: Request, runs: Runs) -> Me:
    """Return who the caller is, and what the caller's role allows."""
    caller, settings = runs.caller, request.app.state.service.settings
    ui = settings.temporal_ui if caller.tenant is None else None
    return Me(
        name=caller.name,
        role=caller.role,
        tenant=caller.tenant,
        may=list(caller.offers),
        temporal_ui=f"{ui.rstrip('/')}/namespaces/{quote(settings.temporal_namespace, safe='')}/workflows/"
        if ui
        else None,
    )
