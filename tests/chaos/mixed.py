"""Many runs at once while everything around them fails: workers, Temporal, Redis, Postgres, and the provider.

    python -m tests.chaos.mixed --kills 500 [--runs 100] [--workers 3] [--seed 1]

Rounds are repeated until so many processes have been killed. In a round, each run works in a folder of its own. What it
has done is counted from outside: lines that its commands wrote, bookings in a foreign database, what the provider was
told, events of Temporal's history, and the live stream. Nothing may be lost, doubled or stuck.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import median
from time import monotonic
from typing import Any, Final

import psutil
from temporalio.client import WorkflowHistory

from loom import errors
from loom.domain.core.requests import RunResult
from loom.stack import state as stack_state
from loom.stack import up_down as stack
from loom.stack.plan import Plan as StackPlan
from loom.testing.harness import Addresses, Harness
from loom.testing.model_server import ModelServer
from loom.testing.worker_processes import Process, Workers, mortal
from tests.chaos.outside import set_up
from tests.chaos.stories import KINDS, Weather, conversation_of, task_of
from tests.chaos.verdict import Seen, step_of, violations
from tests.processes import command_of

WORKER: Final = (str(Path(__file__).with_name("counting_worker.py")),)
ALLOWED: Final = {
    "credit": "allow",
    "read_file": "allow",
    "bash(echo:*)": "allow",
    "bash(>> effects)": "allow",
    "delegate_task": "allow",
}
CREW: Final = {"name": "team", "mode": "coordinated", "members": [{"name": "finder"}, {"name": "checker"}]}
STUCK: Final = 900.0
"""Seconds after which a run that has not ended counts as stuck."""


@dataclass
class Storm:
    """The processes of a round, and the faults that have hit them."""

    home: Path
    workers: Workers
    model: ModelServer
    weather: Weather
    random: Random
    living: list[Process] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    deaths: list[datetime] = field(default_factory=list)
    """When workers were killed."""

    async def rage(self, at_most: int) -> None:
        """Let one thing after the other fail, until so many processes have been killed."""
        kinds: Sequence[tuple[Callable[[], Awaitable[None]], int]] = (
            (self._kill_worker, 12),
            (self._stop_worker, 2),
            (lambda: self._kill_server("temporal"), 1),
            (lambda: self._kill_server("redis"), 2),
            (lambda: self._kill_server("postgres"), 2),
            (self._spoil_weather, 3),
        )
        while killed(self.faults) < at_most:
            (fault,) = self.random.choices([kind for kind, _ in kinds], weights=[weight for _, weight in kinds])
            await fault()
            await asyncio.sleep(self.random.expovariate(1.5))

    async def start_workers(self, number: int) -> None:
        """Start the workers, and wait until they poll."""
        self.living = list(await asyncio.gather(*(self.workers.start(WORKER) for _ in range(number))))

    async def _kill_worker(self) -> None:
        place = self.random.randrange(len(self.living))
        self.faults["kill worker"] += 1
        self.deaths.append(datetime.now(UTC))
        await self.workers.kill(self.living[place])
        self.living[place] = self.workers.spawn(WORKER)

    async def _stop_worker(self) -> None:
        stopped = self.random.choice(self.living)
        self.faults["stop worker"] += 1
        stopped.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(self.random.uniform(0.5, 10))
        finally:
            stopped.send_signal(signal.SIGCONT)

    async def _kill_server(self, name: str) -> None:
        part = stack_state.read(self.home).living().get(name)
        if part is not None:  # otherwise the supervisor is still starting it again
            self.faults[f"kill {name}"] += 1
            os.kill(part.pid, signal.SIGKILL)

    async def _spoil_weather(self) -> None:
        kind = self.random.choice(Weather.KINDS)
        self.faults[f"provider {kind}"] += 1
        await self.weather.turn(kind, self.random.uniform(1, 10), self.model)


def killed(faults: Mapping[str, int]) -> int:
    """Return how many processes these faults have killed."""
    return sum(times for name, times in faults.items() if name.startswith("kill"))


@dataclass(kw_only=True)
class Report:
    """What came of a round."""

    runs: int
    faults: Counter[str]
    wrong: list[str]
    left_over: int
    """Processes that outlived the round's workers."""
    takeovers: list[float]
    """Seconds from a worker's death to the next attempt at each activity that it lost."""
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Round:
    """What is to happen at once."""

    seed: int
    runs: int
    workers: int
    kills: int
    """How many processes are killed at most; it ends earlier if all runs have ended."""


async def survive(given: Round, home: Path, folder: Path) -> Report:
    """Start runs, let things fail until so many processes have been killed, and look at what came of the runs."""
    began, parts = monotonic(), stack_state.read(home).parts
    address = {name: part.address or "" for name, part in parts.items()}
    addresses = Addresses(temporal=address["temporal"], database=address["postgres"], redis=address["redis"], ui="")
    root = folder / f"round-{given.seed}" / "workspace"
    root.mkdir(parents=True)
    weather = Weather(given.seed)
    async with mortal(addresses, root, weather.reply) as (loom, model, processes):
        storm = Storm(home=home, workers=processes, model=model, weather=weather, random=Random(given.seed))
        await storm.start_workers(given.workers)
        ids = [await _start(loom, root, number) for number in range(given.runs)]
        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(storm.rage(given.kills)), tasks.create_task(_approve(loom, ids))]
            results = await asyncio.gather(*(_result(loom, run_id) for run_id in ids))
            for each in others:
                each.cancel()
        wrong, takeovers, results_told = [], [], _told(model)
        for number, (run_id, result) in enumerate(zip(ids, results, strict=True)):
            if result is None:
                wrong.append(f"run {number} ({run_id}) is stuck: {await _status(loom, run_id)}")
                continue
            histories = {each: await loom.histories(each) for each in (run_id, *await loom.below(run_id))}
            place = root / str(number)
            seen = Seen(
                number=number, run_id=run_id, result=result, folder=place, results=results_told, histories=histories
            )
            wrong += await violations(loom, seen)
            takeovers += [each for chain in histories.values() for each in _takeovers(chain, storm.deaths)]
    left = [process for process in psutil.process_iter() if str(root) in " ".join(command_of(process))]
    return Report(
        runs=given.runs,
        faults=storm.faults,
        wrong=wrong,
        left_over=len(left),
        takeovers=takeovers,
        seconds=monotonic() - began,
    )


