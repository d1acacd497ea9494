"""Compare a turn of a worker that serves metrics and exports traces with one of a worker that does neither:
`make bench-observability`.

The model and the tool answer at once in the worker's process, so that nothing hides the difference. A second comparison
has a model over HTTP, as a real run does. For only one of them, name it: `python -m bench.observability "over HTTP"`.

A second worker with both off is measured like the others. Its ratio shows how far apart two equal workers are.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from temporalio.client import Client

from bench.report import spread, table
from bench.stage import Stage, stage
from loom.composition.settings import Settings
from loom.domain.core.messages import JsonObject

WORKERS: Final = ("off", "off again", "metrics", "metrics and traces")
TURNS: Final = 100
RUNS: Final = 2
"""Each worker's runs in a round. The second one comes in reverse order, so that no worker gains from its place."""
MODELS: Final = {
    "at once": ("immediate:any", f"turns={TURNS} calls=1"),
    "over HTTP": ("openai:scripted", f"turns={TURNS}"),
}
ROUNDS: Final = 16
EXPORTED: Final = Settings.model_fields["otlp_delay"].default / 1000 + 0.5
"""Seconds after which a worker has exported the spans of a run."""
SINK: Final = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *args): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
print(server.server_port, flush=True)
server.serve_forever()
"""


async def observability_cost(on: Stage, receiver: str, models: Sequence[str]) -> str:
    """Return the time and the processor time per turn of each worker, in interleaved rounds."""
    client = await Client.connect(on.env["TEMPORAL_ADDRESS"])
    settings = {
        "off": {},
        "off again": {},
        "metrics": {"LOOM_METRICS_PORT": "0"},
        "metrics and traces": {"LOOM_METRICS_PORT": "0", "OTEL_EXPORTER_OTLP_ENDPOINT": receiver},
    }
    usual = dict(on.env)
    for number, name in enumerate(WORKERS):
        # Databases of their own, because a worker exports the runs of all workers that share its bus.
        bus = urlsplit(usual["LOOM_REDIS_URL"])._replace(path=f"/{number}").geturl()
        on.env = {**usual, **settings[name], "LOOM_REDIS_URL": bus, "LOOM_TASK_QUEUE": _queue(name, usual)}
        on.start_worker(name, "loom._worker")
    on.env = usual
    rows: list[list[Any]] = []
    queues = {name: _queue(name, usual) for name in WORKERS}
    for label in models:
        model, task = MODELS[label]
        request = {"task": task, "max_turns": 1000, "model": model}
        rounds = [await _round(on, client, request, queues) for _ in range(1 + ROUNDS)][1:]  # the first one warms up
        wall_off, cpu_off = zip(*(each["off"] for each in rounds), strict=True)
        for name in WORKERS:
            wall, cpu = zip(*(each[name] for each in rounds), strict=True)
            rows.append([label, name, spread(wall, "ms"), _of(wall, wall_off), spread(cpu, "ms"), _of(cpu, cpu_off)])
        print(rows[-len(WORKERS) :], file=sys.stderr, flush=True)  # what is known, if the rest takes too long
    head = ["model answers", "worker", "time per turn", "÷ off", "worker CPU", "÷ off"]
    return table(head, rows)


def _queue(name: str, env: dict[str, str]) -> str:
    return f"{env['LOOM_TASK_QUEUE']}-{name.replace(' ', '-')}"


def _of(mine: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the median ratio of a round, with the lowest and the highest."""
    rounds = [one / other for one, other in zip(mine, theirs, strict=True)]
    return f"{median(rounds):.3f} ({min(rounds):.2f}–{max(rounds):.2f})"


async def _round(
    on: Stage, client: Client, request: JsonObject, queues: Mapping[str, str]
) -> dict[str, tuple[float, float]]:
    """Return milliseconds per turn of each worker: elapsed time, and its CPU time with what exports take afterwards."""
    before = {name: on.cpu(on.workers[name].pid) for name in queues}
    walls = dict.fromkeys(queues, 0.0)
    for number in range(RUNS):
        for name in WORKERS[:: -1 if number % 2 else 1]:
            begun = perf_counter()
            run_id = f"bench-{uuid4()}"
            await client.execute_workflow("AgentRun", request, id=run_id, task_queue=queues[name])
            walls[name] += perf_counter() - begun
    await asyncio.sleep(EXPORTED)
    after = {name: on.cpu(on.workers[name].pid) for name in queues}
    turns = TURNS * RUNS
    return {name: (walls[name] * 1000 / turns, (after[name] - before[name]) * 1000 / turns) for name in queues}


@contextmanager
def _sink() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    with _sink() as url, stage() as on:
        print(asyncio.run(observability_cost(on, url, sys.argv[1:] or list(MODELS))))
