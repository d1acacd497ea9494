"""Brings the schema of Loom's own tables to what this code needs: numbered steps, each applied once for ever.

`loom_migrations` says which steps a database has, with a checksum of each. A step that was changed after its release,
or a database that has seen a newer Loom, is refused: guessing would cost data.
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
    """The database answers, but its schema is not one that this code may work on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """One step of the schema."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """Names the text of the step, so that a change of it is noticed."""
        return sha256(self.sql.encode()).hexdigest()


def read_migrations(folder: Path = FOLDER) -> tuple[Migration, ...]:
    """The steps in a folder of files named like `0001_what_it_adds.sql`, in their order."""
    return tuple(
        Migration(number=int(path.stem[:4]), name=path.stem[5:], sql=path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("[0-9][0-9][0-9][0-9]_*.sql"))
    )


def pending(recorded: Mapping[int, str], migrations: Sequence[Migration]) -> tuple[Migration, ...]:
    """The steps that a database with these checksums by number still lacks; raises SchemaRefused."""
    newest = max((step.number for step in migrations), default=0)
    if (found := max(recorded, default=0)) > newest:
        raise SchemaRefused(
            f"The Postgres in LOOM_DATABASE_URL has schema {found}, and this Loom knows only {newest}: "
            "a newer one has worked there. Update this worker, or give it another database."
        )
    for step in migrations:
        if recorded.get(step.number, step.checksum) != step.checksum:
            raise SchemaRefused(
                f"Step {step.number:04}_{step.name} of the schema is not what was applied to the Postgres in "
                "LOOM_DATABASE_URL: somebody changed the file. Put it back, and write what you need as a new step."
            )
    return tuple(step for step in migrations if step.number not in recorded)


async def migrate(connection: "AsyncConnection[Any]", migrations: Sequence[Migration] | None = None) -> None:
    """Apply the steps that are missing, all or none, once however many processes start together."""
    steps = read_migrations() if migrations is None else migrations
    # Looking first needs no lock, and no right to create tables.
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
