"""Tools inside a run: long outputs, lists of things to do, tools that are made on the way."""

from pathlib import Path

import pytest

from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.domain.core.tool_calls import artifact_id
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, script, text
from loom.testing.stream import told
from tests.integration.workflows.conftest import Working


def heard(request: SeenRequest) -> str:
    """The last tool result that the model reads."""
    return str(request.messages[-1]["content"])


async def test_an_output_too_long_for_the_model_is_kept_whole_and_read_in_pages(working: Working) -> None:
    artifact = artifact_id(1, "long")
    replies = [
        calls(ToolUse("bash", {"command": "seq 1 40000"}, "long")),
        calls(ToolUse("read_artifact", {"artifact": artifact, "offset": 100_000, "limit": 60}, "page")),
        calls(ToolUse("read_artifact", {"artifact": "t9-none"}, "none")),
        text("read"),
    ]
    loom, model = await working(script(replies))

    result = await loom.run(permissions={"bash": "allow"})

    length = len("".join(f"{number}\n" for number in range(1, 40_001)).rstrip("\n"))
    assert result.artifacts == ({"id": artifact, "call_id": "long", "tool": "bash", "characters": length},)
    cut, page, none = (heard(request) for request in model.requests[1:])
    assert len(cut) <= 30_000
    assert f"artifact {artifact}" in cut
    assert page.startswith(f"[characters 100000 to 100060 of {length}; continue at offset 100060]")
    assert "this run has no artifact 't9-none'" in none


async def test_a_run_does_not_read_the_artifacts_of_another(working: Working) -> None:
    read = calls(ToolUse("read_artifact", {"artifact": artifact_id(1, "long")}, "page"))

    def reply(request: SeenRequest) -> Reply:
        if "make" in str(request.messages[0]) or request.turn > 0:
            return calls(ToolUse("bash", {"command": "seq 1 40000"}, "long")) if request.turn == 0 else text("ready")
        return read

    loom, model = await working(reply)
    await loom.run("make it", permissions={"bash": "allow"})

    await loom.run("read it")

    assert "this run has no artifact" in heard(model.requests[-1])


async def test_the_list_of_things_to_do_is_shown_in_the_status(working: Working) -> None:
    items = [{"task": "read", "status": "done"}, {"task": "write", "status": "in_progress"}]
    wrong = calls(ToolUse("todo", {"items": [{"task": "x", "status": "maybe"}]}, "bad"))
    right, ask = calls(ToolUse("todo", {"items": items}, "list")), calls(ToolUse("bash", {"command": "ls"}))
    loom, model = await working(script([wrong, right, ask, text("ready")]))

    run_id = await loom.start()

    assert (await loom.asked(run_id))["todos"] == items
    await loom.client.approve(run_id)
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert "must be one of pending, in_progress, done, cancelled" in heard(model.requests[1])
    assert heard(model.requests[2]) == "[x] read\n[>] write"


async def test_a_secret_of_the_worker_reaches_neither_model_nor_history(working: Working, workspace: Path) -> None:
    (workspace / "key.txt").write_text("the key is sk-test-0123456789abcdef\n")
    read = calls(ToolUse("read_file", {"path": "key.txt"}), ToolUse("bash", {"command": "cat key.txt"}))
    loom, model = await working(script([read, text("read")]), OPENAI_API_KEY="sk-test-0123456789abcdef")

    await loom.run(permissions={"bash": "allow"})

    history = "".join(str(history.to_json()) for history in await loom.histories(loom.started[0]))
    events = "".join([str(event.task) async for event in loom.client.events(loom.started[0])])
    for seen in (str(model.requests[1].messages), history, events):
        assert "0123456789abcdef" not in seen
    assert "[REDACTED]" in heard(model.requests[1])


