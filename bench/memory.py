"""Measure the cost and recall of searches in 100,000 memories. This is the second half of `make bench-memory`.

Postgres generates the memories. A vector is the sum of a component that all vectors share, the direction of a topic,
and one of 4,000 deviations. The shared component is so large that any two vectors have a cosine similarity of about
0.8, like those of the offline embedder. Words are drawn by rank, as in natural language, and from the topic's own
words. One session has half of the memories, and others have 5,000, 500 or 100. Half of the memories belong to agents
that each know a quarter of the topics, so most questions are about topics that such an agent doesn't know. Finally, all
memories are put into one session.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import inf
from pathlib import Path
from statistics import mean
from time import perf_counter, process_time
from typing import Final, LiteralString

import psutil

from bench.batches import batches
from bench.report import percentile, put, table
from bench.stage import servers
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.memory_search import Effort
from loom.domain.core.tenants import Owner
from loom.domain.memory.layers import Layer, Query, View

DOC: Final = Path(__file__).parent.parent / "docs" / "memory.md"
MARKS: Final = ("<!-- measured by make bench-memory -->", "<!-- end of what was measured -->")
DIMENSION: Final = 384
TOPICS: Final = 500
QUESTIONS: Final = 60
COMPARED: Final = 20
"""Number of questions that are also answered by an exact search, which takes a long time."""
MODEL: Final = "bench"
_DEVIATIONS: Final = 4_000

_POOLS: Final = f"""
SELECT setseed(0.42);
CREATE TEMP TABLE common AS SELECT array_agg(2.5 * random_normal())::vector AS v FROM generate_series(1, {DIMENSION});
CREATE TEMP TABLE topics AS SELECT topic, (
    SELECT array_agg(random_normal() + 0 * one) FROM generate_series(1, {DIMENSION}) AS one WHERE topic >= 0
)::vector AS v FROM generate_series(0, {TOPICS - 1}) AS topic;
CREATE TEMP TABLE deviations AS SELECT deviation, (
    SELECT array_agg(0.8 * random_normal() + 0 * one) FROM generate_series(1, {DIMENSION}) AS one WHERE deviation >= 0
)::vector AS v FROM generate_series(0, {_DEVIATIONS - 1}) AS deviation;
ALTER TABLE topics ADD PRIMARY KEY (topic);
ALTER TABLE deviations ADD PRIMARY KEY (deviation);
ANALYZE topics;
ANALYZE deviations;
"""  # noqa: S608 - constants, here and below
_WORDS: Final = """
(SELECT translate(string_agg(CASE WHEN mod(word, 3) = 0 THEN (20000 + topic * 40 + (random() * 40)::int)::text
    ELSE (20000 * power(random(), 4))::int::text END, ' '), '0123456789', 'abcdefghij')
FROM generate_series(1, {count}) AS word WHERE topic >= 0)
"""
_MAKE: Final = f"""
CREATE TEMP TABLE made AS
SELECT number, action, importance, l2_normalize(c.v + t.v + d.v) AS v, {_WORDS.format(count=20)} AS words,
    CASE WHEN lot < 0.2 THEN 'L3' ELSE 'L4' END AS layer,
    CASE WHEN mod(agent, 2) = 0 THEN 'agent' || agent ELSE 'expert' || mod(topic, 4) END AS node,
    CASE WHEN mod(number, 2) = 0 THEN 'half' WHEN mod(number, 20) = 1 THEN 'of 5,000'
        WHEN mod(number, 20) = 3 THEN 'of 500, ' || mod(number / 20, 10)
        ELSE 'of 100, ' || mod(number, 20) || '.' || mod(number / 20, 50) END AS session
FROM (
    SELECT number, (random() * {TOPICS - 1})::int AS topic, (random() * {_DEVIATIONS - 1})::int AS deviation,
        (random() * 9)::int AS action, floor(random() * 8)::int AS agent, random() AS lot, random() AS importance
    FROM generate_series(1, COUNT) AS number OFFSET 0
) AS drawn JOIN topics AS t USING (topic) JOIN deviations AS d USING (deviation) CROSS JOIN common AS c
"""  # noqa: S608
_FILL: Final = f"""
INSERT INTO loom_memory (
    place, session_id, run_id, root_run_id, task_id, turn, ordinal, node, action, status, layer, scope, importance,
    content, fingerprint, lexemes, length, telling, model, dimension, sketch, created_at
)
SELECT SESSION, SESSION, 'run' || number / 50, 'run', 'task' || number, 0, number, node, 'node.action' || action,
    'completed', layer, 'local', importance, words, sha256(number::text::bytea), to_tsvector('simple', words), 20,
    true, '{MODEL}', {DIMENSION}, v::halfvec, now() - number * interval '1 minute'
