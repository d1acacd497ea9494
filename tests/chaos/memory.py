"""Kills the memory writer, Redis and Postgres in the middle of many runs, and checks that memory has every task once.

    python -m tests.chaos.memory --runs 200

Redis keeps nothing on disk here, so what was on the bus dies with it; Postgres is killed and recovers as it would.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from subprocess import SubprocessError
from time import monotonic
from typing import Any, Final

import psutil
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory import PostgresMemory
from loom.activities.adapters.redaction.mask import SecretMask
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.stream import BUS
from loom.activities.adapters.temporal.history_facts import TemporalHistories
from loom.activities.memory.backfill import CatchUp
from loom.activities.memory.histories import Moved
from loom.activities.toolbox.output_sanitizer import OutputSanitizer
from loom.client import LoomClient
from loom.domain.memory.backfill import CaughtUp
from loom.testing.harness import Addresses, settings_for
from loom.testing.model_server import ModelServer, Reply, SeenRequest, ToolUse, calls, text
from loom.testing.waiting import eventually
from loom.testing.worker_processes import Process, Workers, environment
from tests.chaos.memory_oracle import expected
from tests.chaos.tool_kills import _servers as servers
from tests.databases import rows
from tests.integration.activities.conftest import PostgresServer, RedisServer

WORKER: Final = (str(Path(__file__).with_name("remembering_worker.py")),)
AT_ONCE: Final = 40
_STORED: Final = "SELECT task_id, run_id FROM loom_memory_tasks"
_TWICE: Final = "SELECT task_id FROM loom_memory GROUP BY task_id HAVING count(*) > 1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What came of it."""

    runs: int
    kills: tuple[str, ...]
    tasks: int
    """In memory at the end."""
    from_history: int
    """Of these, how many came out of history, since the bus had lost them."""
    attempts_lost: int
    wrong: tuple[str, ...]
    seconds: float
    catching_up: float
    """Seconds that reading all histories took."""


@dataclass(kw_only=True)
class Scene:
    """Everything that can be killed, and the client that cannot."""

    redis: RedisServer
    postgres: PostgresServer
    workers: Workers
    client: LoomClient
    queue: str
    model: ModelServer

    async def kill_writer(self) -> str:
        """One of the workers, in whose process the writer lives; another starts."""
        living = [process for process in self.workers.started if process.poll() is None]
        await self.workers.kill(living[0])
        await self.workers.start(WORKER)
        return "writer"

    async def kill_redis(self) -> str:
        """With everything in it; runs go on, and what they tell meanwhile nobody hears."""
        self.redis.kill()
        before = len(self.model.requests)

        async def went_on() -> bool | None:
            return len(self.model.requests) >= before + 3 or None

        await eventually(went_on)
        self.redis.start()
        return "redis"

    async def kill_postgres(self) -> str:
        """And once the writer waits for it, it is back."""
        await self._end_postgres()
        await eventually(self._writer_waits)
        await self._start_postgres()
        return "postgres"

    async def kill_both(self) -> str:
        """What the writer waits with is lost with Redis."""
        await self._end_postgres()
        await eventually(self._writer_waits)
        self.redis.kill()
        self.redis.start()
        await self._start_postgres()
        return "both"

    async def _writer_waits(self) -> bool | None:
        async with aclosing(RedisConnection(self.redis.url)) as link:
            if not await link.call(lambda redis: redis.exists(BUS)):  # Redis came back empty just before
                return None
            groups: Any = await link.call(lambda redis: redis.xinfo_groups(BUS))
        return any(group["pending"] for group in groups) or None

    async def _end_postgres(self) -> None:
        """Its first process; the others notice and end."""
        first = psutil.Process(self.postgres._server.get_pid())
        first.kill()
        await asyncio.to_thread(first.wait)

    async def _start_postgres(self) -> None:
        async def back() -> bool | None:
            with suppress(SubprocessError):  # while the dead one's last process holds the memory that they shared
                await self.postgres.start()
                return True
            return None

        await eventually(back)


