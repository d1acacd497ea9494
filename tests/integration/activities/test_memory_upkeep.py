"""Keeping the layers, on a real Postgres: nothing important is lost, nothing whole stays beyond L2."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio.testing import ActivityEnvironment

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.memory_upkeep import PostgresMemoryUpkeep
from loom.activities.memory.ports import DistillerUnavailable
from loom.activities.memory.upkeep import MemoryKeeper, embed, promote
from loom.domain.core.tasks import FINAL_ACTIONS, Action, Task
from loom.domain.core.tenants import Owner
from loom.domain.memory.backfill import KeptMemories
from loom.domain.memory.content import is_small_talk
from loom.domain.memory.layers import Layer, Memory, MemorySettings, Query, View
from tests.databases import rows
from tests.memories import WordVectors, task

SMALL: Final = MemorySettings(recent=3, important=2, summaries=3, batch=4, summary_length=200)
WORDS: Final = WordVectors()


@pytest.fixture(scope="module")
def memory(database: Database) -> PostgresMemory:
    return PostgresMemory(database, settings=SMALL)


@pytest.fixture(scope="module")
def upkeep(database: Database) -> PostgresMemoryUpkeep:
    return PostgresMemoryUpkeep(database, settings=SMALL, model=WORDS.model, dimension=WORDS.dimension)


async def kept(memory: PostgresMemory, session: str) -> list[Memory]:
    return [memory async for memory in memory.export(session)]


async def layers(memory: PostgresMemory, session: str) -> dict[str, list[str]]:
    """The live contents of each layer, oldest first."""
    found: dict[str, list[str]] = {}
    for one in sorted(await kept(memory, session), key=lambda m: m.created_at):
        if one.superseded_by is None:
            found.setdefault(one.layer, []).append(one.content)
    return found


async def keep(upkeep: PostgresMemoryUpkeep) -> None:
    """One round, as the workflow does it."""
    await promote(upkeep, None, SMALL)
    await upkeep.expire()
    await embed(upkeep, WORDS, SMALL.batch)


# ---- one rule after the other ----------------------------------------------------------------------------------


async def test_recent_tasks_beyond_number_or_age_are_dropped(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str
) -> None:
    await memory.remember([task(f"n{n}", session_id=session, importance=0.5) for n in range(5)])
    await memory.remember([task("old", session_id=session, importance=0.5, hours_ago=1.1, source_agent="other")])
    await keep(upkeep)
    assert await layers(memory, session) == {"L1": ["n2", "n3", "n4"]}


async def test_important_tasks_beyond_number_or_age_become_summaries(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str
) -> None:
    long = "The first sentence says it. " + "Then it goes on. " * 30
    said = [long, "second", "third", "fourth"]
    await memory.remember([task(text, session_id=session, importance=0.61) for text in said])
    await memory.remember([task("old", session_id=session, importance=1.0, hours_ago=25, source_agent="other")])
    await keep(upkeep)
    found = await layers(memory, session)
    summary = "The first sentence says it. " + "Then it goes on. " * 10
    assert found == {"L3": ["old", summary.strip(), "second"], "L2": ["third", "fourth"]}


async def test_at_the_end_of_a_run_what_was_important_is_summarised_and_stays_whole_for_its_time(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str
) -> None:
    said = task("We agreed on PostgreSQL.", session_id=session, run_id=session, importance=0.9)
    await memory.remember([said])
    await keep(upkeep)
    assert await layers(memory, session) == {"L2": [said.parameters["text"]]}
    await memory.remember([task("done", session_id=session, run_id=session, action=Action.COMPLETE)])
    for _ in range(2):
        await keep(upkeep)
        expected = [said.parameters["text"], "done"]
        assert await layers(memory, session) == {"L2": expected, "L3": expected}
    shown = await memory.recall(Query(text="agreed", view=View(session_id=session, owner=Owner())))
    assert [(hit.layer, hit.memory.task) for hit in shown] == [(Layer.L2, said)]


async def test_summaries_beyond_number_or_age_are_kept_for_ever(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str
) -> None:
    ages = [24 * 30, 24 * 8, 40, 30, 28, 26]
    await memory.remember([task(f"fact {age}", session_id=session, importance=0.9, hours_ago=age) for age in ages])
    await keep(upkeep)
    assert await layers(memory, session) == {
        "L4": ["fact 720", "fact 192", "fact 40"],
        "L3": ["fact 30", "fact 28", "fact 26"],
    }


async def test_small_talk_is_not_promoted(memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str) -> None:
    said = ["ok", "好的", "Thanks!", "谢谢。", "do not touch production"]
    await memory.remember(
        [
            task(session_id=session, importance=0.9, hours_ago=25, parameters={"text": text, "by": "eva"})
            for text in said
        ]
    )
    await keep(upkeep)
    assert await layers(memory, session) == {"L3": ["eva: do not touch production"]}


class Facts:
    """A distiller that says what a test wants."""

    def __init__(self, *facts: str, is_away: bool = False) -> None:
        self._facts, self._is_away = facts, is_away
        self.asked: list[str] = []

    async def facts(self, text: str) -> Sequence[str]:
        self.asked.append(text)
        if self._is_away:
            raise DistillerUnavailable("no model")
        return self._facts


LONG: Final = "The deploy failed because the disk of build-3 was full. " + "Nobody had looked at it for weeks. " * 15


@pytest.mark.parametrize(
    ("distiller", "facts"),
    [
        (Facts("Disk of build-3 was full.", "The deploy failed.", "Disk of build-3 was full.", "x" * 300, "a", "b"), 3),
        (Facts(), 1),
        (Facts("  ", ""), 1),
        (Facts(is_away=True), 1),
    ],
)
async def test_long_text_is_distilled_to_at_most_three_facts_or_its_beginning(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str, distiller: Facts, facts: int
) -> None:
    await memory.remember(
        [
            task(LONG, session_id=session, importance=0.9, hours_ago=25),
            task("a short one is kept as it is", session_id=session, importance=0.9, hours_ago=25),
        ]
    )
    await promote(upkeep, distiller, SMALL)
    found = [one.content for one in await kept(memory, session) if one.task is None]
    assert len(found) == facts + 1
    assert max(map(len, found)) <= 200
    assert distiller.asked == [LONG]
    assert found[0].startswith("Disk of build-3" if facts == 3 else "The deploy failed because")


async def test_a_text_that_a_session_has_already_takes_its_place_and_both_are_kept(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str
) -> None:
    said = ["The VPN is needed.", "the vpn  is NEEDED."]
    await memory.remember([task(text, session_id=session, importance=0.9, hours_ago=25) for text in said])
    await keep(upkeep)
    first, second = await kept(memory, session)
    assert (first.superseded_by, second.superseded_by) == (second.id, None)
    assert first.valid_to is not None
    assert [hit.memory.id for hit in await memory.recent(View(session_id=session, owner=Owner()))] == [second.id]


async def test_what_means_the_same_is_superseded_by_the_later_but_never_with_other_numbers(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str
) -> None:
    said = (
        "the nightly backup of the main database runs on host alpha at three",
        "The nightly backup of the main database runs on host alpha, at three!",
        "the nightly backup of the main database runs on host alpha at 4",
        "the nightly backup of the main database runs not on host alpha at three",
    )
    nearly = replace(SMALL, same_from=0.9, summaries=100)
    keeper = PostgresMemoryUpkeep(upkeep._database, settings=nearly, model=WORDS.model, dimension=WORDS.dimension)
    await memory.remember([task(text, session_id=session, importance=0.9, hours_ago=25) for text in said])
    await promote(keeper, None, nearly)
    await embed(keeper, WORDS, 3)
    found = {one.content: one.superseded_by is None for one in await kept(memory, session)}
    assert found == {said[0]: False, said[1]: True, said[2]: True, said[3]: True}


async def test_vectors_are_made_in_batches_and_never_twice(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str
) -> None:
    await keep(upkeep)
    said = [f"fact number {n} of this session is long enough for a vector {uuid4().hex}" for n in range(9)]
    await memory.remember([task(text, session_id=session, importance=0.9) for text in said])
    words = WordVectors()
    assert await embed(upkeep, words, 4) == 9
    assert words.batches == [4, 4, 1]
    assert await embed(upkeep, words, 4) == 0


async def test_a_text_and_its_summary_are_embedded_once(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, database: Database, session: str
) -> None:
    await keep(upkeep)
    text, words = f"we agreed\non the port {uuid4().hex}", WordVectors()
    await memory.remember([task(text, session_id=session, run_id=session, importance=0.9)])
    await embed(upkeep, words, 4)
    await memory.remember([task("done", session_id=session, run_id=session, action=Action.COMPLETE)])
    await promote(upkeep, None, SMALL)
    both = [text, text.replace("\n", " ")]
    assert [each.layer for each in await kept(memory, session) if each.content in both] == [Layer.L2, Layer.L3]
    embedded = list(words.batches)
    assert await embed(upkeep, words, 4) == 1
    assert words.batches == embedded, "the summary is the text"
    whole, summary = [each for each in await kept(memory, session) if each.content in both]
    assert (whole.model, summary.model) == (words.model, words.model)
    question = Query(text=text, view=View(session_id=session, owner=Owner(), layers=frozenset({Layer.L3})))
    found = await PostgresMemory(database, embedder=words).recall(question)
    assert [round(hit.similarity or 0, 3) for hit in found] == [1.0]


async def test_a_vector_that_is_none_does_not_block_the_others(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str
) -> None:
    await keep(upkeep)
    said = [f"a fact of {n} that is long enough to be worth a vector of its own" for n in range(4)]
    await memory.remember([task(text, session_id=session, importance=0.9) for text in said])
    due = await upkeep.due_for_vector(10)
    bad: list[list[float]] = [[float("nan")] * 64, [0.0] * 64, [1.0], [0.5] * 64]
    assert await upkeep.keep_vectors([(one.id, vector) for one, vector in zip(due, bad, strict=True)]) == 1
    assert await upkeep.due_for_vector(10) == ()
    assert len(await memory.recent(View(session_id=session, owner=Owner()))) == 4


async def test_rounds_beside_each_other_leave_what_one_leaves(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str
) -> None:
    said = [f"fact {n} of many that are all long enough to be worth a vector" for n in range(12)]
    await memory.remember([task(text, session_id=session, importance=0.9, hours_ago=30) for text in said])
    await asyncio.gather(*(keep(upkeep) for _ in range(5)))
    assert await layers(memory, session) == {"L4": said[:9], "L3": said[9:]}
    assert len(await kept(memory, session)) == 12


async def test_a_forgotten_session_is_not_promoted_from_memory_of_a_round_that_had_begun(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str
) -> None:
    await memory.remember([task("secret", session_id=session, importance=0.9, hours_ago=30)])
    (due,) = [one for one in await upkeep.due_for_summary(1000) if one.content == "secret"]
    await memory.forget(session)
    assert await upkeep.summarise(due.id, ["secret"]) is False
    assert await upkeep.keep_vectors([(due.id, [0.5] * 64)]) == 1
    assert await kept(memory, session) == []


async def test_the_database_itself_refuses_a_whole_task_beyond_l2(
    memory: PostgresMemory, url: str, session: str
) -> None:
    await memory.remember([task("x", session_id=session)])
    with pytest.raises(Exception, match="loom_memory_check"):
        await rows(url, "UPDATE loom_memory SET layer = 'L3' WHERE session_id = %s", (session,))


async def test_the_keeper_without_a_store_has_nothing_to_do() -> None:
    assert await MemoryKeeper(None).keep_memories() == KeptMemories()


async def test_a_step_that_fails_does_not_keep_the_others_from_running(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(upkeep)
    await memory.remember([task("a fact that is worth a vector", session_id=session, importance=0.9)])
    await memory.remember([task("old", session_id=session, importance=0.5, hours_ago=2)])
    monkeypatch.setattr(upkeep, "due_for_summary", _fail)
    keeper = MemoryKeeper(upkeep, embedder=WORDS, settings=SMALL)
    assert await ActivityEnvironment().run(keeper.keep_memories) == KeptMemories(
        expired=1, embedded=1, failed=("promote",)
    )


async def test_a_full_round_says_that_memories_remain(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(upkeep)
    monkeypatch.setattr("loom.activities.memory.upkeep.MOST", 4)
    facts = [task(f"fact {n} that is worth a vector", session_id=session, importance=0.9) for n in range(6)]
    await memory.remember(facts)
    keeper = MemoryKeeper(upkeep, embedder=WORDS, settings=replace(SMALL, important=10))
    done = [await ActivityEnvironment().run(keeper.keep_memories) for _ in range(2)]
    assert [(each.embedded, each.has_more) for each in done] == [(4, True), (2, False)]


async def _fail(*_: object) -> object:
    raise ValueError("an unexpected error")


async def test_the_keeper_looks_for_expired_memories_at_most_once_a_minute(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, environment = MemoryKeeper(upkeep), ActivityEnvironment()
    await keep(upkeep)
    for number, (expected, every) in enumerate([(1, 60.0), (0, 60.0), (2, 0.0)]):
        monkeypatch.setattr("loom.activities.memory.upkeep.EXPIRE_EVERY", every)
        await memory.remember([task(f"n{number}", session_id=session, importance=0.5, hours_ago=2)])
        assert await environment.run(keeper.expire_memories) == expected


# ---- any sequence ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Say:
    """A Task comes in."""

    session: int
    node: str
    run: int
    importance: float
    hours_ago: float
    text: str
    ends: bool


@dataclass(frozen=True)
class Keep:
    """A round of upkeep that dies after so many summaries; None: it does not."""

    dies_after: int | None


SAYS: Final = st.builds(
    Say,
    session=st.integers(0, 1),
    node=st.sampled_from(["a", "b"]),
    run=st.integers(0, 1),
    importance=st.sampled_from([0.0, 0.5, 0.6, 0.61, 1.0]),
    hours_ago=st.sampled_from([0.0, 0.5, 2.0, 30.0, 200.0]),
    text=st.sampled_from(
        ["ok", "好的", "the port is 80", "the port is 81", "长" * 300, "One sentence. " * 40, "x" * 900, "different"]
    ),
    ends=st.booleans(),
)
STEPS: Final = st.lists(st.one_of(SAYS, SAYS, SAYS, st.builds(Keep, st.sampled_from([None, 0, 1, 2]))), max_size=25)


class Dies:
    """A distiller whose process is killed at its n-th text."""

    def __init__(self, after: int) -> None:
        self._left = after

    async def facts(self, _text: str) -> Sequence[str]:
        self._left -= 1
        if self._left < 0:
            raise ProcessLookupError("killed")
        return ["a fact of it", "another one"]


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS)
async def test_whatever_happens_nothing_important_is_lost_and_nothing_whole_stays_beyond_l2(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, url: str, steps: list[Say | Keep]
) -> None:
    await rows(url, "TRUNCATE loom_memory, loom_memory_vectors, loom_memory_tasks")
    prefix, said = uuid4().hex, dict[str, Task]()
    for step in [*steps, Keep(None), Keep(None)]:
        match step:
            case Say():
                one = _said(step, prefix)
                said[one.task_id] = one
                await memory.remember([one, *list(said.values())[-3:]])
            case Keep(dies_after=None):
                await keep(upkeep)
            case Keep(dies_after=int(after)):
                try:
                    await promote(upkeep, Dies(after), SMALL)
                except ProcessLookupError:
                    continue
    for session in {one.session_id for one in said.values()}:
        _check([one for one in said.values() if one.session_id == session], await kept(memory, session))


def _said(step: Say, prefix: str) -> Task:
    return task(
        step.text,
        session_id=f"{prefix}{step.session}",
        run_id=f"{prefix}{step.session}{step.run}",
        source_agent=step.node,
        importance=step.importance,
        hours_ago=step.hours_ago,
        action=Action.COMPLETE if step.ends else Action.MESSAGE,
    )


def _check(said: list[Task], found: list[Memory]) -> None:
    by_id = {one.id: one for one in found}
    for one in found:
        assert one.superseded_by is None or one.superseded_by in by_id
        if one.layer in (Layer.L3, Layer.L4):
            assert one.task is None
            assert len(one.content) <= SMALL.summary_length
    live = [one for one in found if one.superseded_by is None]
    ended = {one.run_id for one in said if one.action in FINAL_ACTIONS}
    for node in {one.source_agent for one in said}:
        mine = sorted((t for t in said if t.source_agent == node), key=lambda t: t.created_at, reverse=True)
        _check_node(mine, [one for one in live if one.node == node])
    for fact in (t for t in said if _importance(t) > SMALL.important_over and not is_small_talk(_text(t))):
        left = [memory for memory in found if memory.task_id == fact.task_id]
        assert left, f"{fact.parameters} is lost"
        assert all(_end(memory, by_id) in live for memory in left)
        if fact.run_id in ended:
            assert any(memory.layer in (Layer.L3, Layer.L4) for memory in left)


def _check_node(said: list[Task], live: list[Memory]) -> None:
    """Limits are kept, and nothing goes before its time."""
    count = {layer: sum(one.layer is layer for one in live) for layer in Layer}
    assert count[Layer.L1] <= SMALL.recent
    assert count[Layer.L2] <= SMALL.important
    assert count[Layer.L3] <= SMALL.summaries
    whole = {one.task_id: one for one in live if one.task is not None}
    important = [t for t in said if _importance(t) > SMALL.important_over]
    for one in important[: SMALL.important]:
        assert (one.task_id in whole) == _younger(one, SMALL.important_for)
    for one in (t for t in said[: SMALL.recent] if t not in important):
        assert (one.task_id in whole) == _younger(one, SMALL.recent_for)
    assert all(whole[name].task == one for name, one in ((t.task_id, t) for t in said) if name in whole)


def _younger(one: Task, age: timedelta) -> bool:
    return one.created_at > task("now").created_at - age


def _end(memory: Memory, by_id: dict[int, Memory]) -> Memory:
    while memory.superseded_by is not None:
        memory = by_id[memory.superseded_by]
    return memory


def _importance(one: Task) -> float:
    return float(one.metadata["importance"])


def _text(one: Task) -> str:
    return str(one.parameters["text"])


# ---- rows of earlier releases ----------------------------------------------------------------------------------


async def test_rows_of_earlier_releases_are_embedded_again_in_the_background(
    memory: PostgresMemory, upkeep: PostgresMemoryUpkeep, database: Database, session: str
) -> None:
    said = ["the harbour is closed until the storm has passed", "我喜欢喝茶", "ok"]
    tasks = [
        task(session_id=session, importance=0.9, hours_ago=25, parameters={"text": text, "by": "eva"}) for text in said
    ]
    await memory.remember(tasks)
    await keep(upkeep)
    old = "UPDATE loom_memory SET told_form = 0, content = %s, telling = %s WHERE session_id = %s AND content = %s"
    async with database.connection() as connection:
        await connection.execute(old, (f"{said[0]} by: eva", True, session, f"eva: {said[0]}"))
        await connection.execute(old, (f"{said[1]} by: eva", False, session, f"eva: {said[1]}"))
        sql = "DELETE FROM loom_memory_vectors USING loom_memory WHERE loom_memory.id = loom_memory_vectors.id"
        await connection.execute(f"{sql} AND content = %s", (f"{said[1]} by: eva",))
        sql = "UPDATE loom_memory SET model = NULL, sketch = NULL, dimension = NULL WHERE content = %s"
        await connection.execute(sql, (f"{said[1]} by: eva",))
    due = await upkeep.due_for_vector(10)
    assert sorted(one.content for one in due) == sorted([f"eva: {said[0]}", f"eva: {said[1]}"])
    await embed(upkeep, WORDS, SMALL.batch)
    assert await upkeep.due_for_vector(10) == ()
    found = await kept(memory, session)
    assert {one.content: one.model for one in found} == dict.fromkeys(
        [f"{said[0]} by: eva", f"{said[1]} by: eva"], WORDS.model
    )
