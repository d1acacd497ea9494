"""Measure the start-up time of commands: `python -m bench.startup`. With `--against DIR`, compare another checkout."""

import argparse
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from bench.report import spread, table
from bench.stage import servers

RUNS = 15
HERE = Path(__file__).parent.parent
COMMANDS: Mapping[str, tuple[list[str], int]] = {
    "`python -c pass`": (["-c", "pass"], 0),
    "`import loom`": (["-c", "import loom"], 0),
    "`loom --help`": (["-c", "from loom.cli.main import main; main()", "--help"], 0),
    "`loom status RUN`": (["-c", "from loom.cli.main import main; main()", "status", "no-such-run"], 2),
}
"""The interpreter's arguments and the expected exit code of each command. No run is called `no-such-run`."""


@dataclass(frozen=True)
class Took:
    """The elapsed time and the processor time of one process, in seconds."""

    wall: float
    cpu: float


def startup(address: str, against: Path | None = None) -> str:
    """Return the section as Markdown. The address is that of a Temporal server."""
    checkouts = [HERE] if against is None else [HERE, against]
    names = ["this"] if against is None else ["this", "the other"]
    rows = []
    for title, (arguments, code) in COMMANDS.items():
        # Alternate between the checkouts, so that other load on the machine affects both.
        rounds = [[_took(checkout, arguments, code, address) for checkout in checkouts] for _ in range(RUNS + 1)][1:]
        for name, took in zip(names, zip(*rounds, strict=True), strict=True):
            first = [title] if against is None else [title, name]
            wall, cpu = [each.wall for each in took], [each.cpu for each in took]
            rows.append([*first, f"{median(cpu):.2f} s", spread(wall, "s", 2)])
    header = ["command", *([] if against is None else ["checkout"]), "processor time", "wall time (minimum–maximum)"]
    return f"### Start-up of commands\n\nThe figures are the medians of {RUNS} processes.\n\n" + table(header, rows)


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
        sys.stdout.write(startup(addresses["temporal"], given.against) + "\n")


if __name__ == "__main__":
    main()
