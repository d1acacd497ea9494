"""Which execution each signed start has begun, in Postgres, so that all workers know."""

from typing import Final

from loom.activities.adapters.postgres.database import Database, storable

_USE: Final = """
INSERT INTO loom_used_starts (start, run_id, execution) VALUES (%s, %s, %s)
ON CONFLICT (start) DO UPDATE SET run_id = loom_used_starts.run_id -- so that the statement returns the row
RETURNING execution
"""


class PostgresUsedStarts:
    """`UsedStarts` in Loom's own database."""

    def __init__(self, database: Database) -> None:
        """Use the database. The caller must close it."""
        self._database = database

    async def use(self, start: str, run_id: str, execution: str) -> str:
        """See the port."""
        async with self._database.connection() as connection:
            cursor = await connection.execute(_USE, (storable(start), storable(run_id), execution))
            row: tuple[str] | None = await cursor.fetchone()
        assert row is not None  # noqa: S101 - an upsert without WHERE always returns its row
        return row[0]
