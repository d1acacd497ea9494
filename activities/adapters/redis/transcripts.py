"""Cache transcripts, tool results and specs for the next activity, in this worker's memory and in Redis.

Redis keys, which expire one day after their last write:
    loom:transcript:{run}          list of messages; the first n messages are the transcript of count n
    loom:result:{run}:{call_id}    the message with the result of a tool call
    loom:spec:{digest}             an agent's spec

A value from Redis is used only if it has the requested digest. Writes can therefore run in the background, and they may
be delayed, lost or reordered.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeAlias, TypeVar

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.stream import DAY, dump_json, load_json
from loom.activities.ports import StreamUnavailable
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import (
    JsonObject,
    Message,
    ResultRef,
    Tail,
    Transcript,
    TranscriptRef,
    message_digest,
    transcript_of,
)

K = TypeVar("K")
V = TypeVar("V")

RESULT: Final = "loom:result:"
_ENTRIES: Final = 10_000
_BYTES: Final = 64 * 1024 * 1024
_WRITES_WAITING: Final = 256
_MESSAGE_BYTES: Final = 512  # approximate size of a message without its text

_Write: TypeAlias = Callable[[Pipeline], object]


class CachedTranscripts:
    """A `TranscriptStore` that caches transcripts. The cache makes runs faster, but runs also work without it."""

    def __init__(self, link: RedisConnection | None, *, max_bytes: int = _BYTES) -> None:
        """Without a connection, values are cached only in this worker's memory. Transcripts may use three quarters of
        `max_bytes`.
        """
        self._link = link
        self._transcripts: _Lru[str, _Kept] = _Lru(max_bytes * 3 // 4)
        self._results: _Lru[tuple[str, ResultRef], Message] = _Lru(max_bytes // 4)
        self._specs: _Lru[str, AgentSpec] = _Lru(max_bytes // 4)
        self._writes: deque[_Write] = deque(maxlen=_WRITES_WAITING)
        self._writer: asyncio.Task[None] | None = None

    async def load(self, run_id: str, tail: Tail) -> Transcript | None:
        """Return the transcript that `tail` describes. Redis is queried at most once, and only for messages that aren't
        in this worker's memory.
        """
        base = self._base(run_id, tail.base)
        refs = [item for item in tail.items if isinstance(item, ResultRef)]
        results = {ref: message for ref in refs if (message := self._results.get((run_id, ref)))}
        if len(results) < len(refs):
            results = self._results_after(run_id, tail.base.count) | results
        missing = [ref for ref in refs if ref not in results]
        if base is None or missing:
            fetched = await self._ask(partial(_fetch, run_id, 0 if base else tail.base.count, missing))
            base = base or _verified(fetched.messages if fetched else (), tail.base)
            results |= fetched.results if fetched else {}
        if base is None or not results.keys() >= set(refs):
            return None
        return base.extended(results[item] if isinstance(item, ResultRef) else item for item in tail.items)

    async def save(self, run_id: str, before: Tail, transcript: Transcript) -> None:
        """Cache a transcript as the run's latest one. Only messages after `before.base` are sent to Redis."""
        base = before.base
        added = transcript.messages[base.count :]
        earlier = self._transcripts.get(run_id)
        known = earlier.size if earlier and earlier.transcript.ref == base else _size(transcript.messages[: base.count])
        size = known + _size(added)
        self._transcripts.put(run_id, _Kept(transcript=transcript, size=size), size)
        for item in before.items:
            if isinstance(item, ResultRef):
                self._results.drop((run_id, item))  # the transcript contains it
        if added:
            self._write_later(partial(_write_transcript, run_id, base.count, added))

    async def save_result(self, run_id: str, message: Message) -> None:
        """Cache the result of a tool call."""
        if message.tool_call_id is None:
            return
        ref = ResultRef(call_id=message.tool_call_id, digest=message_digest(message))
        self._results.put((run_id, ref), message, _size((message,)))
        self._write_later(partial(_write_value, _result_key(run_id, ref), message))

    async def find_arguments(self, run_id: str, call_id: str) -> JsonObject | None:
        """Return a call's arguments from the latest cached reply. This worker's memory is searched before Redis."""
        kept = self._transcripts.get(run_id)
        arguments = _arguments(kept.transcript.messages if kept else (), call_id)
        if arguments is not None:
            return arguments
        return _arguments(await self._ask(partial(_fetch_last, run_id)) or (), call_id)

    async def load_spec(self, digest: str) -> AgentSpec | None:
        """Return the spec with this digest."""
        spec = self._specs.get(digest)
        if spec is None:
            spec = await self._ask(partial(_fetch_spec, digest))
            if spec is not None:
                self._keep_spec(spec)
        return spec

    async def save_spec(self, spec: AgentSpec) -> None:
        """Cache a spec under its digest."""
        self._keep_spec(spec)
        self._write_later(partial(_write_value, _spec_key(spec.digest), spec))

    async def aclose(self) -> None:
        """Wait for pending writes. The caller must close the connection."""
        if self._writer is not None:
            await self._writer

    def _base(self, run_id: str, ref: TranscriptRef) -> Transcript | None:
        if ref == TranscriptRef():
            return Transcript()
        kept = self._transcripts.get(run_id)
        if kept is None:
            return None
        if kept.transcript.ref == ref:
            return kept.transcript
        # A retried call starts from an earlier transcript, which is a prefix of the run's latest transcript.
        return _verified(kept.transcript.messages[: ref.count], ref)

    def _results_after(self, run_id: str, count: int) -> dict[ResultRef, Message]:
        """Return the results that the run's latest transcript has after so many messages. A retried call and a
        compression begin before the latest transcript.
        """
        kept = self._transcripts.get(run_id)
        later = kept.transcript.messages[count:] if kept else ()
        return {
            ResultRef(call_id=message.tool_call_id, digest=message_digest(message)): message
            for message in later
            if message.tool_call_id is not None
        }

    def _keep_spec(self, spec: AgentSpec) -> None:
        self._specs.put(spec.digest, spec, sum(len(tool.description) + _MESSAGE_BYTES for tool in spec.tools))

    async def _ask(self, question: Callable[[Redis], Awaitable[V]]) -> V | None:
        if self._link is None:
            return None
        try:
            return await self._link.call(question)
        except StreamUnavailable:
            return None

    def _write_later(self, write: _Write) -> None:
        if self._link is None:
            return
        self._writes.append(write)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._writes:
            batch = tuple(self._writes)
            self._writes.clear()
            await self._ask(partial(_execute, batch))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    transcript: Transcript
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fetched:
    messages: tuple[Message, ...]
    results: dict[ResultRef, Message]


