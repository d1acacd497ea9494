"""Start the processes of a benchmark: the embedded servers, the model server and the workers."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TypeAlias

import psutil
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowHandle

from loom.activities.adapters.embedders.offline import OfflineEmbedder
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.memory_upkeep import PostgresMemoryUpkeep
from loom.composition.settings import Settings
from loom.stack import state
from loom.stack.plan import LOOM_WORKER

QUEUE = f"bench-{os.getpid()}"
"""A separate task queue, so that no other worker takes part."""
BIN = Path(sys.executable).parent
IDLE: Final = 0.25
"""A worker counts as idle if it and its children use less than this share of one processor for a second."""
PATIENCE: Final = 600.0
"""Seconds until a worker must be idle. On a busy machine, vectors are computed slowly."""

Worker: TypeAlias = "subprocess.Popen[bytes]"


@dataclass
class Stage:
    """The running processes and their addresses."""

    folder: Path
    env: dict[str, str]
    model_url: str
    server_pid: int
    workers: dict[str, Worker] = field(default_factory=dict)

    def start_worker(self, name: str, *command: str, python: str = sys.executable, **env: str) -> Worker:
        """Start or restart a worker process, with this interpreter. Its log goes to a file with its name."""
        log = (self.folder / f"{name}.log").open("ab")
        process = subprocess.Popen([python, "-m", *command], env=self.env | env, stdout=log, stderr=log)
        self.workers[name] = process
        return process

    def needs_worker(self, name: str, *command: str, python: str = sys.executable) -> Worker:
        """Return the process of a worker, which is started unless it is running."""
        return self.workers[name] if name in self.workers else self.start_worker(name, *command, python=python)

    def stop_worker(self, name: str) -> None:
        """Kill a worker process."""
        _end(self.workers.pop(name))

    async def until_serving(self, client: Client, name: str, queue: str = QUEUE) -> None:
        """Wait until Temporal can give work to a worker. Without a queue, it is a worker of Loom."""
        while not await polls(client, self.workers[name].pid, queue):
            await asyncio.sleep(0.02)

    @contextmanager
    def supervised(self) -> "Iterator[Supervised]":
        """Let `loom up` run the worker until the block ends. The servers go on."""
        up, env = [str(BIN / "loom"), "up", "--detach"], self.env | {"LOOM_SERVE_PORT": "off"}
        subprocess.run(up, env=env, check=True, capture_output=True)
        home = self.folder / ".loom"
        try:
            yield Supervised(home)
        finally:
            supervisor = state.read(home).supervisor
            assert supervisor is not None
            psutil.Process(supervisor.pid).send_signal(signal.SIGUSR1)  # it leaves its processes to the next one
            subprocess.run([*up, "--no-worker"], env=env, check=True, capture_output=True)

    async def until_idle(self, *names: str) -> None:
        """Wait until these workers have started, and have also finished the work that goes on after a run.

        On a busy machine, the process that computes vectors pauses most of the time and looks idle. This method
        therefore also waits until each memory has its vector.
        """
        pids = [self.workers[name].pid for name in names]
        async with asyncio.timeout(PATIENCE):
            before = self._with_children(pids)
            await asyncio.sleep(1)
            while (after := self._with_children(pids)) - before > IDLE * len(pids) or await self._lacks_vectors():
                before = after
                await asyncio.sleep(1)

    def settings(self) -> Settings:
        """Return the settings of a client."""
        given: dict[str, Any] = {
            "TEMPORAL_ADDRESS": self.env["TEMPORAL_ADDRESS"],
            "database_url": self.env["LOOM_DATABASE_URL"],
            "redis_url": self.env["LOOM_REDIS_URL"],
            "home": self.folder / ".loom",
            "task_queue": QUEUE,
        }
        return Settings(**given)

    def cpu(self, pid: int) -> float:
        """Return the processor time that a process has used, in seconds."""
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)

    def cpu_beside(self, pid: int) -> float:
        """Return the processor time that the children of a process have used, in seconds."""
        return sum(self.cpu(child.pid) for child in psutil.Process(pid).children(recursive=True))

    def cpu_in_all(self, name: str) -> float:
        """Return the processor time that a worker and its children have used, in seconds."""
        return self._with_children([self.workers[name].pid])

    async def _lacks_vectors(self) -> bool:
        database, embedder = Database(self.env["LOOM_DATABASE_URL"], max_connections=1), OfflineEmbedder()
        try:
            upkeep = PostgresMemoryUpkeep(database, model=embedder.model, dimension=embedder.dimension)
            return bool(await upkeep.due_for_vector(1))
        finally:
            await database.aclose()

    def _with_children(self, pids: Iterable[int]) -> float:
        return sum(self.cpu(pid) + self.cpu_beside(pid) for pid in pids)


@dataclass(frozen=True)
class Supervised:
    """The worker that `loom up` runs and restarts."""

    home: Path

    def worker(self) -> int:
        """Return the id of the worker's process."""
        return state.read(self.home).parts["worker"].pid

    def kill_worker(self) -> float:
        """Kill the worker, and return when. By then, all its threads have ended, and with them its connections."""
        worker, killed = self.worker(), perf_counter()
        psutil.Process(worker).kill()
        while psutil.pid_exists(worker):
            time.sleep(0.002)
        return killed

    async def until_spare(self) -> None:
        """Wait until the spare worker has loaded its modules: it has used processor time, and now uses none."""
        used: dict[int, float] = {}
        while True:
            before, used = used, {each.pid: sum(each.cpu_times()[:2]) for each in self._spares()}
            if any(seconds > 1 and before.get(pid) == seconds for pid, seconds in used.items()):
                return
            await asyncio.sleep(1)

    def _spares(self) -> list[psutil.Process]:
        supervisor = state.read(self.home).supervisor
        assert supervisor is not None
        children = psutil.Process(supervisor.pid).children()
        return [each for each in children if each.cmdline()[1:] == [*LOOM_WORKER[1:]] and each.pid != self.worker()]


