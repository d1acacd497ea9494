"""Store the archive of a request before the request is sent, so that no history contains it."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from loom.activities.ports import PartStore, StoreUnavailable
from loom.domain.core.archives import archive_content
from loom.domain.core.errors import UnreachableError


def encoded_workspace(workspace: Any) -> Any:
    """Return the workspace of a request, with the content of an archive in base64."""
    match workspace:
        case {"archive": {"data": bytes() | bytearray() as data} as archive}:
            return {**workspace, "archive": {**archive, "data": b64encode(data).decode()}}
    return workspace


async def uploaded_workspace(workspace: Any, store: PartStore | None, run_id: str) -> Any:
    """Return the workspace of a valid request, with the digest of an archive instead of its content.

    Without a store, the request contains it. Raises BadRequest if the content can't be used, and UnreachableError if
    the store is unavailable.
    """
    match workspace:
        case {"archive": {"data": str() as data} as archive}:
            return {**workspace, "archive": await _uploaded(archive, data, store, run_id)}
    return workspace


async def _uploaded(archive: Mapping[str, Any], data: str, store: PartStore | None, run_id: str) -> dict[str, Any]:
    content = archive_content(data)
    if store is None:
        return dict(archive)
    try:
        digest = await store.save(run_id, content, None)
    except StoreUnavailable as error:
        raise UnreachableError(f"the archive can't be stored: {error}") from None
    return {**{name: value for name, value in archive.items() if name != "data"}, "digest": digest}
