"""Read the events of each watched run once, and pass them to all its watchers.

A run's `RunStream` keeps the newest frames, up to a limit. A watcher is only a position among them: it has no buffer of
its own, so a watcher that reads slowly takes no memory and delays nobody. A watcher that falls behind the kept frames
reads what it missed from Redis, at its own pace. A connection that takes nothing for a while is closed by the operating
system (`server.py`); its client then resumes from the last offset that it received.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Literal, TypeVar

import structlog

from loom.activities.adapters.redis.stream import task_view
from loom.activities.ports import StreamUnavailable
from loom.client import LoomClient
from loom.domain.core.errors import LoomError, RunNotFoundError
from loom.domain.core.messages import JsonObject
from loom.watching import Polled, Streamed, closing

_log = structlog.get_logger("loom.serve")

T = TypeVar("T")

KEPT_FRAMES: Final = 2_000
KEPT_BYTES: Final = 4_000_000
"""Limits of the frames that are kept for the watchers of one run."""
CHUNK_BYTES: Final = 64_000
"""About the most that is sent to a watcher at once."""
HEARTBEAT: Final = 15.0
"""Seconds of silence after which watchers get a comment, so that proxies keep their connections."""
LINGER: Final = 10.0
"""Seconds for which a run is still read after its last watcher has gone."""
AGAIN_AFTER: Final = 1.0
"""Seconds between two attempts to read a run whose server or stream doesn't respond."""

COMMENT: Final = b": still here\n\n"


@dataclass(frozen=True, slots=True)
class Frame:
    """An encoded event."""

    data: bytes
    offset: int | None = None
    """Its place in the run's stream. None: it isn't in the stream."""


@dataclass(slots=True)
class _Kept:
    """The newest frames, which are numbered from the first one that was ever kept."""

    floor: int
    """All events after this offset, up to the newest one, are kept."""
    first: int = 0
    """The number of the oldest kept frame."""
    size: int = 0
    frames: deque[Frame] = field(default_factory=deque)

    @property
    def end(self) -> int:
        return self.first + len(self.frames)

    def add(self, frame: Frame) -> None:
        self.frames.append(frame)
        self.size += len(frame.data)
        while len(self.frames) > 1 and (len(self.frames) > KEPT_FRAMES or self.size > KEPT_BYTES):
            gone = self.frames.popleft()
            self.first += 1
            self.size -= len(gone.data)
            self.floor = gone.offset or self.floor

    @property
    def latest(self) -> int:
        """The offset of the newest event that was kept."""
        return next((frame.offset for frame in reversed(self.frames) if frame.offset), self.floor)

    def number_after(self, offset: int) -> int:
        """Return the number of the first frame after an offset between the floor and the newest event."""
        newer = (n for n, frame in enumerate(self.frames, self.first) if (frame.offset or 0) > offset)
        return next(newer, self.end)

    def chunk(self, number: int) -> tuple[bytes, int, int | None]:
        """Return frames from this number on, the number of the next one, and the last offset."""
        picked: list[bytes] = []
        size, offset = 0, None
        for frame in islice(self.frames, number - self.first, None):
            if picked and size + len(frame.data) > CHUNK_BYTES:
                break
            picked.append(frame.data)
            size += len(frame.data)
            offset = frame.offset or offset
        return b"".join(picked), number + len(picked), offset


