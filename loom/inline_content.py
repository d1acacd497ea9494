"""Limit what a request contains itself. With a database, parts and archives are stored first, and it contains none."""

from collections.abc import Mapping
from typing import Any, Final

from loom.domain.core.archives import DATA
from loom.domain.core.errors import BadRequest

INLINE: Final = 1_000_000
"""Maximum number of bytes of all parts and the archive in a request. The server limits a request's size."""


def refuse_large_content(request: Mapping[str, Any]) -> None:
    """Raise BadRequest if the parts and the archive in a request or a message are too large together."""
    parts = request.get("parts") or ()
    contents = [part.get("data") for part in parts]
    match request.get("workspace"):
        case {"archive": {"data": str() as data}}:
            contents.append(data)
    total = sum(_size(content) for content in contents if content)
    if total > INLINE:
        raise BadRequest(
            f"the request contains {total:,} bytes of parts and archives, and without a database, it may have at most"
            f" {INLINE:,}: set LOOM_DATABASE_URL to send more",
            field="parts" if parts else DATA,
        )


def _size(encoded: str) -> int:
    return len(encoded) * 3 // 4 - encoded.count("=")
