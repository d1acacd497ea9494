"""`loom memory`: searching, showing, exporting and forgetting, for people and for programs."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import typer
from typer.testing import CliRunner, Result

from activities.adapters.postgres import Database
from activities.adapters.postgres_memory import PostgresMemory
from loom_cli import memory
from loom_cli.exits import UNREACHABLE, USAGE, code_of
from tests.commands import commands_in
from tests.memories import task

APP = typer.Typer()
memory.register(APP)


@pytest.fixture
async def session(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A session in which something was said."""
    monkeypatch.setenv("LOOM_DATABASE_URL", url)
    session, database = uuid4().hex, Database(url)
    await PostgresMemory(database).remember(
        [
            task("the database of staging is pg-7", session_id=session, task_id=f"{session}/1", importance=0.9),
            task("\x1b[31mred\x1b[0m alert", session_id=session, importance=0.2),
            task("the database of another session", session_id=session + "x", importance=0.9),
        ]
    )
    yield session
    await database.aclose()


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
        "score": 1.0,
        "session_id": session,
        "task_id": f"{session}/1",
        "run_id": "run",
        "action": "node.message",
        "node": "default",
        "importance": 0.9,
        "similarity": None,
    }
    assert {name: hit[name] for name in wanted} == wanted
    (shown,) = await told("search", "staging database", "--session", session, "--layer", "l1", "--limit", "1")
    assert (shown["id"], shown["layer"]) == (hit["id"], "L1")
    assert await told("search", "staging database", "--session", session, "--layer", "L3") == []
    assert await told("search", "database", "--session", session, "--action", "node.error") == []
    assert len(await told("search", f"database {session}")) >= 2
    whole = await told("show", str(hit["id"]))
    assert whole["task"]["parameters"] == {"text": "the database of staging is pg-7"}


async def test_people_see_nothing_that_steers_their_terminal(session: str) -> None:
    result = await run("search", "alert", "--session", session)
    assert "red alert" in result.stdout
    assert "\x1b" not in result.stdout
    nothing = await run("search", "nonesuch", "--session", session)
    assert (nothing.stdout, nothing.exit_code) == ("", 0)
    assert "nothing of that is remembered" in nothing.stderr


async def test_a_session_is_exported_whole_and_then_forgotten(session: str) -> None:
    exported = await run("export", "--session", session)
    lines = [json.loads(line) for line in exported.stdout.splitlines()]
    assert [line["session_id"] for line in lines] == [session] * 2
    assert lines[0]["task"]["task_id"] == f"{session}/1"
    assert (await run("export", "--session", session, "--json")).stdout == exported.stdout
    before = await told("stats", "--session", session)
    assert before["layers"] == {"L1": 1, "L2": 1}
    assert await told("forget", "--session", session) == {"session_id": session, "forgotten": 2}
    assert (await told("stats", "--session", session))["tasks"] == 0
    assert (await run("export", "--session", session)).stdout == ""
    assert await told("search", "staging", "--session", session) == []


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
    assert ran.err.endswith("without a database: start `loom up`, or set LOOM_DATABASE_URL")


async def test_what_is_wrong_is_named(session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert session
    missing = (await run("show", "999999")).exception
    assert missing is not None
    assert code_of(missing) == USAGE
    monkeypatch.setenv("LOOM_DATABASE_URL", "postgresql://127.0.0.1:1/nowhere")
    away = (await run("stats")).exception
    assert away is not None
    assert code_of(away) == UNREACHABLE
    assert "LOOM_DATABASE_URL" in str(away)
