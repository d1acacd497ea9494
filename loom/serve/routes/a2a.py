"""A2A: the cards of agents, and the addresses to which A2A clients send their requests."""

import asyncio
import logging
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Annotated, Final, TypeAlias

from fastapi import APIRouter, Path, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from loom.activities.ports import StreamUnavailable
from loom.domain.agents.inheritance import DEFAULT_AGENT
from loom.domain.agents.worker_report import unknown_agent
from loom.extras import install
from loom.serve.access.roles import Operation
from loom.serve.http_input import LONGEST_ID, StrictJsonRoute
from loom.serve.routes.caller import FOLLOWS, Runs, needs
from loom.serve.routes.events import EventStream
from loom.serve.run_streams import or_comments
from loom.watching import closing

WELL_KNOWN: Final = "/.well-known/agent-card.json"
"""The path of a card below the address of its agent. At the top, there is the card of the default agent."""
MISSING: Final = f"the service doesn't speak A2A: `{install('a2a')}` where it runs"

Agent: TypeAlias = Annotated[str, Path(description="The agent's name.", min_length=1, max_length=LONGEST_ID)]

router = APIRouter(tags=["a2a"], route_class=StrictJsonRoute)


@router.get(WELL_KNOWN, response_class=JSONResponse)
async def default_agent_card(request: Request) -> JSONResponse:
    """Return the A2A card of the default agent, which says how to authenticate. It is public."""
    return await _card(request, DEFAULT_AGENT, "")


@router.get(
    f"/v1/agents/{{agent}}/a2a{WELL_KNOWN}", response_class=JSONResponse, openapi_extra=needs(Operation.READ_CATALOG)
)
async def agent_card(request: Request, runs: Runs, agent: Agent) -> JSONResponse:
    """Return the A2A card of an agent."""
    agents: dict[str, str] = {}
    with suppress(StreamUnavailable):  # the card then lacks the description
        for catalog in reversed(await runs.catalogs()):
            agents.update({str(each["name"]): str(each["description"]) for each in catalog.agents})
    if agents and agent not in agents:
        raise unknown_agent(agent, agents)
    return await _card(request, agent, agents.get(agent, ""))


@router.post(
    "/v1/agents/{agent}/a2a",
    response_class=JSONResponse,
    openapi_extra=needs(Operation.READ_RUNS),
    dependencies=FOLLOWS,
)
async def a2a_request(request: Request, runs: Runs, agent: Agent) -> Response:
    """Answer an A2A client's JSON-RPC request, such as `SendMessage` or `GetTask`.

    Methods that stream are answered with server-sent events. To start a run or to decide on a call, the client needs
    the role that the request needs elsewhere.
    """
    answer = await (await _face()).answered(request, runs, agent)
    if isinstance(answer, Response):
        return answer
    opened = closing(or_comments(answer))
    return EventStream(await opened.__aenter__(), opened)


async def _card(request: Request, agent: str, description: str) -> JSONResponse:
    url = str(request.url_for(a2a_request.__name__, agent=agent))
    return JSONResponse((await _face()).agent_card(agent, description, url))


async def _face() -> ModuleType:
    """Return the translation, whose library is optional and takes a second to import."""
    try:
        import_module("httpx")  # not in the thread: a worker's OpenAI SDK uses it if it is loaded, even by half
        face = await asyncio.to_thread(import_module, "loom.serve.faces.a2a")
    except ModuleNotFoundError as error:
        if error.name not in ("a2a", "httpx"):
            raise
        raise HTTPException(501, MISSING) from None
    logging.getLogger("a2a").setLevel(logging.CRITICAL)  # the service logs failures itself, and clients get the others
    return face
