"""Memory on a real Postgres: each Task once, sessions apart, found by words and by meaning."""

import asyncio
from contextlib import aclosing
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.memory_search import Effort
from loom.activities.adapters.postgres.memory_upkeep import PostgresMemoryUpkeep
from loom.activities.adapters.postgres.person_facts import PostgresPersonFacts
from loom.activities.adapters.postgres.scoped_memory import PostgresScopedMemory
from loom.activities.memory.person_facts import learn_by_rule
from loom.activities.memory.ports import MemoryStore, MemoryUpkeepStore
from loom.activities.memory.upkeep import embed
from loom.activities.ports import StoreUnavailable
from loom.activities.recall import SessionMemory
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.tasks import Action, Origin, Task
from loom.domain.core.tenants import Owner, OwnerFilter
from loom.domain.memory.layers import Hit, Layer, MemoryStats, Query, View
from loom.domain.memory.scopes import ScopedWrite
from loom.testing.harness import Addresses
from loom.testing.waiting import PATIENCE
from tests.databases import fresh_database, rows
from tests.memories import WordVectors, task

WORDS = WordVectors()


@pytest.fixture(scope="module")
def memory(database: Database) -> PostgresMemory:
    return PostgresMemory(database, embedder=WORDS)


@pytest.fixture(scope="module")
def upkeep(database: Database) -> PostgresMemoryUpkeep:
    return PostgresMemoryUpkeep(database, model=WORDS.model, dimension=WORDS.dimension)


def view(session: str | None, **given: object) -> View:
    return replace(View(session_id=session, owner=Owner()), **given)  # type: ignore[arg-type]


def texts(hits: tuple[Hit, ...]) -> list[str]:
    return [hit.memory.content for hit in hits]


def test_it_is_what_the_ports_ask_for(memory: PostgresMemory, upkeep: PostgresMemoryUpkeep) -> None:
    store: MemoryStore = memory
    keeper: MemoryUpkeepStore = upkeep
    assert (store, keeper) == (memory, upkeep)


# ---- taking in -------------------------------------------------------------------------------------------------


async def test_a_task_comes_back_whole_with_where_it_comes_from(memory: PostgresMemory, session: str) -> None:
    said = task(
        "the deploy needs the VPN",
        run_id=f"run-{session}",
        session_id=session,
        task_id=f"run-{session}/t3-call-c1.1/result/node.tool_result",
        action=Action.TOOL_RESULT,
        parent_task_id="parent",
        status="error",
        result={"content": "half \ud800, nul \0, 中文", "deep": {"list": [1, None, 0.5]}},
        importance=0.7,
    )
    await memory.remember([task("first", run_id=said.run_id, session_id=session), said])
    (hit,) = await memory.by_action(view(session), "node.tool_result")
    kept = await memory.by_id(hit.memory.id)
    assert kept is not None
    assert (kept.task, kept.turn, kept.ordinal, kept.layer, kept.importance) == (said, 3, 2, Layer.L2, 0.7)
    assert (kept.run_id, kept.session_id, kept.task_id, kept.parent_task_id) == (
        said.run_id,
        session,
        said.task_id,
        "parent",
    )
    assert kept.content == "the deploy needs the VPN\nhalf ?, nul \ufffd, 中文\ndeep: " + '{"list":[1,null,0.5]}'


async def test_taking_in_again_in_any_mixture_changes_nothing(memory: PostgresMemory, url: str, session: str) -> None:
    tasks = [task(f"message {n}", run_id=f"run-{session}", session_id=session) for n in range(30)]
    counts = await asyncio.gather(*(memory.remember(tasks[n % 7 :] + tasks[: n % 5]) for n in range(8)))
    assert sum(counts) == 30
    assert await memory.remember(tasks) == 0
    numbers = await rows(
        url, "SELECT ordinal FROM loom_memory_tasks WHERE session_id = %s ORDER BY ordinal", (session,)
    )
    assert numbers == [(n,) for n in range(1, 31)]
    assert await rows(url, "SELECT count(*) FROM loom_memory WHERE session_id = %s", (session,)) == [(30,)]


async def test_pieces_of_text_on_their_way_are_not_remembered(memory: PostgresMemory, session: str) -> None:
    pieces = [task("piece", session_id=session, action=action) for action in (Action.THINKING, Action.TOOL_PROGRESS)]
    assert await memory.missing(pieces) == ()
    assert await memory.remember(pieces) == 0
    assert await memory.recent(view(session)) == ()