class _Lru(Generic[K, V]):
    """A cache of the most recently used values. It limits the number of values and their total size."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def drop(self, key: K) -> None:
        if key in self._kept:
            self._bytes -= self._kept.pop(key)[1]

    def put(self, key: K, value: V, size: int) -> None:
        self.drop(key)
        self._kept[key] = (value, size)
        self._bytes += size
        while self._kept and (self._bytes > self._max_bytes or len(self._kept) > _ENTRIES):
            self._bytes -= self._kept.popitem(last=False)[1][1]


def _size(messages: Iterable[Message]) -> int:
    return sum(_MESSAGE_BYTES + _content_size(message) + _arguments_size(message) for message in messages)


def _content_size(message: Message) -> int:
    if isinstance(message.content, str):
        return len(message.content)
    return sum(len(part.text) + len(part.data) for part in message.content)


def _arguments_size(message: Message) -> int:
    values = (value for call in message.tool_calls for value in (*call.arguments.values(), call.malformed))
    return sum(len(value) for value in values if isinstance(value, str))


def _verified(messages: Sequence[Message], ref: TranscriptRef) -> Transcript | None:
    if len(messages) != ref.count:
        return None
    transcript = transcript_of(messages)
    return transcript if transcript.ref == ref else None


def _arguments(messages: Sequence[Message], call_id: str) -> JsonObject | None:
    # Don't search before the latest reply, because a model may use the same call id in every turn.
    answer = next((message for message in reversed(messages) if message.role == "assistant"), None)
    calls = answer.tool_calls if answer else ()
    return next((call.arguments for call in calls if call.id == call_id), None)


def transcript_key(run_id: str) -> str:
    """Return the key of a run's transcript."""
    return f"loom:transcript:{run_id}"


def _result_key(run_id: str, ref: ResultRef) -> str:
    return f"{RESULT}{run_id}:{ref.call_id}"


def _spec_key(digest: str) -> str:
    return f"loom:spec:{digest}"


async def _fetch(run_id: str, count: int, refs: Sequence[ResultRef], redis: Redis) -> _Fetched:
    async with redis.pipeline(transaction=False) as pipe:
        if count:
            pipe.lrange(transcript_key(run_id), 0, count - 1)
        if refs:
            pipe.mget([_result_key(run_id, ref) for ref in refs])
        answers = await pipe.execute()
    messages = _read(answers[0]) if count else ()
    found = [_read((data,)) if data else () for data in (answers[-1] if refs else ())]
    results = {
        ref: message
        for ref, read in zip(refs, found, strict=True)
        for message in read
        if message_digest(message) == ref.digest
    }
    return _Fetched(messages=messages, results=results)


async def _fetch_last(run_id: str, redis: Redis) -> tuple[Message, ...]:
    return _read(await redis.lrange(transcript_key(run_id), -1, -1))


async def _fetch_spec(digest: str, redis: Redis) -> AgentSpec | None:
    data = await redis.get(_spec_key(digest))
    try:
        spec = load_json(AgentSpec, data) if data else None
    except ValueError:
        return None
    return spec if spec and spec.digest == digest else None


def _read(items: Iterable[bytes | str]) -> tuple[Message, ...]:
    try:
        return tuple(load_json(Message, data) for data in items)
    except ValueError:  # written by another version of Loom
        return ()


def _write_transcript(run_id: str, count: int, added: Sequence[Message], pipe: Pipeline) -> None:
    key = transcript_key(run_id)
    if count:
        pipe.ltrim(key, 0, count - 1)
    else:
        pipe.delete(key)
    pipe.rpush(key, *(dump_json(Message, message) for message in added))
    pipe.expire(key, DAY)


def _write_value(key: str, value: object, pipe: Pipeline) -> None:
    pipe.set(key, dump_json(type(value), value), ex=DAY)


async def _execute(writes: Sequence[_Write], redis: Redis) -> None:
    async with redis.pipeline(transaction=False) as pipe:
        for write in writes:
            write(pipe)
        await pipe.execute()
