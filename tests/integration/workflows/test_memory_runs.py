"""Memory at work: what one run leaves, the upkeep keeps and the next run of its session is reminded of."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import typer
from typer.testing import CliRunner

from loom.activities.adapters.postgres.artifacts import PostgresArtifacts
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.effects import PostgresEffects
from loom.activities.adapters.postgres.knowledge import PostgresKnowledge
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.scoped_memory import PostgresScopedMemory
from loom.activities.adapters.temporal.history_facts import TemporalHistories
from loom.activities.knowledge.ports import Document
from loom.activities.memory.backfill import CatchUp
from loom.activities.toolbox.built_in.memory import memory_tools
from loom.activities.toolbox.output_sanitizer import OutputSanitizer
from loom.cli.commands import memory
from loom.composition.secret_mask import secret_mask
from loom.domain.context.recall import AWAY, NO_KNOWLEDGE, NOTICE
from loom.domain.core.errors import RunNotFoundError
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.domain.core.tenants import Owner
from loom.domain.memory.chunks import Chunk
from loom.domain.memory.layers import Layer, MemoryScope, Query, View
from loom.domain.memory.scopes import ScopedEntry
from loom.testing.harness import Harness
from loom.testing.model_server import ModelServer, ToolUse, calls, script, text
from loom.testing.waiting import eventually
from loom.workflows.memory_upkeep import upkeep_id
from tests.databases import rows
from tests.integration.activities.conftest import RedisServer
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate

CODENAME = "The codename of the release is Zanzibar, and it ships on the third of May, whatever happens before that."
OTHER_CODENAME = "The codename of the other release is Lisbon, and it ships on the fifth of June, whatever happens."


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


def told(model: ModelServer, request: int) -> str:
    """Everything that the model read in one call."""
    return "\n".join(str(message["content"]) for message in model.requests[request].messages)


async def remembered(database: Database, session: str, layer: Layer, words: str) -> list[str]:
    view = View(session_id=session, owner=Owner(), layers=frozenset({layer}))
    return [hit.memory.content for hit in await PostgresMemory(database).recall(Query(text=words, view=view))]


async def has_ended(database: Database, session: str) -> bool:
    """Whether memory has the end of a run of this session, which comes after everything else that the run said."""
    ended = "SELECT 1 FROM loom_memory_tasks WHERE session_id = %s AND action = %s AND run_id NOT LIKE '%%/%%'"
    async with database.connection() as connection:
        found = await connection.execute(ended, (session, Action.COMPLETE))
        return await found.fetchone() is not None


async def test_a_run_is_reminded_of_what_others_of_its_session_said(
    remembering: Any, database: Database, session: str
) -> None:
    loom, model = await remembering(
        script([text(CODENAME), calls(ToolUse("list_dir", {"path": "."})), text("Zanzibar"), text("who knows")])
    )
    await loom.run("what is the codename?", session_id=session)

    async def kept() -> bool:
        return await has_ended(database, session)

    await eventually(kept)
    again = await loom.run("and the codename again?", session_id=session)
    other = await loom.run("the codename, please", session_id=f"{session}-other")

    assert (again.status, other.status) == (RunStatus.COMPLETED, RunStatus.COMPLETED)
    first, second = told(model, 1), told(model, 2)
    assert NOTICE in first
    assert "user: what is the codename?" in first
    assert f"assistant: {CODENAME}" in first
    assert second.count(f"assistant: {CODENAME}") == 1, (
        "what was recalled stays where it was, and is not asked for again"
    )
    assert "Zanzibar" not in told(model, 3), "sessions never see each other"
    turns = await loom.client.turns(loom.started[1])
    for turn in turns:
        context = turn.calls[-1].context
        assert context is not None
        assert "message 2: memory" in [part.component.source for part in context]


async def test_equal_sessions_and_notes_of_different_owners_never_meet(
    remembering: Any, database: Database, session: str
) -> None:
    """Each owner tells a code, keeps it in a note and publishes it. Then the next run of each calls every tool that
    reads memory.
    """
    owners = [
        {"tenant": "t1", "user_id": "ann"},
        {"tenant": "t1", "user_id": "eve"},
        {"tenant": "t2", "user_id": "ann"},
    ]
    owners += [{"tenant": "t1"}, {"user_id": "ann"}, {}]
    codes = [f"code-{uuid4().hex[:8]}" for _ in owners]
    required: dict[str, dict[str, object]] = {
        "query_events_by_action": {"action": "node.complete", "top_k": 50},
        "query_events_by_node": {"node": "default", "top_k": 50},
    }
    names = [tool.spec.name for tool in memory_tools(None)]
    reads = [ToolUse(name, required.get(name, {}), f"r{number}") for number, name in enumerate(names)]
    reads += [ToolUse("read_memory", {}, "n0"), ToolUse("read_memory", {"id": "plan"}, "n1")]

    def writes(code: str) -> list[ToolUse]:
        published = ToolUse("publish_memory", {"id": "published", "content": f"{code} published"}, "w1")
        return [ToolUse("write_memory", {"id": "plan", "content": code, "scope": "shared"}, "w0"), published]

    first = [turn for code in codes for turn in (calls(*writes(code)), text(f"I have kept {code}"))]
    then = [turn for _ in owners for turn in (calls(*reads), text("done"))]
    loom, model = await remembering(script([*first, *then]))
    allowed = {"permissions": {"publish_memory": "allow"}}
    for owner, code in zip(owners, codes, strict=True):
        ended = await loom.run(f"remember {code}", session_id=session, **owner, **allowed)
        assert ended.status is RunStatus.COMPLETED, ended.error

    async def kept() -> bool:
        counted = "SELECT count(*) FROM loom_memory_tasks WHERE session_id = %s AND action = %s"
        async with database.connection() as connection:
            found = await (await connection.execute(counted, (session, Action.COMPLETE))).fetchone()
        return found == (len(owners),)

    await eventually(kept)
    published = {str(owner.get("tenant")): f"{code} published" for owner, code in zip(owners, codes, strict=True)}
    for owner, code in zip(owners, codes, strict=True):
        ended = await loom.run("what is the code?", session_id=session, **owner)
        assert ended.status is RunStatus.COMPLETED, ended.error
        read = told(model, len(model.requests) - 1)
        assert f"I have kept {code}" in read
        assert published[str(owner.get("tenant"))] in read
        read = read.replace(published[str(owner.get("tenant"))], "")
        assert [each for each in codes if each in read] == [code]


@pytest.mark.slow
async def test_a_second_run_under_an_id_has_memories_and_artifacts_of_its_own(
    remembering: Any, database: Database, session: str
) -> None:
    reads = calls(ToolUse("bash", {"command": "cat long.txt"}, "c1"))
    reads_all = calls(ToolUse("read_artifact", {"artifact": "t1-c1"}, "c2"))
    loom, model = await remembering(script([reads, text(CODENAME), reads, reads_all, text(OTHER_CODENAME)]))
    file, name = loom.workspace / "long.txt", f"test-{uuid4().hex[:8]}"
    for word in ("first", "second"):
        file.write_text(f"{word}\n" * 9_000)
        request: dict[str, object] = {
            "task": "what is the codename?",
            "session_id": session,
            "workspace": str(loom.workspace),
        }
        request["permissions"] = {"bash": "allow"}
        # A plain Temporal client may use the id of a closed run again. Loom's own client refuses that.
        await loom.client.temporal.start_workflow("AgentRun", request, id=name, task_queue=loom.settings.task_queue)
        assert (await loom.client.result(name)).status is RunStatus.COMPLETED

    assert "second" in str(model.requests[-1].messages[-1]["content"])

    async def kept() -> bool:
        said = " ".join(await remembered(database, session, Layer.L1, "codename Zanzibar Lisbon"))
        return "Zanzibar" in said and "Lisbon" in said

    await eventually(kept)


async def test_a_conversation_is_recalled_however_much_its_run_did(
    remembering: Any, database: Database, session: str
) -> None:
    looks = [calls(*(ToolUse("list_dir", {"path": "."}, f"c{turn}-{n}") for n in range(3))) for turn in range(4)]
    helped = calls(*(delegate(f"part {n}", f"WORK {n}", f"d{n}") for n in range(4)))
    loom, model = await remembering(
        by_task({"WORK": [text("part done")], "my name": [*looks, helped, text(CODENAME)], "go on": [text("fine")]})
    )
    await loom.run("my name is Eva: what is the codename?", session_id=session)

    async def kept() -> bool:
        return await has_ended(database, session)

    await eventually(kept)
    await loom.run("go on", session_id=session)

    read = [told(model, number) for number in range(len(model.requests))]
    (going_on,) = [each for each in read if "go on" in each and not each.startswith("You distil")]  # memory asks, too
    assert f"user: my name is Eva: what is the codename?\nassistant: {CODENAME}" in going_on


@pytest.mark.slow
async def test_what_was_important_is_summarised_when_its_run_has_ended(
    remembering: Any, database: Database, session: str
) -> None:
    loom, _ = await remembering(script([text(CODENAME)]))
    await loom.run("what is the codename?", session_id=session)

    async def summaries() -> list[str] | None:
        found = await remembered(database, session, Layer.L3, "codename release")
        return [fact for fact in found if "Zanzibar" in fact] or None

    assert all(len(fact) <= 200 for fact in await eventually(summaries))


@pytest.mark.slow
async def test_a_model_asks_its_memory_and_keeps_notes(remembering: Any, database: Database, session: str) -> None:
    loom, model = await remembering(
        script(
            [
                text(CODENAME),
                calls(ToolUse("search_memory", {"query": "codename release"})),
                calls(ToolUse("write_memory", {"id": "codename", "content": "Zanzibar"})),
                calls(ToolUse("read_memory", {"id": "codename"}), ToolUse("read_memory", {})),
                text("done"),
            ]
        )
    )
    first = await loom.run("what is the codename?", session_id=session)

    async def kept() -> bool:
        return bool(await remembered(database, session, Layer.L1, "Zanzibar"))

    await eventually(kept)
    second = await loom.run("look it up", session_id=session)
    assert (first.status, second.status) == (RunStatus.COMPLETED, RunStatus.COMPLETED)
    results = [str(m["content"]) for m in model.requests[-1].messages if m["role"] == "tool"]
    assert "Zanzibar" in results[0]
    assert "[L" in results[0], "every hit says from which layer it is"
    assert results[1] == "Kept as version 1 of 'codename' (local)."
    assert results[2].endswith("\nZanzibar")
    assert "- codename (local, version 1): Zanzibar" in results[3]


async def test_the_upkeep_of_memory_is_no_run(remembering: Any, session: str) -> None:
    loom, _ = await remembering(script([text(CODENAME)]))
    await loom.run("what is the codename?", session_id=session)
    name = upkeep_id(loom.settings.task_queue)

    async def is_there() -> bool:
        return [each async for each in loom.client.temporal.list_workflows(f"WorkflowId = '{name}'")] != []

    await eventually(is_there)
    for ask in (loom.client.status, loom.client.transcript, loom.client.has_ended):
        with pytest.raises(RunNotFoundError, match=f"there is no run '{name}'; `loom list` shows"):
            await ask(name)


@pytest.mark.parametrize("settings", [{"memory": "off"}, {"database_url": None}])
async def test_where_nothing_is_remembered_its_tools_may_be_named_and_no_model_is_offered_them(
    working: Working, settings: dict[str, Any]
) -> None:
    loom, model = await working(script([text("fine")]), **{"memory": "on", **settings})
    result = await loom.run(permissions={"search_memory": "allow", "publish_memory": "deny"})
    assert result.status is RunStatus.COMPLETED
    offered = {tool["function"]["name"] for tool in model.requests[0].body["tools"]}
    assert "read_file" in offered
    assert not {name for name in offered if "memory" in name}
    assert "search_memory" not in str(model.requests[0].messages[0])


@pytest.mark.slow
async def test_publishing_to_all_sessions_is_asked_about(remembering: Any, session: str) -> None:
    publish = calls(ToolUse("publish_memory", {"id": f"rule-{session}", "content": "never on Fridays"}, id="p"))
    read = calls(ToolUse("read_memory", {"id": f"rule-{session}"}))
    loom, model = await remembering(script([publish, text("published"), read, text("read")]))
    run_id = await loom.start("publish it", session_id=session)
    await loom.asked(run_id)
    await loom.client.approve(run_id, "p")
    await loom.client.result(run_id)
    await loom.run("read it", session_id=f"{session}-other")
    assert "never on Fridays" in told(model, 3)


async def test_memory_that_is_away_is_said_and_stops_nothing(remembering: Any, session: str) -> None:
    loom, model = await remembering(
        script([text("fine")]), database_url="postgresql://127.0.0.1:1/nowhere", snapshots="off"
    )
    result = await loom.run("what did we say?", session_id=session)
    assert result.status is RunStatus.COMPLETED
    assert AWAY in told(model, 0)


@pytest.mark.slow
async def test_a_run_without_a_session_is_its_own_and_asks_memory_nothing(remembering: Any) -> None:
    loom, model = await remembering(script([text(CODENAME), text("fine")]))
    await loom.run("what is the codename?")
    await loom.run("what is the codename?")
    assert NOTICE not in told(model, 1)


async def test_an_agent_with_knowledge_reads_what_it_says_and_where(
    remembering: Any, database: Database, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"base-{uuid4().hex[:6]}"
    knowledge = PostgresKnowledge(database)
    await knowledge.begin(name, "/docs")
    chunk = Chunk(text="Backups of the ledger are taken hourly by cron on pg-7.", first_line=3, last_line=3)
    await knowledge.save(name, Document(path="ops.md", digest="d", chunks=(chunk,)))
    (workspace / "librarian.py").write_text(
        f"from loom import LoomApp\n\napp = LoomApp()\napp.create_agent('librarian', knowledge=['{name}'])\n"
    )
    monkeypatch.syspath_prepend(workspace)
    loom, model = await remembering(script([text("hourly")]), app="librarian:app")
    await loom.run("when are backups of the ledger taken?", agent="librarian")
    assert f"- {name}: ops.md:3\nBackups of the ledger are taken hourly by cron on pg-7." in told(model, 0)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "- handbok: there is no knowledge base of this name."),
        ({"database_url": None}, NO_KNOWLEDGE),
    ],
)
async def test_a_knowledge_base_that_is_not_there_is_said_and_stops_nothing(
    working: Working, tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    app = tmp_path / "mistyped.py"
    app.write_text("from loom import LoomApp\napp = LoomApp()\napp.create_agent('clerk', knowledge=['handbok'])\n")
    loom, model = await working(script([text("fine")]), app=f"{app}:app", **settings)
    assert (await loom.run("when are backups taken?", agent="clerk")).output == "fine"
    assert says in told(model, 0)


@pytest.mark.slow
async def test_the_task_of_a_run_is_shared_from_its_start(remembering: Any, database: Database, session: str) -> None:
    loom, _ = await remembering(script([text("done")]))
    await loom.run("count the beans", session_id=session)
    run_id = loom.started[0]
    scoped = PostgresScopedMemory(database)

    async def shared() -> ScopedEntry | None:
        return await scoped.read(f"task:{run_id}", (run_id, f"{run_id}/child"), Owner())

    entry = await eventually(shared)
    assert (entry.content, entry.scope, entry.version) == ("count the beans", MemoryScope.SHARED, 1)


async def test_what_the_bus_lost_is_shared_when_memory_catches_up(
    working: Working, database: Database, session: str
) -> None:
    loom, _ = await working(script([text("done")]))
    memory, scoped = PostgresMemory(database), PostgresScopedMemory(database)
    kept, forgotten = session, f"{session}-forgotten"
    for name in (kept, forgotten):
        await loom.run(f"count the beans of {name}", session_id=name)
    await memory.forget(forgotten)
    histories = TemporalHistories(loom.client.temporal, loom.settings.task_queue)
    mask = OutputSanitizer(secret_mask(loom.settings), None)
    for _ in range(2):
        await CatchUp(histories, memory, mask, scoped=scoped).until(datetime.now(UTC))

    (note,) = await scoped.export(kept)
    assert (note.id, note.content) == (f"task:{loom.started[0]}", f"count the beans of {kept}")
    assert await scoped.export(forgotten) == ()


@pytest.mark.slow
async def test_a_sub_agent_is_given_no_conversation_of_the_session(
    remembering: Any, database: Database, session: str
) -> None:
    child = calls(delegate("look it up", "LOOK IT UP"))
    loom, model = await remembering(
        by_task({"what is": [text(CODENAME)], "go on": [child, text("done")], "LOOK IT UP": [text("found")]})
    )
    await loom.run("what is the codename?", session_id=session)

    async def kept() -> bool:
        return await has_ended(database, session)

    await eventually(kept)
    await loom.run("go on", session_id=session)

    (of_child,) = (n for n, request in enumerate(model.requests) if "LOOK IT UP" in str(request.messages[1]["content"]))
    assert "Earlier in this session" in told(model, 1)
    assert "Earlier in this session" not in told(model, of_child)


@pytest.mark.slow
async def test_what_runs_left_is_deleted_when_they_ended_long_ago(
    remembering: Any, database: Database, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = calls(ToolUse("publish_memory", {"id": "x", "content": "y"}, id="p"))
    loom, _ = await remembering(by_task({"wait": [publish, text("done")], "end": [text("done")]}))
    waiting = await loom.start("wait")
    await loom.asked(waiting)
    await loom.run("end")
    ended, gone = loom.started[1], f"gone-{uuid4().hex}"
    own = [waiting, f"{waiting}/d1-1-aaaa", ended, gone]
    for run_id in own:
        await PostgresArtifacts(database).save(run_id, "t1-c1", "a long output")
        await PostgresEffects(database).reserve(f"{run_id}/c1", run_id, 1)
    await rows(url, "UPDATE loom_artifacts SET created_at = now() - interval '40 days' WHERE run_id = ANY(%s)", (own,))
    await rows(url, "UPDATE loom_effects SET created_at = now() - interval '40 days' WHERE run_id = ANY(%s)", (own,))
    monkeypatch.setenv("LOOM_DATABASE_URL", url)
    monkeypatch.setenv("TEMPORAL_ADDRESS", loom.settings.temporal_address)
    monkeypatch.setenv("TEMPORAL_NAMESPACE", loom.settings.temporal_namespace)

    async def kept() -> set[str]:
        sql = "SELECT run_id FROM loom_artifacts INTERSECT SELECT run_id FROM loom_effects"
        return {run for (run,) in await rows(url, sql)}.intersection(own)

    app = typer.Typer()
    app.add_typer(memory.app)
    words = ["memory", "retain", "--older-than", "30", "--json"]
    trial = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--dry-run"])
    assert await kept() == {waiting, f"{waiting}/d1-1-aaaa", ended, gone}
    done = await asyncio.to_thread(CliRunner().invoke, app, words)
    for result, dry_run in ((trial, True), (done, False)):
        told = json.loads(result.stdout)
        assert {name: told[name] for name in ("dry_run", "runs", "artifacts", "effects", "kept")} == {
            "dry_run": dry_run,
            "runs": 1,
            "artifacts": 1,
            "effects": 1,
            "kept": 3,
        }
    assert await kept() == {waiting, f"{waiting}/d1-1-aaaa", ended}

    async def deleted() -> bool:
        await memory._retain(loom.client, datetime.now(UTC), dry_run=False)
        return ended not in await kept()

    await eventually(deleted)
    assert await kept() == {waiting, f"{waiting}/d1-1-aaaa"}, "what still goes on keeps the account of its effects"
    await loom.client.abort(waiting)
    await loom.client.result(waiting)