async def test_a_run_whose_request_was_wrong_is_not_remembered(memory: PostgresMemory, session: str) -> None:
    def ended(kind: str, turns: int) -> Task:
        return task(kind, session_id=session, action=Action.ERROR, result={"turns": turns, "error": {"type": kind}})

    wrong, later, failed = ended("BadRequest", 0), ended("BadRequest", 2), ended("LLMUnavailableError", 0)

    assert await memory.missing([wrong, later, failed]) == (later, failed)
    assert await memory.remember([wrong, later, failed]) == 2


async def test_what_is_missing_is_what_would_be_taken_in(memory: PostgresMemory, session: str) -> None:
    known, new = task("known", session_id=session), task("new", session_id=session)
    await memory.remember([known])
    assert await memory.missing([known, new]) == (new,)


async def test_a_run_without_a_session_is_its_own(memory: PostgresMemory, session: str) -> None:
    await memory.remember([task("alone", run_id=session, session_id="")])
    assert texts(await memory.recent(view(session))) == ["alone"]


HARD = st.text(st.sampled_from(["\0", "\\", "\ud800", "'", '"', "%", "ä", "中", "😀", " ", "x"]), max_size=6)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HARD, HARD, HARD, st.one_of(st.just(""), HARD.map(lambda text: text * 2_000)))
async def test_whatever_the_texts_are_a_task_is_kept_as_it_was_and_found(
    memory: PostgresMemory, node: str, status: str, text: str, long: str
) -> None:
    name = uuid4().hex + long
    said = task(f"needle {text}", run_id=name, session_id=name, source_agent=node, status=status, parent_task_id=long)
    assert await memory.remember([said]) == 1
    (hit,) = await memory.recall(Query(text=f"needle {text}", view=view(name)))
    assert hit.memory.task == said
    assert len(await memory.by_node(view(name), node)) == 1
    assert [kept.task async for kept in memory.export(name)] == [said]
    assert (await memory.forget(name)).memories == 1


# ---- looking ---------------------------------------------------------------------------------------------------


async def test_recent_important_by_action_and_by_node(memory: PostgresMemory, session: str) -> None:
    await memory.remember(
        [
            task("oldest", session_id=session, importance=0.9, hours_ago=3),
            task("of another agent", session_id=session, source_agent="other", importance=0.7, hours_ago=2),
            task("failed", session_id=session, action=Action.ERROR, hours_ago=1),
            task("newest", session_id=session, importance=0.1),
        ]
    )
    assert texts(await memory.recent(view(session, limit=2))) == ["newest", "failed"]
    assert texts(await memory.important(view(session, limit=2))) == ["failed", "oldest"]
    assert texts(await memory.by_action(view(session), "node.error")) == ["failed"]
    assert texts(await memory.by_node(view(session), "other")) == ["of another agent"]
    assert texts(await memory.recent(view(session, min_importance=0.7))) == ["failed", "of another agent", "oldest"]
    since = datetime.now(UTC) - timedelta(hours=1.5)
    assert texts(await memory.recent(view(session, since=since))) == ["newest", "failed"]
    assert not {"newest", "failed"} & set(texts(await memory.recent(view(session, until=since))))
    assert texts(await memory.recent(view(session, since=since, until=since))) == []


async def test_an_important_task_of_the_last_hour_is_in_both_whole_layers(memory: PostgresMemory, session: str) -> None:
    await memory.remember(
        [
            task("important now", session_id=session, importance=0.9),
            task("important then", session_id=session, importance=0.9, hours_ago=2),
            task("by the way", session_id=session, importance=0.2),
        ]
    )

    async def seen(*layers: Layer) -> dict[str, Layer]:
        found = await memory.recent(view(session, layers=frozenset(layers)))
        return {hit.memory.content: hit.layer for hit in found}

    assert await seen(Layer.L1) == {"important now": Layer.L1, "by the way": Layer.L1}
    assert await seen(Layer.L2) == {"important now": Layer.L2, "important then": Layer.L2}
    assert await seen() == {"important now": Layer.L2, "important then": Layer.L2, "by the way": Layer.L1}
    assert await seen(Layer.L3, Layer.L4) == {}


