"""Follow a run's events as they happen, also while the live stream is unavailable."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol, TypeAlias, TypeVar

from loom.activities.ports import EventReader, StreamUnavailable
from loom.domain.core.messages import JsonObject
from loom.domain.core.tasks import Task, is_last

T = TypeVar("T")

SILENCE_BEFORE_CHECK: Final = 2.0
"""Seconds without an event before the server is asked whether the run has ended."""
POLL_INTERVAL: Final = 0.5
"""Seconds between two status queries while the live stream is unavailable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Streamed:
    """An event from the live stream."""

    offset: int
    """The event's number in the run's stream. Watching after it continues with the next event."""
    task: Task
    """The event itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Polled:
    """The status of a run. The client queries it while the live stream is unavailable."""

    status: JsonObject
    """What `LoomClient.status` returns."""
    why: str
    """Why the live stream is unavailable."""


Watched: TypeAlias = Streamed | Polled


class Server(Protocol):
    """What the server knows about a run. `LoomClient` asks it."""

    async def status(self, run_id: str) -> JsonObject:
        """Return the run's status."""
        ...

    async def has_ended(self, run_id: str) -> bool:
        """Return whether the run has ended."""
        ...

    async def has_gone_on(self, run_id: str, ended_at: datetime) -> bool:
        """Return whether the run was retried after this end."""
        ...


async def streamed(
    reader: EventReader | None, run_id: str, *, after: int, follow: bool = False
) -> AsyncIterator[Streamed]:
    """Read events from the live stream only, starting after offset `after`.

    Raises StreamUnavailable if the stream can't be read.
    """
    async with closing(readable(reader).read(run_id, after, follow=follow)) as tasks:
        async for offset, task in tasks:
            yield Streamed(offset=offset, task=task)


def readable(reader: EventReader | None) -> EventReader:
    """Return the reader. Raises StreamUnavailable if there is none."""
    if reader is None:
        raise StreamUnavailable("no Redis is configured: set LOOM_REDIS_URL")
    return reader


async def watched(reader: EventReader | None, server: Server, run_id: str, *, after: int) -> AsyncIterator[Watched]:
    """Yield events as they happen, until the run ends.

    While the live stream is unavailable, yield the run's status each time it changes.
    """
    shown: JsonObject | None = None
    while True:
        try:
            async with closing(_until_last_end(reader, server, run_id, after)) as events:
                async for event in events:
                    after = event.offset
                    yield event
            # If the run ended without a final event, there may still be events in the stream.
            async with closing(streamed(reader, run_id, after=after)) as events:
                async for event in events:
                    yield event
            return
        except StreamUnavailable as error:
            ended, status = await server.has_ended(run_id), await server.status(run_id)
            if status != shown:
                shown = status
                yield Polled(status=status, why=str(error))
            if ended:
                return
            await asyncio.sleep(POLL_INTERVAL)


async def _until_last_end(
    reader: EventReader | None, server: Server, run_id: str, after: int
) -> AsyncIterator[Streamed]:
    """Follow the stream until the run has ended, also beyond ends after which a person has retried it."""
    while True:
        ended_at: datetime | None = None
        async with closing(_until_silent(reader, server, run_id, after)) as events:
            async for event in events:
                after = event.offset
                ended_at = event.task.created_at if is_last(event.task, run_id) else None
                yield event
        if ended_at is None or not await server.has_gone_on(run_id, ended_at):
            return


async def _until_silent(reader: EventReader | None, server: Server, run_id: str, after: int) -> AsyncIterator[Streamed]:
    """Follow the stream until no more events arrive and the server reports that the run has ended."""
    coming: asyncio.Task[Streamed] | None = None
    async with closing(streamed(reader, run_id, after=after, follow=True)) as stream:
        try:
            while True:
                coming = asyncio.ensure_future(anext(stream))
                while not (await asyncio.wait({coming}, timeout=SILENCE_BEFORE_CHECK))[0]:
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


def closing(events: AsyncIterator[T]) -> AbstractAsyncContextManager[AsyncIterator[T]]:
    """Return a context manager that closes the generator even if the caller stops iterating early.

    A generator that is closed only by garbage collection can outlive its event loop.
    """
    return aclosing(events)  # type: ignore[type-var]  # all of these iterators are async generators
