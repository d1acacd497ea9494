"""Measure the effect of batches: store the same number of tasks and vectors one at a time and in batches. The last
measurement also computes the vectors.

`python -m bench.batches` prints only these figures. `bench.memory` adds them to the figures for searches.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from random import Random
from time import perf_counter
from typing import Final, TypeVar
from uuid import uuid4

from bench.stage import servers
from loom.activities.adapters.embedders.offline import OfflineEmbedder
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.postgres.memory_upkeep import PostgresMemoryUpkeep
from loom.activities.memory.upkeep import embed
from loom.domain.core.tasks import Action, Task
from tests.corpora.dialogues import turns

TASKS: Final = 1_000
TASKS_AT_ONCE: Final = 200
VECTORS: Final = 500
VECTORS_AT_ONCE: Final = 10
EMBEDDED: Final = 100
"""The number of turns that are stored and embedded one at a time, and the number in batches."""
DIMENSION: Final = 384
_MODEL: Final = "batches"

T = TypeVar("T")


async def batches(database: Database) -> str:
    """Measure both and then the whole path, and return three sentences."""
    whole = await _whole_path(database)
    memory, upkeep = PostgresMemory(database), PostgresMemoryUpkeep(database, model=_MODEL, dimension=DIMENSION)
    await memory.remember(_tasks(TASKS_AT_ONCE))  # warm-up
    slow = await _rate(_tasks(TASKS), 1, memory.remember)
    fast = await _rate(_tasks(TASKS), TASKS_AT_ONCE, memory.remember)
    due = await upkeep.due_for_vector(2 * VECTORS)
    draw = Random(1)  # noqa: S311 - no secret
    vectors = [(one.id, [draw.gauss(0, 1) for _ in range(DIMENSION)]) for one in due]
    slow_vectors = await _rate(vectors[:VECTORS], 1, upkeep.keep_vectors)
    fast_vectors = await _rate(vectors[VECTORS:], VECTORS_AT_ONCE, upkeep.keep_vectors)
    return (
        f"Loom stores {slow:,.0f} tasks per second one at a time, and {fast:,.0f} in batches of {TASKS_AT_ONCE}"
        f" ({fast / slow:.1f} times as many).\nLoom stores {slow_vectors:,.0f} vectors per second one at a time, and"
        f" {fast_vectors:,.0f} in batches of {VECTORS_AT_ONCE} ({fast_vectors / slow_vectors:.1f} times as many)."
        f"\n{whole}"
    )


async def _whole_path(database: Database) -> str:
    """Store and embed turns of a dialogue. Return a sentence."""
    memory, embedder = PostgresMemory(database), OfflineEmbedder()
    upkeep = PostgresMemoryUpkeep(database, model=embedder.model, dimension=embedder.dimension)
    texts = [turn.text for turn in turns("en")]

    async def one_by_one(tasks: Sequence[Task]) -> int:
        for task in tasks:
            await memory.remember([task])
            await embed(upkeep, embedder, 1)
        return len(tasks)

    async def in_pages(tasks: Sequence[Task]) -> int:
        await memory.remember(tasks)
        return await embed(upkeep, embedder, VECTORS_AT_ONCE)

    try:
        await one_by_one(_tasks(1, texts))  # warm-up
        slow = await _rate(_tasks(EMBEDDED, texts[:EMBEDDED]), EMBEDDED, one_by_one)
        fast = await _rate(_tasks(EMBEDDED, texts[EMBEDDED:]), EMBEDDED, in_pages)
    finally:
        await embedder.aclose()
    return (
        f"Loom stores and embeds {slow:,.0f} turns per second one at a time, and {fast:,.0f} in batches"
        f" ({fast / slow:.1f} times as many)."
    )


async def _rate(given: Sequence[T], at_once: int, write: Callable[[Sequence[T]], Awaitable[int]]) -> float:
    begun = perf_counter()
    for start in range(0, len(given), at_once):
        await write(given[start : start + at_once])
    return len(given) / (perf_counter() - begun)


def _tasks(count: int, texts: Sequence[str] = ()) -> list[Task]:
    """Return important tasks of one session, with these texts. Without texts, each has its own words and is long enough
    for a vector.
    """
    session = uuid4().hex
    return [
        Task(
            task_id=f"{session}/{number}",
            run_id=session,
            root_run_id=session,
            session_id=session,
            action=Action.MESSAGE,
            created_at=datetime.now(UTC),
            parameters={
                "text": texts[number]
                if texts
                else f"Message {number} of this session says what nobody else has said: {uuid4()}."
            },
        )
        for number in range(count)
    ]


async def _alone(url: str) -> str:
    database = Database(url, max_connections=1)
    try:
        return await batches(database)
    finally:
        await database.aclose()


def main() -> None:
    """Run the command line."""
    load = os.getloadavg()[0]
    with servers() as (_, addresses):
        told = asyncio.run(_alone(addresses["postgres"]))
    sys.stdout.write(f"{told}\nThe machine had {os.cpu_count()} cores and a load of {load:.1f} before.\n")


if __name__ == "__main__":
    main()
