"""Nodes of code on a real worker: functions that runs, agents and crews use like agents with a model."""

from pathlib import Path
from typing import Any

import pytest

from loom.domain.core.messages import JsonObject
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.stream import told
from tests.integration.workflows.conftest import Working

APP = """
from pathlib import Path

from loom import LoomApp, Message

app = LoomApp()
HERE = Path(__file__).parent


def count(name):
    with (HERE / name).open("a") as file:
        file.write("x")
    return len((HERE / name).read_text())


class Rates:
    euro = 2


@app.provide
def rates() -> Rates:
    return Rates()


@app.node(effect="read")
async def convert(message: Message, rates: Rates) -> Message:
    "Converts amounts to euros."
    return Message(role="assistant", content=f"{int(message.text) * rates.euro} EUR for {message.metadata['run_id']}")


@app.node(name="shout")
def loud(message):
    return message.text.upper()


@app.node(effect="idempotent", attempts=3)
def shaky(message):
    if count("shaky") < 3:
        raise ConnectionError("the line was cut")
    return "came through"


@app.node
def once(message):
    count("once")
    raise ConnectionError("the line was cut")


@app.node(timeout=0.2, effect="read", attempts=2)
async def slow(message):
    import asyncio
    count("slow")
    await asyncio.sleep(60)


@app.node
def wrong(message):
    return 42
"""


@pytest.fixture
def app(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(APP)
    return f"{tmp_path / 'mine.py'}:app"


async def activities(loom: Any, run_id: str) -> list[tuple[str, str]]:
    """The activities of a run with what the Web UI shows of them."""
    (history,) = await loom.histories(run_id)
    decode = loom.client.temporal.data_converter.payload_converter.from_payload
    scheduled = [e for e in history.events if e.HasField("activity_task_scheduled_event_attributes")]
    return [
        (e.activity_task_scheduled_event_attributes.activity_type.name, decode(e.user_metadata.summary))
        for e in scheduled
    ]


async def test_a_node_runs_as_an_agent_without_a_model(working: Working, app: str) -> None:
    loom, model = await working(lambda request: text("not asked"), app=app)
    result = await loom.run("21", agent="convert")
    assert (result.output, result.status, result.usage["model_calls"]) == (
        f"42 EUR for {loom.started[0]}",
        "completed",
        0,
    )
    assert await activities(loom, loom.started[0]) == [
        ("prepare_run", "prepare the run"),
        ("run_node", "t1 · node convert"),
    ]
    assert [event.task.action for event in await told(loom.client, loom.started[0])] == [
        "node.start",
        "node.turn",
        "node.tool_call",
        "node.tool_result",
        "node.complete",
    ]
    assert model.requests == []


async def test_an_agent_delegates_to_a_node_under_the_rules_of_delegation(working: Working, app: str) -> None:
    hand_over = {"description": "convert the amount", "prompt": "21", "agent": "convert"}
    shout = {"description": "say it loudly", "prompt": "hello", "agent": "shout"}
    use = [ToolUse("delegate_task", hand_over, "a"), ToolUse("delegate_task", shout, "b")]
    loom, model = await working(script([calls(*use), text("done")]), app=app)
    result = await loom.run("convert 21", permissions={"delegate_task(shout)": "deny"})
    assert result.output == "done"
    (child,) = result.children
    assert (child["agent"], child["status"]) == ("convert", "completed")
    first, second = [m["content"] for m in model.requests[-1].body["messages"] if m["role"] == "tool"]
    assert f"42 EUR for {child['run_id']}" in first
    assert "denied" in second.lower()
    by_child = [e.task.action for e in await told(loom.client, loom.started[0]) if e.task.run_id == child["run_id"]]
    assert by_child == ["node.start", "node.turn", "node.tool_call", "node.tool_result", "node.complete"]


async def test_nodes_and_agents_are_members_of_one_crew(working: Working, app: str) -> None:
    loom, _ = await working(lambda request: text("a quiet word"), app=app)
    crew: JsonObject = {
        "name": "voices",
        "mode": "parallel",
        "members": [{"name": "quiet", "agent": "default"}, {"name": "loud", "agent": "shout"}],
        "aggregate": {"by": "concat"},
    }
    run_id = await loom.client.start_crew(crew, "say a word", workspace=str(loom.workspace))
    loom.started.append(run_id)
    output = (await loom.client.result(run_id)).output
    assert "a quiet word" in output
    assert "SAY A WORD" in output


async def test_a_node_is_tried_again_by_its_effect(working: Working, app: str, tmp_path: Path) -> None:
    loom, _ = await working(script([]), app=app, first_retry_delay=0.01)
    assert (await loom.run("go", agent="shaky")).output == "came through"
    failed = await loom.run("go", agent="once")
    assert (failed.status, failed.error.type) == ("failed", "NodeFailedError")
    assert failed.error.message == "node 'once': it failed with ConnectionError: the line was cut"
    late = await loom.run("go", agent="slow")
    assert late.error.message == "node 'slow': it gave no answer within 0.2 s (after 2 attempts)"
    assert [len((tmp_path / name).read_text()) for name in ("shaky", "once", "slow")] == [3, 1, 2]
    assert "returned a int" in (await loom.run("go", agent="wrong")).error.message


async def test_what_a_node_has_no_use_for_is_refused(working: Working, app: str) -> None:
    loom, _ = await working(script([]), app=app)
    for field, value in {"model": "openai:other", "skills": ["pdf"]}.items():
        refused = await loom.run_unseen("21", agent="convert", **{field: value})
        assert (refused.error.type, refused.error.context["field"]) == ("BadRequest", field)
