"""Workers in separate processes, on a separate task queue, for tests that kill, freeze and restart them."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import SecretStr

from loom.client import LoomClient
from loom.composition.settings import Settings
from loom.testing.fork_server import Fork, ForkServer
from loom.testing.harness import Addresses, Harness, replay_all, served, settings_for
from loom.testing.model_server import ModelServer
from loom.testing.waiting import eventually

WORKER: Final = ("-P", "-m", "loom._worker")
_READY: Final = b"worker_ready"
_FOREIGN: Final = ("LOOM_", "TEMPORAL_", "OPENAI_", "ANTHROPIC_")

Process: TypeAlias = subprocess.Popen[bytes] | Fork


@dataclass
class Workers:
    """The worker processes of one test. No other process is ever signalled.

    worker = workers.started[-1]
    await workers.kill(worker)
    await workers.start()
    """

    folder: Path
    env: Mapping[str, str]
    forks: ForkServer | None = None
    """Forks the workers, which then start in a moment. Without it, each worker imports its modules anew."""
    forget: Callable[[], Awaitable[None]] | None = None
    """Tells the server that the workers which have cached the runs are gone."""
    started: list[Process] = field(default_factory=list)

    async def start(self, program: Sequence[str] = WORKER, **changed: str) -> Process:
        """Start a worker and wait until it polls. `changed` overrides settings."""
        process, log = self.spawn(program, **changed), self.log(len(self.started) - 1)

        async def ready() -> bool | None:
            assert process.poll() is None, log.read_text()
            return _READY in log.read_bytes() or None

        await eventually(ready)
        return process

    def log(self, number: int) -> Path:
        """Return the path of a worker's log. The first worker that was started has the number 0."""
        return self.folder / f"worker-{number}.log"

    def spawn(self, program: Sequence[str] = WORKER, **changed: str) -> Process:
        """Start a worker without waiting for it."""
        process: Process
        env = {**self.env, **changed}
        with self.log(len(self.started)).open("wb") as output:
            if self.forks is not None and program is WORKER:
                process = self.forks.start("worker", env=env, folder=self.folder, output=output)
            else:
                command = [sys.executable, *program]
                process = subprocess.Popen(command, env=env, cwd=self.folder, stdout=output, stderr=output)
        self.started.append(process)
        return process

    async def kill(self, process: Process) -> None:
        """Kill the worker with `kill -9`, and wait until it has ended."""
        process.kill()
        await asyncio.to_thread(process.wait)

    async def crash(self) -> None:
        """Kill all running workers with `kill -9`."""
        for process in self.started:
            if process.poll() is None:
                await self.kill(process)
        if self.forget is not None:
            await self.forget()

    async def restart(self) -> Process:
        """Kill all running workers with `kill -9`, and start a new one."""
        await self.crash()
        return await self.start()

    @contextmanager
    def frozen(self, process: Process) -> Iterator[None]:
        """Stop a worker without ending it: it keeps its connections and does nothing until the block ends."""
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    async def end(self) -> None:
        """End all running workers."""
        for process in self.started:
            await self.kill(process)


@asynccontextmanager
async def mortal(
    addresses: Addresses, workspace: Path, script: Any, *, forks: ForkServer | None = None, **settings: Any
) -> AsyncIterator[tuple[Harness, ModelServer, Workers]]:
    """Yield a client and a scripted model, without a worker. Replay every run at the end."""
    async with served(script, workspace) as model:
        chosen = settings_for(addresses, workspace, model, **settings)
        workers = Workers(folder=workspace.parent, env=environment(chosen, workspace.parent), forks=forks)
        async with LoomClient.connected(chosen) as client:
            loom = Harness(client=client, settings=chosen, workspace=workspace)
            try:
                yield loom, model, workers
                await replay_all(loom)
            finally:
                await workers.end()


@asynccontextmanager
async def with_worker(
    addresses: Addresses, workspace: Path, script: Any, *, forks: ForkServer, **settings: Any
) -> AsyncIterator[tuple[Harness, ModelServer, Workers]]:
    """The same with one worker that polls already."""
    async with mortal(addresses, workspace, script, forks=forks, **settings) as (loom, model, workers):
        workers.forget = loom.forget_workers
        await workers.start()
        yield loom, model, workers


def environment(settings: Settings, home: Path) -> dict[str, str]:
    """Return the settings as environment variables for another process, without those of the tests' user."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    given = {
        "TEMPORAL_ADDRESS": settings.temporal_address,
        "TEMPORAL_NAMESPACE": settings.temporal_namespace,
        "LOOM_DATABASE_URL": settings.database_url,
        "LOOM_REDIS_URL": settings.redis_url,
        "LOOM_TASK_QUEUE": settings.task_queue,
        "LOOM_REDIS_TIMEOUT": str(settings.redis_timeout),
        "LOOM_MEMORY": settings.memory,
        "LOOM_AUDIT": settings.audit,
        "LOOM_MODEL": settings.model,
        "LOOM_APP": settings.app,
        "LOOM_WORKSPACE": str(settings.workspace),
        "LOOM_HOME": str(home / ".loom"),
        "XDG_STATE_HOME": str(home / "state"),
        "LOOM_METRICS_PORT": "off",
        "OPENAI_API_KEY": _plain(settings.openai_api_key),
        "OPENAI_BASE_URL": settings.openai_base_url,
    }
    return own | {name: value for name, value in given.items() if value is not None}


def _plain(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None
