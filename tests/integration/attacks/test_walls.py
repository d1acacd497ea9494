"""Two tenants and their users, with equal names for everything, never see each other's text."""

import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from loom.activities.adapters import postgres, redis
from loom.activities.adapters.postgres.database import Database
from loom.activities.ports import Tool
from tests.integration.attacks.walls import (
    READS,
    READS_OF_ITS_RUN,
    TOOL_READS,
    TOOLS_THAT_WRITE,
    WRITES,
    World,
    look,
    tools_of,
)

Begin: TypeAlias = Callable[[], World]
Step: TypeAlias = tuple[str, int] | str
"""What one owner writes, or what all owners read."""

READ: Final = st.sampled_from(sorted(READS))
STEPS: Final[st.SearchStrategy[list[Step]]] = st.lists(
    st.one_of(st.tuples(st.sampled_from(sorted(WRITES)), st.integers(0, 6)), READ), min_size=15, max_size=35
)
LAST: Final = st.lists(READ, min_size=10, max_size=10, unique=True)
"""What all owners read at the end."""


@pytest.fixture(scope="module")
def tools(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Tool]:
    return tools_of(database, tmp_path_factory.mktemp("home"))


async def _taken(world: World, steps: Sequence[Step]) -> None:
    for step in steps:
        if isinstance(step, str):
            await look(world, step)
        else:
            write, owner = step
            await WRITES[write](world, world.owners[owner])


@pytest.fixture(scope="module")
def begin(database: Database, tools: Mapping[str, Tool], tmp_path_factory: pytest.TempPathFactory) -> Begin:
    """Makes a new world."""
    return lambda: World(database=database, home=tmp_path_factory.mktemp("workspace"), tools=tools)


async def _play(world: World, steps: Sequence[Step]) -> None:
    await _taken(world, steps)
    await world.clear()


# Without shrinking, which would take minutes: a failure says who has seen whose words, and in which way.
ORDERS: Final = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


@settings(ORDERS, max_examples=10)
@given(steps=STEPS, last=LAST)
async def test_in_whatever_order_owners_write_and_read_they_see_only_their_own(
    begin: Begin, steps: list[Step], last: list[str]
) -> None:
    await _play(begin(), [*steps, *last])


@pytest.mark.slow
@settings(ORDERS, max_examples=200)
@given(steps=STEPS, last=LAST)
async def test_in_many_more_orders_owners_see_only_their_own(begin: Begin, steps: list[Step], last: list[str]) -> None:
    await _play(begin(), [*steps, *last])


UPKEEP: Final = ("keep_up", "embed_documents")
DELETES: Final = ("remove_a_document", "drop_a_base", "forget_a_session", "forget_a_person")

ABOUT_NO_OWNER: Final = {
    "Database": "connections",
    "PostgresArtifacts.listed": "of one run, whose id the caller has",
    "PostgresArtifacts.load_all": "of one run, whose id the caller has",
    "PostgresArtifacts.replace": "nothing",
    "PostgresAuditLog.add_unread": "ids of runs that the worker reads",
    "PostgresAuditLog.checkpoint": "a hash",
    "PostgresAuditLog.has_been_read": "a time",
    "PostgresAuditLog.read_until": "a time",
    "PostgresAuditLog.remove_unread": "ids of runs that the worker reads",
    "PostgresAuditLog.set_read_until": "a time",
    "PostgresAuditLog.unread": "ids of runs that the worker reads",
    "PostgresAuditLog.verify": "hashes of all rows, for operators",
    "PostgresClonePatches": "the change of one tree of runs, whose execution only its workers know",
    "PostgresCallApprovals": "names of those who approved a call of one run, whose id the caller has",
    "PostgresLedger": "results of one call of one run, by a key that only this run's worker makes",
    "PostgresMemory.by_id": "one memory, whosever it is, for operators",
    "PostgresMemory.stats": "numbers",
    "PostgresParts.owned": "times of contents of one run, whose id and hashes the caller has",
    "PostgresPayloads": "what histories refer to, by its hash",
    "PostgresStoredData": "ids of runs to collect, and numbers",
    "PostgresTenants.charge": "numbers",
    "PostgresTenants.used": "numbers",
    "PostgresTokens": "hashes of the tokens of the HTTP service, for operators",
    "PostgresUsedStarts": "the execution that a signed start has begun",
    "PostgresKnowledge.missing": "the names that the caller gives",
    "CachedTranscripts": "messages of one run, whose id and digests only this run's history has",
    "RecentPermits": "numbers",
    "RedisBus": "tasks for the workers",
    "RedisConnection": "connections",
    "RedisInbox": "tasks for the workers",
    "RedisPermits": "numbers",
    "RedisReader": "events of one run, whose id the caller has",
    "RedisRunTasks": "events of one run, whose id the caller has",
    "RedisStream": "events of one run, whose id the worker has",
    "RedisWorkerReports": "what workers serve",
}
"""The classes and methods of stores that know no owner, with what they return."""


