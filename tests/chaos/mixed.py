"""Many runs at once while everything around them fails: workers, Temporal, Redis, Postgres, and the provider.

    python -m tests.chaos.mixed --kills 500 [--runs 100] [--workers 3] [--a-round 60] [--seed 1] [--keep FOLDER]

Rounds are repeated until so many processes have been killed. In a round, each run works in a folder of its own. Some
are chats that rest between their messages. Two watchers query all runs all the time, and others send messages, pauses
and resumes. Most workers have room for a few runs only. What a run has done is counted from outside: lines that its
commands wrote, bookings in a foreign database, what the provider was told, events of Temporal's history, and the live
stream. Nothing may be lost, doubled, stuck or deaf, and today's code must be able to replay every history.
"""

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final, TypeAlias
from unittest.mock import patch

import psutil
from temporalio.client import WorkflowHistory
from temporalio.runtime import Runtime, TelemetryConfig

from loom.domain.core.requests import RunResult
from loom.stack import state as stack_state
from loom.stack import up_down as stack
from loom.stack.plan import Plan as StackPlan
from loom.testing.harness import Addresses, Harness
from loom.testing.model_server import ModelServer
from loom.testing.worker_processes import mortal
from loom.workflows import options
from tests.chaos.disturbance import Disturbance
from tests.chaos.replays import KEEP, divergences, keep, patiently
from tests.chaos.scene import Scene
from tests.chaos.stories import Weather, conversation_of
from tests.chaos.storm import CHAT_IDLE, Storm, killed
from tests.chaos.takeovers import Takeover, figures, longest, summary, takeovers
from tests.chaos.verdict import Seen, violations
from tests.processes import command_of

Chains: TypeAlias = Mapping[str, Sequence[WorkflowHistory]]
"""The executions of runs, by run id."""
DIRE: Final = "lost, doubled, stuck, deaf or left over"


@dataclass(frozen=True, kw_only=True)
class Round:
    """What is to happen at once."""

    seed: int
    runs: int
    workers: int
    kills: int
    """How many processes are killed at most; it ends earlier if all runs but the chats have ended."""
    keep: Path
    """Where the histories of wrong runs and the logs of their workers stay."""


@dataclass(kw_only=True)
class Report:
    """What came of a round."""

    runs: int
    faults: Counter[str]
    counted: Counter[str]
    """What people have done."""
    replayed: int
    wrong: list[str]
    left_over: int
    """Processes that outlived the round's workers."""
    takeovers: list[Takeover]
    restarts: list[float]
    """Seconds from a worker's death until another one polled in its place."""
    seconds: float

    def lines(self) -> str:
        """The round in some lines."""
        head = f"{self.runs} runs in {self.seconds:.0f} s: {len(self.wrong)} wrong, {self.left_over} processes left"
        done = f"{_counted(self.counted)}, histories replayed {self.replayed}"
        long = [each.line() for each in longest(self.takeovers)]
        return "\n    ".join((head, _counted(self.faults), done, recovery([self]), *long, *self.wrong))


def recovery(reports: Sequence[Report]) -> str:
    """How long it took in these rounds until others went on."""
    found = summary([each for report in reports for each in report.takeovers])
    return (
        f"activities taken over: {found}; workers replaced: {figures([n for each in reports for n in each.restarts])}"
    )


