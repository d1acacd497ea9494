"""The faults of a round: what is killed, stopped or spoilt, and from when until when."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

import loom
from loom.stack import state as stack_state
from loom.testing.model_server import ModelServer
from loom.testing.worker_processes import Process, Workers
from tests.chaos.stories import Weather

WORKER: Final = (str(Path(__file__).with_name("counting_worker.py")),)
READY: Final = b"worker_ready"
CHAT_IDLE: Final = timedelta(seconds=1)
"""How long a chat waits for a message before it rests; a minute otherwise."""
CACHES: Final[Sequence[Mapping[str, str]]] = (
    {},
    {"LOOM_MAX_CACHED_WORKFLOWS": "3", "LOOM_MAX_CACHED_WAITS": "1"},
    {"LOOM_MAX_CACHED_WORKFLOWS": "12", "LOOM_MAX_CACHED_WAITS": "3"},
)
"""Settings of the workers, in turn. One has room for all runs, the others evict them."""


@dataclass(kw_only=True)
class Fault:
    """Something that is away or stands still for a while."""

    kind: str
    since: datetime
    until: datetime | None = None
    """When it works again. None while it doesn't."""
    pid: int = 0
    """The process that was hit."""
    place: int = 0
    """Which of the workers it was."""

    def seconds_within(self, since: datetime, until: datetime) -> float:
        """Return for how many seconds of this time the fault lasted."""
        end = until if self.until is None else min(until, self.until)
        return max(0.0, (end - max(since, self.since)).total_seconds())


@dataclass
class Storm:
    """The processes of a round, and the faults that have hit them."""

    home: Path
    temporal: Client
    workers: Workers
    model: ModelServer
    weather: Weather
    random: Random
    living: list[Process] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    log: list[Fault] = field(default_factory=list)
    ended: float | None = None
    """When it was over, by the monotonic clock."""
    _recovering: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether nothing fails any more."""
        return self.ended is not None

    async def rage(self, at_most: int) -> None:
        """Let one thing after the other fail, until so many processes have been killed or `end` is called."""
        kinds: Sequence[tuple[Callable[[], Awaitable[None]], int]] = (
            (self._kill_worker, 12),
            (self._stop_worker, 2),
            (lambda: self._kill_server("temporal"), 1),
            (lambda: self._kill_server("redis"), 2),
            (lambda: self._kill_server("postgres"), 2),
            (self._spoil_weather, 3),
        )
        while killed(self.faults) < at_most and not self.is_over:
            (fault,) = self.random.choices([kind for kind, _ in kinds], weights=[weight for _, weight in kinds])
            await fault()
            await asyncio.sleep(self.random.expovariate(1.5))
        self.end()
        await asyncio.gather(*self._recovering)

    def end(self) -> None:
        """Let nothing more fail."""
        self.weather.is_good = True
        self.ended = self.ended or monotonic()

    async def start_workers(self, number: int) -> None:
        """Start the workers, and wait until they poll."""
        starting = (self.workers.start(WORKER, **_settings(place)) for place in range(number))
        self.living = list(await asyncio.gather(*starting))

    def without_worker(self) -> Iterator[tuple[datetime, datetime]]:
        """Yield the times in which no worker was ready, from and until."""
        deaths = [fault for fault in self.log if fault.kind == "kill worker"]
        moments = sorted({moment for fault in deaths for moment in (fault.since, fault.until or datetime.now(UTC))})
        for since, until in pairwise(moments):
            away = {fault.place for fault in deaths if fault.seconds_within(since, until)}
            if len(away) == len(self.living):
                yield since, until

    def _begin(self, fault: Fault, recovery: Coroutine[Any, Any, None]) -> None:
        async def recover() -> None:
            await recovery
            fault.until = datetime.now(UTC)

        self.faults[fault.kind] += 1
        self.log.append(fault)
        self._recovering.append(asyncio.create_task(recover()))

    def restarts(self) -> list[float]:
        """Return after how many seconds a worker polled that took the place of a killed one."""
        deaths = [fault for fault in self.log if fault.kind == "kill worker" and fault.until is not None]
        return [fault.seconds_within(fault.since, datetime.now(UTC)) for fault in deaths]

    async def _kill_worker(self) -> None:
        """Kill a worker that polls. One that still starts has nothing to lose."""
        starting = {fault.place for fault in self.log if fault.kind == "kill worker" and fault.until is None}
        polling = [place for place in range(len(self.living)) if place not in starting]
        if not polling:
            return
        place = self.random.choice(polling)
        fault = Fault(kind="kill worker", since=datetime.now(UTC), pid=self.living[place].pid, place=place)
        await self.workers.kill(self.living[place])
        log = self.workers.log(len(self.workers.started))
        self.living[place] = self.workers.spawn(WORKER, **_settings(place))
        self._begin(fault, self._polls(self.living[place], log))

    async def _polls(self, worker: Process, log: Path) -> None:
        """Wait until the worker polls."""
        while READY not in log.read_bytes() and worker.poll() is None:
            await asyncio.sleep(0.1)

    async def _stop_worker(self) -> None:
        stopped = self.random.choice(self.living)
        fault = Fault(kind="stop worker", since=datetime.now(UTC), pid=stopped.pid)
        stopped.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(self.random.uniform(0.5, 10))
        finally:
            stopped.send_signal(signal.SIGCONT)
            self._begin(fault, asyncio.sleep(0))

    async def _kill_server(self, name: str) -> None:
        part = stack_state.read(self.home).living().get(name)
        if part is not None:  # otherwise the supervisor is still starting it again
            os.kill(part.pid, signal.SIGKILL)
            fault = Fault(kind=f"kill {name}", since=datetime.now(UTC), pid=part.pid)
            self._begin(fault, self._is_back(name, part.pid))

    async def _is_back(self, name: str, killed_pid: int) -> None:
        def pid() -> int:
            part = stack_state.read(self.home).living().get(name)
            return part.pid if part is not None else killed_pid

        while pid() == killed_pid or (name == "temporal" and not await self._temporal_answers()):
            await asyncio.sleep(0.1)

    async def _temporal_answers(self) -> bool:
        try:
            await self.temporal.get_workflow_handle("no-such-run").describe(rpc_timeout=timedelta(seconds=1))
        except RPCError as error:
            return error.status is RPCStatusCode.NOT_FOUND
        return True

    async def _spoil_weather(self) -> None:
        kind = self.random.choice(Weather.KINDS)
        self.faults[f"provider {kind}"] += 1
        await self.weather.turn(kind, self.random.uniform(1, 10), self.model)


def _settings(place: int) -> dict[str, str]:
    same_code = {"PYTHONPATH": str(Path(loom.__file__).parents[1])}
    return {"CHAOS_CHAT_IDLE": str(CHAT_IDLE.total_seconds()), **same_code, **CACHES[place % len(CACHES)]}


def killed(faults: Mapping[str, int]) -> int:
    """Return how many processes these faults have killed."""
    return sum(times for name, times in faults.items() if name.startswith("kill"))