async def test_words_find_english_chinese_and_names_in_code(memory: PostgresMemory, session: str) -> None:
    said = (
        "The staging database lives on host pg-7 behind the bastion.",
        "用户的数据库密码每九十天更换一次。",
        "Call read_artifact with the id; loadConfig fails without loom.toml.",
        "Deploys happen on Thursdays after the tests have passed.",
    )
    await memory.remember([task(text, session_id=session) for text in said])

    async def first(question: str) -> str:
        return texts(await memory.recall(Query(text=question, view=view(session))))[0]

    assert await first("where is the database for staging?") == said[0]
    assert await first("密码多久更换") == said[1]
    assert await first("artifact") == said[2]
    assert await first("config") == said[2]
    assert await first("deploy test") == said[3]


async def test_a_hit_says_its_layer_score_and_likeness(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str
) -> None:
    text = "The release branch is cut every second Tuesday by the build team."
    await memory.remember(
        [
            task(text, session_id=session, importance=0.9),
            task(
                "The release of the hostage was cut from the film on Tuesday night, they say.",
                session_id=session,
                importance=0.2,
            ),
        ]
    )
    await embed(upkeep, WORDS, 10)
    best, other = await memory.recall(Query(text=text, view=view(session)))
    assert best.layer == Layer.L2
    assert 0.6 < best.score <= 1
    assert best.similarity == pytest.approx(1.0, abs=1e-5)
    # Without a vector, since L1 gets none: found by its words alone.
    assert (other.layer, other.similarity) == (Layer.L1, None)
    assert 0 < other.score < 0.6


async def test_a_threshold_is_for_what_only_means_the_same(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str
) -> None:
    await memory.remember(
        [task("Cats sleep through most of the day and hunt when it gets dark outside.", session_id=session)]
    )
    await embed(upkeep, WORDS, 10)

    async def found(question: str, threshold: float) -> int:
        return len(await memory.recall(Query(text=question, view=view(session), threshold=threshold)))

    assert await found("zebra", -1.0) == 1
    assert await found("zebra", 0.5) == 0
    assert await found("cats", 0.999) == 1


async def test_without_its_embedder_memory_is_searched_by_words(
    database: Database, upkeep: PostgresMemoryUpkeep, session: str
) -> None:
    away = WordVectors()
    memory = PostgresMemory(database, embedder=away)
    await memory.remember([task("The answer to everything is known to be forty-two.", session_id=session)])
    await embed(upkeep, WORDS, 10)
    away.is_away = True
    (hit,) = await memory.recall(Query(text="answer", view=view(session)))
    assert hit.similarity is None