FROM made ORDER BY number;
INSERT INTO loom_memory_vectors SELECT id, v FROM loom_memory JOIN made ON ordinal = number ORDER BY id
"""  # noqa: S608
_VERSIONS: Final = """
SELECT current_setting('server_version'), extversion, current_setting('shared_buffers')
FROM pg_extension WHERE extname = 'vector'
"""
_INDEX: Final = "SELECT pg_get_indexdef('loom_memory_nearest'::regclass)"
_QUESTIONS: Final = f"""
SELECT {_WORDS.format(count=6)}, l2_normalize(c.v + t.v + d.v)::real[]
FROM generate_series(1, {QUESTIONS}) AS number CROSS JOIN common AS c
JOIN topics AS t ON t.topic = mod(number * 37, {TOPICS})
JOIN deviations AS d ON d.deviation = mod(number * 1117 + 5, {_DEVIATIONS})
"""  # noqa: S608
COMMON_WORDS: Final = "a b c d f"
"""A question without rare words. Each of these words occurs in a tenth to two thirds of all memories."""


def shapes() -> dict[str, View]:
    """Return the searches while one session has half of the memories. A name with "…" narrows the view above it."""
    half = View(session_id="half", owner=Owner(), limit=10)
    today = datetime.now(UTC)
    an_action, an_agent = frozenset({"node.action3"}), frozenset({"agent2"})
    return {
        "a session of 100": replace(half, session_id="of 100, 5.7"),
        "a session of 500": replace(half, session_id="of 500, 4"),
        "a session of 5,000": replace(half, session_id="of 5,000"),
        "a session of 50,000": half,
        "… L3 and L4, without one run": replace(half, layers=frozenset({Layer.L3, Layer.L4}), without_run="run7"),
        "… only L3 (a fifth)": replace(half, layers=frozenset({Layer.L3})),
        "… one of ten actions": replace(half, actions=an_action),
        "… five of ten actions": replace(half, actions=frozenset(f"node.action{number}" for number in range(1, 6))),
        "… one of eight agents": replace(half, nodes=an_agent),
        "… one of eight agents, most topics unknown to it": replace(half, nodes=frozenset({"expert1"})),
        "… two agents, half of the topics unknown to them": replace(half, nodes=frozenset({"expert1", "expert2"})),
        "… one action of one agent": replace(half, actions=an_action, nodes=an_agent),
        "… importance of at least 0.6": replace(half, min_importance=0.6),
        "… importance of at least 0.9": replace(half, min_importance=0.9),
        "… the last 10 days of 70": replace(half, since=today - timedelta(days=10)),
        "… the last day": replace(half, since=today - timedelta(days=1)),
        "… L3, one agent, importance of at least 0.6": replace(
            half, layers=frozenset({Layer.L3}), nodes=an_agent, min_importance=0.6
        ),
        "all sessions": replace(half, session_id=None),
        "… one of ten actions, all sessions": replace(half, session_id=None, actions=an_action),
    }


def shapes_of_one() -> dict[str, View]:
    """Return the searches after all memories have been put into one session."""
    whole = View(session_id="whole", owner=Owner(), limit=10)
    return {
        "a session of 100,000": whole,
        "… one of ten actions ": replace(whole, actions=frozenset({"node.action3"})),
        "… one of eight agents ": replace(whole, nodes=frozenset({"agent2"})),
        "… one of eight agents, most topics unknown to it ": replace(whole, nodes=frozenset({"expert1"})),
        "… importance of at least 0.6 ": replace(whole, min_importance=0.6),
    }


@dataclass(frozen=True)
class Question:
    """A question as text and as a vector."""

    text: str
    vector: list[float]


class Known:
    """An embedder that already knows the questions' vectors, so that only the search is measured."""

    model = MODEL
    dimension = DIMENSION

    def __init__(self, questions: Sequence[Question]) -> None:
        """Map the questions' texts to their vectors."""
        self._vectors = {question.text: question.vector for question in questions}

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[list[float]]:
        """Return the vectors of the questions."""
        assert query
        return [self._vectors[text] for text in texts]


EXACT: Final = Effort(nearest=10**9, most_matches=10**9, most_ranked=10**9, step=inf)
"""Compare the vectors of all rows, and rank all rows that contain any of the words."""


