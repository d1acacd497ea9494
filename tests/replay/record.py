"""Record the corpus of a release: `python -m tests.replay.record 0.2.0` beside a running `loom up --no-worker`.

Only for a new release, with the stories of what is new in it: a recorded history is never recorded again, since what it
holds is what users have in flight.
"""

import asyncio
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from loom_settings import load_settings
from tests.harness import Addresses, Harness, harness
from tests.model_server import Reply, SeenRequest, ToolUse, calls, empty, script, status, text

FOLDER = Path(__file__).parent / "histories"
WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")
READ = calls(ToolUse("read_file", {"path": "a.txt"}, "r1"), ToolUse("grep", {"pattern": "alpha"}, "r2"))


async def approved(loom: Harness) -> str:
    """An ask, a pause, a message, an edit, an approval for the run."""
    run_id = await loom.start("write it")
    ask = (await loom.asked(run_id))["pending_approvals"][0]
    await loom.client.pause(run_id, by="ann")
    await loom.client.send(run_id, "in blue", by="ann")
    await loom.client.resume(run_id)
    changed = {"path": "out.txt", "content": "changed"}
    await loom.client.approve(run_id, "w1", digest=ask["digest"], arguments=changed, scope="run", by="ann")
    return run_id


async def denied(loom: Harness) -> str:
    """An ask that is denied, and a signal that nobody knows."""
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    handle = loom.client.temporal.get_workflow_handle(run_id)
    await handle.signal("no_such_signal", 7)
    await handle.signal("approve", ["malformed"])
    await handle.signal("deny", {"reason": "no"})
    return run_id


async def judged_again(loom: Harness) -> str:
    """Rules that change while a call waits."""
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    await loom.client.set_permissions(run_id, {"write_file": "allow"})
    return run_id


async def aborted(loom: Harness) -> str:
    """An abort while a call waits."""
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    await loom.client.abort(run_id, reason="enough", by="ann")
    return run_id


async def plain(loom: Harness) -> str:
    """Whatever the script says."""
    return await loom.start("do it")


async def refused(loom: Harness) -> str:
    """A request with an unknown field."""
    handle = await loom.client.temporal.start_workflow(
        "AgentRun", {"tsak": "x"}, id=f"refused-{id(loom)}", task_queue=loom.settings.task_queue
    )
    return handle.id


async def rotated(loom: Harness) -> str:
    """Continue-as-new in the middle."""
    return await loom.start("list often", max_turns=30)


def _often(request: object) -> Reply:
    turn = request.turn  # type: ignore[attr-defined]
    return text("enough") if turn >= 20 else calls(ToolUse("list_dir", {"path": "."}))


def _put_off(request: SeenRequest) -> Reply:
    """Long results until the window is full; a summary when asked for one."""
    if "You keep the memory of an agent" in str(request.body["messages"][0]):
        return text("<key_decisions>alpha it is</key_decisions>")
    return text("enough") if request.index > 8 else calls(ToolUse("bash", {"command": "seq 1 2500"}))


async def allowed(loom: Harness) -> str:
    """A run that may do everything."""
    return await loom.start("do it", mode="bypass")


DOUBLE = {
    "name": "double",
    "description": "Doubles.",
    "parameters": {"type": "object"},
    "code": "def run(x): return 2 * x",
}
TOOLS = (
    calls(ToolUse("todo", {"items": [{"task": "double", "status": "pending"}]}), ToolUse("create_tool", DOUBLE)),
    calls(ToolUse("made__double", {"x": 2}), ToolUse("bash", {"command": "seq 1 9000"})),
    text("4"),
)


STORIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "parallel": (plain, script([READ, text("done")]), {}),
    "approved": (approved, script([calls(WRITE), calls(WRITE), text("done")]), {}),
    "denied": (denied, script([calls(WRITE), text("pity")]), {}),
    "judged-again": (judged_again, script([calls(WRITE), text("done")]), {}),
    "aborted": (aborted, script([calls(WRITE)]), {}),
    "retried": (plain, script([status(429, retry_after=0.1), status(500), empty(), text("done")]), {}),
    "done-tool": (plain, script([calls(ToolUse("done", {"result": "ready"}))]), {}),
    "refused": (refused, script([text("never")]), {}),
    "tools": (allowed, script(TOOLS), {"dynamic_tools": "on"}),
    "fallback": (
        plain,
        script([status(503, retry_after=0.1)] * 3 + [text("done")]),
        {"fallback_models": "anthropic:b"},
    ),
    "compressed": (allowed, _put_off, {"context_window": 12_000, "collapse_at": 1.0}),
    "rotated": (rotated, _often, {"rotate_after_events": 100}),
}


def _portable(history: str) -> str:
    """Without stack traces: they name folders of whoever recorded it, and no replay looks at them."""
    return re.sub(r'"stackTrace": "(?:[^"\\]|\\.)*"', '"stackTrace": ""', history)


async def main(release: str) -> None:
    """Run every story and keep its histories, one file for each execution."""
    settings = load_settings()
    addresses = Addresses(
        temporal=settings.temporal_address,
        database=settings.database_url or "",
        redis=settings.redis_url or "",
        ui="",
    )
    for name, (story, replies, given) in STORIES.items():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "a.txt").write_text("alpha\nbeta\n")
            async with harness(addresses, Path(folder), replies, **given) as (loom, _):
                run_id = await story(loom)
                await loom.client.result(run_id)
                for number, history in enumerate(await loom.histories(run_id)):
                    FOLDER.joinpath(f"{release}-{name}-{number}.json").write_text(_portable(history.to_json()))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