async def survive(given: Round, home: Path, folder: Path) -> Report:
    """Start runs, let things fail until so many processes have been killed, and look at what came of the runs."""
    began, place = monotonic(), folder / f"round-{given.seed}"
    root, weather, counted = place / "workspace", Weather(given.seed), Counter[str]()
    root.mkdir(parents=True)
    with patch.object(options, "CHAT_IDLE", CHAT_IDLE):
        async with mortal(_addresses(home), root, weather.reply) as (loom, model, workers):
            storm = Storm(home, loom.client.temporal, workers, model, weather, Random(given.seed))
            people = Disturbance(loom.client, Random(given.seed), counted)
            scene = Scene(loom=loom, root=root, storm=storm, people=people)
            await storm.start_workers(given.workers)
            for number in range(given.runs):
                await scene.start(number)
            results = await scene.live(given.kills)
            loom.started.clear()  # they are replayed here, so that one that diverges doesn't end the round
            chains = {run_id: await _chains(loom, run_id) for run_id in scene.run_ids}
            faults = {**scene.faults_of_chats, **await _faults(scene, model, results, chains)}
            histories = [each for below in chains.values() for chain in below.values() for each in chain]
            diverging = await divergences(histories, loom.client.temporal.data_converter)
    wrong = [_kept(what, chains[run_id], given) for run_id, all_ in faults.items() for what in all_]
    wrong += [_kept(f"{one.workflow_id} diverges: {why}", {"": [one]}, given) for one, why in diverging]
    if wrong:
        shutil.copytree(place, given.keep / place.name, ignore=shutil.ignore_patterns("workspace"), dirs_exist_ok=True)
    left = [process for process in psutil.process_iter() if str(root) in " ".join(command_of(process))]
    of_chains = [item for below in chains.values() for item in below.items()]
    return Report(
        runs=given.runs,
        faults=storm.faults,
        counted=counted,
        replayed=len(histories),
        wrong=wrong,
        left_over=len(left),
        takeovers=[each for run_id, chain in of_chains for each in takeovers(storm, run_id, chain)],
        restarts=storm.restarts(),
        seconds=monotonic() - began,
    )


def _addresses(home: Path) -> Addresses:
    address = {name: part.address or "" for name, part in stack_state.read(home).parts.items()}
    return Addresses(temporal=address["temporal"], database=address["postgres"], redis=address["redis"], ui="")


async def _chains(loom: Harness, run_id: str) -> dict[str, Sequence[WorkflowHistory]]:
    """Return the executions of a run and of those below it."""
    below = await patiently(lambda: loom.below(run_id))
    return {each: await patiently(lambda each=each: loom.histories(each)) for each in (run_id, *below)}  # type: ignore[misc]


async def _faults(
    scene: Scene, model: ModelServer, results: Mapping[int, RunResult | None], chains: Mapping[str, Chains]
) -> dict[str, list[str]]:
    """Return what is wrong with each run that should have ended by itself."""
    faults, told = {}, _told(model)
    for number, run_id in scene.runs.items():
        if (result := results[number]) is None:
            faults[run_id] = [f"run {number} ({run_id}) is stuck: {await _status(scene.loom, run_id)}"]
            continue
        place = scene.root / str(number)
        seen = Seen(number=number, run_id=run_id, result=result, folder=place, results=told, histories=chains[run_id])
        faults[run_id] = await violations(scene.loom, seen)
    return faults


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
    status = await patiently(lambda: loom.client.status(run_id))
    return {name: status.get(name) for name in ("status", "phase", "turn", "waiting_on", "fault")}


def _kept(what: str, chains: Chains, given: Round) -> str:
    """Return what is wrong, and where the histories that show it are now."""
    histories = [history for chain in chains.values() for history in chain]
    return f"{what} [{keep(histories, given.keep / f'round-{given.seed}')}]"


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {times}" for name, times in sorted(counter.items()))


def main() -> int:
    """Return 1 if anything was lost, doubled, stuck, deaf or left over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500, help="how many processes are killed in all")
    parser.add_argument("--runs", type=int, default=100, help="runs of a round, all at once")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--a-round", type=int, default=60, help="how many processes are killed in a round at most")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--keep", type=Path, default=KEEP, help="folder for the histories and logs of wrong runs")
    given = parser.parse_args()
    for name in (signal.SIGINT, signal.SIGTERM):  # in the background, too, it takes its servers with it
        signal.signal(name, signal.default_int_handler)
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=None)))  # it tells of each query without an answer
    reports: list[Report] = []
    with tempfile.TemporaryDirectory(prefix="loom-chaos-") as folder:
        home = Path(folder) / ".loom"
        stack.up_detached(StackPlan(home=home, worker=None))
        try:
            while (left := given.kills - sum(killed(report.faults) for report in reports)) > 0:
                seed, most = given.seed + len(reports), min(left, given.a_round)
                one = Round(seed=seed, runs=given.runs, workers=given.workers, kills=most, keep=given.keep)
                report = asyncio.run(survive(one, home, Path(folder)))
                print(f"seed {seed}: {report.lines()}", flush=True)
                reports.append(report)
        finally:
            stack.down(home)
    wrong = sum(len(report.wrong) + report.left_over for report in reports)
    total = sum(killed(report.faults) for report in reports)
    print(recovery(reports))
    print(f"{total} kills, {sum(report.runs for report in reports)} runs: {wrong} {DIRE}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
