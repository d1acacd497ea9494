"""A run's events as server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from loom.domain.core.errors import BadRequest
from loom.serve.access.roles import Operation
from loom.serve.http_input import RunId, disconnected
from loom.serve.routes.caller import FOLLOWS, Runs, needs

LARGEST_OFFSET: Final = 2**63 - 1
RECONNECT: Final = b"retry: 1000\n\n"
"""Tells browsers to reconnect after one second."""

router = APIRouter(prefix="/v1/runs/{run_id}", tags=["runs"])


class EventStream(Response):
    """A response that sends chunks until they end or the client has gone."""

    media_type = "text/event-stream"

    def __init__(self, chunks: AsyncIterator[bytes], opened: AbstractAsyncContextManager[AsyncIterator[bytes]]) -> None:
        """`opened` is the context of the chunks, which the response leaves at its end."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._chunks, self._opened = chunks, opened

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        del scope
        doing = [asyncio.create_task(each) for each in (self._send(send), disconnected(receive))]
        try:
            (first, *_), _ = await asyncio.wait(doing, return_when=asyncio.FIRST_COMPLETED)
            first.result()
        except OSError:
            return  # the client has gone
        finally:
            for task in doing:
                task.cancel()
            await asyncio.wait(doing)
            await self._opened.__aexit__(None, None, None)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": RECONNECT, "more_body": True})
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})


@router.get(
    "/events",
    response_class=EventStream,
    status_code=200,
    responses={200: {"description": "The run's events.", "content": {"text/event-stream": {}}}},
    openapi_extra=needs(Operation.READ_RUNS),
    dependencies=FOLLOWS,
)
async def run_events(
    runs: Runs,
    run_id: RunId,
    *,
    after: Annotated[
        int | None, Query(alias="from", ge=0, le=LARGEST_OFFSET, description="Start after the event with this offset.")
    ] = None,
    last_event_id: Annotated[str | None, Header(description="The same. It is stronger than `from`.")] = None,
) -> EventStream:
    """Stream the run's events until it ends.

    Each event is a JSON object of the public contract, and its `id` is its offset. To resume, send the last one as
    `Last-Event-ID`. An event of the type `end` follows the run's last event. While the live stream is unavailable,
    events of the type `status` contain the run's status.
    """
    opened = runs.events(run_id, after=_offset(last_event_id, after or 0))
    return EventStream(await opened.__aenter__(), opened)


def _offset(last_event_id: str | None, after: int) -> int:
    if not last_event_id:
        return after
    if not (last_event_id.isascii() and last_event_id.isdecimal()) or int(last_event_id) > LARGEST_OFFSET:
        raise BadRequest("Last-Event-ID: must be the `id` of an event, which is a number", field="Last-Event-ID")
    return int(last_event_id)
