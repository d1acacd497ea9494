"""Following a run: its events as they happen and, while the live stream is away, its status."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, TypeVar

from loom.activities.ports import EventReader, StreamUnavailable
from loom.domain.core.messages import JsonObject
from loom.domain.core.tasks import Task, is_last

_T = TypeVar("_T")

SILENCE: Final = 2.0
"""Seconds without an event after which the server is asked whether the run is still there."""
POLL: Final = 0.5
"""Seconds between two looks at a run whose stream is away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Streamed:
    """An event of the live stream."""

    offset: int
    task: Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Polled:
    """The run's status, asked for because the live stream is away."""

    status: JsonObject
    why: str


Watched: TypeAlias = Streamed | Polled


class Server(Protocol):
    """What the server says of a run, whatever its stream does."""

    async def status(self, run_id: str) -> JsonObject:
        """The run's status."""
        ...

    async def has_ended(self, run_id: str) -> bool:
        """Whether nothing more will happen."""
        ...


async def streamed(
    reader: EventReader | None, run_id: str, *, after: int, follow: bool = False
) -> AsyncIterator[Streamed]:
    """The live stream alone, from the event after offset `after`; raises StreamUnavailable."""
    if reader is None:
        raise StreamUnavailable("no Redis is configured: set LOOM_REDIS_URL")
    async with closing(reader.read(run_id, after, follow=follow)) as tasks:
        async for offset, task in tasks:
            yield Streamed(offset=offset, task=task)


async def watched(reader: EventReader | None, server: Server, run_id: str, *, after: int) -> AsyncIterator[Watched]:
    """Events as they happen, until the run has ended; while the stream is away its status, when that changes."""
    shown: JsonObject | None = None
    while True:
        try:
            async with closing(_until_silent(reader, server, run_id, after)) as events:
                async for event in events:
                    after = event.offset
                    yield event
                    if is_last(event.task, run_id):
                        return
            # The run ended without a last event that we saw: what is there still counts.
            async for event in streamed(reader, run_id, after=after):
                yield event
            return
        except StreamUnavailable as error:
            ended, status = await server.has_ended(run_id), await server.status(run_id)
            if status != shown:
                shown = status
                yield Polled(status=status, why=str(error))
            if ended:
                return
            await asyncio.sleep(POLL)


async def _until_silent(reader: EventReader | None, server: Server, run_id: str, after: int) -> AsyncIterator[Streamed]:
    """The stream as it goes on, until a silence in which the server says that the run has ended."""
    coming: asyncio.Task[Streamed] | None = None
    async with closing(streamed(reader, run_id, after=after, follow=True)) as stream:
        try:
            while True:
                coming = asyncio.ensure_future(anext(stream))
                while not (await asyncio.wait({coming}, timeout=SILENCE))[0]:
                    if await server.has_ended(run_id):
                        return
                try:
                    yield coming.result()
                except StopAsyncIteration:
                    return
        finally:
            if coming is not None and not coming.done():
                coming.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await coming


def closing(events: AsyncIterator[_T]) -> AbstractAsyncContextManager[AsyncIterator[_T]]:
    """Events, closed when they are left early: a reader that is only collected outlives its loop."""
    return aclosing(events)  # type: ignore[type-var]  # async generators, all of them
