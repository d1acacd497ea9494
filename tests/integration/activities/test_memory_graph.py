"""Large views of memory are searched through a graph of neighbours: with the same answers, under any filter."""

from contextlib import aclosing
from math import inf

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.memory_search import Effort
from loom.activities.adapters.postgres.memory_upkeep import PostgresMemoryUpkeep
from loom.activities.memory.upkeep import embed
from loom.domain.core.tenants import Owner
from loom.domain.memory.layers import Query, View
from loom.testing.harness import Addresses
from tests.databases import fresh_database, rows
from tests.memories import WordVectors, task

WORDS = WordVectors()


async def test_the_graph_of_neighbours_answers_as_reading_the_whole_view_does(
    addresses: Addresses, session: str
) -> None:
    async with fresh_database(addresses.database) as url, aclosing(Database(url, max_connections=1)) as database:
        graph = PostgresMemory(database, embedder=WORDS, effort=Effort(step=0))
        whole = PostgresMemory(database, embedder=WORDS, effort=Effort(step=inf))
        agents, subjects = ("one", "other"), ("deploys of the website", "invoices to customers", "数据库的密码")
        await graph.remember(
            [
                task(
                    f"A sentence about {subjects[n % 3]}, which is the {n}th that was said of it.",
                    session_id=session if n % 4 else "another",
                    source_agent=agents[n % 5 == 0],
                    importance=0.9,
                )
                for n in range(200)
            ]
        )
        await embed(PostgresMemoryUpkeep(database, model=WORDS.model, dimension=WORDS.dimension), WORDS, 100)
        await rows(url, "VACUUM ANALYZE loom_memory")
        for narrowed in (
            View(session_id=session, owner=Owner()),
            View(session_id=session, owner=Owner(), nodes=frozenset({"one"})),
            View(session_id=None, owner=None),
        ):
            for question in ("deploys of the website", "invoices to customers", "数据库的密码"):
                query = Query(text=question, view=narrowed)
                found = await graph.recall(query)
                assert found == await whole.recall(query)
                assert {hit.memory.session_id for hit in found} <= {session, "another"}
                assert narrowed.session_id is None or {hit.memory.session_id for hit in found} == {session}
        assert await _scans(database) == 9


async def test_a_view_that_the_graph_finds_too_little_of_is_read_whole(addresses: Addresses, session: str) -> None:
    async with fresh_database(addresses.database) as url, aclosing(Database(url, max_connections=1)) as database:
        memory = PostgresMemory(database, embedder=WORDS, effort=Effort(step=0))
        near = [task(f"Invoices to customers, number {n}, and nothing else in it.", importance=0.9) for n in range(200)]
        far = [
            task(f"Quite other words, {n}, of which not a single one is asked for.", session_id=session, importance=0.9)
            for n in range(60)
        ]
        await memory.remember(near + far)
        await embed(PostgresMemoryUpkeep(database, model=WORDS.model, dimension=WORDS.dimension), WORDS, 100)
        await rows(url, "VACUUM ANALYZE loom_memory")
        assert (
            len(await memory.recall(Query(text="invoices to customers", view=View(session_id=session, owner=Owner()))))
            == 5
        )
        assert await _scans(database) == 1


async def _scans(database: Database) -> int:
    """How often the graph has been asked; of the database's one connection, whose figures are told at once."""
    async with database.connection() as connection:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        found = await connection.execute(
            "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'loom_memory_nearest'"
        )
        row = await found.fetchone()
    return int(row[0]) if row else 0
