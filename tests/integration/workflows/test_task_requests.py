"""Tasks on the bus that ask agents and crews for work, over Redis and over NATS."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from loom import LoomClient, Task, new_task
from loom.activities.bus import AT_ONCE
from loom.domain.core.errors import UnreachableError
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from tests.integration.workflows.conftest import Working

APP = """
from loom import LoomApp

app = LoomApp()
app.create_agent("reviewer", description="Reviews texts.")


@app.node(effect="read")
def shout(message):
    return message.text.upper()


app.create_crew("voices", mode="sequential", members=[{"name": "first", "agent": "shout"}])
"""


@pytest.fixture
def app(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(APP)
    return f"{tmp_path / 'mine.py'}:app"


@pytest.fixture(params=["redis", "nats"])
def bus(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"bus_url": request.getfixturevalue("nats_url")} if request.param == "nats" else {}


async def answered(client: LoomClient, task: Task) -> Task:
    """The reply to a Task, as soon as the worker listens."""

    async def look() -> Task | None:
        reply = await client.publish(task)
        return reply if reply.status != "pending" else None

    return await eventually(look)


async def test_a_task_reaches_an_agent_by_name_and_its_reply_has_the_runs_result(
    working: Working, app: str, bus: dict[str, Any]
) -> None:
    loom, model = await working(script([text("looks good"), text("for bob")]), app=app, task_requests="on", **bus)
    asked = new_task("reviewer", {"task": "Review the plan.", "max_turns": 3})
    reply = await answered(loom.client, asked)
    assert (reply.task_id, reply.status, reply.parameters) == (asked.task_id, "completed", asked.parameters)
    assert reply.result is not None
    assert reply.result["output"] == "looks good"
    run_id = reply.result["run_id"]
    loom.started.append(run_id)
    turns = await loom.client.turns(run_id)
    assert len(turns) == 1
    (run,) = [each for each in await loom.client.list() if each.run_id == run_id]
    assert run.agent == "reviewer"

    # The same Task again: the same run, and its result.
    again = await loom.client.publish(asked)
    assert again == reply
    assert len(model.requests) == 1

    # A Task of another user with the same id.
    other = (await loom.client.publish(replace(asked, parameters={**asked.parameters, "user_id": "bob"}))).result
    assert other is not None
    assert (other["output"], other["run_id"] == run_id) == ("for bob", False)

    # A crew, a node, and what can't run.
    loud = await loom.client.publish(new_task("shout", {"task": "hello"}))
    assert (loud.status, (loud.result or {})["output"]) == ("completed", "HELLO")
    crew = await loom.client.publish(new_task("voices", {"task": "hello"}))
    assert crew.status == "completed"
    for parameters, said in (({"tsak": "x"}, "`task`"), ({"task": "x", "max_turns": 0}, "max_turns")):
        refused = await loom.client.publish(new_task("reviewer", parameters))
        assert refused.status == "failed"
        assert said in str((refused.result or {})["error"]["message"])

    # Nobody knows this agent, so the Task comes back as it was.
    unknown = new_task("nobody", {"task": "hello"})
    assert await loom.client.publish(unknown) == unknown


async def test_a_task_that_is_not_waited_for_runs_too_and_without_the_setting_none_does(
    working: Working, app: str
) -> None:
    loom, _ = await working(script([text("done")]), app=app, task_requests="on")
    asked = new_task("shout", {"task": "hello"})
    assert await loom.client.publish(asked, wait_result=False) == asked
    assert (await answered(loom.client, asked)).status == "completed"


async def test_a_task_is_not_held_up_by_many_others_whose_runs_wait_for_a_person(working: Working, app: str) -> None:
    write = ToolUse("write_file", {"path": "note.txt", "content": "x"})
    loom, _ = await working(script([calls(write)], repeat_last=True), app=app, task_requests="on")
    session, asking = uuid4().hex, {"task": "write", "permissions": {"write_file": "ask"}}
    await answered(loom.client, new_task("shout", {"task": "the worker listens"}))
    for _ in range(AT_ONCE + 1):
        await loom.client.publish(new_task("reviewer", asking, session_id=session), wait_result=False)

    async def waiting() -> list[str]:
        runs = await loom.client.list(session=session, waiting="approval")
        return [run.run_id for run in runs] if len(runs) > AT_ONCE else []

    runs = await eventually(waiting)
    reply = await loom.client.publish(new_task("shout", {"task": "hello"}))

    assert (reply.result or {})["output"] == "HELLO"
    for run_id in runs:
        await loom.client.abort(run_id)


async def test_without_a_bus_nothing_can_be_published(working: Working) -> None:
    loom, _ = await working(script([]), redis_url=None)
    with pytest.raises(UnreachableError, match="LOOM_BUS_URL"):
        await loom.client.publish(new_task("default", {"task": "hello"}))
