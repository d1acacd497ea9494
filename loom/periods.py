"""Read when a period begins that ends now."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from loom.domain.core.errors import BadRequest

_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_LONGEST: Final = 366 * 100 * 86_400


def read_since(text: str, now: datetime, name: str = "since") -> datetime:
    """Read a span before now, or a date. Raises BadRequest if it is neither. `name` is what the caller calls it."""
    if match := re.fullmatch(r"(\d{1,9})([mhdw])", text.strip()):
        return now - timedelta(seconds=min(int(match[1]) * _UNITS[match[2]], _LONGEST))
    try:
        # Dates at the ends of the calendar have no equivalent in UTC.
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadRequest(
            f"{name}: {text!r} is neither a span, such as 24h or 7d, nor a date, such as 2026-01-31", field="since"
        ) from None