async def test_a_run_is_reminded_of_what_words_find_while_the_embedder_is_busy(
    database: Database, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loom.activities.recall.WITHIN", PATIENCE)
    busy = WordVectors()
    busy.takes = 100 * PATIENCE
    memory = PostgresMemory(database, embedder=busy, question_within=0.2)
    await memory.remember([task("staging is pg-7", session_id=session, run_id="earlier", importance=0.9)])
    origin = Origin(run_id="later", session_id=session)
    told = await SessionMemory(memory).recall("where is staging?", origin, AgentSpec(name="a", model="m"))
    assert told is not None
    assert "staging is pg-7" in told.text


async def test_vectors_of_two_models_are_never_compared(
    database: Database, memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str
) -> None:
    await memory.remember([task("The quick brown fox jumps over the lazy dog, again.", session_id=session)])
    await embed(upkeep, WORDS, 10)
    for other in (WordVectors(model="newer"), WordVectors(dimension=32)):
        newer = PostgresMemory(database, embedder=other)
        query = Query(text="the lazy dog", view=view(session))
        (hit,) = await newer.recall(query)
        assert hit.similarity is None
        assert await newer.recall(replace(query, text="zebra")) == ()
        keeper = PostgresMemoryUpkeep(database, model=other.model, dimension=other.dimension)
        assert await keeper.due_for_vector(10) == ()
        assert await embed(keeper, other, 10, other_models=True) >= 1
        (hit,) = await newer.recall(query)
        assert hit.similarity is not None
        assert hit.memory.model == other.model
    await embed(upkeep, WORDS, 10, other_models=True)


async def test_where_much_is_remembered_common_words_rank_what_rarer_ones_have_found(
    database: Database, url: str, session: str
) -> None:
    memory = PostgresMemory(database, effort=Effort(few=0, most_matches=5))
    said = [task(f"weather report number {n}", session_id=session, importance=0.2) for n in range(60)]
    told = task("weather report of the hurricane", session_id=session)
    await memory.remember([*said, told])
    await rows(url, "ANALYZE loom_memory")
    assert texts(await memory.recall(Query(text="hurricane report", view=view(session)))) == [told.parameters["text"]]
    newest = {one.parameters["text"] for one in [*said[-4:], told]}
    assert set(texts(await memory.recall(Query(text="weather report", view=view(session))))) == newest


async def test_of_common_words_only_a_memory_has_to_have_them_together(addresses: Addresses, session: str) -> None:
    every = {"weather": 2, "report": 3, "monday": 5}
    said = [" ".join([*(word for word in every if n % every[word] == 0), f"number {n}"]) for n in range(300)]
    async with fresh_database(addresses.database) as url, aclosing(Database(url)) as database:
        memory = PostgresMemory(database, effort=Effort(few=0, most_matches=12))
        await memory.remember([task(text, session_id=session, importance=0.2) for text in said])
        await rows(url, "VACUUM ANALYZE loom_memory")
        found = texts(await memory.recall(Query(text="weather report monday", view=view(session, limit=20))))
    assert sorted(found) == sorted(said[::30])


async def test_no_text_is_shown_twice(memory: PostgresMemory, session: str) -> None:
    await memory.remember([task("tests  PASSED", session_id=session), task("Tests passed", session_id=session)])
    assert len(await memory.recall(Query(text="tests", view=view(session)))) == 1
    assert len(await memory.recent(view(session))) == 1
    assert (await memory.stats(session)).tasks == 2


@pytest.mark.parametrize(
    "question", ["", "   ", "?!", "%s %(x)s $1 {0} '", "'; DROP TABLE loom_memory; --", "a" * 9999]
)
async def test_any_question_gets_an_answer(memory: PostgresMemory, session: str, question: str) -> None:
    await memory.remember([task("something", session_id=session)])
    assert len(await memory.recall(Query(text=question, view=view(session)))) <= 1


# ---- sessions --------------------------------------------------------------------------------------------------

SESSIONS = ("a", "b")
OWNERS = tuple(Owner(user_id=user, tenant=tenant) for user in ("", "ann", "eve") for tenant in ("", "t1", "t2"))
SAID = st.tuples(
    st.sampled_from(SESSIONS),
    st.sampled_from(OWNERS),
    st.sampled_from(["the vault code is seven", "the deploy needs the tunnel"]),
    st.booleans(),
    st.sampled_from([0.2, 0.9]),
    st.sampled_from([Action.MESSAGE, Action.COMPLETE]),
)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SAID, max_size=30))
async def test_an_owners_session_sees_its_own_memories_and_its_tenants_global_ones_and_no_others(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, said: list[tuple[str, Owner, str, bool, float, Action]]
) -> None:
    prefix = uuid4().hex
    told: dict[str, tuple[str, Owner, str, bool]] = {}
    for number, (session, owner, text, is_global, importance, action) in enumerate(said):
        names = {"user_id": owner.user_id, "tenant": owner.tenant, "scope": "global" if is_global else ""}
        one = task(
            f"{prefix}: {text}",
            session_id=prefix + session,
            run_id=f"{prefix}{number}",
            action=action,
            metadata={"importance": importance, **{name: value for name, value in names.items() if value}},
        )
        told[one.task_id] = (session, owner, f"{prefix}: {text}", is_global)
        await memory.remember([one])
    for due in await upkeep.due_for_summary(100):
        await upkeep.summarise(due.id, [due.content])
    await embed(upkeep, WORDS, 10)

    for session, owner in product(SESSIONS, OWNERS):
        here = view(prefix + session, owner=owner, limit=50)
        visible = {
            name: text
            for name, (where, whose, text, is_global) in told.items()
            if (where, whose) == (session, owner) or (is_global and whose.tenant == owner.tenant)
        }
        for found in (
            await memory.recall(Query(text=f"{prefix} vault deploy", view=here)),
            await memory.recent(here),
            await memory.important(here),
            await memory.by_node(here, "default"),
            await memory.by_action(here, "node.message"),
        ):
            seen = [hit.memory for hit in found if hit.memory.task_id in told]
            assert {each.task_id for each in seen} <= visible.keys()
        assert set(texts(await memory.recent(here))) & set(visible.values()) == set(visible.values())
        of = OwnerFilter(**asdict(owner))
        exported = [each.task_id async for each in memory.export(prefix + session, of)]
        assert {*exported} == {name for name, one in told.items() if one[:2] == (session, owner)}
    for session in SESSIONS:
        await memory.forget(prefix + session)


