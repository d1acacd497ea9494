"""Measure how long people wait for an abort, for recovery after a crash, and for the next piece of text."""

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any
from uuid import uuid4

import psutil
from temporalio.client import Client, WorkflowHandle

from bench.report import percentile, section, spread, table
from bench.stage import QUEUE as LOOM_QUEUE
from bench.stage import Stage, Supervised, until
from bench.targets import Section, Target
from loom.activities.adapters.redis.stream import RedisReader
from loom.domain.core.tasks import Action
from tests.adversity import busy_loops

REPEATS = 5
BUSY = 4
"""Number of processes that compute while the recovery on a busy machine is measured."""


async def abort_latency(stage: Stage) -> Section:
    """Measure the time from the abort signal to the end of the run, during a model call and during a shell command."""
    stage.needs_worker("loom", "worker")
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    rows, targets = [], []
    for what, task in (("streaming model call", "hang"), ("`sleep 600` in bash", "bash=sleep 600")):
        seconds = [await _abort(client, task) for _ in range(REPEATS)]
        rows.append([what, spread(seconds, "s", 2)])
        targets.append(Target(what=f"abort during a {what}", measured=median(seconds), at_most=1, unit=" s"))
    return Section(
        "## Abort\n\nThe time runs from the abort signal to the run's result. By then, the process tree has ended.\n\n"
        + table(["during", "time"], rows),
        tuple(targets),
    )


async def recovery(stage: Stage) -> Section:
    """Kill the worker, and measure the time until the run takes its next step on another worker."""
    stage.needs_worker("loom", "worker")
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    rows: list[list[Any]] = []
    targets: list[Target] = []

    async def measure(what: str, by: str, once: Callable[[], Awaitable[float]], busy: int) -> None:
        with busy_loops(busy):
            seconds = [await once() for _ in range(REPEATS)]
        rows.append([what, by, busy, spread(seconds, "s", 2)])
        beside = f", beside {busy} busy processes" if busy else ""
        told = f"kill {what}, taken over by {by}{beside}"
        targets.append(Target(what=told, measured=median(seconds), at_most=3, unit=" s"))

    kinds = {"waiting for an approval": _wake_waiting, "in a model call": _wake_model}
    replace = partial(_replace, stage)
    for busy in (0, BUSY):
        for what, wake in kinds.items():
            await measure(what, "a new worker", partial(wake, client, replace), busy)
    await measure("in a model call", "a standby", partial(_wake_model_on_standby, stage, client), 0)
    stage.stop_worker("loom")
    with stage.supervised() as up:
        for busy in (0, BUSY):
            for what, wake in kinds.items():
                await measure(what, "the spare of `loom up`", partial(_wake_on_spare, up, client, wake), busy)
    text = (
        "The time runs from `kill -9` of the worker to the run's next step. A new worker is started immediately after"
        " the kill; a standby is running already. The *spare of `loom up`* had loaded its modules before the kill, and"
        " `loom up` noticed the kill by itself. The next step is the reaction to an approval, or the second attempt"
        " at a model call. *Busy processes* compute all the time, beside the servers and the workers. Together with the"
        f" worker that starts, {BUSY} of them cause a load of {BUSY + 1}."
    )
    shown = table(["killed while", "taken over by", "busy processes", "time"], rows)
    return Section(section("Recovery", text, shown), tuple(targets))