async def until(
    handle: WorkflowHandle[Any, Any], holds: Callable[[dict[str, Any]], bool], *, every: float = 0.02
) -> None:
    """Wait until a run's status holds. It is queried again after `every` seconds."""
    while not holds(await handle.query("status", result_type=dict)):
        await asyncio.sleep(every)


@contextmanager
def servers() -> Iterator[tuple[Path, Mapping[str, str]]]:
    """Start the servers of `loom up` in a temporary folder. Yield the folder and the addresses, then stop them."""
    with tempfile.TemporaryDirectory(prefix="loom-bench-") as name:
        env = {**os.environ, "LOOM_HOME": f"{name}/.loom", "LOOM_LOG_LEVEL": "WARNING"}
        up = [str(BIN / "loom"), "up", "--detach", "--no-worker", "--json"]
        parts = json.loads(subprocess.run(up, env=env, check=True, capture_output=True, text=True).stdout)["parts"]
        try:
            yield Path(name), {part: told["address"] for part, told in parts.items() if told.get("address")}
        finally:
            subprocess.run([str(BIN / "loom"), "down"], env=env, check=True, capture_output=True)


@contextmanager
def stage() -> Iterator[Stage]:
    """Start the servers of `loom up` and a model server. At the end, stop them and all workers."""
    with ExitStack() as stack:
        folder, addresses = stack.enter_context(servers())
        env = {
            **os.environ,
            "LOOM_HOME": str(folder / ".loom"),
            "LOOM_MODEL": "openai:scripted",
            "LOOM_LOG_LEVEL": "WARNING",
            "LOOM_LOOP_WINDOW": "0",  # the scripted model reads the same file in every turn
        }
        model = subprocess.Popen([sys.executable, "-m", "bench.model"], stdout=subprocess.PIPE, text=True)
        stack.callback(_end, model)
        assert model.stdout is not None
        workspace = folder / "workspace"
        workspace.mkdir()
        (workspace / "data.txt").write_text("".join(f"line {n:04d} of the data {'x' * 24}\n" for n in range(45)))
        env |= {
            "TEMPORAL_ADDRESS": addresses["temporal"],
            "LOOM_DATABASE_URL": addresses["postgres"],
            "LOOM_REDIS_URL": addresses["redis"],
            "OPENAI_BASE_URL": (url := model.stdout.readline().strip()),
            "OPENAI_API_KEY": "sk-bench",
            "LOOM_WORKSPACE": str(workspace),
            "LOOM_METRICS_PORT": "off",
            "LOOM_TASK_QUEUE": QUEUE,
            "LOOM_APP": "bench.floor:app",
        }
        pids = json.loads((folder / ".loom" / "stack.json").read_text())
        ready = Stage(folder=folder, env=env, model_url=url, server_pid=_temporal_pid(pids))
        try:
            yield ready
        finally:
            for process in ready.workers.values():
                _end(process)


async def polls(client: Client, pid: int, queue: str) -> bool:
    """Return whether this process is a worker that Temporal can give work to."""
    asked = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    )
    told = await client.workflow_service.describe_task_queue(asked)
    return any(poller.identity.partition("@")[0] == str(pid) for poller in told.pollers)


def _temporal_pid(state: dict[str, object]) -> int:
    parts = state["parts"]
    assert isinstance(parts, dict)
    return int(parts["temporal"]["pid"])


def _end(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
