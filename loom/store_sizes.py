"""The sizes of Postgres and Redis, and how fast they grow. `loom doctor` keeps one reading in the home directory."""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from loom.domain.core.messages import short_digest

DAY: Final = 24 * 3600
_READINGS: Final = "sizes.json"


def size_and_growth(home: Path, store: str, url: str, size: int, *, now: float | None = None) -> dict[str, Any]:
    """Return a store's size in bytes, its growth since the kept reading, and both in words.

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
    if not is_same or at - kept["at"] >= DAY:
        readings[store] = {"server": short_digest(url), "at": at, "bytes": size}
        with suppress(OSError):
            (home / _READINGS).write_text(json.dumps(readings), encoding="utf-8")
    return entry


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
