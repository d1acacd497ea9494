"""Whether the service runs, whether the servers that it needs respond, and how much it does."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse

from loom.serve.access.roles import Operation
from loom.serve.metrics import MEDIA_TYPE, exposition
from loom.serve.problems import RETRY_AFTER
from loom.serve.routes.caller import Runs, needs

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def is_alive() -> dict[str, bool]:
    """Return whether the service itself responds."""
    return {"ok": True}


@router.get("/readyz", responses={503: {"description": "Temporal doesn't respond."}})
async def is_ready(request: Request) -> JSONResponse:
    """Return whether the servers respond. Without Temporal, the service isn't ready."""
    parts = await request.app.state.readiness.parts()
    if not parts["temporal"]:
        return JSONResponse({"ok": False, "parts": parts}, 503, {"Retry-After": str(RETRY_AFTER)})
    return JSONResponse({"ok": True, "parts": parts})


@router.get("/metrics", response_class=PlainTextResponse, openapi_extra=needs(Operation.READ_METRICS))
async def read_metrics(request: Request, runs: Runs) -> PlainTextResponse:
    """Return the service's metrics for Prometheus."""
    lost = request.app.state.service.audit.lost
    text = exposition(request.app.state.requests, runs.streams(), audit_entries_lost=lost)
    return PlainTextResponse(text, media_type=MEDIA_TYPE)
