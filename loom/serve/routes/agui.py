"""AG-UI: start a run of an agent, or answer its interrupts, and stream it to a user interface."""

from typing import Annotated

from ag_ui.core import RunAgentInput
from fastapi import APIRouter, Path

from loom.serve.access.roles import Operation
from loom.serve.faces.agui import begin, encoded
from loom.serve.http_input import LONGEST_ID, StrictJsonRoute
from loom.serve.routes.caller import FOLLOWS, Runs, needs
from loom.serve.routes.events import EventStream
from loom.serve.run_streams import or_comments
from loom.watching import closing

router = APIRouter(prefix="/v1/agents", tags=["agui"], route_class=StrictJsonRoute)


@router.post(
    "/{agent}/agui",
    response_class=EventStream,
    status_code=200,
    responses={200: {"description": "AG-UI events.", "content": {"text/event-stream": {}}}},
    openapi_extra=needs(Operation.START),
    dependencies=FOLLOWS,
)
async def agui_run(
    runs: Runs,
    agent: Annotated[str, Path(description="The agent's name.", min_length=1, max_length=LONGEST_ID)],
    body: RunAgentInput,
) -> EventStream:
    """Start a run with the thread's last message, or resume one, and stream its AG-UI events.

    If the run waits for a person, the stream ends with an interrupt for each pending call and question. Send the
    answers as `resume` in the next request. The run goes on if the client disconnects.
    """
    opened = closing(or_comments(encoded(runs, await begin(runs, agent, body), body)))
    return EventStream(await opened.__aenter__(), opened)
