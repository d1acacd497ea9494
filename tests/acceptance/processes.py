"""Workers in processes of their own, on a queue of their own, for tests that kill them."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from loom.client import LoomClient
from loom.composition.settings import Settings
from tests.harness import Addresses, Harness, replay_all, settings_for
from tests.model_server import ModelServer
from tests.waiting import eventually

WORKER: Final = ("-P", "-m", "loom._worker")
_READY: Final = b"worker_ready"
_FOREIGN: Final = ("LOOM_", "TEMPORAL_", "OPENAI_", "ANTHROPIC_")

Process = subprocess.Popen[bytes]

BEGUN: Final[list[asyncio.subprocess.Process]] = []
"""The commands that the current test has begun. A fixture ends those that go on, so that a failure stays one."""


@dataclass
class Workers:
    """The worker processes of one test; nothing else is ever signalled."""

    folder: Path
    env: Mapping[str, str]
    started: list[Process] = field(default_factory=list)

    async def start(self, program: Sequence[str] = WORKER, **changed: str) -> Process:
        """Start a worker and wait until it polls; `changed` are settings of its own."""
        log = self.log(len(self.started))
        process = self.spawn(program, **changed)

        async def ready() -> bool | None:
            assert process.poll() is None, log.read_text()
            return _READY in log.read_bytes() or None

        await eventually(ready)
        return process

    def log(self, number: int) -> Path:
        """What the worker that was started after so many others has said."""
        return self.folder / f"worker-{number}.log"

    def spawn(self, program: Sequence[str] = WORKER, **changed: str) -> Process:
        """Start a worker without waiting for it."""
        with self.log(len(self.started)).open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *program],
                env={**self.env, **changed},
                cwd=self.folder,
                stdout=output,
                stderr=output,
            )
        self.started.append(process)
        return process

    async def kill(self, process: Process) -> None:
        """kill -9, and wait until it is gone."""
        process.kill()
        await asyncio.to_thread(process.wait)

    async def end(self) -> None:
        """End those that still run."""
        for process in self.started:
            await self.kill(process)


@asynccontextmanager
async def mortal(
    addresses: Addresses, workspace: Path, script: Any, **settings: Any
) -> AsyncIterator[tuple[Harness, ModelServer, Workers]]:
    """A client and a scripted model, no worker yet; every run is replayed at the end."""
    async with ModelServer(script) as model:
        chosen = settings_for(addresses, workspace, model, **settings)
        workers = Workers(folder=workspace.parent, env=environment(chosen, workspace.parent))
        async with LoomClient.connected(chosen) as client:
            loom = Harness(client=client, settings=chosen, workspace=workspace)
            try:
                yield loom, model, workers
                await replay_all(loom)
            finally:
                await workers.end()


def environment(settings: Settings, home: Path) -> dict[str, str]:
    """The settings as another process gets them, and nothing of whoever runs the tests."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    given = {
        "TEMPORAL_ADDRESS": settings.temporal_address,
        "LOOM_DATABASE_URL": settings.database_url,
        "LOOM_REDIS_URL": settings.redis_url,
        "LOOM_TASK_QUEUE": settings.task_queue,
        "LOOM_REDIS_TIMEOUT": str(settings.redis_timeout),
        "LOOM_MEMORY": settings.memory,
        "LOOM_MODEL": settings.model,
        "LOOM_WORKSPACE": str(settings.workspace),
        "LOOM_HOME": str(home / ".loom"),
        "LOOM_METRICS_PORT": "off",
        "OPENAI_API_KEY": _plain(settings.openai_api_key),
        "OPENAI_BASE_URL": settings.openai_base_url,
    }
    return own | {name: value for name, value in given.items() if value is not None}


def _plain(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None
