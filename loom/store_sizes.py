"""The sizes of the stores, what takes up the space, and how fast they grow.

`loom doctor` keeps one reading of each store in the home directory.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

import psycopg
import redis.asyncio
from redis.exceptions import ResponseError

from loom.domain.core.messages import short_digest

DAY: Final = 24 * 3600
_READINGS: Final = "sizes.json"
_TABLES: Final = {
    "loom_memory": "memory",
    "loom_scoped_memory": "memory",
    "loom_person_facts": "memory",
    "loom_knowledge": "knowledge bases",
    "loom_audit": "audit log",
    "loom_artifacts": "artifacts",
    "loom_payload": "payloads",
    "loom_effects": "effects",
    "loom_clones": "changes to clones",
}
"""The content of the tables whose names have this prefix."""
_TABLE_SIZES: Final = """
SELECT relname, pg_total_relation_size(oid) FROM pg_class
WHERE relkind = 'r' AND pg_table_is_visible(oid) AND relnamespace <> 'pg_catalog'::regnamespace
"""
_KEYS: Final = {"events": "live streams", "transcript": "transcripts", "bus": "bus", "result": "tool results"}
"""The content of the keys `loom:KIND:…`."""
_SAMPLE: Final = 1_000
"""Maximum number of Redis keys to measure. If there are more, the sizes are estimated from these."""
_MOST_FILES: Final = 200_000
_MOST_SHOWN: Final = 3


def size_and_growth(
    home: Path, store: str, url: str, size: int, *, kinds: Mapping[str, int] | None = None, now: float | None = None
) -> dict[str, Any]:
    """Return a store's size in bytes, its growth since the kept reading, and both in words. `kinds` contains the size
    of each kind of content. The words name the largest ones.

    A reading is kept for a day, and then replaced. Without a home directory, or if it can't be written, the growth is
    unknown.
    """
    at = time.time() if now is None else now
    entry: dict[str, Any] = {"bytes": size, "note": in_words(size)}
    readings = _read(home / _READINGS)
    kept = readings.get(store, {})
    is_same = kept.get("server") == short_digest(url) and kept.get("at", at) <= at
    if is_same:
        grown, seconds = size - kept["bytes"], round(at - kept["at"])
        sign = "-" if grown < 0 else "+"
        entry |= {"growth": {"bytes": grown, "seconds": seconds}}
        entry["note"] += f", {sign}{in_words(abs(grown))} in {_duration(seconds)}"
    if kinds:
        entry |= {"kinds": dict(kinds)}
        entry["note"] += f" ({_largest(kinds)})"
    if not is_same or at - kept["at"] >= DAY:
        readings[store] = {"server": short_digest(url), "at": at, "bytes": size}
        with suppress(OSError):
            (home / _READINGS).write_text(json.dumps(readings), encoding="utf-8")
    return entry


async def table_sizes(connection: psycopg.AsyncConnection[tuple[str, int]]) -> dict[str, int]:
    """Return the bytes of each kind of content in Postgres, with its indexes."""
    sizes: Counter[str] = Counter()
    for table, size in await (await connection.execute(_TABLE_SIZES)).fetchall():
        kind = next((kind for prefix, kind in _TABLES.items() if table.startswith(prefix)), "other tables")
        sizes[kind] += size
    return dict(sizes.most_common())


async def key_sizes(client: redis.asyncio.Redis) -> dict[str, int]:
    """Return the bytes of each kind of key in Redis. With more than `_SAMPLE` keys, this is an estimate.

    If the server refuses the commands, the result is empty.
    """
    with suppress(ResponseError):
        return await _key_sizes(client)
    return {}


async def _key_sizes(client: redis.asyncio.Redis) -> dict[str, int]:
    keys: list[bytes] = []
    async for key in client.scan_iter(count=_SAMPLE):
        keys.append(key)
        if len(keys) == _SAMPLE:
            break
    pipeline = client.pipeline(transaction=False)
    for key in keys:
        pipeline.memory_usage(key)
    sizes: Counter[str] = Counter()
    for key, size in zip(keys, await pipeline.execute(), strict=True):
        sizes[_kind_of(key.decode(errors="replace"))] += size or 0
    share = len(keys) / max(await client.dbsize(), len(keys), 1)
    return {kind: round(size / share) for kind, size in sizes.most_common()}


def folder_size(folder: Path) -> int | None:
    """Return the bytes of a folder's files, or None if there are too many of them."""
    files = (Path(path, name) for path, _, names in os.walk(folder) for name in names)
    sizes = list(islice(file_sizes(files), _MOST_FILES + 1))
    return None if len(sizes) > _MOST_FILES else sum(sizes)


def file_sizes(files: Iterable[Path]) -> Iterator[int]:
    """Yield the bytes of each of these files that is still there."""
    for file in files:
        with suppress(OSError):
            yield file.lstat().st_size


def in_words(size: int) -> str:
    """Return a number of bytes for people."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} bytes"


def _duration(seconds: int) -> str:
    for unit, scale in (("days", DAY), ("h", 3600), ("min", 60)):
        if seconds >= 2 * scale:
            return f"{seconds // scale} {unit}"
    return f"{seconds} s"


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _kind_of(key: str) -> str:
    own, _, rest = key.partition(":")
    return _KEYS.get(rest.partition(":")[0], "other keys") if own == "loom" else "other keys"


def _largest(kinds: Mapping[str, int]) -> str:
    largest = sorted(kinds.items(), key=lambda kind: -kind[1])[:_MOST_SHOWN]
    return ", ".join(f"{kind} {in_words(size)}" for kind, size in largest)
