"""`loom serve` in a process of its own, which a test may kill."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loom.composition.settings import Settings
from loom.testing.waiting import eventually

_SERVING: Final = re.compile(rb'"address": "(http://[^"]+)"')


@dataclass
class ServeProcess:
    """A running `loom serve`."""

    process: subprocess.Popen[bytes]
    log: Path

    async def url(self) -> str:
        """Its address, once it listens."""

        async def look() -> str | None:
            said = self.log.read_bytes()
            assert self.process.poll() is None, said.decode()
            found = _SERVING.search(said)
            return found[1].decode() if found else None

        return await eventually(look)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.process.kill()
        self.process.wait()


def environment(settings: Settings) -> dict[str, str]:
    """The environment of a command that reaches the same servers as these settings."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("LOOM_", "TEMPORAL_"))}
    return others | {
        "TEMPORAL_ADDRESS": settings.temporal_address,
        "TEMPORAL_NAMESPACE": settings.temporal_namespace,
        "LOOM_DATABASE_URL": str(settings.database_url),
        "LOOM_REDIS_URL": str(settings.redis_url),
        "LOOM_HOME": str(settings.home),
        "LOOM_TASK_QUEUE": settings.task_queue,
        "LOOM_WORKSPACE": str(settings.workspace),
    }


@contextmanager
def serve_process(settings: Settings, folder: Path, *options: str) -> Iterator[ServeProcess]:
    """Start `loom serve` on a free port, and stop it at the end."""
    env = environment(settings)
    log = folder / f"serve-{len(list(folder.glob('serve-*')))}.log"
    with log.open("wb") as output:
        command = (sys.executable, "-P", "-m", "loom", "serve", "--port", "0", *options)
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=output, stderr=output)
    try:
        yield ServeProcess(process, log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, log.read_text()