def _store_methods() -> Iterator[tuple[type, str]]:
    """Every public method of every class that stores something in Postgres or Redis."""
    for package in (postgres, redis):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not found.ispkg:
                for cls in vars(import_module(found.name)).values():
                    if inspect.isclass(cls) and cls.__module__ == found.name and not cls.__name__.startswith("_"):
                        methods = (name for name, of in vars(cls).items() if inspect.isfunction(of))
                        yield from ((cls, name) for name in methods if not name.startswith("_"))


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The methods of stores that were called."""
    names: set[str] = set()

    def recorded(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def record(*given: Any, **named: Any) -> Any:
            names.add(name)
            return method(*given, **named)

        return record

    for cls, name in _store_methods():
        monkeypatch.setattr(cls, name, recorded(f"{cls.__name__}.{name}", getattr(cls, name)))
    return names


async def test_every_method_of_every_store_keeps_the_walls(begin: Begin, called: set[str]) -> None:
    """Everybody writes in every way, and reads in every way. A new method has to be used here, or be in the table."""
    world = begin()
    shown: dict[str, set[str]] = {name: set() for name in READS}

    async def look_everywhere() -> None:
        for name in READS:
            shown[name] |= await look(world, name)

    kept = [name for name in WRITES if name not in (*UPKEEP, *DELETES)]
    await _taken(world, [(name, owner) for name in kept for owner in range(len(world.owners))])
    await look_everywhere()
    for name in UPKEEP:
        await WRITES[name](world, world.owners[0])
    await look_everywhere()
    await _taken(world, [(name, owner) for owner, name in enumerate(DELETES)])
    await look_everywhere()
    await world.clear()

    assert not [name for name, words in shown.items() if not words], "these reads have shown nothing at all"
    every = {f"{cls.__name__}.{name}" for cls, name in _store_methods()}
    covered = {name for name in every if name in ABOUT_NO_OWNER or name.partition(".")[0] in ABOUT_NO_OWNER}
    assert every - covered - called == set()
    assert not [name for name in ABOUT_NO_OWNER if name not in every | {each.partition(".")[0] for each in every}]


READS_NOTHING_OF_OTHERS: Final = {
    "ask_user": "asks whoever answers the run's own question",
    "bash": "the run's own workspace",
    "create_plan": "starts runs that work for the run's own tenant and user",
    "create_tool": "code that the run itself has written",
    "delegate_task": "starts a run that works for the run's own tenant and user",
    "delete_file": "the run's own workspace",
    "done": "ends the run",
    "edit_file": "the run's own workspace",
    "git_commit": "the run's own workspace",
    "glob": "the run's own workspace",
    "grep": "the run's own workspace",
    "http_fetch": "the web",
    "list_dir": "the run's own workspace",
    "load_skill": "skills, which are the worker's",
    "message_agent": "writes to a run of the same tree",
    "python": "the run's own workspace and interpreter",
    "read_file": "the run's own workspace",
    "read_skill_resource": "skills, which are the worker's",
    "run_skill_script": "skills, which are the worker's",
    "search_tools": "descriptions of the worker's tools",
    "todo": "the run's own list",
    "write_file": "the run's own workspace",
}


def test_every_tool_is_tried_or_reads_nothing_of_others(tools: Mapping[str, Tool]) -> None:
    tried = {*TOOL_READS, *TOOLS_THAT_WRITE, READS_OF_ITS_RUN}
    assert tried.isdisjoint(READS_NOTHING_OF_OTHERS)
    assert tried | READS_NOTHING_OF_OTHERS.keys() == tools.keys()
