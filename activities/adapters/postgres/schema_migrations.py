"""Migrate the schema of Loom's own tables. Migrations are numbered, and each migration is applied exactly once.

During an upgrade, workers of two releases use the same database. Loom therefore also works with a schema that a newer
release has migrated, unless the first line of one of the newer migrations excludes it:

    -- needs Loom 0.5.0: earlier releases read the column `size`

`loom_migrations` records a database's migrations, their checksums and the release that each of them needs. To prevent
data loss, Loom rejects migrations that were changed after their release.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
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
    applied_at timestamptz NOT NULL DEFAULT now(),
    needs text NOT NULL DEFAULT ''
);
"""
# A table that an earlier release has created doesn't have this column. Look first: the change locks the table until the
# transaction ends, and needs to own it.
_HAS_NEEDS: Final = """
SELECT FROM pg_attribute WHERE attrelid = 'loom_migrations'::regclass AND attname = 'needs' AND NOT attisdropped
"""
_ADD_NEEDS: Final = "ALTER TABLE loom_migrations ADD COLUMN needs text NOT NULL DEFAULT ''"
_RECORD: Final = "INSERT INTO loom_migrations (number, name, checksum, needs) VALUES (%s, %s, %s, %s)"
_RECORDED: Final = """
SELECT number, name, checksum, coalesce(to_jsonb(applied) ->> 'needs', '') FROM loom_migrations AS applied
ORDER BY number
"""
"""As JSON, because a table that an earlier release has created doesn't have the column `needs`."""
_NEEDS: Final = re.compile(r"-- needs Loom (\d+\.\d+\.\d+): .+\n")


class SchemaRefused(StoreUnavailable):
    """Raised when the database is available but its schema isn't compatible with this version of Loom."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AppliedMigration:
    """A migration that a database has."""

    number: int
    name: str
    checksum: str
    needs: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Migration:
    """One migration of the schema."""

    number: int
    name: str
    sql: str
    needs: str = ""
    """The oldest release that works with the migrated schema. Empty: the migration excludes none."""

    @property
    def checksum(self) -> str:
        """The checksum of the migration's text. It reveals whether the text has changed."""
        return sha256(self.sql.encode()).hexdigest()

    @property
    def applied(self) -> AppliedMigration:
        """The migration as a database records it."""
        return AppliedMigration(number=self.number, name=self.name, checksum=self.checksum, needs=self.needs)


def read_migrations(folder: Path = FOLDER) -> tuple[Migration, ...]:
    """Return the migrations in a folder, in order. Files have names such as `0001_what_it_adds.sql`."""
    return tuple(_read(path) for path in sorted(folder.glob("[0-9][0-9][0-9][0-9]_*.sql")))


def pending(
    applied: Sequence[AppliedMigration], migrations: Sequence[Migration], release: str
) -> tuple[Migration, ...]:
    """Return the migrations that a database lacks. Raises SchemaRefused if `release`, which has these migrations, can't
    use the database.
    """
    known = {step.number: step for step in migrations}
    newer = [each for each in applied if each.number not in known]
    limit = max(newer, key=lambda each: _numbers(each.needs), default=None)
    if limit is not None and _numbers(limit.needs) > _numbers(release):
        raise SchemaRefused(
            f"The Postgres in LOOM_DATABASE_URL has the migration {limit.number:04}_{limit.name}, which needs Loom "
            f"{limit.needs} or newer, but this is Loom {release}: a newer version has migrated the database. Update "
            "this worker, or give it another database."
        )
    for each in applied:
        step = known.get(each.number)
        if step is not None and step.checksum != each.checksum:
            raise SchemaRefused(
                f"Migration {step.number:04}_{step.name} differs from the one that was applied to the Postgres in "
                "LOOM_DATABASE_URL: the file was changed. Restore it, and add your change as a new migration."
            )
    have = {each.number for each in applied}
    return tuple(step for step in migrations if step.number not in have)


async def migrate(
    connection: "AsyncConnection[Any]", migrations: Sequence[Migration] | None = None, release: str | None = None
) -> None:
    """Apply all missing migrations in one transaction. Each migration is applied only once, even if several processes
    start at the same time. Without arguments, use the migrations and the version of this Loom.
    """
    steps = read_migrations() if migrations is None else migrations
    release = version("loom-agents") if release is None else release
    # Read first, because this requires neither a lock nor permission to create tables.
    if not pending(await _applied(connection), steps, release):
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        await connection.execute(_CREATE)
        if await (await connection.execute(_HAS_NEEDS)).fetchone() is None:
            await connection.execute(_ADD_NEEDS)
        for step in pending(await _applied(connection), steps, release):
            await connection.execute(step.sql.encode())
            await connection.execute(_RECORD, (step.number, step.name, step.checksum, step.needs))


async def _applied(connection: "AsyncConnection[Any]") -> tuple[AppliedMigration, ...]:
    cursor = await connection.execute("SELECT to_regclass('loom_migrations')")
    if await cursor.fetchone() == (None,):
        return ()
    rows = await (await connection.execute(_RECORDED)).fetchall()
    return tuple(
        AppliedMigration(number=number, name=name, checksum=checksum, needs=needs)
        for number, name, checksum, needs in rows
    )


def _read(path: Path) -> Migration:
    text = path.read_text(encoding="utf-8")
    declared = _NEEDS.match(text)
    return Migration(
        number=int(path.stem[:4]),
        name=path.stem[5:],
        sql=text[declared.end() :] if declared else text,  # the checksum doesn't cover the declaration
        needs=declared[1] if declared else "",
    )


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release)))
