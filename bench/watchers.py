"""Measure the delay of events for many watchers of one run, with `loom serve` as one process.

`python -m bench.watchers` prints the figures. With `--write`, replace them in docs/http.md.
"""

import argparse
import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from time import time
from typing import Any, Final

import psutil

from bench.report import put, table
from bench.stage import BIN, servers
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.stream import RedisStream
from loom.client import LoomClient
from loom.composition.settings import Settings
from loom.domain.core.tasks import Action, Task

DOC: Final = Path(__file__).parent.parent / "docs" / "http.md"
MARKS: Final = ("<!-- watchers: begin -->", "<!-- watchers: end -->")
SENT: Final = re.compile(rb'"sent":([0-9.]+)')


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Who watches a run, and what the run publishes."""

    watching: int
    idle: int = 0
    """Watchers that read nothing."""
    events: int = 40
    interval: float = 0.25
    """Seconds between two events."""
    size: int = 200
    """Characters in each event."""

    def __str__(self) -> str:
        idle = f", and {self.idle} that read{'s' * (self.idle == 1)} nothing" if self.idle else ""
        much = f", of {self.events * self.size // 1_000_000} MB" if self.events * self.size > 1_000_000 else ""
        return f"{self.watching:,}{idle}{much}"


SITUATIONS: Final = (
    Situation(watching=1),
    Situation(watching=100),
    Situation(watching=1000),
    Situation(watching=1000, idle=1),
    Situation(watching=1, idle=100, events=1000, interval=0.02, size=50_000),
)


@dataclass
class Watcher(asyncio.Protocol):
    """A connection that notes when each event arrives."""

    request: bytes
    reads: bool
    delays: list[float] = field(default_factory=list)
    received: asyncio.Event = field(default_factory=asyncio.Event)
    _rest: bytes = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(self.request)
        if not self.reads:
            transport.pause_reading()
            self.received.set()

    def data_received(self, data: bytes) -> None:
        """Note the delay of each event in the data."""
        self.received.set()
        now = time()
        data = self._rest + data
        end = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
        self.delays += [now - float(sent) for sent in SENT.findall(data, 0, end)]
        self._rest = data[end:]


async def measure(situation: Situation, env: Mapping[str, str], settings: Settings) -> list[str]:
    """Return one row: the watchers, the delays in milliseconds, and the growth of the service's memory at its peak."""
    async with LoomClient.connected(settings) as client:
        run_id = await client.start("wait")  # no worker serves it, so it doesn't end
        with service(env) as (process, port):
            request = f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            total = situation.watching + situation.idle
            watchers = [Watcher(request, number < situation.watching) for number in range(total)]
            loop = asyncio.get_running_loop()
            opened = []
            for each in watchers:
                opened.append((await loop.create_connection(lambda each=each: each, "127.0.0.1", port))[0])  # type: ignore[misc]
                await each.received.wait()
            before = process.memory_info().rss
            cpu = process.cpu_times()
            peak = before
            async with asyncio.TaskGroup() as group:
                group.create_task(_publish(str(settings.redis_url), run_id, situation))
                while any(len(each.delays) < situation.events for each in watchers if each.reads):
                    await asyncio.sleep(0.1)
                    peak = max(peak, process.memory_info().rss)
            used = sum(process.cpu_times()[:2]) - sum(cpu[:2])
            for transport in opened:
                transport.abort()
        await client.temporal.get_workflow_handle(run_id).terminate()
    delays = [1000 * delay for each in watchers for delay in each.delays]
    slowest = quantiles(delays, n=100)[98]
    cost = f"{1000 * used / situation.events:.0f} ms"
    grown = f"{(peak - before) / 2**20:.1f} MB"
    return [str(situation), f"{median(delays):.0f} ms", f"{slowest:.0f} ms", cost, grown]


async def _publish(redis_url: str, run_id: str, situation: Situation) -> None:
    stream = RedisStream(RedisConnection(redis_url, answer_within=10))
    for number in range(situation.events):
        sent = {"sent": round(time(), 6), "content": "x" * situation.size}
        task = Task(
            task_id=f"{run_id}/{number}",
            run_id=run_id,
            root_run_id=run_id,
            session_id=run_id,
            action=Action.MESSAGE,
            created_at=datetime.now(UTC),
            parameters=sent,
        )
        await stream.publish([task])
        await asyncio.sleep(situation.interval)
    await stream.aclose()


@contextmanager
def service(env: Mapping[str, str]) -> Iterator[tuple[psutil.Process, int]]:
    """Start `loom serve` on a free port. Yield the process and the port, and stop it at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen([str(BIN / "loom"), "serve", "--port", str(port)], env=env, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                assert process.poll() is None
        yield psutil.Process(process.pid), port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def main() -> None:
    """Measure, and print or write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    with servers() as (folder, addresses):
        env = {**os.environ, "LOOM_HOME": str(folder / ".loom"), "LOOM_LOG_LEVEL": "WARNING"}
        given: dict[str, Any] = {"TEMPORAL_ADDRESS": addresses["temporal"], "redis_url": addresses["redis"]}
        settings = Settings(**given, home=folder / ".loom", task_queue="nobody")
        rows = [asyncio.run(measure(situation, env, settings)) for situation in SITUATIONS]
    head = [
        "watchers of one run",
        "delay (median)",
        "delay (99 %)",
        "CPU of the service per event",
        "memory grows by at most",
    ]
    figures = table(head, rows)
    sys.stdout.write(figures + "\n")
    if write:
        put(DOC, MARKS, figures)


if __name__ == "__main__":
    main()
