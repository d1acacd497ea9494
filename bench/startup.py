"""Measure the start-up time of commands: `python -m bench.startup`. With `--against DIR`, compare another checkout."""

import argparse
import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from temporalio.client import Client

from bench.bare import QUEUE as BARE_QUEUE
from bench.report import ratio, ratio_of, section, spread, table
from bench.stage import QUEUE, Stage, polls, servers
from bench.targets import Section, Target

RUNS = 15
BARE = """
import asyncio, os, sys
from temporalio.client import Client
from temporalio.service import RPCError

async def main():
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"])
    try:
        print(await client.get_workflow_handle(sys.argv[1]).query("status"))
    except RPCError:
        os._exit(2)  # as `loom` does, because the SDK's threads may crash an interpreter that exits normally

asyncio.run(main())
"""
"""The shortest program that asks Temporal for the status of a run."""
STATUS = "`loom status RUN`"
LIST = "`loom list`"
HELP = "`loom --help`"
CLIENT = "`temporalio` client that asks the same"
HERE = Path(__file__).parent.parent
COMMANDS: Mapping[str, tuple[list[str], int]] = {
    "`python -c pass`": (["-c", "pass"], 0),
    "`import loom`": (["-c", "import loom"], 0),
    HELP: (["-c", "from loom.cli.main import main; main()", "--help"], 0),
    CLIENT: (["-c", BARE, "no-such-run"], 2),
    STATUS: (["-c", "from loom.cli.main import main; main()", "status", "no-such-run"], 2),
    LIST: (["-c", "from loom.cli.main import main; main()", "list"], 0),
}
"""The interpreter's arguments and the expected exit code of each command. No run is called `no-such-run`."""


@dataclass(frozen=True)
class Took:
    """The elapsed time and the processor time of one process, in seconds."""

    wall: float
    cpu: float


def startup(address: str, against: Path | None = None) -> Section:
    """Return the section as Markdown. The address is that of a Temporal server."""
    checkouts = [HERE] if against is None else [HERE, against]
    names = ["this"] if against is None else ["this", "the other"]
    rows: list[list[str]] = []
    this: dict[str, list[float]] = {}
    used: dict[str, list[float]] = {}
    for title, (arguments, code) in COMMANDS.items():
        # Alternate between the checkouts, so that other load on the machine affects both.
        rounds = [[_took(checkout, arguments, code, address) for checkout in checkouts] for _ in range(RUNS + 1)][1:]
        for name, took in zip(names, zip(*rounds, strict=True), strict=True):
            first = [title] if against is None else [title, name]
            wall, cpu = [each.wall for each in took], [each.cpu for each in took]
            this.setdefault(title, wall)
            used.setdefault(title, cpu)
            rows.append([*first, f"{median(cpu):.2f} s", spread(wall, "s", 2)])
    header = ["command", *([] if against is None else ["checkout"]), "processor time", "wall time (minimum–maximum)"]
    times = ratio(this[STATUS], this[CLIENT])
    text = (
        f"The figures are the medians of {RUNS} processes. `loom status` takes {times} times as long as a program that"
        " only imports `temporalio` and asks the same (median of pairs)."
    )
    shown = f"### Start-up of commands\n\n{text}\n\n" + table(header, rows)
    quick = Target(what=f"{HELP}, seconds", measured=median(this[HELP]), at_most=0.2)
    slower = Target(what=f"{STATUS} ÷ bare client", measured=ratio_of(this[STATUS], this[CLIENT]), at_most=1.3)
    reading = (
        Target(what=f"{command}, processor time", measured=median(used[command]), at_most=0.5, unit=" s")
        for command in (STATUS, LIST)
    )
    return Section(shown, (quick, slower, *reading))


async def worker_start(stage: Stage, *, rounds: int = 7) -> Section:
    """Return how long workers take until Temporal can give them work. Stops the worker of Loom."""
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    workers = {"loom": ("loom._worker", QUEUE), "bare": ("bench.bare", BARE_QUEUE)}
    times: dict[str, list[float]] = {name: [] for name in workers}
    if "loom" in stage.workers:
        stage.stop_worker("loom")
    for number in range(-1, rounds):
        for name in workers if number % 2 else reversed(workers):
            command, queue = workers[name]
            begun = perf_counter()
            stage.start_worker(name, command)
            await stage.until_serving(client, name, queue)
            if number >= 0:
                times[name].append(perf_counter() - begun)
            stage.stop_worker(name)
    restarted = await _restarts(stage, client, rounds)
    loom, bare = times["loom"], times["bare"]
    most = [1.5 * each + 0.5 for each in bare]
    rows = [["Loom", spread(loom, "s", 2), "1.00"], ["bare worker", spread(bare, "s", 2), ratio(loom, bare)]]
    rows.append(["Loom, restarted by `loom up`", spread(restarted, "s", 2), ratio(loom, restarted)])
    rows.append(["1.5 × the bare worker's time + 0.5 s", spread(most, "s", 2), ratio(loom, most)])
    text = (
        "The time runs from the start of a worker's process until Temporal knows that the worker polls. The bare worker"
        " (`bench/bare.py`) serves one workflow and one activity, and imports nothing but the SDK. The worker that"
        " `loom up` restarts is a spare process, which has imported its modules; its time runs from the kill of the"
        " worker before. The figures are"
        f" medians of {rounds} interleaved rounds after a warm-up."
    )
    head = ["worker", "time (minimum–maximum)", "Loom's time ÷ this time (median of rounds)"]
    share = Target(what="start of a worker ÷ (1.5 × bare worker + 0.5 s)", measured=ratio_of(loom, most), at_most=1)
    return Section(section("Start of a worker", text, table(head, rows)), (share,))


async def _restarts(stage: Stage, client: Client, rounds: int) -> list[float]:
    times = []
    with stage.supervised() as up:
        for _ in range(rounds):
            await up.until_spare()
            before, killed = up.worker(), up.kill_worker()
            while up.worker() == before or not await polls(client, up.worker(), QUEUE):
                await asyncio.sleep(0.02)
            times.append(perf_counter() - killed)
    return times


def _took(checkout: Path, arguments: list[str], code: int, address: str) -> Took:
    env = {**os.environ, "PYTHONPATH": str(checkout), "TEMPORAL_ADDRESS": address}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = perf_counter()
    ran = subprocess.run([sys.executable, "-P", *arguments], env=env, check=False, capture_output=True, text=True)
    wall = perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ran.returncode != code:
        raise RuntimeError(f"{arguments} exited with code {ran.returncode}: {ran.stderr}")
    return Took(wall=wall, cpu=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, metavar="DIR", help="another checkout to measure alternately")
    given = parser.parse_args()
    with servers() as (_, addresses):
        sys.stdout.write(startup(addresses["temporal"], given.against).text + "\n")


if __name__ == "__main__":
    main()
