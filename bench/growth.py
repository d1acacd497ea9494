"""Measure whether turns become slower, or cost more processor time, as a run becomes longer."""

import asyncio
import re
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle

from bench.report import ratio, ratio_of, section, spread, table
from bench.stage import Stage, until
from bench.targets import Section, Target
from bench.turns import FORGETFUL_QUEUE, Loop, loops, start_worker
from loom.activities.adapters.temporal.run_history import executions

SAMPLED: Final = 0.1
"""Seconds between two readings of the worker's processor time."""
MOST: Final = 1.15
"""The target: how many times as much a late turn may cost as an early one."""
LOOP: Final = "loom without memory"
"""The worker. With memory, each pair would wait a minute for the vectors of the pair before, or compete with them."""
PAIRS: Final = 10
EARLY: Final = (50, 120)
"""The turns of a new run that late turns are compared with."""
WARM_UP: Final = 0.8
"""Seconds after a pause that aren't measured. The first turns of a new run aren't measured either (`EARLY`)."""
WINDOW: Final = 2.0
"""Seconds for which each pair measures the long run."""
PATIENCE: Final = 900.0
"""Seconds that the long run may take, with its pauses."""
_MODEL_CALL: Final = re.compile(r"t(\d+)-model")
"""Matches the ID of a turn's first activity."""


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What was measured."""

    begun: Mapping[int, float]
    """The time when each turn began."""
    rotations: Sequence[int]
    """The turns with which a new execution began."""
    compressions: int
    used: Sequence[tuple[float, float]]
    """Readings of the worker's processor time in seconds, each with its time."""

    def cpu(self, moment: float) -> float:
        """Return the worker's processor time at this moment, interpolated between two readings."""
        after = min(max(bisect_left(self.used, (moment,)), 1), len(self.used) - 1)
        (begin, low), (end, high) = self.used[after - 1 : after + 1]
        return low + (high - low) * (moment - begin) / (end - begin)


