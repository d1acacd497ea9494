"""Store the content of a request's parts before the request is sent, so that no history contains it."""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from loom.activities.ports import PartStore, StoreUnavailable
from loom.domain.core.errors import BadRequest, UnreachableError
from loom.domain.core.media import MOST_BYTES, recognized


def encoded(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts with their contents in base64."""
    return [_encoded(part) for part in parts]


def _encoded(part: Mapping[str, Any]) -> dict[str, Any]:
    data = part.get("data")
    return {**part, "data": b64encode(data).decode()} if isinstance(data, bytes | bytearray) else dict(part)


async def uploaded(parts: Sequence[Mapping[str, Any]], store: PartStore | None, run_id: str) -> list[dict[str, Any]]:
    """Return the parts of a valid request, with the digests of their contents instead of the contents.

    Without a store, the request contains them. Raises BadRequest if a content can't be used, and UnreachableError if
    the store is unavailable.
    """
    contents = {number: _content(part, number) for number, part in enumerate(parts) if part.get("data")}
    total = sum(map(len, contents.values()))
    if total > MOST_BYTES:
        raise BadRequest(
            f"parts: a message may have {MOST_BYTES:,} bytes of parts, not {total:,}: attach smaller files",
            field="parts",
        )
    if store is None:
        return [dict(part) for part in parts]
    sent = [dict(part) for part in parts]
    try:
        for number, content in contents.items():
            del sent[number]["data"]
            sent[number]["digest"] = await store.save(run_id, content, None)
    except StoreUnavailable as error:
        raise UnreachableError(f"the parts can't be stored: {error}") from None
    return sent


def _content(part: Mapping[str, Any], number: int) -> bytes:
    try:
        content = b64decode(part["data"], validate=True)
        recognized(content, part.get("name") or "")
    except BadRequest as error:
        raise BadRequest(f"parts.{number}: {error.message}", field=f"parts.{number}") from None
    except ValueError:
        raise BadRequest(f"parts.{number}.data: not base64", field=f"parts.{number}.data") from None
    return content
