"""`loom memory`: searching, showing, exporting and forgetting, for people and for programs."""

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import typer
from typer.testing import CliRunner, Result

from loom.activities.adapters.postgres.artifacts import PostgresArtifacts
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.effects import PostgresEffects
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.scoped_memory import PostgresScopedMemory
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.stream import RedisStream
from loom.activities.adapters.redis.transcripts import CachedTranscripts
from loom.cli.commands import memory
from loom.client import LoomClient
from loom.composition.settings import Settings
from loom.domain.core.errors import BadRequest, RunNotFoundError, UnreachableError
from loom.domain.core.messages import Message
from loom.domain.core.tasks import Action
from loom.domain.core.tenants import Owner
from loom.domain.memory.layers import MemoryScope
from loom.domain.memory.scopes import NodePath, ScopedWrite
from loom.exit_codes import UNREACHABLE, USAGE, code_of
from loom.testing.harness import Addresses
from tests.commands import commands_in
from tests.databases import rows
from tests.memories import task

APP = typer.Typer()
APP.add_typer(memory.app)


@pytest.fixture
async def session(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A session in which something was said."""
    monkeypatch.setenv("LOOM_DATABASE_URL", url)
    monkeypatch.setenv("LOOM_EMBEDDER", "off")  # these tests are about words, and its process takes a second each time
    session = uuid4().hex
    async with aclosing(Database(url)) as database:
        await PostgresMemory(database).remember(
            [
                task("the database of staging is pg-7", session_id=session, task_id=f"{session}/1", importance=0.9),
                task("\x1b[31mred\x1b[0m alert", session_id=session, importance=0.2),
                task("the database of another session", session_id=session + "x", importance=0.9),
            ]
        )
    return session


async def run(*words: str) -> Result:
    """The command, which has an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, APP, ["memory", *words])


async def told(*words: str) -> Any:
    result = await run(*words, "--json")
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout)


async def test_programs_get_hits_in_the_words_of_the_contract(session: str) -> None:
    (hit,) = await told("search", "staging database", "--session", session)
    wanted = {
        "content": "the database of staging is pg-7",
        "layer": "L2",
        "session_id": session,
        "task_id": f"{session}/1",
        "run_id": "run",
        "action": "node.message",
        "node": "default",
        "importance": 0.9,
        "similarity": None,
    }
    assert {name: hit[name] for name in wanted} == wanted
    assert 0 < hit["score"] <= 1
    (shown,) = await told("search", "staging database", "--session", session, "--layer", "l1", "--limit", "1")
    assert (shown["id"], shown["layer"]) == (hit["id"], "L1")
    assert await told("search", "staging database", "--session", session, "--layer", "L3") == []
    assert await told("search", "database", "--session", session, "--action", "node.error") == []
    assert len(await told("search", f"database {session}")) >= 2
    whole = await told("show", str(hit["id"]))
    assert whole["task"]["parameters"] == {"text": "the database of staging is pg-7"}


async def test_searches_can_be_limited_to_a_time(session: str) -> None:
    search = ("search", "database", "--session", session)
    assert len(await told(*search, "--since", "2020-01-01", "--until", "2999-12-31T23:59:59+0200")) == 1
    assert await told(*search, "--until", "2020-01-01") == []
    assert await told(*search, "--since", "2999-01-01T00:00") == []


async def test_a_text_that_no_run_has_said_is_added(session: str) -> None:
    added = await told("add", "the printer is called hugo", "--session", session, "--by", "eva")
    (hit,) = await told("search", "printer", "--session", session)
    assert (hit["task_id"], hit["content"]) == (added["task_id"], "the printer is called hugo\nby: eva")
    assert hit["session_id"] == added["session_id"] == session
    for wrong in (("", "--session", session), ("x",), ("x", "--session", session, "--global")):
        assert isinstance((await run("add", *wrong)).exception, BadRequest)


