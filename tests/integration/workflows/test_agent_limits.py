"""Two agents on one worker with different limits behave differently, and their runs replay."""

from pathlib import Path
from typing import Any

import pytest

from loom.activities.adapters.documents.readers import SeparateDocumentReader
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.knowledge import PostgresKnowledge
from loom.activities.knowledge.ingest import Ingestion
from loom.domain.core.requests import RunStatus
from loom.testing.model_server import ToolUse, calls, hang, script, text
from loom.testing.stream import told
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_compression import SUMMARY, WORDS, compressions, is_about_compressing, long_talk

APP = """
import asyncio
from loom import LoomApp

app = LoomApp()
calls = {"flaky": 0, "now": 0, "most": 0}

@app.tool(effect="read", permission="allow")
async def flaky() -> str:
    "Fail at first."
    calls["flaky"] += 1
    if calls["flaky"] < 2:
        raise ConnectionError("not yet")
    calls["flaky"] = 0
    return "came"

@app.tool(effect="read", permission="allow")
async def slow() -> str:
    "Take a second."
    await asyncio.sleep(1.0)
    return "slept"

@app.tool(effect="read", permission="allow")
async def crowd(number: int) -> str:
    "Say how many run at most."
    calls["now"] += 1
    calls["most"] = max(calls["most"], calls["now"])
    await asyncio.sleep(1.0)
    calls["now"] -= 1
    return f"most {calls['most']}"

app.create_agent("usual")
app.create_agent(
    "own",
    compression={"threshold": 0.3, "sections": ["open_issues"]},
    loop_window=3,
    parallel_limit=1,
    tool_timeouts={"slow": 0.2},
    tool_attempts=2,
    first_retry_delay=0.05,
    priority=1,
    evaluate=True,
)
app.create_agent("hurried", model_attempts=1, model_timeout=0.3)
"""


@pytest.fixture
def app(tmp_path: Path) -> str:
    (tmp_path / "limited.py").write_text(APP)
    return f"{tmp_path}/limited.py:app"


async def heard(working: Working, app: str, agent: str, *uses: ToolUse) -> str:
    """What the model hears of these calls."""
    loom, model = await working(script([calls(*uses), text("done")], repeat_last=True), app=app)
    await loom.run(agent=agent)
    return str(model.requests[1].messages)


@pytest.mark.parametrize(("agent", "hears"), [("usual", "not yet"), ("own", "came")])
async def test_an_agent_repeats_a_failed_call(working: Working, app: str, agent: str, hears: str) -> None:
    assert hears in await heard(working, app, agent, ToolUse("flaky", {}))


@pytest.mark.parametrize(("agent", "hears"), [("usual", "slept"), ("own", "slow was stopped after 0.2 s")])
async def test_an_agent_has_its_own_timeout_of_a_tool(working: Working, app: str, agent: str, hears: str) -> None:
    assert hears in await heard(working, app, agent, ToolUse("slow", {}))


@pytest.mark.parametrize(("agent", "most"), [("usual", "most 2"), ("own", "most 1")])
async def test_an_agent_limits_its_parallel_calls(working: Working, app: str, agent: str, most: str) -> None:
    uses = [ToolUse("crowd", {"number": number}, f"c{number}") for number in range(2)]
    assert most in await heard(working, app, agent, *uses)


@pytest.mark.parametrize(("agent", "ends"), [("usual", RunStatus.COMPLETED), ("own", RunStatus.LIMIT_REACHED)])
async def test_an_agent_has_its_own_loop_window(
    working: Working, app: str, workspace: Path, agent: str, ends: RunStatus
) -> None:
    again = calls(ToolUse("list_dir", {"path": "."}))
    loom, _ = await working(script([*[again] * 6, text("done")], repeat_last=True), app=app)
    assert (await loom.run(agent=agent, metadata={"loom": {"evaluate": False}})).status is ends


@pytest.mark.parametrize(("agent", "number"), [("usual", 2), ("hurried", 1)])
async def test_an_agent_has_its_own_attempts_and_timeout_of_model_calls(
    working: Working, app: str, agent: str, number: int
) -> None:
    settings: dict[str, Any] = {"app": app, "model_attempts": 2, "first_retry_delay": 0.05, "model_timeout": 1}
    loom, model = await working(script([hang()], repeat_last=True), **settings)
    result = await loom.run(agent=agent, patience=0)
    assert result.error is not None
    assert (result.error.type, model.count) == ("LLMUnavailableError", number)


@pytest.mark.parametrize(("agent", "priority", "asked"), [("usual", 0, None), ("own", 1, None), ("own", 2, 2)])
async def test_activities_have_the_agent_s_priority_unless_the_request_has_one(
    working: Working, app: str, agent: str, priority: int, asked: int | None
) -> None:
    loom, _ = await working(script([text("done")], repeat_last=True), app=app)
    result = await loom.run(agent=agent, priority=asked)
    assert (result.quality_metrics is not None or result.usage["model_calls"] == 2) is (agent == "own")
    (history,) = await loom.histories(loom.started[0])
    scheduled = [
        event.activity_task_scheduled_event_attributes
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    (call,) = [each for each in scheduled if each.activity_type.name == "call_model"]
    assert call.priority.priority_key == priority


@pytest.mark.parametrize(("agent", "number"), [("usual", 0), ("own", 1)])
async def test_an_agent_has_its_own_threshold_and_sections(
    working: Working, app: str, workspace: Path, agent: str, number: int
) -> None:
    (workspace / "long.txt").write_text(WORDS)
    loom, server = await working(
        long_talk(8, text(SUMMARY)), app=app, context_window=30_000, collapse_at=1.0, model_timeout=60
    )
    await loom.run(agent=agent, metadata={"loom": {"evaluate": False}})
    done = compressions(await told(loom.client, loom.started[0]))
    assert (len(done) > 0) is (number > 0)
    for request in server.requests:
        if is_about_compressing(request):
            assert ("<open_issues>" in str(request.body), "<future_plans>" in str(request.body)) == (True, False)


@pytest.mark.parametrize(("floor", "number"), [(0.1, 1), (1.0, 0)])
async def test_an_agent_has_its_own_floor_and_number_of_passages(
    working: Working, tmp_path: Path, url: str, database: Database, *, floor: float, number: int
) -> None:
    (tmp_path / "handbook").mkdir()
    for name in ("one", "two"):
        (tmp_path / "handbook" / f"{name}.md").write_text(f"Backups of the ledger are taken hourly, says {name}.")
    ingestion = Ingestion(
        PostgresKnowledge(database), reader=SeparateDocumentReader(), redact=lambda text: text, embedder=None
    )
    assert (await ingestion.take_in(tmp_path / "handbook", f"floors-{number}")).added == 2
    (tmp_path / "reader.py").write_text(
        "from loom import LoomApp\napp = LoomApp()\n"
        f"app.create_agent('reader', knowledge=[{{'base': 'floors-{number}', 'number': 1, 'floor': {floor}}}])\n"
    )
    loom, model = await working(
        script([text("ok")], repeat_last=True), app=f"{tmp_path}/reader.py:app", database_url=url, embedder="off"
    )
    await loom.run("are backups of the ledger taken by tigers?", agent="reader")
    assert str(model.requests[0].messages).count("taken hourly") == number