async def measure(url: str, count: int) -> str:
    """Return the section as Markdown."""
    database = Database(url, max_connections=1, first_use_within=600)
    try:
        load = os.getloadavg()[0]
        together = await batches(database)
        begun = perf_counter()
        questions = await _made(database, count)
        await _fill(database, "session")
        filled = perf_counter() - begun
        async with database.connection() as connection:
            server = connection.info.backend_pid
            versions = await (await connection.execute(_VERSIONS)).fetchone()
        bench = _Bench(database, questions, server)
        rows = [[name, *await bench.searched(view)] for name, view in shapes().items()]
        common = _Bench(database, [replace(each, text=COMMON_WORDS) for each in questions], server)
        rows.append(
            [
                "a session of 50,000, only common words",
                *await common.searched(View(session_id="half", owner=Owner(), limit=10)),
            ]
        )
        await _fill(database, "'whole'")
        rows += [[name.strip(), *await bench.searched(view)] for name, view in shapes_of_one().items()]
    finally:
        await database.aclose()
    release, pgvector, buffers = versions or ("", "", "")
    told = (
        f"The benchmark has {count:,} memories and {QUESTIONS} questions, with vectors of {DIMENSION} dimensions.\n"
        f"An exact search also answers {COMPARED} of the questions, for comparison.\n"
        f"The machine had {os.cpu_count()} cores and a load of {load:.1f} before. PostgreSQL {release} had {buffers} of"
        f" shared buffers and pgvector {pgvector}.\nStoring the memories took {filled:.0f} s."
    )
    header = ["filtered to", "server's processor time", "client's processor time", "median", "p95", "recall@10"]
    return f"{told}\n{together}\n\n{table(header, rows)}"


async def _made(database: Database, count: int) -> list[Question]:
    """Create the memories in a temporary table, and return the questions."""
    async with database.connection(within=600) as connection:
        for statement in filter(str.strip, (_POOLS + _MAKE.replace("COUNT", str(count))).split(";")):
            await connection.execute(statement.encode())
        found = await (await connection.execute(_QUESTIONS.encode())).fetchall()
    return [Question(text=text, vector=vector) for text, vector in found]


async def _fill(database: Database, session: LiteralString) -> None:
    """Store the memories, each in a session. The graph is built once, at the end."""
    async with database.connection(within=1_800) as connection:
        (graph,) = await (await connection.execute(_INDEX)).fetchone() or ("",)
        await connection.execute("TRUNCATE loom_memory CASCADE")
        await connection.execute("DROP INDEX loom_memory_nearest")
        for statement in _FILL.replace("SESSION", session).split(";"):
            await connection.execute(statement.encode())
        await connection.execute("SET maintenance_work_mem = '512MB'")
        await connection.execute(graph)
        await connection.execute("RESET maintenance_work_mem")
        await connection.execute("VACUUM ANALYZE loom_memory, loom_memory_vectors")


class _Bench:
    """Searches one database with a fixed set of questions."""

    def __init__(self, database: Database, questions: Sequence[Question], server: int) -> None:
        known = Known(questions)
        self._questions = questions
        self._usual = PostgresMemory(database, embedder=known)
        self._exact = PostgresMemory(database, embedder=known, effort=EXACT)
        self._server = psutil.Process(server)

    async def searched(self, view: View) -> list[str]:
        """Return processor times and elapsed times of a search, and the share of the exact results that it found."""
        queries = [Query(text=question.text, view=view) for question in self._questions]
        for query in queries:  # warm-up
            await self._usual.recall(query)
        spent, theirs, own = [], -self._worked(), -process_time()
        for query in queries:
            begun = perf_counter()
            await self._usual.recall(query)
            spent.append(1000 * (perf_counter() - begun))
        theirs, own = theirs + self._worked(), own + process_time()
        shares = [await self._share(query) for query in queries[:COMPARED]]
        return [
            f"{1000 * theirs / len(queries):.1f} ms",
            f"{1000 * own / len(queries):.1f} ms",
            f"{percentile(spent, 0.5):.1f} ms",
            f"{percentile(spent, 0.95):.1f} ms",
            f"{mean(shares):.3f}",
        ]

    async def _share(self, query: Query) -> float:
        wanted = {hit.memory.id for hit in await self._exact.recall(query)}
        got = {hit.memory.id for hit in await self._usual.recall(query)}
        return len(wanted & got) / len(wanted)

    def _worked(self) -> float:
        """Return the processor time of the server so far, in seconds. Other load affects it less than elapsed time."""
        times = self._server.cpu_times()
        return float(times.user + times.system)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memories", type=int, default=100_000)
    parser.add_argument("--write", action="store_true", help=f"write the figures to {DOC.name}")
    given = parser.parse_args()
    with servers() as (_, addresses):
        section = asyncio.run(measure(addresses["postgres"], given.memories))
    sys.stdout.write(section + "\n")
    if given.write:
        put(DOC, MARKS, section)


if __name__ == "__main__":
    main()
