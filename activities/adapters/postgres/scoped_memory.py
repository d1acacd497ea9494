"""Store scoped memory in Postgres. Versions are append-only. If several writers add the same version at the same time,
the primary key ensures that only one of them succeeds.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from loom.activities.adapters.postgres.database import Connection, Database
from loom.activities.adapters.postgres.memory_rows import MEMORY, key_text
from loom.domain.core.messages import well_formed
from loom.domain.memory.layers import MemoryScope
from loom.domain.memory.scopes import (
    ORDER,
    NodePath,
    ScopedEntry,
    ScopedWrite,
    next_version,
    place_of,
    places_of,
    read_first,
    scope_for,
)

_COLUMNS: Final = (
    "id, content, scope, owner, session_id, version, created_by, updated_by, parent_version, conflicts_with, updated_at"
)
_NAMES: Final = tuple(_COLUMNS.split(", "))
_LATEST: Final = f"""
SELECT DISTINCT ON (place, id) {_COLUMNS} FROM loom_scoped_memory
WHERE place = ANY(%(places)s) AND (%(id)s::text IS NULL OR id = %(id)s) ORDER BY place, id, version DESC
"""  # noqa: S608 - constants
_VERSIONS: Final = f"SELECT {_COLUMNS} FROM loom_scoped_memory WHERE place = %s AND id = %s ORDER BY version"  # noqa: S608
_OF_SESSION: Final = (
    f"SELECT {_COLUMNS} FROM loom_scoped_memory WHERE session_id = %s ORDER BY updated_at, place, id, version"  # noqa: S608
)
_INSERT: Final = """
INSERT INTO loom_scoped_memory (
    place, id, version, content, scope, owner, session_id, created_by, updated_by, parent_version, conflicts_with
) VALUES (
    %(place)s, %(id)s, %(version)s, %(content)s, %(scope)s, %(owner)s, %(session_id)s, %(created_by)s, %(updated_by)s,
    %(parent_version)s, %(conflicts_with)s
)
ON CONFLICT DO NOTHING RETURNING updated_at
"""


class PostgresScopedMemory:
    """A `ScopedMemory` that uses Loom's own database."""

    def __init__(self, database: Database) -> None:
        """Use the database. The caller must close it."""
        self._database = database

    async def write(self, write: ScopedWrite) -> ScopedEntry:
        """See the port. If another writer stores a version first, this write is repeated on top of that version."""
        given = replace(write, id=key_text(write.id), content=well_formed(write.content), by=_node(write.by))
        place = place_of(given.scope, given.by) if given.by else ""
        cipher = self._database.cipher
        async with self._database.connection() as connection:
            while True:
                latest = await self._latest(connection, [place], given.id)
                entry = next_version(given, latest[0] if latest else None)
                sealed = await cipher.seal_text(entry.content, MEMORY, cipher.tenant_of(write.by[-1]))
                cursor = await connection.execute(_INSERT, _values(replace(entry, content=sealed), place))
                if (row := await cursor.fetchone()) is not None:
                    return replace(entry, updated_at=row[0])

    async def read(self, entry_id: str, reader: NodePath) -> ScopedEntry | None:
        """See the port."""
        async with self._database.connection() as connection:
            found = await self._first(connection, entry_id, _node(reader))
        return None if found is None else replace(found[1], scope=found[0])

    async def entries(self, reader: NodePath) -> tuple[ScopedEntry, ...]:
        """See the port."""
        node = _node(reader)
        async with self._database.connection() as connection:
            found = await self._latest(connection, places_of(node), None)
        seen = [replace(entry, scope=scope) for entry in found if (scope := scope_for(entry, node)) is not None]
        return tuple(sorted(seen, key=lambda entry: (ORDER.index(entry.scope), entry.id)))

    async def versions(self, entry_id: str, reader: NodePath) -> tuple[ScopedEntry, ...]:
        """See the port."""
        async with self._database.connection() as connection:
            found = await self._first(connection, entry_id, _node(reader))
            if found is None:
                return ()
            place = place_of(found[1].scope, found[1].owner)
            rows = await (await connection.execute(_VERSIONS, (key_text(place), key_text(entry_id)))).fetchall()
        return await self._entries(rows)

    async def export(self, session_id: str) -> tuple[ScopedEntry, ...]:
        """Return every version of every entry from a session, oldest first. This method is for operators."""
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_OF_SESSION, (key_text(session_id),))).fetchall()
        return await self._entries(rows)

    async def _first(
        self, connection: Connection, entry_id: str, node: NodePath
    ) -> tuple[MemoryScope, ScopedEntry] | None:
        return read_first(await self._latest(connection, places_of(node), key_text(entry_id)), node)

    async def _latest(self, connection: Connection, places: Sequence[str], entry_id: str | None) -> list[ScopedEntry]:
        cursor = await connection.execute(_LATEST, {"places": [key_text(place) for place in places], "id": entry_id})
        return list(await self._entries(await cursor.fetchall()))

    async def _entries(self, rows: Sequence[Any]) -> tuple[ScopedEntry, ...]:
        entries = map(_entry, rows)
        cipher = self._database.cipher
        return tuple([replace(one, content=await cipher.open_text(one.content, MEMORY)) for one in entries])


def _node(path: NodePath) -> NodePath:
    return tuple(map(key_text, path))


def _entry(row: Any) -> ScopedEntry:
    given = dict(zip(_NAMES, row, strict=True))
    return ScopedEntry(**{**given, "scope": MemoryScope(given["scope"]), "owner": tuple(given["owner"])})


def _values(entry: ScopedEntry, place: str) -> dict[str, Any]:
    given = {name: getattr(entry, name) for name in _NAMES if name != "updated_at"}
    return {**given, "owner": list(entry.owner), "place": key_text(place), "session_id": key_text(entry.session_id)}
