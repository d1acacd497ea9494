"""Measure what a run costs, and print the figures (`make bench`). With `--write`, replace docs/measurements.md.

The whole takes about 35 minutes on a quiet machine. To measure it in parts, name the parts and a folder that keeps
their figures: `python -m bench turns-20 throughput --keep DIR`. The page then consists of all parts in the folder.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from bench.context import context
from bench.growth import growth
from bench.history import history_cost
from bench.latency import abort_latency, recovery, stream_latency
from bench.listing import run_list
from bench.parts import Page, Part, command_line
from bench.promises import promises
from bench.redaction import redaction
from bench.replay import replay_cost
from bench.stage import Stage
from bench.startup import startup, worker_start
from bench.stores import store_growth
from bench.targets import Section
from bench.turns import SHAPES, floor_cost, throughput, turn_cost
from bench.waiting import waiting_runs
from bench.workers import two_workers

PAGE: Final = Page(
    file=Path(__file__).parent.parent / "docs" / "measurements.md",
    begin=(
        "# Measurements\n\n`make bench` produces these figures. You can run it on your own machine.\n`make bench-peers`"
        " compares Loom with other agent loops on Temporal ([comparison](measurements-peers.md))."
    ),
    module="bench",
)


async def _startup(stage: Stage) -> Section:
    return await asyncio.to_thread(startup, stage.env["TEMPORAL_ADDRESS"])


async def _promises(stage: Stage) -> Section:
    return await promises(stage.folder / ".loom")


async def _list(_: Stage) -> Section:
    return await run_list()


async def _context(_: Stage) -> Section:
    return Section(context())


async def _redaction(_: Stage) -> Section:
    return Section(redaction())


def parts(rounds: int) -> Mapping[str, Part]:
    """Return the parts of the page, in order."""
    names = ("turns-20", "turns-100", "turns-other-tool", "turns-8-calls")
    return {
        "history": history_cost,
        "stores": store_growth,  # early, because the sizes of many keys in Redis would be estimates
        "turns": partial(turn_cost, rounds=min(rounds, 5)),
        **{name: partial(floor_cost, rounds=rounds, shape=shape) for name, shape in zip(names, SHAPES, strict=True)},
        "throughput": partial(throughput, rounds=min(rounds, 3)),
        "workers": two_workers,
        "growth": growth,
        "replay": replay_cost,
        "abort": abort_latency,
        "recovery": recovery,
        "stream": stream_latency,
        "waiting-1000": waiting_runs,
        "worker-start": worker_start,
        "promises": _promises,
        "list": _list,
        "startup": _startup,
        "context": _context,
        "redaction": _redaction,
    }


if __name__ == "__main__":
    command_line(__doc__, PAGE, parts, rounds=7)
