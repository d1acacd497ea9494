"""What a model asks its memory by, and what a tool call keeps while it runs."""

from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.scoped_memory import PostgresScopedMemory
from loom.activities.memory.ephemeral import MOST_CHARACTERS, MOST_ENTRIES, EphemeralFull, EphemeralMemory
from loom.activities.ports import Tool, ToolContext
from loom.activities.toolbox.built_in.memory import NO_STORE, NOTHING, NOTICE, memory_tools
from loom.activities.toolbox.built_in.scoped_memory import scoped_memory_tools
from loom.domain.core.errors import ToolUnavailableError, ToolValidationError
from loom.domain.core.tasks import Action, Task
from loom.domain.core.tool_calls import Effect, Scope, Verdict
from tests.memories import task

NAMES = {
    "query_l1_memory",
    "query_l2_memory",
    "query_l3_memory",
    "search_memory",
    "query_recent_events",
    "query_events_by_action",
    "query_events_by_node",
    "query_collective_memory",
    "query_sibling_insights",
}


@pytest.fixture(scope="module")
def memory(database: Database) -> PostgresMemory:
    return PostgresMemory(database)


def tools(memory: PostgresMemory) -> dict[str, Tool]:
    return {tool.spec.name: tool for tool in memory_tools(memory)}


async def ask(
    tool: Tool, session: str, *, run_id: str | None = None, root_run_id: str | None = None, **arguments: Any
) -> list[str]:
    """The memories that a tool shows, by their text."""
    context = ToolContext(
        workspace=Path("/"),
        run_id=run_id or f"{session}-me",
        call_id="c1",
        idempotency_key="k",
        timeout=10,
        session_id=session,
        root_run_id=root_run_id or f"{session}-root",
    )
    shown = str(await tool.run(tool.parse(arguments), context))
    if shown == NOTHING:
        return []
    notice, *hits = shown.split("\n\n")
    assert notice == NOTICE
    return [hit.partition("\n")[2] for hit in hits]


async def test_each_question_gets_what_it_asks_for(memory: PostgresMemory, session: str) -> None:
    def said(text: str, run: str, **given: Any) -> Any:
        given = {"session_id": session, "root_run_id": f"{session}-root", "importance": 0.2, **given}
        return task(text, run_id=f"{session}-{run}", **given)

    of_sibling = said("sibling found the cause", "sibling", importance=0.9, source_agent="finder")
    await memory.remember(
        [
            said("an old decision", "root", importance=0.9, hours_ago=5),
            said("my note", "me"),
            of_sibling,
            said("sibling looked around", "sibling", action=Action.TOOL_RESULT, source_agent="finder"),
            task("of another session: decision, note, sibling, cause", session_id=session + "x", importance=0.9),
        ]
    )
    box = tools(memory)
    cause, around, mine, old = "sibling found the cause", "sibling looked around", "my note", "an old decision"
    assert await ask(box["query_recent_events"], session) == [around, mine, cause, old]
    assert await ask(box["query_recent_events"], session, top_k=1) == [around]
    recently = datetime.now(UTC) - timedelta(hours=1)
    assert await ask(box["query_recent_events"], session, until=recently.isoformat()) == [old]
    assert await ask(box["search_memory"], session, query="decision cause", since=recently.isoformat()) == [cause]
    assert await ask(box["search_memory"], session, query="decision cause", until="2020-01-01T00:00:00") == []
    assert await ask(box["query_l1_memory"], session) == [around, mine, cause]
    assert await ask(box["query_l2_memory"], session, query="decision") == [old]
    assert await ask(box["query_l3_memory"], session, query="decision") == []
    assert await ask(box["search_memory"], session, query="cause") == [cause]
    assert await ask(box["search_memory"], session, query="sibling decision", min_importance=0.5) == [old, cause]
    assert await ask(box["query_events_by_action"], session, action="node.tool_result") == [around]
    assert await ask(box["query_events_by_node"], session, node="finder") == [around, cause]
    assert await ask(box["query_collective_memory"], session) == [around, cause, old]
    assert await ask(box["query_collective_memory"], session, node_filter="finder", limit=1) == [around]
    assert await ask(box["query_sibling_insights"], session) == [cause, old, around]


async def test_siblings_are_the_runs_that_the_same_run_has_started(memory: PostgresMemory, session: str) -> None:
    root = f"{session}_root"

    def did(text: str, run_id: str, action: Action = Action.MESSAGE, **given: Any) -> Task:
        number = f"{run_id}/{text.replace(' ', '-')}/{action}"
        given = {"session_id": session, "root_run_id": root, "task_id": number, **given}
        return task(text, run_id=run_id, action=action, **given)

    first, second, below = f"{root}/d1-1-aaaa", f"{root}/d1-2-bbbb", f"{root}/d1-2-bbbb/d1-1-cccc"
    start = did("look for the cause", first, Action.START, parent_task_id=f"{root}/delegate-c1/execute")
    await memory.remember(
        [
            did("hand it over", root),
            start,
            did("look for the victims", second, Action.START, parent_task_id=f"{root}/delegate-c2/execute"),
            did("sibling found victims", second),
            did("nephew counted them", below),
            did("not of this tree", f"{session}xroot/d1-9-dddd", root_run_id=f"{session}xroot"),
        ]
    )
    siblings = tools(memory)["query_sibling_insights"]
    expected = ["sibling found victims", "look for the victims"]
    assert await ask(siblings, session, task_id=start.task_id) == expected
    assert await ask(siblings, session, run_id=first, root_run_id=root) == expected
    assert await ask(siblings, session, run_id=below, root_run_id=root) == []
    assert await ask(siblings, session, task_id="unknown") == []
    assert await ask(siblings, session, run_id=root, root_run_id=root) == [
        "nephew counted them",
        "sibling found victims",
        "look for the victims",
        "look for the cause",
    ]