async def test_the_limits_are_those_of_the_settings(session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    l1 = ("search", "database", "--session", session, "--layer", "L1")
    assert len(await told(*l1)) == 1
    monkeypatch.setenv("LOOM_MEMORY_LIMITS", '{"recent_for": "PT0S"}')
    assert await told(*l1) == []


async def test_people_see_nothing_that_steers_their_terminal(session: str) -> None:
    result = await run("search", "alert", "--session", session)
    assert "red alert" in result.stdout
    assert "\x1b" not in result.stdout
    nothing = await run("search", "nonesuch", "--session", session)
    assert (nothing.stdout, nothing.exit_code) == ("", 0)
    assert "no memory matches" in nothing.stderr


async def test_a_session_is_exported_whole_and_then_forgotten(session: str) -> None:
    exported = await run("export", "--session", session)
    lines = [json.loads(line) for line in exported.stdout.splitlines()]
    assert [line["session_id"] for line in lines] == [session] * 2
    assert lines[0]["task"]["task_id"] == f"{session}/1"
    assert (await run("export", "--session", session, "--json")).stdout == exported.stdout
    before = await told("stats", "--session", session)
    assert before["layers"] == {"L1": 1, "L2": 1}
    gone = {"forgotten": 2, "notes": 0, "facts": 0, "artifacts": 0, "effects": 0, "keys": 0, "left": []}
    assert await told("forget", "--session", session) == {"session_id": session, **gone}
    assert (await told("stats", "--session", session))["tasks"] == 0
    assert (await run("export", "--session", session)).stdout == ""
    assert await told("search", "staging", "--session", session) == []


def note(content: str, by: NodePath, session: str) -> ScopedWrite:
    return ScopedWrite(
        id="plan", content=content, scope=MemoryScope.SHARED, by=by, written_for=Owner(), session_id=session
    )


async def test_what_agents_wrote_is_exported_and_counted_as_well(session: str, url: str) -> None:
    async with aclosing(Database(url)) as database:
        for words in ("first the tests", "docs, too"):
            plan = ScopedWrite(
                id="plan",
                content=words,
                scope=MemoryScope.SHARED,
                by=("r", "r/c"),
                written_for=Owner(),
                session_id=session,
            )
            await PostgresScopedMemory(database).write(plan)
    exported = [json.loads(line) for line in (await run("export", "--session", session)).stdout.splitlines()]
    notes = [line for line in exported if "version" in line]
    assert (len(exported), [(note["id"], note["version"], note["content"]) for note in notes]) == (
        4,
        [("plan", 1, "first the tests"), ("plan", 2, "docs, too")],
    )
    assert (notes[1]["owner"], notes[1]["scope"], notes[1]["session_id"]) == (["r", "r/c"], "shared", session)
    assert (await told("stats", "--session", session))["notes"] == 2
    assert (await told("forget", "--session", session))["forgotten"] == 4
    assert (await told("stats", "--session", session))["notes"] == 0


async def test_with_a_session_goes_what_its_runs_left_behind(
    session: str, url: str, addresses: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, running, foreign = f"{session}-ended", f"{session}-running", f"{session}-foreign"
    redis_url = addresses.redis
    monkeypatch.setenv("LOOM_REDIS_URL", redis_url)
    async with aclosing(Database(url)) as database, aclosing(RedisConnection(redis_url)) as link:
        for run_id in (ended, f"{ended}/d1-1-aaaa", running, foreign):
            of = session if run_id != foreign else f"{session}x"
            said = [task("said", session_id=of, run_id=run_id)]
            if run_id == ended:
                said.append(task("done", session_id=of, run_id=run_id, action=Action.COMPLETE))
            await PostgresMemory(database).remember(said)
            await PostgresArtifacts(database).save(run_id, "t1-c1", "a long output")
            await PostgresEffects(database).reserve(f"{run_id}/c1", run_id, 1)
            async with aclosing(CachedTranscripts(link)) as transcripts:
                await transcripts.save_result(run_id, Message(role="tool", content="out", tool_call_id="c:1"))
            await RedisStream(link).publish(said)
        note = ScopedWrite(
            id="plan", content="tests", scope=MemoryScope.SHARED, by=(running,), written_for=Owner(), session_id=session
        )
        await PostgresScopedMemory(database).write(note)
        told_of = await told("forget", "--session", session)
        assert {name: count for name, count in told_of.items() if name != "left"} == {
            "session_id": session,
            "forgotten": 7,
            "notes": 1,
            "facts": 0,
            "artifacts": 3,
            "effects": 1,
            "keys": 12,
        }
        assert told_of["left"] == ["not deleted: 2 effects of runs that may still be running"]
        left = await link.call(lambda redis: redis.keys(f"*{session}*"))
    assert sorted(left) == [
        f"loom:{what}:{foreign}{call}".encode()
        for what, call in (("events", ""), ("fence", ""), ("result", ":c:1"), ("written", ""))
    ]
    artifacts = await rows(url, "SELECT run_id FROM loom_artifacts WHERE starts_with(run_id, %s)", (session,))
    assert artifacts == [(foreign,)]


async def test_what_is_remembered_of_a_person_is_shown_edited_and_forgotten(session: str) -> None:
    ann, bob = ("--user", f"ann-{session}", "--tenant", "acme"), ("--user", f"ann-{session}")
    assert await told("add", "I prefer tabs", *ann) == {"user_id": f"ann-{session}", "tenant": "acme"}
    await told("add", "I like  tea", *ann)
    tea, tabs = await told("list", *ann)
    wanted = {"content": "I like tea", "source": "added", "user_id": f"ann-{session}", "tenant": "acme"}
    assert {name: tea[name] for name in wanted} == wanted
    assert "I prefer tabs" in (await run("list", *ann)).stdout
    assert await told("list", *bob) == []
    assert "Loom remembers nothing about user ann-" in (await run("list", *bob)).stderr

    await told("add", "I like tabs", *ann)
    await told("add", "I don't like tabs", *ann)
    hidden = [fact for fact in await told("list", "--all", *ann) if fact["superseded_by"]]
    assert [fact["content"] for fact in hidden] == ["I like tabs", "I prefer tabs"]
    (newest, _) = await told("list", *ann)
    assert f"replaced by {newest['id']}" in (await run("list", "--all", *ann)).stdout
    await told("forget", "--id", str(newest["id"]), *ann)
    await told("add", "I prefer tabs", *ann)
    (tabs, _) = await told("list", *ann)

    await told("edit", str(tabs["id"]), "I prefer spaces", *ann)
    assert [fact["content"] for fact in await told("list", *ann)] == ["I prefer spaces", "I like tea"]
    lines = (await run("export", *ann)).stdout.splitlines()
    assert [json.loads(line)["content"] for line in lines] == ["I prefer spaces", "I like tea"]
    for foreign in (("edit", str(tea["id"]), "x", *bob), ("forget", "--id", str(tea["id"]), *bob)):
        assert isinstance((await run(*foreign)).exception, RunNotFoundError)
    gone = await told("forget", "--id", str(tea["id"]), *ann)
    assert (gone["user_id"], gone["tenant"], gone["forgotten"], gone["left"]) == (f"ann-{session}", "acme", 1, [])
    assert "forgot 1 fact of user" in (await run("forget", "--yes", *ann)).stdout
    assert await told("list", *ann) == []


async def test_with_a_person_go_the_traces_of_their_runs(
    session: str, url: str, addresses: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOM_REDIS_URL", addresses.redis)
    user = f"ann-{session}"
    said = task("the codename is OTTER-7", session_id=session, run_id=f"{session}-r", metadata={"user_id": user})
    async with aclosing(Database(url)) as database, aclosing(RedisConnection(addresses.redis)) as link:
        await PostgresMemory(database).remember([said])
        await PostgresArtifacts(database).save(said.run_id, "t1-c1", "a long output")
        await PostgresEffects(database).reserve(f"{said.run_id}/c1", said.run_id, 1)
        await RedisStream(link).publish([said])
    assert await told("forget", "--user", user, "--tenant", "acme") == {
        "user_id": user,
        "tenant": "acme",
        "forgotten": 0,
        "memories": 0,
        "notes": 0,
        "artifacts": 0,
        "effects": 0,
        "keys": 0,
        "left": ["not deleted: what the person said in runs that name another user, or none"],
    }
    gone = await told("forget", "--user", user)
    assert (gone["forgotten"], gone["memories"], gone["artifacts"], gone["effects"]) == (0, 1, 1, 0)
    assert gone["keys"] >= 1
    assert gone["left"][0] == "not deleted: 1 effect of runs that may still be running"
    assert await told("search", "codename", "--session", session) == []
    assert len(await told("search", "staging", "--session", session)) == 1, "others' memories stay"


@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("list", "--user", "a\nb"),
        ("list", "--tenant", "a b"),
        ("forget",),
        ("forget", "--session", "s", "--id", "1"),
        ("forget", "--session", "s", "--user", "a\nb"),
        ("export",),
        ("search", "x", "--tenant", "a b"),
        ("add", " ", "--user", "ann"),
        ("edit", "1", "x" * 1_001, "--user", "ann"),
    ],
)
async def test_whose_facts_are_meant_must_be_said(session: str, words: tuple[str, ...]) -> None:
    assert isinstance((await run(*words)).exception, BadRequest)


async def test_a_session_belongs_to_a_person(session: str) -> None:
    """Operators who name nobody mean the sessions of everybody."""
    ann, bob = ("--user", "ann", "--tenant", session), ("--user", "bob", "--tenant", session)
    for whose in ((), ann, bob):
        await run("add", f"the code of {' '.join(whose) or 'nobody'}", "--session", session, *whose)
    await run("add", "the code of everybody in the tenant", "--global", "--tenant", session)

    async def codes(*of: str) -> set[str]:
        return {hit["content"].removeprefix("the code of ") for hit in await told("search", "code", *of)}

    of_ann, of_bob, of_all = " ".join(ann), " ".join(bob), "everybody in the tenant"
    assert await codes("--session", session, *ann) == await codes(*ann) == {of_ann}
    assert await codes("--tenant", session) == {of_ann, of_bob, of_all}
    assert await codes("--session", session, "--tenant", session) == {of_ann, of_bob}
    assert {"nobody", of_ann, of_bob} <= await codes("--session", session)
    exported = [json.loads(line) for line in (await run("export", "--session", session, *bob)).stdout.splitlines()]
    assert [(line["content"], line["user_id"]) for line in exported] == [(f"the code of {of_bob}", "bob")]
    assert (await told("forget", "--session", session, *ann))["forgotten"] == 1
    assert await codes("--tenant", session) == {of_bob, of_all}
    assert "bob" in (await run("search", "code", "--session", session)).stdout
    assert (await told("forget", "--session", session, "--tenant", session))["forgotten"] == 1
    assert await codes("--session", session) == {"nobody"}


async def test_what_redis_has_is_said_to_be_left_when_it_is_away(
    session: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOOM_REDIS_URL", "redis://127.0.0.1:1/0")
    async with aclosing(Database(url)) as database:
        await PostgresMemory(database).remember([task("said", session_id=session, run_id=session)])
    (left,) = (await told("forget", "--session", session))["left"]
    assert left == "not deleted: data of 1 run in Redis, which is not responding; it expires within seven days"


async def test_people_get_the_same_in_words(session: str) -> None:
    assert "L1 1, L2 1" in (await run("stats", "--session", session)).stdout
    (hit,) = await told("search", "staging", "--session", session)
    shown = (await run("show", str(hit["id"]))).stdout
    assert "the database of staging is pg-7" in shown
    assert f"task_id         {session}/1" in shown
    assert (await run("forget", "--session", session)).stdout == f"forgot 2 memories of session {session}\n"
    assert (await run("forget", "--session", f"{session}x")).stdout == f"forgot 1 memory of session {session}x\n"


@pytest.mark.parametrize("words", [("memory", "stats"), ("knowledge", "list"), ("knowledge", "search", "abort")])
def test_without_a_database_there_is_nothing_to_reach(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with commands_in(tmp_path, monkeypatch) as loom:
        ran = loom(*words)
    assert (ran.code, ran.out) == (UNREACHABLE, "")
    assert ran.err.endswith("a database: start `loom up`, or set LOOM_DATABASE_URL")


async def test_what_is_wrong_is_named(session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert session
    missing = (await run("show", "999999")).exception
    assert missing is not None
    assert code_of(missing) == USAGE
    monkeypatch.setenv("LOOM_DATABASE_URL", "postgresql://127.0.0.1:1/nowhere")
    monkeypatch.setattr("loom.activities.adapters.postgres.database._CONNECT_SECONDS", 0.1)
    away = (await run("stats")).exception
    assert away is not None
    assert code_of(away) == UNREACHABLE
    assert "LOOM_DATABASE_URL" in str(away)


async def test_a_program_adds_memories_and_facts(addresses: Addresses, session: str, url: str) -> None:
    settings = Settings(TEMPORAL_ADDRESS=addresses.temporal, database_url=url, redis_url=None)
    async with LoomClient.connected(settings) as loom:
        for _ in range(2):
            await loom.add_memory("the office is in Ghent", session_id=session, memory_id=f"{session}-office", by="ann")
        await loom.add_memory("write short answers", user_id=f"ann-{session}")
        with pytest.raises(BadRequest, match="choose which runs can find it"):
            await loom.add_memory("lost")
        with pytest.raises(BadRequest, match="importance"):
            await loom.add_memory("x", session_id=session, importance=2)
    (hit,) = await told("search", "office Ghent", "--session", session, "--limit", "1", "--json")
    assert (hit["session_id"], "the office is in Ghent" in hit["content"]) == (session, True)
    (fact,) = await told("list", "--user", f"ann-{session}", "--json")
    assert fact["content"] == "write short answers"


async def test_a_program_without_a_database_is_told_so(addresses: Addresses) -> None:
    settings = Settings(TEMPORAL_ADDRESS=addresses.temporal, database_url=None, redis_url=None)
    async with LoomClient.connected(settings) as loom:
        with pytest.raises(UnreachableError, match="LOOM_DATABASE_URL"):
            await loom.add_memory("x", for_all=True)
