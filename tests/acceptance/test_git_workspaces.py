"""Workers on machines without a shared disk: a run in a clone goes on after kill -9, and its change is there once."""

import os
import shlex
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import psycopg
import pytest

from loom.activities.adapters.postgres.schema_migrations import migrate, read_migrations
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.domain.machine.tool_results import UNKNOWN_OUTCOME
from loom.testing.harness import Addresses, Harness
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from loom.testing.worker_processes import WORKER
from loom.watching import closing
from tests.acceptance.conftest import Killable
from tests.databases import rows
from tests.git_server import git, repository, shown


def with_own_disk(folder: Path) -> Sequence[str]:
    """Return the program of a worker with a disk of its own at this path, which no other process sees."""
    worker = shlex.join((sys.executable, *WORKER))
    command = f"mount -t tmpfs disk {shlex.quote(str(folder))} && exec {worker}"
    words = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", command)
    return "-c", f"import os; os.execvp('unshare', {words!r})"


def bash(command: str, call: str) -> ToolUse:
    return ToolUse("bash", {"command": command}, call)


async def until_printed(loom: Harness, run_id: str, said: str) -> None:
    """Wait until a command has printed this."""
    async with closing(loom.client.events(run_id, follow=True)) as events:
        async for event in events:
            if event.task.action is Action.TOOL_PROGRESS and said in str(event.task.parameters):
                return


async def test_another_machine_finishes_a_run_whose_worker_was_killed_in_the_middle_of_a_command(
    killable: Killable, tmp_path: Path
) -> None:
    bare, clones = tmp_path / "app.git", tmp_path / "clones"
    clones.mkdir()
    commit = repository(bare, {"a.txt": "zero\n", ".gitignore": "build\n"})
    steps = [
        calls(bash("echo one >> a.txt; echo new > b.txt; mkdir build; echo x > build/out", "c1")),
        calls(bash("echo lost >> a.txt; echo halfway; sleep 60", "c2")),
        calls(bash("cat a.txt; ls build; echo two >> a.txt", "c3")),
        text("done"),
    ]
    loom, model, workers = await killable(script(steps))
    environment = {
        "LOOM_RUN_WORKSPACES": str(clones),
        "LOOM_REPOSITORIES": f"file://{tmp_path}",
        "LOOM_PUSH_REPOSITORIES": f"file://{tmp_path}",
    }
    first = await workers.start(with_own_disk(clones), LOOM_HOME=str(tmp_path / "home-1"), **environment)
    run_id = await loom.client.start(
        "Add lines.", workspace={"git": f"file://{bare}", "push": "fix"}, permissions={"bash": "allow"}
    )
    loom.started.append(run_id)
    await until_printed(loom, run_id, "halfway")

    await workers.kill(first)
    await workers.start(with_own_disk(clones), LOOM_HOME=str(tmp_path / "home-2"), **environment)
    result = await loom.client.result(run_id)

    assert result.status is RunStatus.COMPLETED, result.error
    assert os.listdir(clones) == []  # each worker had a disk of its own
    told = {m["tool_call_id"]: m["content"] for m in model.requests[-1].messages if m["role"] == "tool"}
    assert told["c2"].startswith("The workspace was recreated in its state after bash (c1).")
    assert "If bash (c2) changed files, these changes are gone." in told["c2"]
    assert "zero\none\n" in told["c3"]
    assert "build" in told["c3"]  # ls: it is gone
    assert shown(bare, "fix", "a.txt") == "zero\none\ntwo"
    assert shown(bare, "fix", "b.txt") == "new"
    assert git(bare, "rev-list", "fix").split()[1:] == [commit]


_HALT: Final = """
CREATE FUNCTION halt() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(20);
    RETURN NULL;
END $$;
CREATE TRIGGER halt BEFORE UPDATE ON loom_effects FOR EACH ROW
WHEN (NEW.result::text LIKE '%the last step%') EXECUTE FUNCTION halt();
"""


@asynccontextmanager
async def without_an_end(url: str) -> AsyncIterator[None]:
    """Keep the ledger from taking the result of a call that prints `the last step`: it waits, and then it is lost."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await migrate(connection, read_migrations())
        await connection.execute("SELECT pg_advisory_lock(20)")
        await connection.execute(_HALT)
        try:
            yield
        finally:
            await connection.execute("SELECT pg_advisory_unlock(20)")
            await connection.execute("DROP FUNCTION halt CASCADE")


@pytest.mark.slow
async def test_a_worker_that_dies_after_it_has_stored_a_change_and_before_the_ledger_has_the_result_loses_nothing(
    killable: Killable, tmp_path: Path, addresses: Addresses
) -> None:
    bare, clones = tmp_path / "app.git", tmp_path / "clones"
    clones.mkdir()
    repository(bare, {"a.txt": "zero\n"})
    steps = [calls(bash("echo one >> a.txt; echo the last step", "c1")), calls(bash("cat a.txt", "c2")), text("done")]
    loom, model, workers = await killable(script(steps))
    environment = {
        "LOOM_RUN_WORKSPACES": str(clones),
        "LOOM_REPOSITORIES": f"file://{tmp_path}",
        "LOOM_PUSH_REPOSITORIES": f"file://{tmp_path}",
    }
    first = await workers.start(with_own_disk(clones), LOOM_HOME=str(tmp_path / "home-1"), **environment)
    run_id = ""

    async def is_stored() -> bool:
        found = await rows(addresses.database, "SELECT version FROM loom_clones WHERE run_id = %s", (run_id,))
        return found == [(1,)]

    async with without_an_end(addresses.database):
        run_id = await loom.client.start(
            "Add a line.", workspace={"git": f"file://{bare}", "push": "fix"}, permissions={"bash": "allow"}
        )
        loom.started.append(run_id)
        await eventually(is_stored)
        await workers.kill(first)
    await workers.start(with_own_disk(clones), LOOM_HOME=str(tmp_path / "home-2"), **environment)
    result = await loom.client.result(run_id)

    assert result.status is RunStatus.COMPLETED, result.error
    told = {m["tool_call_id"]: m["content"] for m in model.requests[-1].messages if m["role"] == "tool"}
    assert told["c1"].startswith("The workspace was recreated in its state after bash (c1). Files that Git ignores")
    assert UNKNOWN_OUTCOME in told["c1"]
    assert told["c2"] == "zero\none"
    assert shown(bare, "fix", "a.txt") == "zero\none"