async def survive(runs: int, addresses: Addresses, folder: Path) -> Report:
    """Run them, kill everything in turn while they do, and hold memory against history."""
    begun = monotonic()
    async with _scene(addresses, folder) as scene:
        killers = [scene.kill_writer, scene.kill_redis, scene.kill_postgres, scene.kill_both] * max(1, runs // 60)
        async with asyncio.TaskGroup() as tasks:
            killing = tasks.create_task(_kill_all(killers, scene.model, runs))
            ids = tasks.create_task(_run_all(runs, scene.client, killing))
        histories = {run_id: await _events(scene.client, run_id) for run_id in ids.result()}
        before = monotonic()
        caught_up = await _caught_up(scene, histories)
        seconds = monotonic() - before
        stored = await rows(scene.postgres.url, _STORED)
        of_run: dict[str, list[str]] = {run_id: [] for run_id in ids.result()}
        for task_id, run_id in stored:
            of_run[run_id].append(task_id)
        due = {run_id: expected(run_id, events) for run_id, events in histories.items()}
        wrong = [one for run_id, there in of_run.items() for one in due[run_id].wrong(there)]
        wrong += [f"twice {task_id}" for (task_id,) in await rows(scene.postgres.url, _TWICE)]
    return Report(
        runs=len(histories),
        kills=tuple(killing.result()),
        tasks=len(stored),
        from_history=caught_up.tasks,
        attempts_lost=sum(len(one.lost) for one in due.values()),
        wrong=tuple(wrong),
        seconds=monotonic() - begun,
        catching_up=seconds,
    )


@asynccontextmanager
async def _scene(addresses: Addresses, folder: Path) -> AsyncIterator[Scene]:
    workspace = folder / "workspace"
    workspace.mkdir()
    redis = RedisServer(folder)
    # Not below pytest's own folder: as root the server runs as another user, who cannot enter it.
    place = Path(tempfile.mkdtemp(prefix="loom-postgres-"))
    postgres = PostgresServer(place)
    own = replace(addresses, redis=redis.url, database=postgres.url)
    try:
        redis.start()
        async with ModelServer(_script) as model:
            settings = settings_for(own, workspace, model)
            env = environment(settings, folder) | {"LOOM_SNAPSHOTS": "off"}
            workers = Workers(folder=folder, env=env)
            async with LoomClient.connected(settings) as client:
                try:
                    await asyncio.gather(workers.start(WORKER), _after(workers))
                    yield Scene(
                        redis=redis,
                        postgres=postgres,
                        workers=workers,
                        client=client,
                        queue=settings.task_queue,
                        model=model,
                    )
                finally:
                    await workers.end()
    finally:
        redis.kill()
        postgres.close()
        shutil.rmtree(place, ignore_errors=True)


async def _after(workers: Workers) -> Process:
    await asyncio.sleep(0)  # so that both logs have names of their own
    return await workers.start(WORKER)


def _script(request: SeenRequest) -> Reply:
    """Looks, writes, answers; not too fast to be killed meanwhile."""
    task = str(next(message["content"] for message in request.messages if message["role"] == "user"))
    match request.turn:
        case 0:
            return calls(ToolUse("list_dir", {"path": "."}, "look"))
        case 1:
            return calls(ToolUse("write_file", {"path": f"{task}.txt", "content": task}, "write"))
        case _:
            return text(f"{task} is done, and this is what there is to say about it", chunks=5, delay=0.05)


async def _run_all(runs: int, client: LoomClient, killing: "asyncio.Task[list[str]]") -> list[str]:
    """So many, several at once; and more, as long as something is still to be killed in the middle of them."""
    numbers, ids = count(), list[str]()

    async def line() -> None:
        while (number := next(numbers)) < runs or not killing.done():
            task = f"work-{number}"
            run_id = await client.start(task, run_id=f"{task}-{os.getpid()}-{id(ids)}", permissions=_ALLOWED)
            ids.append(run_id)
            result = await client.result(run_id)
            assert result.status == "completed", result

    async with asyncio.TaskGroup() as lines:
        for _ in range(min(AT_ONCE, runs)):
            lines.create_task(line())
    return ids


_ALLOWED: Final = {"write_file": "allow", "list_dir": "allow"}


async def _kill_all(killers: Sequence[Callable[[], Awaitable[str]]], model: ModelServer, runs: int) -> list[str]:
    """One after the other, evenly over the model calls that there will be at least."""
    killed = []
    for number, kill in enumerate(killers, start=1):
        due = number * 3 * runs // (len(killers) + 1)

        async def reached(due: int = due) -> bool | None:
            return len(model.requests) >= due or None

        await eventually(reached, within=300)
        killed.append(await kill())
    return killed


async def _events(client: LoomClient, run_id: str) -> list[HistoryEvent]:
    return list((await client.temporal.get_workflow_handle(run_id).fetch_history()).events)


class _Histories(TemporalHistories):
    """Of these runs alone: the server may have others, whose memory is elsewhere."""

    def __init__(self, client: Client, queue: str, own: Collection[str]) -> None:
        super().__init__(client, queue)
        self._own = own

    async def moved(self, since: datetime | None, until: datetime) -> AsyncIterator[Moved]:
        async for run in super().moved(since, until):
            if run.run_id in self._own:
                yield run


async def _caught_up(scene: Scene, own: Collection[str]) -> CaughtUp:
    """What the schedule has done every minute."""
    database = Database(scene.postgres.url, name="catch-up")
    histories = _Histories(scene.client.temporal, scene.queue, own)
    mask = OutputSanitizer(SecretMask(frozenset()), None)
    try:
        catching = CatchUp(histories, PostgresMemory(database), mask, settled_after=timedelta())
        return await catching.until(datetime.now(UTC))
    finally:
        await database.aclose()


def told(report: Report) -> str:
    """A report on a few lines."""
    head = f"{report.runs} runs, {report.tasks} tasks in memory, {report.from_history} of them out of history"
    more = f"kills: {', '.join(report.kills)}; attempts lost: {report.attempts_lost}; {report.seconds:.0f} s"
    return "\n".join([head, more, f"histories read in {report.catching_up:.1f} s", *report.wrong])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="how many")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="loom-chaos-") as folder, servers(Path(folder)) as addresses:
        report = asyncio.run(survive(given.runs, addresses, Path(folder)))
    print(told(report))
    sys.exit(bool(report.wrong))


if __name__ == "__main__":
    main()
