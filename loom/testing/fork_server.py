"""A process that has imported Loom's modules, and forks for each `loom` command.

A fork is a process of its own, with its own arguments, environment, folder and streams. It saves the one or two seconds
that the imports take. The server has no threads, no event loop and no connections to other servers, so a fork shares
none of these.

A fork doesn't read what Python reads as it starts: the locale, and variables that begin with `PYTHON`. If the caller of
a fork ends, the server kills the fork; if the process that started the server ends, the server kills all forks.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final, NoReturn

from loom.cli.main import main
from loom.composition.preloading import IMPORTED_LATER, OF_PROVIDERS, imported_activities
from loom.workflows.runner import build_adapters

WORKER_MODULES: Final = (
    "loom._worker",
    "loom.cli.commands.stack",
    "loom.testing.model_replies",
    *IMPORTED_LATER,
    *OF_PROVIDERS["openai"],
)


class Fork:
    """A command that runs in a fork. It has the methods of `subprocess.Popen` that a caller needs."""

    def __init__(self, server: socket.socket) -> None:
        self._server = server
        self._said = server.makefile("rb")
        self.pid = int(self._said.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None if the process is still running."""
        if self.returncode is None and select.select([self._server], [], [], 0)[0]:
            return self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit code. Raises TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            if not select.select([self._server], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            with self._server, self._said:
                self.returncode = int(self._said.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask the process to end, unless it has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process with `kill -9`, unless it has ended."""
        self.send_signal(signal.SIGKILL)


@dataclass(frozen=True)
class ForkServer:
    """A running server."""

    address: str
    """The path of its socket."""

    def start(self, *words: str, env: Mapping[str, str], folder: Path, output: IO[bytes]) -> Fork:
        """Start `loom` with these arguments. It has no input."""
        server = socket.socket(socket.AF_UNIX)
        server.connect(self.address)
        given = json.dumps({"words": words, "environment": dict(env), "folder": str(folder)}).encode()
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device
            streams = [nothing.fileno(), output.fileno(), output.fileno()]
            socket.send_fds(server, [len(given).to_bytes(8, "big")], streams)
        server.sendall(given)
        return Fork(server)


@contextlib.contextmanager
def fork_server(modules: Sequence[str] = WORKER_MODULES) -> Iterator[ForkServer]:
    """Run a server that has imported these modules until the block ends."""
    with TemporaryDirectory(prefix="loom-") as folder:
        path = f"{folder}/forks"
        command = (sys.executable, "-P", "-m", "loom.testing.fork_server", path, *modules)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            said = server.stdout.readline()
            assert said == b"ready\n", f"the server has ended with exit code {server.wait()}"
            yield ForkServer(path)
            server.stdin.close()


@dataclass(frozen=True)
class _Running:
    """A fork as its server sees it."""

    pid: int
    caller: socket.socket


def _serve(path: str) -> None:
    """Fork for each command until standard input ends. This returns in each fork."""
    running: list[_Running] = []
    child_ended, wakeup = socket.socketpair()
    wakeup.settimeout(0)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler, nothing is written to the socket
    signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    gc.freeze()  # so that a fork copies few pages
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        callers = [fork.caller for fork in running]
        watched: list[Any] = [0, listening, child_ended, *callers]
        ready, _, _ = select.select(watched, [], [])
        if 0 in ready:
            _end(running)
        if child_ended in ready:
            child_ended.recv(4096)
        running = [fork for fork in running if _goes_on(fork, is_left=fork.caller in ready)]
        if listening in ready:
            fork = _forked(listening)
            if fork is None:
                for each in (listening, child_ended, wakeup, *callers):
                    each.close()
                return
            running.append(fork)


def _forked(listening: socket.socket) -> _Running | None:
    """Fork for the next caller. Return None in the fork."""
    caller, _ = listening.accept()
    size, streams, _, _ = socket.recv_fds(caller, 8, 3)
    given = json.loads(caller.makefile("rb").read(int.from_bytes(size, "big")))
    if (pid := os.fork()) == 0:
        caller.close()
        _become(given, streams)
        return None
    caller.send(b"%d\n" % pid)
    for stream in streams:
        os.close(stream)
    return _Running(pid, caller)


def _end(running: Sequence[_Running]) -> NoReturn:
    for fork in running:
        os.kill(fork.pid, signal.SIGKILL)
    os._exit(0)


def _goes_on(fork: _Running, *, is_left: bool) -> bool:
    """Whether the command still runs. If not, its caller learns how it ended; without a caller, it is killed."""
    if is_left:
        os.kill(fork.pid, signal.SIGKILL)
        os.waitpid(fork.pid, 0)
        fork.caller.close()
        return False
    pid, status = os.waitpid(fork.pid, os.WNOHANG)
    if pid == 0:
        return True
    with fork.caller, contextlib.suppress(BrokenPipeError):
        fork.caller.send(b"%d\n" % os.waitstatus_to_exitcode(status))
    return False


def _become(given: dict[str, Any], streams: list[int]) -> None:
    """Take over what the caller has given."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets commands in the background ignore it
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(given["folder"])
    os.environ.clear()
    os.environ.update(given["environment"])
    sys.argv = ["loom", *given["words"]]


if __name__ == "__main__":
    for module in sys.argv[2:]:
        import_module(module)
    build_adapters(imported_activities())
    _serve(sys.argv[1])
    main()
