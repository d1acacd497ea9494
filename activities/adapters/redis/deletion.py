"""Delete run data from Redis before it expires: events, transcripts and call results."""

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Final

from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.stream import stream_keys
from loom.activities.adapters.redis.transcripts import RESULT, transcript_key

if TYPE_CHECKING:
    from redis.asyncio import Redis

_WITHIN: Final = 60.0
_AT_ONCE: Final = 500


async def forget_runs(url: str, runs: Collection[str]) -> int:
    """Delete the data of these runs and return the number of deleted keys. Raises StreamUnavailable if Redis can't be
    reached.
    """
    link = RedisConnection(url, answer_within=_WITHIN)
    try:
        return await link.call(partial(_deleted, runs=frozenset(runs)))
    finally:
        await link.aclose()


async def _deleted(redis: "Redis", runs: frozenset[str]) -> int:
    keys = [key for run in runs for key in (*stream_keys(run), transcript_key(run))]
    found = redis.scan_iter(f"{RESULT}*", count=_AT_ONCE)
    keys += [name async for key in found if not runs.isdisjoint(_may_be_of(name := key.decode()))]
    portions = [keys[start : start + _AT_ONCE] for start in range(0, len(keys), _AT_ONCE)]
    return sum([int(await redis.delete(*portion)) for portion in portions])


def _may_be_of(key: str) -> list[str]:
    """Return the runs that a result key may belong to. There can be several, because run ids and call ids can contain
    colons.
    """
    parts = key.removeprefix(RESULT).split(":")
    return [":".join(parts[:end]) for end in range(1, len(parts))]