SLOW = """
import asyncio
from threading import Lock
from time import sleep
from loom import LoomApp
app, lock, running, most = LoomApp(), Lock(), 0, 0

def count(more):
    global running, most
    with lock:
        running += more
        most = max(most, running)

@app.tool(effect="read", permission="allow")
"""
LOOKS = """async def look(place: str) -> str:
    "Look until the others have begun, too; without them, for a long time."
    count(1)
    for _ in range(1000):
        if most == 10:
            break
        await asyncio.sleep(0.1)
    count(-1)
    return f"{most} at once"
"""
BLOCKS = LOOKS.replace("async def", "def").replace("await asyncio.sleep", "sleep")


@pytest.mark.parametrize("tool", [LOOKS, BLOCKS], ids=["a coroutine", "a function"])
async def test_ten_reading_calls_of_a_turn_run_at_the_same_moment(working: Working, tmp_path: Path, tool: str) -> None:
    file = tmp_path / "slow.py"
    file.write_text(SLOW + tool, encoding="utf-8")
    looks = [ToolUse("look", {"place": f"p{number}"}, f"l{number}") for number in range(10)]
    loom, model = await working(script([calls(*looks), text("seen")]), app=f"{file}:app")

    await loom.run()

    seen = [message["content"] for message in model.requests[1].messages if message["role"] == "tool"]
    assert seen == ["10 at once"] * 10


DOUBLE = {
    "name": "double",
    "description": "Doubles a number.",
    "parameters": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
    "code": "def run(x):\n    return {'twice': 2 * x}\n",
}


async def test_an_agent_makes_a_tool_and_uses_it_when_it_may(working: Working) -> None:
    replies = [
        calls(ToolUse("create_tool", {**DOUBLE, "code": "import os\ndef run(x): return os.getcwd()"})),
        calls(ToolUse("create_tool", DOUBLE)),
        calls(ToolUse("made__double", {"x": "two"})),
        calls(ToolUse("made__double", {"x": 21})),
        text("42"),
    ]
    loom, model = await working(script(replies), dynamic_tools="on")

    result = await loom.run(permissions={"create_tool": "allow", "made__double": "allow"})

    assert result.output == "42"
    refused, made, wrong, answer = (heard(request) for request in model.requests[1:])
    assert "line 1: " in refused
    assert made.startswith("You can call made__double")
    assert "`x`" in wrong
    assert answer == '{"twice": 42}'
    offered = [tool["function"]["name"] for tool in model.requests[2].body["tools"]]
    assert "made__double" in offered
    events = [event.task for event in await told(loom.client, loom.started[0])]
    assert [task.parameters for task in events if task.action is Action.REGISTERED] == [
        {"turn": 2, "name": "made__double", "description": "Doubles a number.", "from": "default"}
    ]


async def test_a_name_is_given_once(working: Working) -> None:
    twice = [
        calls(ToolUse("create_tool", DOUBLE)),
        calls(ToolUse("create_tool", {**DOUBLE, "code": "def run(x): ..."})),
    ]
    loom, model = await working(script([*twice, text("no")]), dynamic_tools="on")

    await loom.run(permissions={"create_tool": "allow"})

    assert "there is a tool made__double already: choose another name" in heard(model.requests[2])


async def test_no_tool_is_made_where_that_is_not_switched_on(working: Working) -> None:
    loom, model = await working(script([calls(ToolUse("create_tool", DOUBLE)), text("no")]))

    await loom.run()

    assert "there is no tool 'create_tool'" in heard(model.requests[1])


async def test_a_tool_that_was_made_asks_like_python_does(working: Working) -> None:
    replies = [calls(ToolUse("create_tool", DOUBLE)), calls(ToolUse("made__double", {"x": 1})), text("no")]
    loom, _ = await working(script(replies), dynamic_tools="on")

    run_id = await loom.start()

    for tool in ("create_tool", "made__double"):
        (ask,) = (await loom.asked(run_id))["pending_approvals"]
        assert ask["tool"] == tool
        await loom.client.approve(run_id, ask["call_id"])
        if tool == "create_tool":
            await loom.until(run_id, lambda status: status["turn"] == 2)
    await loom.client.result(run_id)