class RunStream:
    """The events of one run, for any number of watchers."""

    def __init__(self, client: LoomClient, run_id: str) -> None:
        self._client = client
        self._run_id = run_id
        self._kept = _Kept(floor=0)
        self._began = asyncio.Event()
        self._news = asyncio.Event()
        self._chunk: tuple[int, tuple[bytes, int, int | None]] | None = None
        self.reading = asyncio.create_task(self._read())
        self._phase: Literal["reading", "ended", "closed"] = "reading"
        self.watchers = 0

    @property
    def is_live(self) -> bool:
        """Whether the run is still being read."""
        return self._phase == "reading"

    async def watch(self, after: int) -> AsyncIterator[bytes]:
        """Yield the encoded events after this offset, as they happen, until the run has ended."""
        await self._began.wait()
        number: int | None = None
        while True:
            if number is None or number < self._kept.first:
                async with closing(self._missed(after)) as missed:
                    async for frame in missed:
                        yield frame.data
                        after = frame.offset or after
                after = max(after, self._kept.floor)
                number = self._kept.number_after(after) if self._kept.latest >= after else None
            if number is not None and number < self._kept.end:
                data, number, offset = self._chunk_from(number)
                after = offset or after
                yield data
            elif self._phase == "reading":
                await self._news.wait()
            else:
                break
        if self._phase == "ended":
            yield _encoded({"run_id": self._run_id}, event="end")

    def close(self) -> None:
        """Stop reading. Watchers get what is left, and end."""
        self.reading.cancel()
        self._enter("closed")

    def _chunk_from(self, number: int) -> tuple[bytes, int, int | None]:
        """Return the same chunk to all watchers that wait for the same frame."""
        if self._chunk is None or self._chunk[0] != number:
            self._chunk = number, self._kept.chunk(number)
        return self._chunk[1]

    async def _missed(self, after: int) -> AsyncIterator[Frame]:
        """Yield events that are no longer kept, up to those that are kept."""
        while after < self._kept.floor:
            try:
                async with closing(self._client.events(self._run_id, after=after)) as events:
                    async for event in events:
                        yield frame_of(event)
                        after = event.offset
                        if after >= self._kept.floor:
                            return
            except StreamUnavailable:
                yield Frame(COMMENT)
                await asyncio.sleep(AGAIN_AFTER)
            else:
                return  # the stream no longer has them

    async def _read(self) -> None:
        """Keep what the run publishes, until it ends."""
        try:
            await self._follow()
        except Exception as error:  # noqa: BLE001 - nobody awaits this task, and watchers must not wait for ever
            _log.error("run_not_read", run_id=self._run_id, exc_info=error)
            self._enter("closed")
        else:
            self._enter("ended")

    async def _follow(self) -> None:
        after = 0
        with suppress(StreamUnavailable):
            after = max(0, await self._client.latest_offset(self._run_id) - KEPT_FRAMES)
        self._kept.floor = after
        self._began.set()
        while True:
            try:
                async with closing(self._client.watch(self._run_id, after=after)) as events:
                    async for watched in or_silence(events, HEARTBEAT):
                        if isinstance(watched, Streamed):
                            after = watched.offset
                        self._add(frame_of(watched))
            except RunNotFoundError:
                return
            except LoomError as error:
                _log.warning("run_not_read", run_id=self._run_id, reason=error.message)
                self._add(Frame(COMMENT))
                await asyncio.sleep(AGAIN_AFTER)
            else:
                return

    def _add(self, frame: Frame) -> None:
        self._kept.add(frame)
        self._chunk = None
        self._tell()

    def _enter(self, phase: Literal["ended", "closed"]) -> None:
        if self._phase == "reading":
            self._phase = phase
        self._began.set()
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


class RunStreams:
    """The streams of all runs that somebody watches."""

    def __init__(self, client: LoomClient) -> None:
        self._client = client
        self._streams: dict[str, RunStream] = {}
        self._reading: set[asyncio.Task[None]] = set()

    @property
    def watchers(self) -> int:
        """The number of watchers of all runs."""
        return sum(stream.watchers for stream in self._streams.values())

    @property
    def watched_runs(self) -> int:
        """The number of runs that are being read."""
        return len(self._streams)

    async def watch(self, run_id: str, after: int) -> AsyncIterator[bytes]:
        """Yield a run's encoded events after this offset, as they happen, until the run has ended."""
        stream = self._streams.get(run_id)
        if stream is None or not stream.is_live:
            stream = self._streams[run_id] = RunStream(self._client, run_id)
            self._reading.add(stream.reading)
            stream.reading.add_done_callback(self._reading.discard)
        stream.watchers += 1
        try:
            async with closing(stream.watch(after)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            stream.watchers -= 1
            if stream.watchers == 0:
                asyncio.get_running_loop().call_later(LINGER, self._close_unwatched, run_id, stream)

    def close(self) -> None:
        """Let all watchers end."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()

    async def aclose(self) -> None:
        """Let all watchers end, and wait until nothing is read anymore."""
        self.close()
        if self._reading:
            await asyncio.wait(set(self._reading))

    def _close_unwatched(self, run_id: str, stream: RunStream) -> None:
        if stream.watchers == 0:
            stream.close()
            if self._streams.get(run_id) is stream:
                del self._streams[run_id]


async def or_silence(events: AsyncIterator[T], seconds: float) -> AsyncIterator[T | None]:
    """Yield the events, and None whenever there was none for this many seconds."""
    coming: asyncio.Task[T] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(events))
            if not (await asyncio.wait({coming}, timeout=seconds))[0]:
                yield None
                continue
            done, coming = coming, None
            try:
                event = done.result()
            except StopAsyncIteration:
                return
            yield event
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.wait({coming})  # awaiting the task itself would also swallow a cancellation of the caller
            if not coming.cancelled():
                coming.exception()  # it came too late for anybody to want it


async def or_comments(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the chunks, and a comment in each silence, so that proxies keep the connection."""
    async with closing(chunks), closing(or_silence(chunks, HEARTBEAT)) as each:
        async for chunk in each:
            yield COMMENT if chunk is None else chunk


def frame_of(watched: Streamed | Polled | None) -> Frame:
    """Encode an event, a status, or, for None, a comment."""
    match watched:
        case Streamed(offset=offset, task=task):
            return Frame(_encoded(task_view(offset, task), offset=offset), offset)
        case Polled(status=status, why=why):
            return Frame(_encoded({"status": status, "why": why}, event="status"))
        case None:
            return Frame(COMMENT)


def _encoded(value: JsonObject, *, offset: int | None = None, event: str = "") -> bytes:
    head = (f"id: {offset}\n" if offset is not None else "") + (f"event: {event}\n" if event else "")
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return f"{head}data: {data}\n\n".encode("utf-8", "replace")
