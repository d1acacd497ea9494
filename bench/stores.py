"""Measure how much each store grows with a run, as `loom doctor` counts it."""

from asyncio import gather
from collections.abc import Mapping
from typing import Final

import psycopg
import redis.asyncio

from bench.report import section, table
from bench.stage import Stage
from bench.targets import Section
from bench.turns import MANY, Loop, warm_loops
from loom.stack.services import temporal_database
from loom.store_sizes import folder_size, key_sizes, table_sizes

RUNS: Final = 100
AT_ONCE: Final = 20
TEMPORAL, POSTGRES, REDIS = "Temporal's database", "Postgres", "Redis"


async def store_growth(stage: Stage) -> Section:
    """Return the growth of each store with runs of ten turns."""
    loom = (await warm_loops(stage, "for stores", "loom"))["loom"]
    await _run(loom, "first", AT_ONCE)
    await stage.until_idle("loom")
    before = await _sizes(stage)
    await _run(loom, "measured", RUNS)
    await stage.until_idle("loom")
    after = await _sizes(stage)
    grown = {name: (size - before.get(name, 0)) / RUNS / 1000 for name, size in after.items()}
    rows = [
        [store, kind, f"{size:.1f} KB", f"{size / MANY.turns:.1f} KB"]
        for (store, kind), size in sorted(grown.items(), key=lambda each: (each[0][0], -each[1]))
        if size >= 0.1
    ]
    text = (
        f"{RUNS} runs of {MANY.turns} turns, each with one quick read of 2 KB, after {AT_ONCE} others. The sizes are"
        " those that `loom doctor` shows, with indexes, after all memories have been written. They hide what is deleted"
        " later: histories after the namespace's retention, keys when they expire, and memories that exceed their"
        " limits."
    )
    return Section(section("Growth of the stores", text, table(["store", "content", "per run", "per turn"], rows)))


async def _run(loom: Loop, name: str, runs: int) -> None:
    for begin in range(0, runs, AT_ONCE):
        await gather(*(loom(f"{MANY} {name}={number}") for number in range(begin, begin + AT_ONCE)))


async def _sizes(stage: Stage) -> Mapping[tuple[str, str], int]:
    home = stage.folder / ".loom"
    async with await psycopg.AsyncConnection.connect(stage.env["LOOM_DATABASE_URL"]) as connection:
        tables = await table_sizes(connection)
    async with redis.asyncio.Redis.from_url(stage.env["LOOM_REDIS_URL"]) as client:
        keys = await key_sizes(client)
    sizes = {(POSTGRES, kind): size for kind, size in tables.items()}
    sizes |= {(REDIS, kind): size for kind, size in keys.items()}
    sizes[TEMPORAL, "histories"] = folder_size(temporal_database(home).parent) or 0
    sizes["files", "snapshots"] = folder_size(home / "snapshots") or 0
    return sizes
