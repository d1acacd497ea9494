"""A run as an AG-UI stream. The official models check each event, and the official client runs an agent."""

import asyncio
import json
import os
import shutil
from base64 import b64encode
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from ag_ui.core import (
    Context,
    DataSource,
    Event,
    ImagePart,
    ResumeEntry,
    RunAgentInput,
    RunFinishedEvent,
    TextPart,
    UserMessage,
)
from pydantic import TypeAdapter

from loom.testing.model_server import ToolUse, calls, script, text
from tests.integration.activities.test_http_fetch import PNG
from tests.integration.serve.conftest import Serving
from tests.integration.serve.served import Served, events_in

EVENT: TypeAdapter[Any] = TypeAdapter(Event)
NODE: Final = os.environ.get("LOOM_TEST_NODE", "")
PICTURE: Final = DataSource(value=b64encode(PNG).decode(), mime_type="image/png")
PROVIDERS: Final = {"type": "file", "value": "file-1"}
CLIENT: Final = Path(__file__).parents[3] / "examples" / "agui_client"


def said(words: str) -> UserMessage:
    return UserMessage(id=uuid4().hex, content=words)


async def agui(api: Served, agent: str = "default", **given: Any) -> list[Any]:
    """Send one AG-UI run, and return its events."""
    run = RunAgentInput(**{"thread_id": "thread", "run_id": uuid4().hex, "messages": [said("go on")], **given})
    body = run.model_dump(mode="json", by_alias=True)
    async with api.http.stream("POST", f"/v1/agents/{agent}/agui", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        events = [EVENT.validate_python(event.data) async for event in events_in(answer)]
    run_id = next(event.value["run_id"] for event in events if event.type == "CUSTOM")
    if run_id not in api.loom.started:
        api.loom.started.append(run_id)
    assert (events[0].type, events[0].run_id) == ("RUN_STARTED", run.run_id)
    return events


def interrupt(events: list[Any]) -> Any:
    """The only interrupt that the stream ends with."""
    assert isinstance(events[-1], RunFinishedEvent), events[-1]
    (only,) = events[-1].outcome.interrupts  # type: ignore[union-attr]
    return only


def answer_to(asked: Any, payload: Any) -> list[ResumeEntry]:
    return [ResumeEntry(interrupt_id=asked.id, status="resolved", payload=payload)]


def kinds(events: list[Any]) -> list[str]:
    return [event.type.value for event in events]


async def test_a_thread_starts_a_run_answers_its_interrupts_and_gets_the_result(serving: Serving) -> None:
    write = ToolUse("write_file", {"path": "a.txt", "content": "new\n"}, "call_w")
    question = ToolUse("ask_user", {"question": "Which colour?"}, "call_q")
    api = await serving(script([calls(write, text="I write"), calls(question), text("all done")]))

    task = UserMessage(id="m", content=[TextPart(text="write a file"), ImagePart(source=PICTURE)])
    first = await agui(api, messages=[task], context=[Context(description="page", value="Orders")], state={"a": 1})
    run, ignored = (event.value for event in first if event.type == "CUSTOM")
    assert ignored == {"fields": ["state"]}
    read = (await api.loom.client.transcript(run["run_id"]))[0]
    assert read.text == "write a file\n\nContext from the application:\n- page: Orders"
    assert [part.type for part in read.content if not isinstance(part, str)] == ["text", "image"]
    assert kinds(first)[:4] == ["RUN_STARTED", "CUSTOM", "CUSTOM", "TEXT_MESSAGE_START"]
    assert "".join(event.delta for event in first if event.type == "TEXT_MESSAGE_CONTENT") == "I write"
    assert kinds(first)[-5:] == [
        "TEXT_MESSAGE_END",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "RUN_FINISHED",
    ]
    asked = interrupt(first)
    assert (asked.reason, asked.tool_call_id) == ("tool_call", first[-4].tool_call_id)

    await api.move()
    second = await agui(api, resume=answer_to(asked, {"approved": True}))
    assert kinds(second)[2] == "TOOL_CALL_RESULT"  # the call itself was shown before
    asked = interrupt(second)
    assert (asked.reason, asked.message) == ("input_required", "Which colour?")

    third = await agui(api, resume=answer_to(asked, "Blue"))
    assert "".join(event.delta for event in third if event.type == "TEXT_MESSAGE_CONTENT") == "all done"
    assert (third[-1].type, third[-1].outcome, third[-1].result["output"]) == ("RUN_FINISHED", None, "all done")
    assert {event.value["run_id"] for each in (second, third) for event in each if event.type == "CUSTOM"} == {
        run["run_id"]
    }


async def test_wrong_input_is_refused_before_anything_starts(serving: Serving) -> None:
    api, thread = await serving(script([])), uuid4().hex
    bad: list[dict[str, Any]] = [
        {"messages": []},
        {"messages": [], "resume": [{"interruptId": "nonsense", "status": "resolved"}]},
        {"messages": [{"id": "m", "role": "user", "content": [{"type": "image", "source": PROVIDERS}]}]},
    ]
    for given, field in zip(bad, ("messages", "resume", "messages"), strict=True):
        answer = await api.http.post("/v1/agents/default/agui", json={"threadId": thread, "runId": "r", **given})
        assert (answer.status_code, answer.json()["title"], answer.json()["field"]) == (422, "BadRequest", field)
    assert (await api.http.get("/v1/runs", params={"session": thread})).json()["runs"] == []


@pytest.mark.skipif(not NODE, reason="needs packages from npm: make test-node")
async def test_the_official_client_runs_an_agent(serving: Serving, tmp_path: Path) -> None:
    write = ToolUse("write_file", {"path": "a.txt", "content": "new\n"}, "call_w")
    question = ToolUse("ask_user", {"question": "Which colour?"}, "call_q")
    api = await serving(script([calls(write, text="I write"), calls(question), text("all done", chunks=3)]))
    shutil.copy(CLIENT / "run.js", tmp_path)
    shutil.copy(CLIENT / "package.json", tmp_path)
    (tmp_path / "node_modules").symlink_to(Path(NODE, "agui_client", "node_modules"))
    process = await asyncio.create_subprocess_exec(
        *("node", "run.js", f"{api.url}/v1/agents/default/agui", "write a file"),
        cwd=tmp_path,
        env={**os.environ, "LOOM_TOKEN": api.http.headers["Authorization"].removeprefix("Bearer ")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = (each.decode() for each in await process.communicate())
    assert process.returncode == 0, err
    said = err.splitlines()
    assert said[:2] == ["I write", 'calls write_file({"path":"a.txt","content":"new\\n"})']
    assert "asks: Which colour?" in said
    ended = json.loads(out)
    assert (ended["status"], ended["output"]) == ("completed", "all done")
    assert [each["role"] for each in ended["messages"]][:4] == ["user", "assistant", "assistant", "tool"]
    assert ended["messages"][-1]["content"] == "all done"
    assert (api.loom.workspace / "a.txt").read_text() == "new\n"
    runs = (await api.http.get("/v1/runs")).json()["runs"]
    api.loom.started += [run["run_id"] for run in runs]
