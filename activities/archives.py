"""Store the archives of runs in the `PartStore`, like images and files of messages, and give them to clones.

Any worker that makes a run's clone needs the archive, so it is stored for as long as the root of the run's tree is on
the server. A digest gives no right to read: the root owns the archive, or adopts one that was stored for it.
"""

from typing import Final

from loom.activities.ports import PartStore
from loom.domain.core.archives import archive_content
from loom.domain.core.errors import BadRequest
from loom.domain.core.repositories import Archive
from loom.domain.core.tasks import Origin

NO_STORE: Final = (
    "this worker stores no archives: set LOOM_DATABASE_URL on the worker, or put the files in a folder of the worker or"
    " in a Git repository"
)


class Archives:
    """The archives that this worker's runs work on."""

    def __init__(self, store: PartStore | None) -> None:
        """Without a database, `store` is None, and no run works on an archive."""
        self._store = store

    async def stored(self, archive: Archive, origin: Origin) -> str:
        """Store the archive of a request, unless it is there, and return its digest. Raises BadRequest if it can't be
        used, and StoreUnavailable.
        """
        store = self._open()
        if not archive.digest:
            return await store.save(origin.run_id, archive_content(archive.data), origin.tenant)
        if not await store.adopt(origin.run_id, archive.digest, origin.tenant):
            raise BadRequest(
                f"no archive is stored under the digest {archive.digest}: send the content itself as `data`",
                field="workspace.archive.digest",
            )
        return archive.digest

    async def content(self, digest: str, origin: Origin) -> bytes:
        """Return the content that the root of the run's tree owns. Raises BadRequest if it is no longer stored, and
        StoreUnavailable.
        """
        await self.refuse_missing(digest, origin)
        if (content := await self._open().load(digest)) is None:
            raise _missing(digest)
        return content

    async def refuse_missing(self, digest: str, origin: Origin) -> None:
        """Raise BadRequest if the root of the run's tree doesn't own the content. Raises StoreUnavailable, too."""
        if not await self._open().adopt(origin.root_run_id or origin.run_id, digest, origin.tenant):
            raise _missing(digest)

    def refuse_without_store(self) -> None:
        """Raise BadRequest if this worker stores no archives."""
        self._open()

    def _open(self) -> PartStore:
        if self._store is None:
            raise BadRequest(NO_STORE, field="workspace.archive")
        return self._store


def _missing(digest: str) -> BadRequest:
    return BadRequest(
        f"the archive {digest} is no longer in the worker's database: start a new run with the archive",
        field="workspace.archive",
    )