def test_they_read_only_need_no_leave_and_show_five_hits(memory: PostgresMemory) -> None:
    box = tools(memory)
    assert set(box) == NAMES
    for tool in box.values():
        spec = tool.spec
        assert (spec.effect, spec.scope, spec.declared) == (Effect.READ, Scope.CONTEXT, Verdict.ALLOW)
        required = dict.fromkeys(spec.parameters.get("required", ()), "x")
        given = tool.parse(required)
        assert getattr(given, "top_k", 5) == 5
        assert getattr(given, "limit", 10) == 10
        assert tool.is_available() is None


@pytest.mark.usefixtures("soon_away")
async def test_of_a_store_that_is_away_the_model_is_told(session: str) -> None:
    async with aclosing(Database("postgresql://127.0.0.1:1/nowhere")) as database:
        with pytest.raises(ToolUnavailableError, match="memory is unavailable .* go on without it"):
            await ask(tools(PostgresMemory(database))["search_memory"], session, query="x")


async def test_without_a_store_they_are_known_and_say_what_is_missing(memory: PostgresMemory, session: str) -> None:
    absent = {tool.spec.name: tool for tool in (*memory_tools(None), *scoped_memory_tools(None))}
    assert set(absent) == {*NAMES, "read_memory", "write_memory", "publish_memory"}
    assert {name: absent[name].spec for name in NAMES} == {name: tool.spec for name, tool in tools(memory).items()}
    assert {tool.is_available() for tool in absent.values()} == {NO_STORE}
    for name, arguments in (("search_memory", {"query": "x"}), ("read_memory", {})):
        with pytest.raises(ToolUnavailableError, match="set LOOM_DATABASE_URL"):
            await ask(absent[name], session, **arguments)


def test_wrong_arguments_are_named(memory: PostgresMemory) -> None:
    with pytest.raises(ToolValidationError, match="`top_k`"):
        tools(memory)["search_memory"].parse({"query": "x", "top_k": 500})


# ---- a tool call's own state -----------------------------------------------------------------------------------


def test_what_a_tool_call_keeps_is_gone_at_its_end_however_it_ends() -> None:
    ephemeral = EphemeralMemory()
    with ephemeral.of("run", "one") as state, ephemeral.of("run", "two") as other:
        state["page"] = 3
        other["page"] = "x"
        assert ephemeral.dump_ephemeral_state() == {"run/one": {"page": "3"}, "run/two": {"page": "'x'"}}
    assert ephemeral.dump_ephemeral_state() == {}

    def fail() -> None:
        with ephemeral.of("run", "one") as state:
            state["page"] = 4
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert ephemeral.dump_ephemeral_state() == {}


def test_two_attempts_at_one_call_do_not_share_their_state() -> None:
    ephemeral = EphemeralMemory()
    with ephemeral.of("run", "one") as first:
        first["n"] = 1
        with ephemeral.of("run", "one") as second:
            assert dict(second) == {}
        assert dict(first) == {"n": 1}
        assert ephemeral.dump_ephemeral_state() == {"run/one": {"n": "1"}}


def test_a_tool_call_that_keeps_too_much_is_told_and_keeps_what_it_had() -> None:
    ephemeral = EphemeralMemory()
    with ephemeral.of("run", "one") as state:
        for number in range(MOST_ENTRIES):
            state[str(number)] = number
        with pytest.raises(EphemeralFull, match="at most 100 entries"):
            state["more"] = 1
        with pytest.raises(EphemeralFull, match="before you store '0', or write to a file"):
            state["0"] = "x" * MOST_CHARACTERS
        del state["0"]
        state["more"] = 1
        assert len(state) == MOST_ENTRIES
        assert state["1"] == 1


async def test_a_published_note_is_for_all_users_of_a_tenant(database: Database) -> None:
    box = {tool.spec.name: tool for tool in scoped_memory_tools(PostgresScopedMemory(database))}
    given: dict[str, Any] = {"workspace": Path("/"), "call_id": "c1", "idempotency_key": "k", "timeout": 10}
    nobody, ann, eve, other = (
        ToolContext(**given, run_id=uuid4().hex, tenant=tenant, user_id=user)
        for tenant, user in (("", ""), ("acme", "ann"), ("acme", "eve"), ("other", "ann"))
    )
    publish, read = box["publish_memory"], box["read_memory"]
    await publish.run(publish.parse({"id": "house-rules", "content": "be kind"}), ann)
    await publish.run(publish.parse({"id": "house-rules", "content": "be quick"}), nobody)
    told = [str(await read.run(read.parse({"id": "house-rules"}), each)) for each in (ann, eve, nobody, other)]
    assert ["be kind" in each for each in told] == [True, True, False, False]
    assert ["be quick" in each for each in told] == [False, False, True, False]
