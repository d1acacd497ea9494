"""Measure what a run costs, and print the figures (`make bench`). With `--write`, replace docs/measurements.md.

The whole takes about half an hour on a quiet machine. To measure it in parts, name the parts and a folder that keeps
their figures: `python -m bench floor throughput --keep DIR`. The page then consists of all parts in the folder.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.context import context
from bench.growth import growth
from bench.history import history_cost
from bench.latency import abort_latency, recovery, stream_latency
from bench.listing import run_list
from bench.promises import promises
from bench.redaction import redaction
from bench.replay import replay_cost
from bench.report import machine, section, table
from bench.stage import Stage, stage
from bench.startup import startup, worker_start
from bench.targets import Section, Target, target_table
from bench.turns import floor_cost, throughput, turn_cost
from bench.waiting import waiting_runs
from bench.workers import two_workers

DOC: Final = Path(__file__).parent.parent / "docs" / "measurements.md"
Part = Callable[[Stage], Awaitable[Section]]


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


def parts(pairs: int, turns: int) -> Mapping[str, Part]:
    """Return the parts of the page, in order."""
    return {
        "history": history_cost,
        "turns": partial(turn_cost, pairs=pairs, turns=turns),
        "floor": partial(floor_cost, rounds=pairs),
        "throughput": throughput,
        "workers": two_workers,
        "growth": growth,
        "replay": replay_cost,
        "abort": abort_latency,
        "recovery": recovery,
        "stream": stream_latency,
        "waiting-200": partial(waiting_runs, count=200),
        "waiting-1000": partial(waiting_runs, count=1000, continues=True),
        "worker-start": worker_start,
        "promises": _promises,
        "list": _list,
        "startup": _startup,
        "context": _context,
        "redaction": _redaction,
    }


async def measure(chosen: Mapping[str, Part], folder: Path) -> None:
    """Measure these parts, and keep the section of each in the folder."""
    with stage() as ready:
        for name, part in chosen.items():
            at, load = datetime.now(UTC), os.getloadavg()[0]
            found = await part(ready)
            kept: dict[str, Any] = {"at": f"{at:%Y-%m-%d %H:%M} UTC", "load": f"{load:.1f}", "text": found.text}
            kept["targets"] = [asdict(target) for target in found.targets]
            _kept(folder, name).write_text(json.dumps(kept, ensure_ascii=False, indent=1), encoding="utf-8")


def page(names: Sequence[str], folder: Path) -> str:
    """Return the page with the sections that the folder has."""
    found = [json.loads(_kept(folder, name).read_text(encoding="utf-8")) for name in names]
    targets = [Target(**target) for each in found for target in each["targets"]]
    begin = (
        "# Measurements\n\n`make bench` produces these figures. You can run it on your own machine.\n"
        "`make bench-peers` compares Loom with other agent loops on Temporal."
    )
    sections = [machine(), target_table(targets), *(each["text"] for each in found)]
    return "\n\n".join([begin, *sections, _times(names, found)]) + "\n"


def _times(names: Sequence[str], found: Sequence[Mapping[str, Any]]) -> str:
    rows = [[name, each["at"], each["load"]] for name, each in zip(names, found, strict=True)]
    text = (
        "*Load* is the average number of processes that wanted to run in the minute before. If it was high, compare"
        " only ratios: other work has made all times longer."
    )
    return section("When the parts were measured", text, table(["part of `python -m bench`", "when", "load"], rows))


def _kept(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="parts to measure; all of them by default")
    parser.add_argument("--pairs", type=int, default=7, help="number of interleaved rounds for the time per turn")
    parser.add_argument("--turns", type=int, default=100, help="number of turns in each of these runs")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder that keeps the figures of each part")
    parser.add_argument("--write", action="store_true", help=f"replace {DOC.name}")
    given = parser.parse_args()
    every = parts(given.pairs, given.turns)
    if unknown := [name for name in given.parts if name not in every]:
        parser.error(f"unknown part {unknown[0]}: the parts are {', '.join(every)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the processes that were started
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(measure({name: every[name] for name in given.parts or every}, folder))
        missing = [name for name in every if not _kept(folder, name).exists()]
        text = page([name for name in every if name not in missing], folder)
    sys.stdout.write(text)
    if given.write and missing:
        parser.error(f"{DOC.name} needs all parts: measure {', '.join(missing)} as well")
    if given.write:
        DOC.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