async def stream_latency(stage: Stage) -> Section:
    """Measure the time from the moment when the provider sends text until a client of the stream receives it."""
    stage.needs_worker("loom", "worker")
    client = await Client.connect(stage.env["TEMPORAL_ADDRESS"])
    run_id = f"bench-stream-{uuid4().hex[:6]}"
    await client.start_workflow("AgentRun", {"task": "stamps=200"}, id=run_id, task_queue=LOOM_QUEUE)
    late = []
    async for _, task in RedisReader(stage.env["LOOM_REDIS_URL"]).read(run_id):
        if task.action is Action.THINKING:
            arrived = time.time()
            late += [(arrived - float(stamp)) * 1000 for stamp in task.parameters["content"].split()]
    shown = [*(percentile(late, share) for share in (0.5, 0.95, 0.99)), max(late), late[0]]
    first, second = zip(*[await _follows(stage, run_id) for _ in range(REPEATS)], strict=True)
    rows = [[len(late), *(f"{each:.1f} ms" for each in shown), spread(first, "ms"), spread(second, "ms")]]
    text = (
        "The time runs from the moment when the provider sends a chunk to the moment when the client receives it. The"
        " provider sends one chunk every 20 ms. *First follow* is the time from `LoomClient.watch` of this run to its"
        " first event in a fresh process that has connected, and *second follow* the same for the next time in that"
        f" process. Both are medians of {REPEATS} processes."
    )
    head = ["chunks", "p50", "p95", "p99", "max", "first", "first follow", "second follow"]
    return Section(section("Stream", text, table(head, rows)))


async def _follows(stage: Stage, run_id: str) -> tuple[float, float]:
    """Return the milliseconds until the first event of the first and second follow of a run in a fresh process."""
    python = (sys.executable, "-m", "bench.first_follow", run_id)
    process = await asyncio.create_subprocess_exec(*python, env=stage.env, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(python)} exited with code {process.returncode}")
    first, second = output.split()
    return float(first), float(second)


async def _abort(client: Client, task: str) -> float:
    handle = await _start(client, {"task": task, "permissions": {"bash": "allow"}})
    await until(handle, lambda s: (s["waiting_on"] or "").startswith("tools" if task != "hang" else "model"))
    await asyncio.sleep(1)  # so that the call has started
    asked = perf_counter()
    await handle.signal("abort", {"reason": "benchmark"})
    await handle.result()
    return perf_counter() - asked


async def _wake_waiting(client: Client, replace: Callable[[], float]) -> float:
    handle = await _start(client, {"task": "bash=true"})
    await until(handle, lambda s: s["status"] == "waiting_for_approval")
    killed = replace()
    await handle.signal("approve")
    await until(handle, lambda s: s["status"] != "waiting_for_approval")
    seconds = perf_counter() - killed
    await handle.result()
    return seconds


async def _wake_model(client: Client, replace: Callable[[], float]) -> float:
    handle = await _in_model_call(client)
    return await _until_second_attempt(handle, since=replace())


async def _wake_on_spare(
    up: Supervised, client: Client, wake: Callable[[Client, Callable[[], float]], Awaitable[float]]
) -> float:
    await up.until_spare()
    return await wake(client, up.kill_worker)


async def _wake_model_on_standby(stage: Stage, client: Client) -> float:
    handle = await _in_model_call(client)
    owner, standby = stage.workers["loom"], stage.start_worker("standby", "worker")
    await stage.until_serving(client, "standby")
    stage.workers["loom"] = standby
    owner.kill()
    owner.wait()
    return await _until_second_attempt(handle, since=perf_counter())


async def _in_model_call(client: Client) -> WorkflowHandle[Any, Any]:
    handle = await _start(client, {"task": "hang"})
    await until(handle, lambda s: s["waiting_on"] == "model")
    await asyncio.sleep(1)
    return handle


async def _until_second_attempt(handle: WorkflowHandle[Any, Any], since: float) -> float:
    while not await _second_attempt(handle):
        await asyncio.sleep(0.02)
    seconds = perf_counter() - since
    await handle.signal("abort")
    await handle.result()
    return seconds


async def _second_attempt(handle: WorkflowHandle[Any, Any]) -> bool:
    pending = (await handle.describe()).raw_description.pending_activities
    return any(activity.activity_id == "t1-model-2" and activity.HasField("last_started_time") for activity in pending)


def _replace(stage: Stage) -> float:
    worker = stage.workers["loom"]
    psutil.Process(worker.pid).send_signal(signal.SIGKILL)
    worker.wait()
    killed = perf_counter()
    stage.start_worker("loom", "worker")
    return killed


async def _start(client: Client, request: dict[str, Any]) -> WorkflowHandle[Any, Any]:
    return await client.start_workflow("AgentRun", request, id=f"bench-{uuid4().hex[:8]}", task_queue=LOOM_QUEUE)
