"""The activity `catch_up`: which histories it reads, and what it gives to memory."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from temporalio.testing import ActivityEnvironment

from loom.activities.memory.backfill import CatchUp
from loom.activities.memory.histories import Execution, Histories, Moved, UnreadableHistory
from loom.activities.ports import StoreUnavailable
from loom.domain.core.messages import JsonObject
from loom.domain.core.tasks import Action, Notice, Origin, Published, Task
from loom.domain.history.facts import ExecutionStarted, Fact, PublishedNotices
from loom.domain.memory.backfill import CatchUpRequest, CaughtUp

AT: Final = datetime(2026, 1, 2, tzinfo=UTC)
UNTIL: Final = AT + timedelta(hours=1)


def facts(run_id: str, *notices: Notice) -> tuple[Fact, ...]:
    return ExecutionStarted(origin=Origin(run_id=run_id)), PublishedNotices(published=Published(notices=notices))


def notice(key: str, at: datetime = AT) -> Notice:
    return Notice(action=Action.MESSAGE, key=key, at=at)


class Open:
    """A mask for those who may see everything."""

    def clean(self, text: str) -> str:
        return text

    def clean_arguments(self, arguments: JsonObject) -> JsonObject:
        return arguments


@dataclass
class Server:
    """Histories by run; None cannot be decoded."""

    runs: dict[str, tuple[Fact, ...] | None]
    events: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[datetime | None, datetime]] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    wanted: list[tuple[str, datetime | None]] = field(default_factory=list)

    async def moved(self, since: datetime | None, until: datetime) -> AsyncIterator[Moved]:
        self.asked.append((since, until))
        for run_id in self.runs:
            yield Moved(run_id=run_id, events=self.events.get(run_id, 1))

    async def executions(self, run_id: str, since: datetime | None = None) -> AsyncIterator[Execution]:
        self.read.append(run_id)
        self.wanted.append((run_id, since))
        found = self.runs[run_id]
        if found is None:
            raise UnreadableHistory("another key")
        yield Execution(facts=found)


@dataclass
class Memory:
    """What memory has, and in what portions it came."""

    has: set[str] = field(default_factory=set)
    portions: list[int] = field(default_factory=list)
    away: bool = False

    async def missing(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        if self.away:
            raise StoreUnavailable("away")
        return tuple(task for task in tasks if task.task_id not in self.has)

    async def remember(self, tasks: Sequence[Task]) -> int:
        self.portions.append(len(tasks))
        self.has |= {task.task_id for task in tasks}
        return len(tasks)


def catching(server: Server, memory: Memory, **given: Any) -> CatchUp:
    histories: Histories = server
    return CatchUp(histories, memory, Open(), **given)  # type: ignore[arg-type]  # the part of it that counts


async def test_only_what_memory_has_not_is_given_to_it() -> None:
    server = Server({"a": facts("a", *(notice(f"n{n}") for n in range(450))), "b": facts("b", notice("n1"))})
    memory = Memory(has={"b/n1/node.message", "a/n0/node.message"})
    came = await catching(server, memory).until(UNTIL)
    assert came == CaughtUp(until=UNTIL, runs=2, tasks=449)
    assert memory.portions == [200, 200, 49]


async def test_a_run_that_has_not_moved_is_not_read_again() -> None:
    server, memory = Server({"a": facts("a", notice("n1")), "b": facts("b")}), Memory()
    catch_up = catching(server, memory)
    await catch_up.until(UNTIL)
    server.events["a"] = 2
    server.runs["a"] = facts("a", notice("n1"), notice("n2"))
    assert await catch_up.until(UNTIL) == CaughtUp(until=UNTIL, runs=1, tasks=1)
    assert server.read == ["a", "b", "a"]


async def test_what_is_young_is_left_to_the_bus_and_looked_at_again() -> None:
    server, memory = Server({"a": facts("a", notice("n1"), notice("n2", UNTIL + timedelta(seconds=1)))}), Memory()
    catch_up = catching(server, memory)
    await catch_up.until(UNTIL)
    assert memory.has == {"a/n1/node.message"}
    await catch_up.until(UNTIL + timedelta(minutes=1))
    assert memory.has == {"a/n1/node.message", "a/n2/node.message"}


async def test_a_history_that_cannot_be_read_is_named_and_does_not_stop_the_others() -> None:
    server, memory = Server({"a": None, "b": facts("b", notice("n1"))}), Memory()
    assert await catching(server, memory).until(UNTIL) == CaughtUp(until=UNTIL, runs=2, tasks=1, unreadable=("a",))


async def test_a_history_that_could_not_be_read_is_later_read_from_its_beginning() -> None:
    server, memory = Server({"a": None}), Memory()
    catch_up = catching(server, memory)
    await catch_up.until(UNTIL, AT)
    server.runs["a"] = facts("a", notice("n1"))
    for events in (1, 2):
        server.events["a"] = events
        await catch_up.until(UNTIL, AT)
    assert server.wanted == [("a", AT), ("a", None), ("a", AT)]


async def test_a_memory_that_is_away_is_not_taken_for_a_complete_one() -> None:
    server, memory = Server({"a": facts("a", notice("n1"))}), Memory(away=True)
    catch_up = catching(server, memory)
    with pytest.raises(StoreUnavailable):
        await catch_up.until(UNTIL)
    memory.away = False
    assert (await catch_up.until(UNTIL)).tasks == 1


async def test_the_activity_looks_from_where_the_last_one_stopped() -> None:
    server = Server({"a": facts("a", notice("n1"))})
    catch_up = catching(server, Memory(), settled_after=timedelta(minutes=5))
    before = datetime.now(UTC)
    came = await ActivityEnvironment().run(catch_up.catch_up, CatchUpRequest(since=AT))
    assert server.asked == [(AT, came.until)]
    assert before - timedelta(minutes=5) <= came.until <= datetime.now(UTC) - timedelta(minutes=5)
    assert replace(came, until=AT) == CaughtUp(until=AT, runs=1, tasks=1)
