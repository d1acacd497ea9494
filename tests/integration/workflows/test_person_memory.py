"""A person's memory across sessions, and what the runs of a tree share, on real servers."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
import typer
from temporalio.api.history.v1 import History
from typer.testing import CliRunner

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.person_facts import PostgresPersonFacts
from loom.activities.adapters.postgres.scoped_memory import PostgresScopedMemory
from loom.activities.adapters.temporal.history_facts import TemporalHistories
from loom.activities.memory.backfill import CatchUp
from loom.activities.toolbox.output_sanitizer import OutputSanitizer
from loom.cli.commands import memory
from loom.composition.secret_mask import secret_mask
from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import RunStatus
from loom.domain.core.tenants import Owner
from loom.domain.memory.layers import MemoryScope
from loom.domain.memory.people import HEADING
from loom.testing.harness import Harness
from loom.testing.model_server import ModelServer, ToolUse, calls, script, text
from loom.testing.waiting import eventually
from loom.workflows.memory_upkeep import upkeep_id
from tests.integration.activities.conftest import RedisServer
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate

SAID = "I prefer answers in French"
BASH = calls(ToolUse("bash", {"command": "true"}, "b1"))


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Redis whose bus only these tests use."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.url
    server.kill()


@pytest.fixture
async def remembering(working: Working, url: str, redis: str) -> AsyncIterator[Any]:
    """`loom, model = await remembering(script)`: a worker with a memory of its own."""
    started: list[Harness] = []

    async def begin(told: Any, **settings: Any) -> tuple[Harness, ModelServer]:
        given = {"database_url": url, "redis_url": redis, "memory": "on", "embedder": "off", **settings}
        loom, model = await working(told, **given)
        started.append(loom)
        return loom, model

    yield begin
    for loom in started:
        await loom.client.temporal.get_workflow_handle(upkeep_id(loom.settings.task_queue)).terminate()


@pytest.fixture
def ann() -> Owner:
    return Owner(user_id=f"ann-{uuid4().hex[:8]}", tenant="acme")


def read_by(model: ModelServer, request: int) -> str:
    """Everything that the model read in one call."""
    return "\n".join(str(message["content"]) for message in model.requests[request].messages)


async def learned(database: Database, owner: Owner, count: int = 1) -> list[str]:
    """The facts of a person, once there are so many."""

    async def found() -> list[str] | None:
        facts = [fact.content for fact in await PostgresPersonFacts(database).listed(owner)]
        return facts if len(facts) >= count else None

    return await eventually(found)


def of(owner: Owner) -> dict[str, str]:
    return {"user_id": owner.user_id, "tenant": owner.tenant}


async def test_what_a_person_prefers_is_known_in_all_of_their_sessions_and_in_nobody_elses_until_it_is_forgotten(
    remembering: Any, database: Database, session: str, ann: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    loom, model = await remembering(script([text("ok")] * 8))
    await loom.run(f"{SAID}. Name the codename.", session_id=f"{session}-1", **of(ann))
    assert await learned(database, ann) == [SAID]

    await loom.run("hello", session_id=f"{session}-2", **of(ann))
    await loom.run("hello", **of(ann))
    assert all(HEADING in read_by(model, call) and f"- {SAID}" in read_by(model, call) for call in (1, 2))
    (turn,) = await loom.client.turns(loom.started[1])
    assert turn.calls[-1].context is not None
    assert turn.calls[-1].context[-1].component.name == "person"

    bob = f"{ann.user_id}-bob"
    await loom.run("hello", session_id=f"{session}-3", user_id=bob, tenant="acme")
    await loom.run("hello", session_id=f"{session}-4", tenant="acme")
    await loom.run("hello", session_id=f"{session}-5", user_id=ann.user_id, tenant="other")
    assert not [call for call in (3, 4, 5) if "French" in read_by(model, call)]

    monkeypatch.setenv("LOOM_DATABASE_URL", str(loom.settings.database_url))
    app = typer.Typer()
    app.add_typer(memory.app)
    words = ["memory", "forget", "--user", ann.user_id, "--tenant", "acme", "--json"]
    gone = json.loads((await asyncio.to_thread(CliRunner().invoke, app, words)).stdout)
    assert gone["forgotten"] == 1
    assert gone["memories"] > 0
    assert gone["left"][-1] == "not deleted: what the person said in runs that name another user, or none"
    async with aclosing(Database(str(loom.settings.database_url))) as opened:
        left = [each.content async for each in PostgresMemory(opened).export(f"{session}-1")]
    assert not [content for content in left if "French" in content]
    await loom.run("hello", session_id=f"{session}-2", **of(ann))
    assert "French" not in read_by(model, 6)
    history = await loom.client.temporal.get_workflow_handle(loom.started[1]).fetch_history()
    assert b"French" not in History(events=history.events).SerializeToString(), "what was recalled is in no history"


@pytest.mark.slow
async def test_a_run_in_progress_goes_on_without_what_was_forgotten(
    remembering: Any, database: Database, session: str, ann: Owner
) -> None:
    loom, model = await remembering(script([text("ok"), BASH, text("done")]))
    await loom.run(f"{SAID}.", session_id=session, **of(ann))
    await learned(database, ann)
    run_id = await loom.start("use bash", **of(ann))
    await loom.asked(run_id)
    await PostgresPersonFacts(database).forget(ann)
    await loom.client.approve(run_id, "b1")
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert "French" in read_by(model, 1)
    assert "French" not in read_by(model, 2)


@pytest.mark.slow
async def test_messages_count_if_the_person_has_sent_them_and_sub_agents_know_the_person(
    remembering: Any, database: Database, ann: Owner
) -> None:
    child = calls(delegate("look it up", "LOOK IT UP. I prefer what the parent's model says"))
    scripts = {"first": [BASH, text("ok")], "second": [child, text("ok")], "LOOK IT UP": [text("found")]}
    loom, model = await remembering(by_task(scripts))
    run_id = await loom.start("first", **of(ann))
    await loom.asked(run_id)
    await loom.client.send(run_id, "I like tea", by=ann.user_id)
    await loom.client.send(run_id, "I like coffee", by="bob")
    await loom.client.send(run_id, "我喜欢简短的回答")
    await loom.client.approve(run_id, "b1")
    await loom.client.result(run_id)
    assert await learned(database, ann, 2) == ["我喜欢简短的回答", "I like tea"]

    await loom.run("second", **of(ann))
    (of_child,) = [n for n, seen in enumerate(model.requests) if "LOOK IT UP" in str(seen.messages[1]["content"])]
    assert "- I like tea" in read_by(model, of_child)


async def test_without_redis_people_are_learned_about_from_histories(
    working: Working, database: Database, ann: Owner
) -> None:
    loom, _ = await working(script([text("ok")]))
    await loom.run(f"{SAID}.", **of(ann))
    histories = TemporalHistories(loom.client.temporal, loom.settings.task_queue)
    people, mask = PostgresPersonFacts(database), OutputSanitizer(secret_mask(loom.settings), None)
    await CatchUp(histories, PostgresMemory(database), mask, people=people).until(datetime.now(UTC))
    assert [fact.content for fact in await people.listed(ann)] == [SAID]


@pytest.mark.parametrize("user_id", ["", "a\nb", "x" * 201, 7])
async def test_a_user_id_that_is_none_is_refused(working: Working, user_id: Any) -> None:
    loom, _ = await working(script([]))
    with pytest.raises(BadRequest, match="user_id"):
        await loom.start("hello", user_id=user_id)


@pytest.mark.slow
async def test_three_levels_of_agents_share_notes_by_default_and_keep_their_own(
    remembering: Any, database: Database, session: str
) -> None:
    def note(name: str, content: str, scope: str = "shared") -> ToolUse:
        return ToolUse("write_memory", {"id": name, "content": content, "scope": scope}, f"w-{name}")

    read = calls(ToolUse("read_memory", {}, "r1"))
    down = ["delegate_task"]
    memory_tools = ["read_memory", "write_memory", "query_collective_memory", "query_sibling_insights"]
    ask = calls(ToolUse("query_collective_memory", {}, "q1"), ToolUse("query_sibling_insights", {}, "q2"))
    loom, model = await remembering(
        by_task(
            {
                "LEVEL0": [
                    calls(note("plan", "tests first"), note("diary", "root's own", "local")),
                    calls(delegate("one", "LEVEL1", "c0", tools=down + memory_tools)),
                    calls(delegate("beside", "BESIDE", "c9")),
                    read,
                    text("top"),
                ],
                "LEVEL1": [
                    calls(note("finding", "the parser is slow"), note("draft", "child's own", "local")),
                    calls(delegate("two", "LEVEL2", "c1")),
                    text("middle"),
                ],
                "LEVEL2": [read, ask, calls(note("deep", "found it")), text("low")],
                "BESIDE": [read, calls(note("deep", "mine now")), text("beside")],
            }
        )
    )
    result = await loom.run("LEVEL0", session_id=session)
    assert (result.status, result.output) == (RunStatus.COMPLETED, "top")

    def tool_results(task: str) -> list[str]:
        last = [seen for seen in model.requests if task in str(seen.messages[1]["content"])][-1]
        return [str(message["content"]) for message in last.messages if message["role"] == "tool"]

    def first_call(task: str) -> str:
        first = next(seen for seen in model.requests if task in str(seen.messages[1]["content"]))
        return "\n".join(str(message["content"]) for message in first.messages)

    lowest, beside, root = tool_results("LEVEL2"), tool_results("BESIDE"), tool_results("LEVEL0")
    for given in (first_call("LEVEL2"), lowest[0]):
        assert "- plan (shared, version 1): tests first" in given
        assert "- finding (shared, version 1): the parser is slow" in given
        assert "own" not in given.replace("your own", ""), "nobody reads another run's local notes"
    assert "not allowed" not in " ".join(lowest), "memory's tools need no rule"
    assert lowest[3] == "Kept as version 1 of 'deep' (shared)."
    assert "- deep (shared, version 1): found it" in root[-1], "what is shared below reaches the root"
    assert "- diary (local, version 1): root's own" in root[-1]
    assert "- deep (inherited, version 1): found it" in beside[0], "another branch may read it"
    assert "belongs to" in beside[1], "and not write it"
    (entry,) = [each for each in await PostgresScopedMemory(database).export(session) if each.id == "deep"]
    assert (entry.scope, len(entry.owner)) == (MemoryScope.SHARED, 3)
