"""Kills workers around tool calls, at seeded random moments, and checks that no effect is lost or doubled.

    python -m tests.chaos.tool_kills --seeds 25 [--first 1] [--at-once 4]

Nothing in the worker knows of this: what is waited for is seen from outside (a row in the ledger, a line in a file, an
event of the stream), and the kill follows after a random moment. Where it hit is read off what is left behind.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

import psutil
import psycopg

from loom.domain.core.requests import RunResult
from loom.stack import up_down as stack
from loom.stack.plan import Plan as StackPlan
from loom.testing.harness import Addresses
from loom.testing.model_server import ModelServer
from loom.testing.worker_processes import Process, Workers, mortal
from tests.chaos.outside import Outside, set_up
from tests.chaos.plans import Call, Kill, Kind, Moment, Plan, plan_of
from tests.chaos.rules import Outcome, Stage, violations
from tests.processes import command_of

WORKER: Final = (str(Path(__file__).with_name("counting_worker.py")),)
ALLOWED: Final = {kind.value: "allow" for kind in Kind}
_LOOK_EVERY: Final = 0.002


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A kill and where it hit."""

    kill: Kill
    call: str
    """The call that was under way; else the one that was aimed at."""
    kind: Kind
    stage: Stage


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What came of a seed."""

    plan: Plan
    hits: tuple[Hit, ...]
    outcome: Outcome
    violations: tuple[str, ...]
    left_over: int
    """Processes of the sandbox that outlived their worker, and had not begun the command."""
    seconds: float


async def survive(seed: int, addresses: Addresses, folder: Path) -> Report:
    """Run one seed: a run, its kills, and what came of them; the run is replayed, too."""
    begun, plan = monotonic(), plan_of(seed)
    workspace = folder / f"seed-{seed}" / "workspace"
    workspace.mkdir(parents=True)
    set_up(workspace)
    async with (
        mortal(addresses, workspace, plan.script) as (loom, model, workers),
        await psycopg.AsyncConnection.connect(addresses.database, autocommit=True) as ledger,
    ):
        worker = await workers.start(WORKER)
        run_id = await loom.start(permissions=ALLOWED)
        outside = Outside(client=loom.client, ledger=ledger, workspace=workspace, plan=plan, run_id=run_id)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(outside.follow())
            result = tasks.create_task(loom.client.result(run_id))
            killing = tasks.create_task(_kill_all(outside, model, workers, worker, result))
        outcome = await _outcome(outside, model, result.result(), [stages for _, stages in killing.result()])
        hits = tuple(_hit(kill, stages, plan) for kill, stages in killing.result())
        wrong = tuple(violations(plan, outcome))
    left = await asyncio.to_thread(_end_left_over, workspace)
    return Report(plan=plan, hits=hits, outcome=outcome, violations=wrong, left_over=left, seconds=monotonic() - begun)


async def _kill_all(
    outside: Outside, model: ModelServer, workers: Workers, worker: Process, run: asyncio.Task[RunResult]
) -> list[tuple[Kill, dict[str, Stage]]]:
    """Kill as planned, each time starting another worker; a moment that never comes is left out."""
    killed: list[tuple[Kill, dict[str, Stage]]] = []
    for kill in outside.plan.kills:
        while not run.done() and not await _seen(kill, outside, model):
            await asyncio.sleep(_LOOK_EVERY)
        await asyncio.sleep(kill.delay)
        if run.done():
            break
        await workers.kill(worker)
        facts = await outside.facts(worker.pid)
        killed.append((kill, {name: fact.stage for name, fact in facts.items()}))
        outside.called -= {name for name, fact in facts.items() if not fact.told}
        worker = await workers.start(WORKER)
    return killed


async def _seen(kill: Kill, outside: Outside, model: ModelServer) -> bool:
    call = kill.call
    if kill.moment is Moment.ASKED:
        asked = any(request.turn == call.turn for request in model.requests)
        return asked and _earlier_in_turn(outside.plan, call) <= outside.returned
    # Looking at more than this all the time would leave the workers no processor.
    return call.id in outside.called and await _left_behind(kill, outside)


async def _left_behind(kill: Kill, outside: Outside) -> bool:
    call = kill.call.id
    match kill.moment:
        case Moment.CLAIMED:
            return call in await outside.claims()
        case Moment.BEGUN:
            return outside.begun()[call] > 0
        case Moment.DONE:
            return outside.effects()[call] > 0
        case Moment.ENDED:
            return (await outside.claims()).get(call, False)
        case Moment.TOLD:
            return call in outside.returned
        case _:
            return True


def _earlier_in_turn(plan: Plan, call: Call) -> set[str]:
    turn = plan.turns[call.turn]
    return {other.id for other in turn[: turn.index(call)]}


async def _outcome(
    outside: Outside, model: ModelServer, result: RunResult, kills: Sequence[dict[str, Stage]]
) -> Outcome:
    results: dict[str, list[str]] = {call.id: [] for call in outside.plan.calls}
    for message in model.requests[-1].messages:
        if message["role"] == "tool":
            results.setdefault(message["tool_call_id"], []).append(message["content"])
    return Outcome(
        status=result.status.value,
        output=result.output,
        results=results,
        effects=outside.effects(),
        keys=outside.keys(),
        kills=kills,
        lost=await outside.lost(),
    )


def _hit(kill: Kill, stages: dict[str, Stage], plan: Plan) -> Hit:
    under_way = (name for name, stage in stages.items() if stage not in (Stage.BEFORE, Stage.TOLD))
    name = next(under_way, kill.call.id)
    kind = next(call.kind for call in plan.calls if call.id == name)
    return Hit(kill=kill, call=name, kind=kind, stage=stages[name])


def _end_left_over(workspace: Path) -> int:
    """End what still runs in this seed's workspace, and say how many that were.

    bubblewrap's inner process binds its life to its parent's only after the parent has set it up; if that one is killed
    before, it waits for ever.
    """
    left = [process for process in psutil.process_iter() if str(workspace) in command_of(process)]
    for process in left:
        process.kill()
    return len(left)


async def survive_all(
    seeds: Sequence[int], addresses: Addresses, folder: Path, *, at_once: int, told: Callable[[Report], None]
) -> list[Report]:
    """Run seeds, some at once; `told` hears of each as it ends."""
    room = asyncio.Semaphore(at_once)

    async def one(seed: int) -> Report:
        async with room:
            report = await survive(seed, addresses, folder)
        told(report)
        return report

    return await asyncio.gather(*(one(seed) for seed in seeds))


def line(report: Report) -> str:
    """A seed on one line, its violations below."""
    hits = "; ".join(f"{hit.call} {hit.kind} {hit.stage}" for hit in report.hits) or "not killed"
    head = f"seed {report.plan.seed:3} {'WRONG' if report.violations else 'ok'} {report.seconds:5.1f} s  {hits}"
    left = [f"{report.left_over} process of the sandbox left over"] if report.left_over else []
    return "\n".join((head, *(f"         {what}" for what in (*report.violations, *left))))


def distribution(reports: Sequence[Report]) -> str:
    """How often each stage was hit, by the kind of call."""
    hits = Counter((hit.stage, hit.kind) for report in reports for hit in report.hits)
    kinds = (Kind.ONCE, Kind.IDEMPOTENT)
    head = f"{'killed while the call was':32}{''.join(f'{kind.name.lower():>12}' for kind in kinds)}"
    return "\n".join((head, *(f"{stage:32}{''.join(f'{hits[stage, kind]:12}' for kind in kinds)}" for stage in Stage)))


@contextmanager
def _servers(folder: Path) -> Iterator[Addresses]:
    home = folder / ".loom"
    parts = stack.up_detached(StackPlan(home=home, worker=None)).parts
    address = {name: part.address or "" for name, part in parts.items()}
    try:
        yield Addresses(temporal=address["temporal"], database=address["postgres"], redis=address["redis"], ui="")
    finally:
        stack.down(home)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=25, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--at-once", type=int, default=2 * (os.cpu_count() or 1), help="runs beside each other")
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.seeds)
    with tempfile.TemporaryDirectory(prefix="loom-chaos-") as folder, _servers(Path(folder)) as addresses:
        reports = asyncio.run(
            survive_all(
                seeds,
                addresses,
                Path(folder),
                at_once=given.at_once,
                told=lambda report: print(line(report), flush=True),
            )
        )
    print(f"\n{distribution(reports)}")
    sys.exit(any(report.violations for report in reports))


if __name__ == "__main__":
    main()
