"""A user's handlers beside a worker that does a real run: each gets the run's Tasks, each once."""

import re
from pathlib import Path
from uuid import uuid4

import pytest

from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.stream import told
from loom.testing.waiting import eventually
from tests.integration.workflows.conftest import Working

APP = """
from pathlib import Path
from loom import LoomApp, Task
app = LoomApp()
LOG = Path(__file__).with_name("log")

def log(*words):
    with LOG.open("a") as file:
        print(*words, file=file)

@app.on_task("node.*", name="all-NAME")
def everything(task: Task):
    log("all", task.task_id)

@app.on_task("node.complete", name="ends-NAME")
async def ended(task):
    log("ended", task.run_id, task.result["output"])

@app.on_task("node.turn", name="broken-NAME")
async def broken(task):
    raise ValueError("this is nobody's business")
"""


async def test_handlers_get_the_tasks_of_a_run_and_one_that_fails_disturbs_nobody(
    working: Working, tmp_path: Path
) -> None:
    app = tmp_path / "mine.py"
    app.write_text(APP.replace("NAME", uuid4().hex))
    look = ToolUse("list_dir", {"path": "."}, "l")
    loom, _ = await working(script([calls(look), text("done")]), app=f"{app}:app")
    run_id = await loom.start()
    assert (await loom.client.result(run_id)).output == "done"

    async def logged() -> list[str] | None:
        lines = app.with_name("log").read_text().splitlines() if app.with_name("log").exists() else []
        return lines if f"ended {run_id} done" in lines else None

    await eventually(logged)
    streamed = [event.task for event in await told(loom.client, run_id)]
    on_the_bus = sorted(
        f"all {task.task_id}"
        for task in streamed
        if task.action.startswith("node.") and task.action not in ("node.thinking", "node.tool_progress")
    )

    async def all_of_them() -> list[str] | None:
        lines = await logged() or []
        seen = sorted(line for line in lines if line.startswith(f"all {run_id}/"))
        return seen if len(seen) >= len(on_the_bus) else None

    assert await eventually(all_of_them) == on_the_bus


async def test_the_handler_in_the_documentation_reports_a_run(
    working: Working, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "events.md").read_text()
    _, example = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    app = tmp_path / "mine.py"
    app.write_text(example)
    monkeypatch.chdir(tmp_path)
    loom, _ = await working(script([text("all is well")]), app=f"{app}:app")
    run_id = await loom.start()

    async def reported() -> bool:
        log = tmp_path / "runs.log"
        return log.exists() and log.read_text().splitlines().count(f"{run_id} ended: all is well") == 1

    assert await eventually(reported)