async def _start(loom: Harness, root: Path, number: int) -> str:
    place = root / str(number)
    place.mkdir()
    set_up(place)
    task = task_of(number)
    if KINDS[number % len(KINDS)] != "crew":
        return await loom.start(task, workspace=str(place), permissions=ALLOWED)
    run_id = await loom.client.start_crew(CREW, task, workspace=str(place))
    loom.started.append(run_id)
    return run_id


async def _result(loom: Harness, run_id: str) -> RunResult | None:
    """Return the run's result, however often the server goes away meanwhile; None if the run is stuck."""
    with suppress(TimeoutError):
        async with asyncio.timeout(STUCK):
            while True:
                with suppress(errors.LoomError):
                    return await loom.client.result(run_id)
                await asyncio.sleep(0.5)
    return None


async def _approve(loom: Harness, run_ids: Sequence[str]) -> None:
    """Approve what runs ask for, as a person does who tries again when nobody answers."""
    asking = [run_id for number, run_id in enumerate(run_ids) if KINDS[number % len(KINDS)] in ("asks", "tree")]
    while True:
        for run_id in asking:
            with suppress(errors.LoomError):
                for ask in (await loom.client.status(run_id))["pending_approvals"]:
                    await loom.client.approve(run_id, ask["call_id"], digest=ask["digest"], by="ann")
        await asyncio.sleep(0.5)


def _told(model: ModelServer) -> dict[str, str]:
    """Return what the model was told of each call in the last request of the conversation that the call is in."""
    latest = {conversation_of(request): request for request in model.requests}
    return {
        message["tool_call_id"]: str(message["content"])
        for request in latest.values()
        for message in request.messages
        if message["role"] == "tool"
    }


async def _status(loom: Harness, run_id: str) -> Any:
    status = await loom.client.status(run_id)
    return {name: status.get(name) for name in ("status", "phase", "turn", "waiting_on")}


def _takeovers(chain: Sequence[WorkflowHistory], deaths: Sequence[datetime]) -> Iterator[float]:
    """Yield the seconds from a worker's death to the next attempt at an activity that was lost with it."""
    names: dict[int, str] = {}
    lost: dict[str, datetime] = {}
    for event in (event for history in chain for event in history.events):
        at = event.event_time.ToDatetime(UTC)
        if event.HasField("activity_task_scheduled_event_attributes"):
            names[event.event_id] = event.activity_task_scheduled_event_attributes.activity_id
        elif event.HasField("activity_task_timed_out_event_attributes"):
            step = step_of(names[event.activity_task_timed_out_event_attributes.scheduled_event_id])
            if (death := max((each for each in deaths if each < at), default=None)) is not None:
                lost[step] = death
        elif event.HasField("activity_task_started_event_attributes"):
            step = step_of(names[event.activity_task_started_event_attributes.scheduled_event_id])
            if (death := lost.pop(step, None)) is not None:
                yield (at - death).total_seconds()


def line(report: Report) -> str:
    """A round in some lines."""
    faults = ", ".join(f"{name} {times}" for name, times in sorted(report.faults.items()))
    times = sorted(report.takeovers)
    taken = f"{len(times)} activities taken over"
    if times:
        taken += f" after {median(times):.1f} s (p95 {times[int(len(times) * 0.95)]:.1f}, most {times[-1]:.1f})"
    head = f"{report.runs} runs in {report.seconds:.0f} s: {len(report.wrong)} wrong, {report.left_over} processes left"
    return "\n".join((head, f"    {faults}", f"    {taken}", *(f"    {what}" for what in report.wrong)))


def main() -> int:
    """Return 1 if anything was lost, doubled, stuck or left over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500, help="how many processes are killed in all")
    parser.add_argument("--runs", type=int, default=100, help="runs of a round, all at once")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--a-round", type=int, default=60, help="how many processes are killed in a round at most")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    given = parser.parse_args()
    reports: list[Report] = []
    with tempfile.TemporaryDirectory(prefix="loom-chaos-") as folder:
        home = Path(folder) / ".loom"
        stack.up_detached(StackPlan(home=home, worker=None))
        try:
            while (left := given.kills - sum(killed(report.faults) for report in reports)) > 0:
                seed, most = given.seed + len(reports), min(left, given.a_round)
                one = Round(seed=seed, runs=given.runs, workers=given.workers, kills=most)
                report = asyncio.run(survive(one, home, Path(folder)))
                print(f"seed {seed}: {line(report)}", flush=True)
                reports.append(report)
        finally:
            stack.down(home)
    wrong = sum(len(report.wrong) + report.left_over for report in reports)
    total = sum(killed(report.faults) for report in reports)
    print(f"{total} kills, {sum(report.runs for report in reports)} runs: {wrong} lost, doubled, stuck or left over")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