@dataclass(frozen=True, kw_only=True)
class _Stretch:
    """The figures of some consecutive turns of one run."""

    first: int
    last: int
    time: float
    """Milliseconds per turn."""
    cpu: float
    """Milliseconds of the worker's processor time per turn."""


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A new run, and the period after it in which the long run was measured."""

    new: str
    begin: float
    end: float


async def growth(stage: Stage, *, turns: int = 4400, marks: Sequence[int] = (700, 2500)) -> Section:
    """Return the figures of the turns after each mark, beside those of new runs."""
    if LOOP not in stage.workers:
        start_worker(stage, LOOP)
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    loom = loops(stage, client)[LOOP]
    await loom("turns=20 calls=1 before growth")
    await stage.until_idle(LOOP)
    pairs: dict[int, list[_Pair]] = {}
    with _sampled(stage, stage.workers[LOOP].pid) as used:
        request = {"task": f"turns={turns} calls=1", "max_turns": turns + 1, "model": "immediate:any"}
        long = await client.start_workflow("AgentRun", request, id="bench-growth", task_queue=FORGETFUL_QUEUE)
        async with asyncio.timeout(PATIENCE):
            for mark in marks:
                await until(long, lambda status, mark=mark: status["turn"] >= mark, every=0.5)  # type: ignore[misc]
                pairs[mark] = [await _pair(stage, long, loom, f"{mark}-{number}") for number in range(PAIRS)]
            await long.result()
        await asyncio.sleep(2 * SAMPLED)
    run = await _read(client, long.id, used)
    rows, targets = [], []
    for mark in marks:
        late = [_during(run, pair.begin, pair.end) for pair in pairs[mark]]
        early = [_between(await _read(client, pair.new, used), *EARLY) for pair in pairs[mark]]
        row = [f"{late[0].first:,}–{late[-1].last:,}"]
        for name, ours, theirs in (
            ("time", [each.time for each in late], [each.time for each in early]),
            ("worker's CPU", [each.cpu for each in late], [each.cpu for each in early]),
        ):
            what = f"{name} of turns {row[0]} of a long run ÷ turns {EARLY[0]}–{EARLY[1]}"
            targets.append(Target(what=what, measured=ratio_of(ours, theirs), at_most=MOST))
            row += [spread(ours, "ms"), spread(theirs, "ms"), ratio(ours, theirs)]
        rows.append([*row, sum(each.first < turn <= each.last for turn in run.rotations for each in late)])
    head = ["turns", "long run", "new runs", "ratio", "CPU, long run", "CPU, new runs", "ratio", "continued as new"]
    text = (
        f"One run has {turns:,} turns with one tool call each, with the same model as above. After turns"
        f" {' and '.join(f'{mark:,}' for mark in marks)}, it is paused {PAIRS} times. During each pause, a new run of"
        f" {EARLY[1]} turns runs, and its turns {EARLY[0]} to {EARLY[1]} are compared with the long run's turns after"
        " the pause. Both are measured within seconds, so changes in the machine's speed hardly affect the ratio. The"
        " figures are medians per turn, and the ratios are medians of pairs. The last column says how often the long"
        f" run continued as new in the measured turns. In all, it continued as new {len(run.rotations)} times, and"
        f" compressed its conversation {_times(run.compressions)}. The comparison hides what a provider takes for a"
        " longer prompt, and memory, which is off: its processes would compete with the runs for the processors."
    )
    return Section(section("The turns of a long run", text, table(head, rows)), tuple(targets))


async def _pair(stage: Stage, long: WorkflowHandle[Any, Any], loom: Loop, name: str) -> _Pair:
    """Run a new run while the long run is paused. Then resume the long run, and return the period to measure."""
    await long.signal("pause", {})
    await until(long, lambda status: status["status"] == "paused")
    await stage.until_idle(LOOP)
    new = await loom(f"turns={EARLY[1]} calls=1 beside {name}")
    await stage.until_idle(LOOP)
    await long.signal("resume", {})
    await asyncio.sleep(WARM_UP)
    begin = time.time()
    await asyncio.sleep(WINDOW)
    return _Pair(new=new, begin=begin, end=time.time())


@contextmanager
def _sampled(stage: Stage, pid: int) -> Iterator[list[tuple[float, float]]]:
    """Read the processor time of a process again and again, until the block ends."""
    used: list[tuple[float, float]] = []

    async def sample() -> None:
        while True:
            used.append((time.time(), stage.cpu(pid)))
            await asyncio.sleep(SAMPLED)

    task = asyncio.create_task(sample())
    try:
        yield used
    finally:
        task.cancel()


async def _read(client: Client, run: str, used: Sequence[tuple[float, float]]) -> _Run:
    """Return the run's figures."""
    histories = [history async for history in executions(client, run)][::-1]  # the oldest execution comes first
    begun: dict[int, float] = {}
    rotations: list[int] = []
    compressions = 0
    for history in histories:
        known = len(begun)
        for event in history.events:
            if event.event_type != EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                continue
            scheduled = event.activity_task_scheduled_event_attributes
            compressions += scheduled.activity_type.name == "compress_context"
            if found := _MODEL_CALL.match(scheduled.activity_id):
                begun.setdefault(int(found[1]), event.event_time.ToNanoseconds() / 1e9)
        rotations += [*begun][known : known + 1] if known else []
    return _Run(begun=begun, rotations=rotations, compressions=compressions, used=used)


def _during(run: _Run, begin: float, end: float) -> _Stretch:
    """Return the figures of the turns that began in this period."""
    turns = [turn for turn, moment in run.begun.items() if begin <= moment <= end]
    return _between(run, min(turns), max(turns))


def _between(run: _Run, first: int, last: int) -> _Stretch:
    """Return the figures of the turns from the first one until the last one begins."""
    begin, end = run.begun[first], run.begun[last]
    took, used = (end - begin) * 1000, (run.cpu(end) - run.cpu(begin)) * 1000
    return _Stretch(first=first, last=last, time=took / (last - first), cpu=used / (last - first))


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
