"""The restore drill: what a run needs, and what it has left, outlives the loss of its stack.

`test_backup.py` does the same with the commands of the guide. That takes a minute.
"""

import asyncio
import shutil
from contextlib import aclosing
from pathlib import Path
from typing import Final

from loom.activities.adapters.postgres.artifacts import PostgresArtifacts
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.domain.core.requests import RunStatus
from loom.domain.memory.layers import Query, View
from loom.stack import up_down as stack
from loom.stack.backup import back_up
from loom.testing.harness import Addresses, harness
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, text
from loom.testing.waiting import eventually
from tests.acceptance.conftest import servers_of

TASK: Final = "the harbour in Trieste"
LONG: Final = "\n".join(f"line {number}: {'x' * 60}" for number in range(2_000))
STORY: Final = (
    calls(ToolUse("bash", {"command": "cat long.txt"}, "r1")),
    calls(ToolUse("write_file", {"path": "answer.txt", "content": "done"}, "w1")),
    text("finished"),
)
PERMISSIONS: Final = {"bash": "allow", "write_file": "ask"}


def reply(request: SeenRequest) -> Reply:
    return STORY[request.turn]


async def artifacts_of(database: Database, run_id: str) -> dict[str, str | None]:
    artifacts = PostgresArtifacts(database)
    return {each.name: await artifacts.load(run_id, each.name) for each in await artifacts.listed(run_id)}


async def remembered(database: Database) -> set[str]:
    everywhere = View(session_id=None, owner=None)
    hits = await PostgresMemory(database).recall(Query(text=TASK, view=everywhere))
    return {hit.memory.task_id for hit in hits}


async def test_a_run_that_waits_for_approval_its_artifact_and_its_memory_are_brought_back_and_the_run_completes(
    own_stack: tuple[Path, Addresses], workspace: Path, tmp_path: Path
) -> None:
    home, lost = own_stack
    backup = tmp_path / "backup"
    (workspace / "long.txt").write_text(LONG)
    async with (
        harness(lost, workspace, reply, memory="on", task_queue="drill", replay=False) as (loom, _),
        aclosing(Database(lost.database)) as database,
    ):
        run_id = await loom.start(TASK, permissions=PERMISSIONS)
        asked = (await loom.asked(run_id))["pending_approvals"]
        memories = await eventually(lambda: remembered(database))
        artifacts = await artifacts_of(database, run_id)
        assert list(artifacts.values()) == [LONG]
        await asyncio.to_thread(back_up, home, backup)
    stack.down(home)
    shutil.rmtree(home)

    backup.rename(home)
    restored = servers_of(home)
    async with (
        harness(restored, workspace, reply, memory="on", task_queue="drill") as (loom, _),
        aclosing(Database(restored.database)) as database,
    ):
        loom.started.append(run_id)
        assert (await loom.asked(run_id))["pending_approvals"] == asked
        assert await artifacts_of(database, run_id) == artifacts
        assert memories <= await remembered(database)
        await loom.client.approve(run_id, digest=asked[0]["digest"])
        result = await loom.client.result(run_id)
    assert (result.status, result.output) == (RunStatus.COMPLETED, "finished")
    assert (workspace / "answer.txt").read_text() == "done"
