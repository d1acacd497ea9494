"""What `loom doctor` says of the space in the stores."""

from pathlib import Path

from loom import doctor_checks
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from tests.memories import task


async def test_the_space_in_postgres_is_told_by_what_takes_it(database: Database, url: str, tmp_path: Path) -> None:
    await PostgresMemory(database).remember([task("the database of staging is pg-7")])

    found = await doctor_checks.postgres(url, tmp_path)

    assert found["ok"]
    assert {"memory", "effects", "audit log"} <= found["kinds"].keys()
    assert 0 < found["kinds"]["memory"] < found["bytes"]
    assert found["note"].startswith(f"{found['bytes'] / 1e6:.1f} MB (")
