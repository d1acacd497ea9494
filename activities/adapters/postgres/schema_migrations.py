"""Migrate the schema of Loom's own tables. Migrations are numbered, and each migration is applied exactly once.

`loom_migrations` records a database's migrations and their checksums. To prevent data loss, Loom rejects migrations
that were changed after their release. It also rejects databases that a newer version of Loom has migrated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from loom.activities.ports import StoreUnavailable

if TYPE_CHECKING:
    from psycopg import AsyncConnection

FOLDER: Final = Path(__file__).with_name("migrations")

LOCK: Final = 0x4C6F6F6D_0001
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS loom_migrations (
    number int PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""
_RECORD: Final = "INSERT INTO loom_migrations (number, name, checksum) VALUES (%s, %s, %s)"


class SchemaRefused(StoreUnavailable):
    """Raised when the database is available but its schema isn't compatible with this version of Loom."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """One migration of the schema."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """The checksum of the migration's text. It reveals whether the text has changed."""
        return sha256(self.sql.encode()).hexdigest()


def read_migrations(folder: Path = FOLDER) -> tuple[Migration, ...]:
    """Return the migrations in a folder, in order. Files have names such as `0001_what_it_adds.sql`."""
    return tuple(
        Migration(number=int(path.stem[:4]), name=path.stem[5:], sql=path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("[0-9][0-9][0-9][0-9]_*.sql"))
    )


def pending(recorded: Mapping[int, str], migrations: Sequence[Migration]) -> tuple[Migration, ...]:
    """Return the migrations that are missing from a database. `recorded` maps the numbers of its migrations to their
    checksums. Raises SchemaRefused if the database isn't compatible.
    """
    newest = max((step.number for step in migrations), default=0)
    if (found := max(recorded, default=0)) > newest:
        raise SchemaRefused(
            f"The Postgres in LOOM_DATABASE_URL has schema version {found}, but this version of Loom "
            f"supports only {newest}: a newer version has migrated it. Update this worker, or give it another database."
        )
    for step in migrations:
        if recorded.get(step.number, step.checksum) != step.checksum:
            raise SchemaRefused(
                f"Migration {step.number:04}_{step.name} differs from the one that was applied to the Postgres in "
                "LOOM_DATABASE_URL: the file was changed. Restore it, and add your change as a new migration."
            )
    return tuple(step for step in migrations if step.number not in recorded)


async def migrate(connection: "AsyncConnection[Any]", migrations: Sequence[Migration] | None = None) -> None:
    """Apply all missing migrations in one transaction. Each migration is applied only once, even if several processes
    start at the same time.
    """
    steps = read_migrations() if migrations is None else migrations
    # Read first, because this requires neither a lock nor permission to create tables.
    if not pending(await _recorded(connection), steps):
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        await connection.execute(_CREATE)
        for step in pending(await _recorded(connection), steps):
            await connection.execute(step.sql.encode())
            await connection.execute(_RECORD, (step.number, step.name, step.checksum))


async def _recorded(connection: "AsyncConnection[Any]") -> dict[int, str]:
    cursor = await connection.execute("SELECT to_regclass('loom_migrations')")
    if await cursor.fetchone() == (None,):
        return {}
    cursor = await connection.execute("SELECT number, checksum FROM loom_migrations")
    return dict(await cursor.fetchall())
