"""Read how long a server wants its clients to wait, from the headers, the fields and the text of its error."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

_LONGEST_TEXT: Final = 8000
"""Text beyond this length is not searched."""

_AMOUNT: Final = r"\d{1,12}(?:\.\d{1,12})?"
_UNIT: Final = (
    r"(?:milliseconds?|msecs?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)(?![a-z])"
    r"|毫秒|秒|分[钟鐘]|小[时時]"
)
_PIECE = re.compile(rf"({_AMOUNT}) ?({_UNIT})")
_DURATION: Final = rf"(?:{_AMOUNT} ?(?:{_UNIT})(?:,? and |, | )?){{1,5}}"
_WHOLE_DURATION = re.compile(_DURATION)
_SAID = re.compile(
    rf"\b(?:again|retry(?:ing)?|wait|available|resets?)\b[^.\d]{{0,40}}?\b(?:in|after|for|least|about) ({_DURATION})"
    rf"|\bwait ({_DURATION})|({_AMOUNT} ?(?:{_UNIT}))[之以]?[后後]"
)
_MULTIPLES: Final = {"毫": 0.001, "秒": 1.0, "分": 60.0, "小": 3600.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_LEAST_EPOCH: Final = 1e9
"""A number from here on is a time in seconds since the epoch, and not a delay."""
_LEAST_EPOCH_MS: Final = 1e12

_FIELDS: Final = {"retry_after": 1.0, "retryafter": 1.0, "retry_after_seconds": 1.0, "retry_after_ms": 0.001}
_RESET = re.compile(r"^(?:x-|anthropic-)?ratelimit-(?:(\w[\w-]*?)-)?reset(?:-([\w-]+))?$")


def retry_after(
    headers: Mapping[str, str], text: str = "", fields: Sequence[Mapping[Any, Any]] = (), *, is_limited: bool = True
) -> float | None:
    """Return the number of seconds to wait before the next attempt, or None if the server doesn't say.

    The first source that says something counts: the headers `retry-after-ms` and `retry-after` (seconds or a date),
    the fields of the error, its text, and the time at which an exhausted limit resets. `is_limited` says that the error
    is a rate limit. For other errors, a limit counts only if the server says that nothing remains of it.
    """
    given = _lowered(headers)
    for found in (header_wait(headers), _of_fields(fields), _of_text(text)):
        if found is not None:
            return found
    passed_on = [_lowered(part["headers"]) for part in fields if isinstance(part.get("headers"), Mapping)]
    for each in (*passed_on, given):
        found = _of_headers(each) if each is not given else None
        found = _of_resets(each, is_limited=is_limited) if found is None else found
        if found is not None:
            return found
    return None


def header_wait(headers: Mapping[str, str]) -> float | None:
    """Return the number of seconds in the headers `retry-after-ms` and `retry-after`, or None without them."""
    return _of_headers(_lowered(headers))


def _lowered(headers: Mapping[Any, Any]) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in headers.items()}


def _of_headers(headers: Mapping[str, str]) -> float | None:
    millis = _number(headers.get("retry-after-ms", ""))
    if millis is not None:
        return millis / 1000
    text = headers.get("retry-after", "")
    seconds = _number(text)
    return _duration(text) or _until(text) if seconds is None else seconds


def _of_fields(fields: Sequence[Mapping[Any, Any]]) -> float | None:
    for part in fields:
        if (delay := _delay(part.get("retryDelay", part.get("retry_delay")))) is not None:
            return delay
        for name, value in part.items():
            unit = _FIELDS.get(str(name).lower().replace("-", "_"))
            number = _number(value) if unit is not None else None
            if unit is not None and number is not None:
                return number * unit
    return None


def _delay(value: object) -> float | None:
    """Return a Google API's duration, such as "37s" or an object with `seconds` and `nanos`, in seconds."""
    if not isinstance(value, Mapping):
        return _duration(value) if isinstance(value, str) else _number(value)
    parts = _number(value.get("seconds", 0)), _number(value.get("nanos", 0))
    return None if parts[0] is None or parts[1] is None else parts[0] + parts[1] / 1e9


def _of_text(text: str) -> float | None:
    said = _SAID.search(text[:_LONGEST_TEXT].lower())
    return _total(said[0]) if said else None


def _of_resets(headers: Mapping[str, str], *, is_limited: bool) -> float | None:
    """Return the time until all exhausted limits have reset."""
    waits = []
    for name, value in headers.items():
        remaining = _number(headers.get(name.replace("reset", "remaining"), ""))
        is_exhausted = is_limited if remaining is None else remaining == 0
        if _RESET.match(name) and is_exhausted and (wait := _reset(value)) is not None:
            waits.append(wait)
    return max(waits, default=None)


def _reset(text: str) -> float | None:
    number = _number(text)
    if number is None:
        found = _duration(text)
        return _until(text) if found is None else found
    if number < _LEAST_EPOCH:
        return number
    at = number / 1000 if number >= _LEAST_EPOCH_MS else number
    return max(0.0, round(at - datetime.now(UTC).timestamp(), 3))


def _duration(text: str) -> float | None:
    """Return a duration such as `6m0s`, `2m59.56s` or `20ms` in seconds."""
    text = text.strip().lower()
    return _total(text) if len(text) < 100 and _WHOLE_DURATION.fullmatch(text) else None


def _total(text: str) -> float:
    return round(sum(float(amount) * _multiple(unit) for amount, unit in _PIECE.findall(text)), 6)


def _multiple(unit: str) -> float:
    return 0.001 if unit.startswith(("ms", "mil")) else _MULTIPLES[unit[0]]


def _until(text: str) -> float | None:
    """Return the seconds until a date of HTTP or of RFC 3339."""
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            at = read(text.strip())
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
            return max(0.0, round((at - datetime.now(UTC)).total_seconds(), 3))
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
    return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return max(0.0, number) if math.isfinite(number) else None
