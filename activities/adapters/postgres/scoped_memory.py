"""Store scoped memory in Postgres. Versions are append-only. If several writers add the same version at the same time,
the primary key ensures that only one of them succeeds.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from loom.activities.adapters.postgres.database import Connection, Database
from loom.activities.adapters.postgres.memory_rows import MEMORY, OF_OWNER, filter_values, key_text, owned
from loom.domain.core.messages import well_formed
from loom.domain.core.tenants import EVERYBODY, Owner, OwnerFilter
from loom.domain.memory.layers import MemoryScope
from loom.domain.memory.scopes import (
    ORDER,
    NodePath,
    ScopedEntry,
    ScopedWrite,
    next_version,
    place_of,
    read_first,
    scope_for,
)

_COLUMNS: Final = (
    "id, content, scope, owner, session_id, version, created_by, updated_by, parent_version, conflicts_with, tenant,"
    " user_id, updated_at"
)
_NAMES: Final = tuple(_COLUMNS.split(", "))
_LATEST: Final = f"""
SELECT DISTINCT ON (place, id) {_COLUMNS} FROM loom_scoped_memory
WHERE place = ANY(%(places)s) AND (%(id)s::text IS NULL OR id = %(id)s) ORDER BY place, id, version DESC
"""  # noqa: S608 - constants
_VERSIONS: Final = f"SELECT {_COLUMNS} FROM loom_scoped_memory WHERE place = %s AND id = %s ORDER BY version"  # noqa: S608
_OF_SESSION: Final = f"""
SELECT {_COLUMNS} FROM loom_scoped_memory WHERE session_id = %(session)s AND {OF_OWNER}
ORDER BY updated_at, place, id, version
"""  # noqa: S608 - constants
_INSERT: Final = """
INSERT INTO loom_scoped_memory (
    place, id, version, content, scope, owner, session_id, created_by, updated_by, parent_version, conflicts_with,
    tenant, user_id
) VALUES (
    %(place)s, %(id)s, %(version)s, %(content)s, %(scope)s, %(owner)s, %(session_id)s, %(created_by)s, %(updated_by)s,
    %(parent_version)s, %(conflicts_with)s, %(tenant)s, %(user_id)s
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
        place = _place(given.scope, given.by, given.written_for) if given.by else ""
        cipher = self._database.cipher
        tenant = write.written_for.tenant or cipher.tenant_of(write.by[-1])
        async with self._database.connection() as connection:
            while True:
                latest = await self._latest(connection, [place], given.id)
                entry = next_version(given, latest[0] if latest else None)
                sealed = await cipher.seal_text(entry.content, MEMORY, tenant)
                cursor = await connection.execute(_INSERT, _values(replace(entry, content=sealed), place))
                if (row := await cursor.fetchone()) is not None:
                    return replace(entry, updated_at=row[0])

    async def read(self, entry_id: str, reader: NodePath, owner: Owner) -> ScopedEntry | None:
        """See the port."""
        async with self._database.connection() as connection:
            found = await self._first(connection, entry_id, _node(reader), owner)
        return None if found is None else replace(found[1], scope=found[0])

    async def entries(self, reader: NodePath, owner: Owner) -> tuple[ScopedEntry, ...]:
        """See the port."""
        node = _node(reader)
        async with self._database.connection() as connection:
            found = await self._latest(connection, _places(node, owner), None)
        seen = [replace(entry, scope=scope) for entry in found if (scope := scope_for(entry, node)) is not None]
        return tuple(sorted(seen, key=lambda entry: (ORDER.index(entry.scope), entry.id)))

    async def versions(self, entry_id: str, reader: NodePath, owner: Owner) -> tuple[ScopedEntry, ...]:
        """See the port."""
        async with self._database.connection() as connection:
            found = await self._first(connection, entry_id, _node(reader), owner)
            if found is None:
                return ()
            place = _place(found[1].scope, found[1].owner, owner)
            rows = await (await connection.execute(_VERSIONS, (place, key_text(entry_id)))).fetchall()
        return await self._entries(rows)

    async def export(self, session_id: str, of: OwnerFilter = EVERYBODY) -> tuple[ScopedEntry, ...]:
        """Return every version of every entry from these owners' sessions of this name, oldest first. This method is
        for operators.
        """
        asked = {"session": key_text(session_id), **filter_values(of)}
        async with self._database.connection() as connection:
            rows = await (await connection.execute(_OF_SESSION, asked)).fetchall()
        return await self._entries(rows)

    async def _first(
        self, connection: Connection, entry_id: str, node: NodePath, owner: Owner
    ) -> tuple[MemoryScope, ScopedEntry] | None:
        return read_first(await self._latest(connection, _places(node, owner), key_text(entry_id)), node)

    async def _latest(self, connection: Connection, places: Sequence[str], entry_id: str | None) -> list[ScopedEntry]:
        cursor = await connection.execute(_LATEST, {"places": list(places), "id": entry_id})
        return list(await self._entries(await cursor.fetchall()))

    async def _entries(self, rows: Sequence[Any]) -> tuple[ScopedEntry, ...]:
        entries = map(_entry, rows)
        cipher = self._database.cipher
        return tuple([replace(one, content=await cipher.open_text(one.content, MEMORY)) for one in entries])


def _place(scope: MemoryScope, node: NodePath, owner: Owner) -> str:
    """Return the place of a scope's entries. Nodes that work for different owners have different places,
    even if they have equal ids.
    """
    return owned(place_of(scope, node), Owner(tenant=owner.tenant) if scope is MemoryScope.GLOBAL else owner)


def _places(node: NodePath, owner: Owner) -> list[str]:
    """Return every place that a node can read from."""
    return [_place(scope, node, owner) for scope in (MemoryScope.LOCAL, MemoryScope.SHARED, MemoryScope.GLOBAL)]


def _node(path: NodePath) -> NodePath:
    return tuple(map(key_text, path))


def _entry(row: Any) -> ScopedEntry:
    given = dict(zip(_NAMES, row, strict=True))
    return ScopedEntry(**{**given, "scope": MemoryScope(given["scope"]), "owner": tuple(given["owner"])})


def _values(entry: ScopedEntry, place: str) -> dict[str, Any]:
    given = {name: getattr(entry, name) for name in _NAMES if name != "updated_at"}
    return {**given, "owner": list(entry.owner), "place": place, "session_id": key_text(entry.session_id)}
