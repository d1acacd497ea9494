"""The reports of running workers in Redis.

loom:worker:{namespace}:{queue}:{identity}            a report as JSON; it expires soon after its worker has ended
loom:worker-catalog:{namespace}:{queue}:{identity}    the worker's catalog as JSON, which expires with the report. It is
                                                      encrypted with the stack's key
loom:workers:{namespace}:{queue}                      set: the identities of the queue's workers
"""

from typing import TYPE_CHECKING, Any, Final, TypeVar

from loom.activities.adapters.redis.stream import dump_json, load_json
from loom.domain.agents.worker_catalog import WorkerCatalog
from loom.domain.agents.worker_report import WorkerReport

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from loom.activities.adapters.redis.connection import RedisConnection

T = TypeVar("T")

EVERY: Final = 5.0
"""Seconds between two reports of a worker."""
LIFETIME: Final = 20
"""Seconds after which a report expires."""
DAY: Final = 24 * 3600
_CATALOG: Final = "a worker's catalog"


class RedisWorkerReports:
    """The reports of one task queue's workers. All methods raise StreamUnavailable if Redis doesn't respond."""

    def __init__(self, link: "RedisConnection", *, namespace: str, task_queue: str) -> None:
        self._link = link
        self._queue = f"{namespace}:{task_queue}"
        self._index = f"loom:workers:{self._queue}"

    async def write(self, report: WorkerReport, catalog: WorkerCatalog) -> None:
        """Replace a worker's report and catalog."""
        sealed = await self._link.cipher.seal(dump_json(WorkerCatalog, catalog), _CATALOG, "")

        async def run(redis: "Redis") -> None:
            async with redis.pipeline(transaction=False) as pipe:
                pipe.set(self._key(report.identity), dump_json(WorkerReport, report), ex=LIFETIME)
                pipe.set(self._catalog_key(report.identity), sealed, ex=LIFETIME)
                pipe.sadd(self._index, report.identity)
                pipe.expire(self._index, DAY)
                await pipe.execute()

        await self._link.call(run)

    async def remove(self, identity: str) -> None:
        """Remove the report of a worker that ends."""

        async def run(redis: "Redis") -> None:
            async with redis.pipeline(transaction=False) as pipe:
                pipe.delete(self._key(identity), self._catalog_key(identity))
                pipe.srem(self._index, identity)
                await pipe.execute()

        await self._link.call(run)

    async def read(self) -> list[WorkerReport]:
        """Return the reports that haven't expired, newest worker first. A report of another release may be left out.

        A worker that was killed leaves its identity in the index, so identities without a report are removed from it. A
        worker that only was slow adds its own again with its next report.
        """

        async def run(redis: "Redis") -> list[bytes | str | None]:
            members = await redis.smembers(self._index)
            names = sorted(name.decode() if isinstance(name, bytes) else name for name in members)
            reports = list(await redis.mget([self._key(name) for name in names])) if names else []
            if gone := [name for name, report in zip(names, reports, strict=True) if report is None]:
                await redis.srem(self._index, *gone)
            return reports

        found = [_read(WorkerReport, data) for data in await self._link.call(run) if data is not None]
        return sorted((each for each in found if each is not None), key=lambda each: each.started_at, reverse=True)

    async def catalog(self, identity: str) -> WorkerCatalog | None:
        """Return the catalog of a worker, or None if it has expired or is of another release.

        Raises EncryptionKeyError if its worker encrypts, and this process doesn't have the key.
        """
        data: Any = await self._link.call(lambda redis: redis.get(self._catalog_key(identity)))
        return None if data is None else _read(WorkerCatalog, await self._link.cipher.open(data, _CATALOG))

    def _key(self, identity: str) -> str:
        return f"loom:worker:{self._queue}:{identity}"

    def _catalog_key(self, identity: str) -> str:
        return f"loom:worker-catalog:{self._queue}:{identity}"


def _read(kind: type[T], data: bytes | str) -> T | None:
    try:
        return load_json(kind, data)
    except ValueError:
        return None
