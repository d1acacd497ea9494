"""Runs in backoff that are asked, told, paused and resumed while their workers stand still and evict them.

    python -m tests.chaos.stalls --runs 500 [--at-once 12] [--workers 2] [--longest 10] [--seed 1]

Nobody is killed. Each of the workers is stopped and continued, for up to `--longest` seconds, and caches only two runs.
The provider fails three of ten calls. Each run has two watchers, which query it all the time. In the end, every run
must have its answer, and today's code must be able to replay every history.
"""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

from loom import errors
from loom.domain.core.requests import RunStatus
from loom.stack import state as stack_state
from loom.stack import up_down as stack
from loom.stack.plan import Plan as StackPlan
from loom.testing.fork_server import ForkServer
from loom.testing.harness import Addresses, Harness
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, status, text
from loom.testing.worker_processes import Process, mortal
from tests.chaos.disturbance import MESSAGE, PAUSE, RESUME, Disturbance, Request
from tests.chaos.replays import KEEP, divergences, keep

TURNS: Final = 4
WORKER: Final = {
    "LOOM_MAX_CACHED_WORKFLOWS": "2",
    "LOOM_MAX_CACHED_WAITS": "1",
    "LOOM_FIRST_RETRY_DELAY": "1",
    "LOOM_MODEL_ATTEMPTS": "1000",
}
REQUESTS: Final[Sequence[Request]] = (
    MESSAGE,
    ("set_permissions", {"rules": {"bash": "deny"}}),
    PAUSE,
    RESUME,
    RESUME,
)
STUCK: Final = 120.0
"""Seconds without a stall after which a run that hasn't ended counts as stuck."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """What is to happen."""

    runs: int
    at_once: int = 12
    workers: int = 2
    longest: float = 10.0
    """Seconds for which a worker stands still at most."""
    seed: int = 1
    keep: Path = KEEP


@dataclass(kw_only=True)
class Report:
    """What came of it."""

    runs: int = 0
    wrong: list[str] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def line(self) -> str:
        """The report in some lines."""
        counted = ", ".join(f"{name} {times}" for name, times in sorted(self.counted.items()))
        head = f"{self.runs} runs in {self.seconds:.0f} s: {len(self.wrong)} stuck or diverging ({counted})"
        return "\n".join((head, *(f"    {what}" for what in self.wrong)))


class Provider:
    """Lists a folder in each turn, and fails three of ten calls on average."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.works = False

    def reply(self, request: SeenRequest) -> Reply:
        """Return the reply to a request."""
        if not self.works and self._random.random() < 0.3:
            return status(503, message="overloaded")
        if request.turn < TURNS:
            return calls(ToolUse("list_dir", {"path": "."}, f"c{request.turn}"))
        return text("finished")


async def stall(given: Given, addresses: Addresses, folder: Path, forks: ForkServer | None = None) -> Report:
    """Start runs, so many at once, and disturb them until all have ended. Then replay their histories."""
    began, random, report = monotonic(), Random(given.seed), Report()
    provider = Provider(random)
    workspace = folder / "workspace"
    workspace.mkdir(parents=True)
    async with mortal(addresses, workspace, provider.reply, forks=forks) as (loom, _, workers):
        started = await asyncio.gather(*(workers.start(**WORKER) for _ in range(given.workers)))
        while report.runs < given.runs:
            number = min(given.at_once, given.runs - report.runs)
            run_ids = [await loom.start("look around") for _ in range(number)]
            provider.works = False
            disturbance = Disturbance(loom.client, random, report.counted)
            await _disturb(disturbance, run_ids, started, given.longest)
            provider.works = True
            report.runs += number
            for run_id in run_ids:
                report.wrong += await _faults(loom, run_id, given.keep)
            loom.started.clear()
    report.seconds = monotonic() - began
    return report


async def _disturb(
    disturbance: Disturbance, run_ids: Sequence[str], workers: Sequence[Process], longest: float
) -> None:
    """Stop and continue the workers, and query, tell, pause and resume the runs. In the end, all of them go on."""
    random = disturbance.random
    async with asyncio.TaskGroup() as tasks:
        for run_id in run_ids:
            requests = (random.choice(REQUESTS) for _ in repeat(None))
            for watching in (disturbance.watch([run_id]), disturbance.watch([run_id])):
                tasks.create_task(watching)
            tasks.create_task(disturbance.steer(run_id, requests))
        for _ in range(4):
            await asyncio.sleep(random.uniform(0.2, 1.0))
            disturbance.counted["stalls"] += 1
            await _stop(random.choice(workers), random.uniform(0.3, longest))
        disturbance.is_over = True
    for run_id in run_ids:
        with suppress(errors.RefusedError):  # it isn't paused, or has ended
            await disturbance.client.resume(run_id)


async def _stop(worker: Process, seconds: float) -> None:
    worker.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        worker.send_signal(signal.SIGCONT)


async def _faults(loom: Harness, run_id: str, folder: Path) -> list[str]:
    """Return what is wrong with a run and the replay of its history."""
    wrong = []
    try:
        async with asyncio.timeout(STUCK):
            result = await loom.client.result(run_id)
            if result.status is not RunStatus.COMPLETED:
                wrong.append(f"{run_id} is {result.status}: {result.error}")
    except TimeoutError:
        wrong.append(f"{run_id} is stuck")
    histories = await loom.histories(run_id)
    diverging = await divergences(histories, loom.client.temporal.data_converter)
    wrong += [f"{run_id} diverges: {why}" for _, why in diverging]
    return [f"{what} ({keep(histories, folder)})" for what in wrong]


def main() -> int:
    """Return 1 if a run was stuck or its history diverges."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=Given.at_once)
    parser.add_argument("--workers", type=int, default=Given.workers)
    parser.add_argument("--longest", type=float, default=Given.longest, help="seconds for which a worker stands still")
    parser.add_argument("--seed", type=int, default=Given.seed)
    parser.add_argument("--keep", type=Path, default=Given.keep, help="folder for the histories of wrong runs")
    given = Given(**vars(parser.parse_args()))
    with tempfile.TemporaryDirectory(prefix="loom-stalls-") as folder:
        home = Path(folder) / ".loom"
        stack.up_detached(StackPlan(home=home, worker=None))
        try:
            parts = stack_state.read(home).parts
            address = {name: part.address or "" for name, part in parts.items()}
            addresses = Addresses(
                temporal=address["temporal"], database=address["postgres"], redis=address["redis"], ui=""
            )
            report = asyncio.run(stall(given, addresses, Path(folder)))
        finally:
            stack.down(home)
    print(report.line())
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
