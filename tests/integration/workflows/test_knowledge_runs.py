"""Knowledge bases that an app registers: taken in by its worker, read by its runs, and what is wrong with one said."""

import re
from pathlib import Path
from typing import Any

import pytest
import structlog

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.knowledge import PostgresKnowledge
from loom.testing.model_server import script, text
from loom.testing.waiting import eventually
from tests.integration.workflows.conftest import Working

PAGE = (Path(__file__).parents[3] / "docs" / "knowledge.md").read_text()


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """The app of the documentation, beside its documents."""
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "docs" / "handbook").mkdir(parents=True)
    (tmp_path / "docs" / "handbook" / "ops.md").write_text("Backups of the ledger are taken hourly by cron on pg-7.")
    (tmp_path / "mine.py").write_text(example)
    return tmp_path / "mine.py"


async def events(logs: list[Any], name: str) -> list[Any] | None:
    return [log for log in logs if log["event"] == name] or None


async def test_a_worker_takes_in_what_its_app_registers_and_its_runs_read_it(
    working: Working, app: Path, url: str, database: Database
) -> None:
    given = {"app": f"{app}:app", "database_url": url, "embedder": "off"}
    with structlog.testing.capture_logs() as logs:
        loom, model = await working(script([text("hourly")]), **given)
        (done,) = await eventually(lambda: events(logs, "knowledge_taken_in"))
        assert (done["base"], done["added"], done["log_level"]) == ("handbook", 1, "info")
        await loom.run("when are backups of the ledger taken?", agent="clerk")
        assert "taken hourly by cron" in str(model.requests[0].messages)

        # The next worker takes in what has changed; one whose folder is another leaves the base as it is.
        (app.parent / "docs" / "handbook" / "more.md").write_text("Tulips are red.")
        await working(script([]), **given)
        _, again = await eventually(lambda: more_than_one(logs))
        assert (again["added"], again["unchanged"]) == (1, 1)
        (app.parent / "elsewhere").mkdir()
        app.write_text(app.read_text().replace("docs/handbook", "elsewhere"))
        await working(script([]), **given | {"app": f"{app.rename(app.with_name('other.py'))}:app"})
        (refused,) = await eventually(lambda: events(logs, "knowledge_not_taken_in"))
        assert "handbook contains the documents of" in refused["why"]
        (base,) = await PostgresKnowledge(database).bases()
        assert (base.folder, base.documents) == (str(app.parent / "docs" / "handbook"), 2)


async def more_than_one(logs: list[Any]) -> list[Any] | None:
    found = await events(logs, "knowledge_taken_in")
    return found if found and len(found) > 1 else None


async def test_a_worker_without_a_database_says_that_nothing_is_taken_in(working: Working, app: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        await working(script([]), app=f"{app}:app", database_url=None)
        (said,) = await eventually(lambda: events(logs, "knowledge_not_taken_in"))
        assert (said["bases"], said["log_level"]) == (["handbook"], "warning")
