"""Store outputs in Postgres if they are too long for a model. Each output is stored in full. Outputs of more than 1,024
bytes are compressed.
"""

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from loom.activities.adapters.postgres.database import Database, storable

LIMIT: Final = 16 * 1024 * 1024
"""Maximum size of one artifact in UTF-8 bytes."""

_WORTH_COMPRESSING: Final = 1024
_FAST: Final = 1
_WITHIN: Final = 15.0
_INSERT: Final = """
INSERT INTO loom_artifacts (run_id, artifact, compressed, data, size) VALUES (%s, %s, %s, %b, %s) ON CONFLICT DO NOTHING
"""
_LIST: Final = """
SELECT artifact, size, created_at FROM loom_artifacts WHERE run_id = %s ORDER BY created_at, artifact
"""
_SELECT: Final = "SELECT compressed, data FROM loom_artifacts WHERE run_id = %s AND artifact = %s"
_SELECT_ALL: Final = """
SELECT artifact, compressed, data FROM loom_artifacts WHERE run_id = %s AND artifact = ANY(%s)
"""
_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
_DELETE: Final = "DELETE FROM loom_artifacts WHERE run_id = %s AND artifact = ANY(%s)"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredArtifact:
    """An artifact in the store, without its content."""

    name: str
    """The name under which it is stored: its id, and the execution of its run."""
    size: int
    """The number of UTF-8 bytes."""
    created_at: datetime


class PostgresArtifacts:
    """An `ArtifactStore` that uses Loom's own database."""

    def __init__(self, database: Database) -> None:
        """Use the database. The caller must close it."""
        self._database = database

    async def save(self, run_id: str, artifact: str, text: str) -> None:
        """See the port. Raises ValueError if the text exceeds `LIMIT`. Callers must truncate the text first."""
        row = await self._row(run_id, artifact, text)
        async with self._database.connection(within=_WITHIN) as connection:
            await connection.execute(_INSERT, row)

    async def replace(self, run_id: str, texts: Mapping[str, str]) -> None:
        """See the port. Raises ValueError if a text exceeds `LIMIT`."""
        rows = [await self._row(run_id, artifact, text) for artifact, text in texts.items() if text]
        async with self._database.transaction(within=_WITHIN) as connection:
            await connection.execute(_LOCK, (_place(run_id, next(iter(texts), "")),))
            await connection.execute(_DELETE, (storable(run_id), [storable(artifact) for artifact in texts]))
            for row in rows:
                await connection.execute(_INSERT, row)

    async def _row(self, run_id: str, artifact: str, text: str) -> tuple[str, str, bool, bytes, int]:
        written = text.encode("utf-8", "surrogatepass")
        if len(written) > LIMIT:
            raise ValueError(
                f"artifact {artifact} has {len(written)} bytes, but the limit is {LIMIT}: truncate it before saving it"
            )
        compressed = len(written) > _WORTH_COMPRESSING
        data = await asyncio.to_thread(zlib.compress, written, _FAST) if compressed else written
        cipher = self._database.cipher
        data = await cipher.seal(data, _place(run_id, artifact), cipher.tenant_of(run_id))
        return storable(run_id), storable(artifact), compressed, data, len(written)

    async def load(self, run_id: str, artifact: str) -> str | None:
        """See the port."""
        async with self._database.connection(within=_WITHIN) as connection:
            cursor = await connection.execute(_SELECT, (storable(run_id), storable(artifact)), binary=True)
            row: tuple[bool, bytes] | None = await cursor.fetchone()
        return None if row is None else await self._text(run_id, artifact, *row)

    async def load_all(self, run_id: str, artifacts: Sequence[str]) -> dict[str, str]:
        """Return the texts of those artifacts that the run has, as they are at one moment."""
        names = {storable(artifact): artifact for artifact in artifacts}
        async with self._database.connection(within=_WITHIN) as connection:
            cursor = await connection.execute(_SELECT_ALL, (storable(run_id), list(names)), binary=True)
            rows: list[tuple[str, bool, bytes]] = await cursor.fetchall()
        return {names[of]: await self._text(run_id, names[of], packed, sealed) for of, packed, sealed in rows}

    async def _text(self, run_id: str, artifact: str, compressed: bool, sealed: bytes) -> str:
        data = await self._database.cipher.open(sealed, _place(run_id, artifact))
        return (await asyncio.to_thread(zlib.decompress, data) if compressed else data).decode("utf-8", "surrogatepass")

    async def listed(self, run_id: str) -> list[StoredArtifact]:
        """Return all artifacts of a run id, oldest first. Raises StoreUnavailable."""
        async with self._database.connection(within=_WITHIN) as connection:
            cursor = await connection.execute(_LIST, (storable(run_id),))
            rows = await cursor.fetchall()
        return [StoredArtifact(name=name, size=size, created_at=at) for name, size, at in rows]


def _place(run_id: str, artifact: str) -> str:
    return f"artifact {artifact} of {run_id}"
