"""Cache transcripts, tool results and specs for the next activity, in this worker's memory and in Redis.

Redis keys, which expire one day after their last write:
    loom:transcript:{run}          list of messages; the first n messages are the transcript of count n
    loom:result:{run}:{call_id}    the message with the result of a tool call, until the transcript contains it
    loom:spec:{digest}             an agent's spec

A value from Redis is used only if it has the requested digest. Writes can therefore run in the background, and they may
be delayed, lost or reordered.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeAlias, TypeVar

import structlog
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from loom.activities.adapters.redis.connection import RedisConnection, Write
from loom.activities.adapters.redis.stream import DAY, dump_json, load_json
from loom.activities.ports import StoreUnavailable, StreamUnavailable
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import EncryptionKeyError
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

Open: TypeAlias = Callable[[bytes | str], Awaitable[bytes]]
"""Opens a value from Redis. Raises ValueError."""

_log = structlog.get_logger("loom.redis")

RESULT: Final = "loom:result:"
_PLACE: Final = "the transcripts in Redis"
_ENTRIES: Final = 10_000
_BYTES: Final = 64 * 1024 * 1024
# Approximate sizes, without texts. An outline takes about 600 bytes for each message of a transcript.
_MESSAGE_BYTES: Final = 1200
_TOOL_BYTES: Final = 512


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
            count = tail.base.count
            fetched = await self._ask(partial(_fetch, self._open, run_id, range(count if base else 0, count), missing))
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
        taken_in = [item for item in before.items if isinstance(item, ResultRef)]
        for ref in taken_in:
            self._results.drop((run_id, ref))  # the transcript contains it
        if added:
            await self._write_soon(
                run_id,
                added,
                lambda sealed: partial(_write_transcript, run_id, base.count, sealed, taken_in),
            )

    async def save_result(self, run_id: str, message: Message) -> None:
        """Cache the result of a tool call."""
        if message.tool_call_id is None:
            return
        ref = ResultRef(call_id=message.tool_call_id, digest=message_digest(message))
        self._results.put((run_id, ref), message, _size((message,)))
        name = _result_key(run_id, ref)
        await self._write_soon(run_id, (message,), lambda sealed: partial(_write_value, name, sealed))

    async def find_arguments(self, run_id: str, call_id: str) -> JsonObject | None:
        """Return a call's arguments from the latest cached reply. This worker's memory is searched before Redis."""
        kept = self._transcripts.get(run_id)
        arguments = _arguments(kept.transcript.messages if kept else (), call_id)
        if arguments is not None:
            return arguments
        return _arguments(await self._ask(partial(_fetch_last, self._open, run_id)) or (), call_id)

    async def load_spec(self, digest: str) -> AgentSpec | None:
        """Return the spec with this digest."""
        spec = self._specs.get(digest)
        if spec is None:
            spec = await self._ask(partial(_fetch_spec, self._open, digest))
            if spec is not None:
                self._keep_spec(spec)
        return spec

    async def save_spec(self, spec: AgentSpec) -> None:
        """Cache a spec under its digest."""
        self._keep_spec(spec)
        name = _spec_key(spec.digest)
        await self._write_soon("", (spec,), lambda sealed: partial(_write_value, name, sealed))

    async def aclose(self) -> None:
        """Wait for pending writes. The caller must close the connection."""
        if self._link is not None:
            await self._link.flush()

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
        self._specs.put(spec.digest, spec, sum(len(tool.description) + _TOOL_BYTES for tool in spec.tools))

    async def _ask(self, question: Callable[[Redis], Awaitable[V]]) -> V | None:
        if self._link is None:
            return None
        try:
            return await self._link.call(question)
        except StreamUnavailable:
            return None

    async def _write_soon(
        self, run_id: str, values: Sequence[object], write: Callable[[Sequence[bytes]], Write]
    ) -> None:
        """Write the values in the background. Nothing is written if a key isn't available."""
        if self._link is None:
            return
        cipher = self._link.cipher
        try:
            sealed = [
                await cipher.seal(dump_json(type(value), value), _PLACE, cipher.tenant_of(run_id)) for value in values
            ]
        except (StoreUnavailable, EncryptionKeyError) as error:
            _log.warning("transcript_not_cached", run_id=run_id, error=str(error))
            return
        self._link.write_later(write(sealed))

    async def _open(self, data: bytes | str) -> bytes:
        """Return a plain value. Raises ValueError if its key isn't available: it is then as good as missing."""
        assert self._link is not None  # noqa: S101 - the value is from there
        try:
            return await self._link.cipher.open(data.encode() if isinstance(data, str) else data, _PLACE)
        except (StoreUnavailable, EncryptionKeyError) as error:
            raise ValueError(str(error)) from error


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


async def _fetch(opened: Open, run_id: str, wanted: range, refs: Sequence[ResultRef], redis: Redis) -> _Fetched:
    """Return the messages with these indexes, and the results. Results of a call that is retried may be among the
    messages that follow.
    """
    known, count = wanted.start, wanted.stop
    async with redis.pipeline(transaction=False) as pipe:
        pipe.lrange(transcript_key(run_id), known, -1 if refs else count - 1)
        if refs:
            pipe.mget([_result_key(run_id, ref) for ref in refs])
        answers = await pipe.execute()
    messages = await _read(opened, answers[0])
    found = [message for data in (answers[1] if refs else ()) if data for message in await _read(opened, (data,))]
    by_digest = {
        ResultRef(call_id=message.tool_call_id, digest=message_digest(message)): message
        for message in (*messages[count - known :], *found)
        if message.tool_call_id is not None
    }
    results = {ref: by_digest[ref] for ref in refs if ref in by_digest}
    return _Fetched(messages=messages[: count - known], results=results)


async def _fetch_last(opened: Open, run_id: str, redis: Redis) -> tuple[Message, ...]:
    return await _read(opened, await redis.lrange(transcript_key(run_id), -1, -1))


async def _fetch_spec(opened: Open, digest: str, redis: Redis) -> AgentSpec | None:
    data = await redis.get(_spec_key(digest))
    try:
        spec = load_json(AgentSpec, await opened(data)) if data else None
    except ValueError:
        return None
    return spec if spec and spec.digest == digest else None


async def _read(opened: Open, items: Iterable[bytes | str]) -> tuple[Message, ...]:
    try:
        return tuple([load_json(Message, await opened(data)) for data in items])
    except ValueError:  # written by another version of Loom
        return ()


def _write_transcript(
    run_id: str, count: int, added: Sequence[bytes], taken_in: Sequence[ResultRef], pipe: Pipeline
) -> None:
    key = transcript_key(run_id)
    if count:
        pipe.ltrim(key, 0, count - 1)
    else:
        pipe.delete(key)
    pipe.rpush(key, *added)
    pipe.expire(key, DAY)
    if taken_in:
        pipe.delete(*(_result_key(run_id, ref) for ref in taken_in))


def _write_value(key: str, values: Sequence[bytes], pipe: Pipeline) -> None:
    (value,) = values
    pipe.set(key, value, ex=DAY)
