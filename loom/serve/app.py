"""Assemble the HTTP service from its parts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from fastapi import Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Match, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from loom.domain.core.errors import AccessDeniedError
from loom.domain.core.media import MOST_BYTES
from loom.serve.access.authentication import Authentication, Authenticator
from loom.serve.access.roles import Operation
from loom.serve.caller_runs import CallerRuns, Service
from loom.serve.codec_server import CodecServer, WorkName
from loom.serve.faces.mcp_server import mcp_app
from loom.serve.http_input import EncodedSlashes, refuse_unknown_parameters
from loom.serve.metrics import Measured, Requests
from loom.serve.problems import MEDIA_TYPE, Problem, add_problem_handlers
from loom.serve.readiness import Readiness
from loom.serve.routes import (
    a2a,
    agui,
    artifacts,
    catalog,
    chats,
    costs,
    events,
    files,
    health,
    inbox,
    me,
    runs,
    steering,
)

PAGE: Final = Path(__file__).with_name("page")
"""The web page. It is public: what it shows comes from the API, with the token of the person who uses it."""
LARGEST_BODY: Final = MOST_BYTES * 4 // 3 + 1_000_000
"""Maximum number of bytes of a request's body: the largest parts or the largest archive in base64, and some text."""
PROBLEM: Final[dict[str, Any]] = {
    "description": "The request was refused.",
    "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}},
}
PAGE_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types dompurify",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
PUBLIC: Final = frozenset({"/healthz", "/readyz", "/openapi.json", a2a.WELL_KNOWN})
"""Paths besides the page that need no authentication."""
CODEC: Final = "/codec"
"""Where Temporal's Web UI and its command line send payloads to decode them."""


class Page(Mount):
    """The paths of the page. All others are those of the API, or don't exist."""

    def __init__(self, paths: frozenset[str]) -> None:
        super().__init__("/", PageFiles(directory=PAGE, html=True), name="page")
        self._paths = paths

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """See the base class."""
        return super().matches(scope) if scope.get("path") in self._paths else (Match.NONE, {})


class PageFiles(StaticFiles):
    """The files of the page. Browsers check on each visit for changes, and run no other script than these files."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """See the base class."""
        response = super().file_response(*args, **kwargs)
        response.headers.update(PAGE_HEADERS)
        return response


def build_app(service: Service, authenticator: Authenticator) -> FastAPI:
    """Return the ASGI application."""
    mcp = mcp_app()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        async with mcp.router.lifespan_context(mcp):
            yield

    app = FastAPI(
        title="Loom",
        lifespan=lifespan,
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # behind a proxy that ends TLS, a redirect would send the token in the clear
        max_body_size=LARGEST_BODY,
        responses={422: PROBLEM, "4XX": PROBLEM},
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.service = service
    app.state.requests = Requests()
    app.state.readiness = Readiness(service.client, service.settings)
    for each in (health, runs, steering, events, inbox, chats, costs, catalog, artifacts, files, agui, a2a, me):
        # Probes and A2A's clients may add parameters of their own.
        strict = () if each in {health, a2a} else (Depends(refuse_unknown_parameters),)
        app.include_router(each.router, dependencies=strict)
    app.router.routes.extend(mcp.routes)
    if (codec := service.client.temporal.data_converter.payload_codec) is not None:
        app.mount(CODEC, CodecServer(codec, origins=service.settings.serve_origins, may_use=_may_use_payloads))
    page = frozenset({"/", *(f"/{path.relative_to(PAGE)}" for path in PAGE.rglob("*"))} if PAGE.is_dir() else ())
    if page:
        app.router.routes.append(Page(page))
    add_problem_handlers(app)
    app.add_middleware(Authentication, service=service, authenticator=authenticator, public=PUBLIC | page)
    app.add_middleware(Measured, requests=app.state.requests)
    app.add_middleware(EncodedSlashes)
    if service.settings.serve_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.settings.serve_origins,
            allow_methods=["GET", "POST", "PUT"],
            allow_headers=["Authorization", "Authorization-Extras", "Content-Type", "Last-Event-ID", "X-Namespace"],
        )
    return app


async def _may_use_payloads(work: WorkName, scope: Scope) -> bool:
    """Return whether the caller may decode or encode payloads of all tenants. A payload doesn't say whose it is.

    Whoever encodes can write what runs read, so only an admin may.
    """
    runs: CallerRuns = scope["state"]["runs"]
    if runs.caller.tenant is None and runs.caller.may(Operation.READ_RUNS if work == "decode" else Operation.GRANT):
        return True
    runs.refused(f"{work} payloads", AccessDeniedError("the payloads of all tenants"))
    return False
