"""Measure what a run costs, and print the figures (`make bench`). With `--write`, replace docs/measurements.md."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from bench.context import context
from bench.growth import growth
from bench.history import history_cost
from bench.latency import abort_latency, recovery, stream_latency
from bench.listing import run_list
from bench.promises import promises
from bench.redaction import redaction
from bench.replay import replay_cost
from bench.report import machine
from bench.stage import stage
from bench.startup import startup
from bench.turns import floor_cost, throughput, turn_cost
from bench.waiting import waiting_runs
from bench.workers import two_workers

DOC = Path(__file__).parent.parent / "docs" / "measurements.md"


async def measure(pairs: int, turns: int) -> list[str]:
    """Return all sections as Markdown, in order."""
    with stage() as ready:
        sections = [
            await history_cost(ready),
            await turn_cost(ready, pairs=pairs, turns=turns),
            await floor_cost(ready, rounds=pairs),
            await throughput(ready),
            await two_workers(ready),
            await growth(ready),
            await replay_cost(ready),
            await abort_latency(ready),
            await recovery(ready),
            await stream_latency(ready),
            await waiting_runs(ready),
            await promises(ready.folder / ".loom"),
            startup(ready.env["TEMPORAL_ADDRESS"]),
        ]
    return [machine(), *sections[:-1], await run_list(), sections[-1], context(), redaction()]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7, help="number of interleaved rounds for the time per turn")
    parser.add_argument("--turns", type=int, default=100, help="number of turns in each of these runs")
    parser.add_argument("--write", action="store_true", help=f"replace {DOC.name}")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the processes that were started
    sections = asyncio.run(measure(given.pairs, given.turns))
    text = (
        "# Measurements\n\n`make bench` produces these figures. You can run it on your own machine.\n"
        "`make bench-peers` compares Loom with other agent loops on Temporal.\n\n" + "\n\n".join(sections) + "\n"
    )
    sys.stdout.write(text)
    if given.write:
        DOC.write_text(text)


if __name__ == "__main__":
    main()