async def test_one_owners_session_is_forgotten_and_those_of_others_of_the_same_name_stay(
    memory: PostgresMemory, database: Database, session: str
) -> None:
    """Even if their runs had the same id, one after the other, and said the same."""
    ann, bob, eve = (Owner(user_id=user, tenant=tenant) for user, tenant in (("ann", "a"), ("bob", "a"), ("eve", "e")))
    owners = (ann, bob, eve, Owner())
    notes, people = PostgresScopedMemory(database), PostgresPersonFacts(database)
    tasks = [task("I prefer tabs", run_id=session, session_id=session, metadata=asdict(owner)) for owner in owners]
    for owner in owners:
        by = (session,)
        await notes.write(ScopedWrite(id="plan", content="x", by=by, written_for=owner, session_id=session))
    await memory.remember(tasks)
    await learn_by_rule(people, tasks)

    async def left() -> list[tuple[int, int, int]]:
        return [
            (
                len(await memory.recent(view(session, owner=owner))),
                len(await notes.entries((session,), owner)),
                len(await people.about((owner,))),
            )
            for owner in owners
        ]

    gone = await memory.forget(session, OwnerFilter(tenant="a", user_id="ann"))
    assert (gone.memories, gone.notes, gone.person_facts) == (1, 1, 1)
    assert await left() == [(0, 0, 0), (1, 1, 1), (1, 1, 1), (1, 1, 0)]

    await learn_by_rule(people, tasks)
    assert await memory.remember(tasks) == 0
    assert await left() == [(0, 0, 0), (1, 1, 1), (1, 1, 1), (1, 1, 0)]

    assert (await memory.forget(session, OwnerFilter(tenant="a"))).memories == 1
    await learn_by_rule(people, tasks)
    assert await left() == [(0, 0, 0), (0, 0, 0), (1, 1, 1), (1, 1, 0)]
    assert (await people.forget(eve)).facts == 1
    assert await left() == [(0, 0, 0), (0, 0, 0), (0, 0, 0), (1, 1, 0)]
    assert (await memory.forget(session)).memories == 1


async def test_what_is_forgotten_never_comes_back_and_the_rest_stays(memory: PostgresMemory, session: str) -> None:
    other = session + "-other"
    said = [task(f"private {n}", session_id=session) for n in range(3)]
    shared = task("private and global", session_id=session, metadata={"scope": "global"})
    await memory.remember([*said, shared, task("of another", session_id=other)])
    assert (await memory.forget(session)).memories == 4
    assert await memory.missing(said) == ()
    assert await memory.remember([*said, shared]) == 0
    assert texts(await memory.recent(view(other))) == ["of another"]
    assert await memory.stats(session) == MemoryStats()
    new = task("said later", session_id=session)
    assert await memory.remember([new]) == 1
    assert texts(await memory.recent(view(session))) == ["said later"]


async def test_forgetting_beside_writers_leaves_nothing(memory: PostgresMemory, session: str) -> None:
    said = [task(f"private {n}", session_id=session, run_id=f"{session}{n % 3}") for n in range(60)]
    await asyncio.gather(
        *(memory.remember(said[n : n + 6]) for n in range(0, 60, 6)), memory.forget(session), memory.remember(said)
    )
    await memory.forget(session)
    assert await memory.remember(said) == 0
    assert await memory.recent(view(session)) == ()


async def test_stats_count_what_is_there(memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str) -> None:
    long = "A sentence that is long enough to be worth a vector of its own, surely."
    await memory.remember(
        [
            task(long, session_id=session, importance=0.9),
            task("short", session_id=session, importance=0.9),
            task("quiet", session_id=session, importance=0.1),
        ]
    )
    before = await memory.stats(session)
    assert before == MemoryStats(sessions=1, tasks=3, layers={"L1": 1, "L2": 2}, waiting=1)
    await embed(upkeep, WORDS, 10)
    assert await memory.stats(session) == replace(before, waiting=0, vectors={"words": 1})


@pytest.mark.usefixtures("soon_away")
async def test_memory_that_is_away_says_so() -> None:
    async with aclosing(Database("postgresql://127.0.0.1:1/nowhere")) as database:
        memory = PostgresMemory(database)
        uses = (
            memory.remember([task("x")]),
            memory.recall(Query(text="x", view=view("s"))),
            memory.recent(view("s")),
            memory.by_id(1),
            memory.forget("s"),
            memory.stats(),
            PostgresMemoryUpkeep(database).expire(),
        )
        outcomes = await asyncio.gather(*uses, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * len(uses)
