"""Measure whether turns become slower, or cost more processor time, as a run becomes longer."""

import asyncio
import re
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, Final

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory

from bench.report import section, table
from bench.stage import Stage
from bench.turns import loops
from loom.activities.adapters.temporal.run_history import executions

SAMPLED: Final = 0.1
"""Seconds between two readings of the worker's processor time."""
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
class _Window:
    """The figures of some consecutive turns, in milliseconds."""

    first: int
    last: int
    mean: float
    middle: float
    longest: float
    cpu: float
    rotations: int


async def growth(stage: Stage, *, turns: int = 3000, marks: Sequence[int] = (100, 1000, 2940), width: int = 100) -> str:
    """Return the figures of the turns around each mark. Needs the worker of Loom, with the model of `bench.floor`."""
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    loom = loops(stage, client)["loom"]
    await loom("turns=20 calls=1 before growth")
    await stage.until_idle("loom")
    with _sampled(stage, stage.workers["loom"].pid) as used:
        run_id = await loom(f"turns={turns} calls=1 growth")
        await asyncio.sleep(2 * SAMPLED)
    run = _read([history async for history in executions(client, run_id)][::-1], used)
    windows = [_window(run, mark - width // 2, mark + width // 2) for mark in marks]
    whole = _window(run, 1, turns)
    rows = [_row(window, windows[0]) for window in (*windows, whole)]
    head = ["turns", "time per turn", "÷ first", "median", "longest", "worker CPU", "÷ first", "continued as new"]
    text = (
        f"One run has {turns:,} turns with one tool call each, with the same model as above. The averages include"
        f" the turns in which it continued as new ({_times(whole.rotations)}) and compressed its conversation"
        f" ({_times(run.compressions)}). *Worker CPU* is per turn. All figures come from the history and from"
        " readings of the processor time, so that measuring doesn't disturb the run. The comparison hides what a"
        " provider takes for a longer prompt, and the processes that write and embed Loom's memory."
    )
    return section("The turns of a long run", text, table(head, rows))


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


def _read(histories: Sequence[WorkflowHistory], used: Sequence[tuple[float, float]]) -> _Run:
    """Return the run's figures. The oldest execution comes first."""
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


def _window(run: _Run, first: int, last: int) -> _Window:
    """Return the figures of the turns from the first one until the last one begins."""
    times = [run.begun[turn] for turn in range(first, last + 1)]
    took = [(end - begin) * 1000 for begin, end in pairwise(times)]
    used = (run.cpu(times[-1]) - run.cpu(times[0])) * 1000
    return _Window(
        first=first,
        last=last,
        mean=sum(took) / len(took),
        middle=median(took),
        longest=max(took),
        cpu=used / len(took),
        rotations=sum(first < turn <= last for turn in run.rotations),
    )


def _row(window: _Window, first: _Window) -> list[Any]:
    return [
        f"{window.first:,}–{window.last:,}",
        f"{window.mean:.1f} ms",
        f"{window.mean / first.mean:.2f}",
        f"{window.middle:.1f} ms",
        f"{window.longest:.0f} ms",
        f"{window.cpu:.1f} ms",
        f"{window.cpu / first.cpu:.2f}",
        window.rotations,
    ]


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
