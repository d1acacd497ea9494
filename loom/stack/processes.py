"""Start a child process, check whether it is alive, and stop it.

Each child runs in its own session. Ctrl-C in the terminal therefore reaches only the supervisor, which stops its
children in order. Killing a child also kills all processes that the child started.
"""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from loom.stack.errors import StackError
from loom.stack.state import Identity, of_pid

_log = logging.getLogger("loom.stack")

HOW_TO_END = {
    "worker": signal.SIGTERM,
    "serve": signal.SIGTERM,
    "temporal": signal.SIGTERM,
    "postgres": signal.SIGINT,  # a fast shutdown; with SIGTERM, Postgres would wait for all clients to disconnect
    "redis": signal.SIGTERM,
}
ON_SERVICES = ("worker", "serve")
"""The processes that need the services, in starting order."""
GRACE = 10.0
"""Seconds that a process has to exit before it is killed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """A process of this stack, started by this supervisor or by an earlier one."""

    identity: Identity
    child: "subprocess.Popen[bytes] | None" = None  # None if the process was adopted from an earlier supervisor
    logs_from: int = 0  # the offset in the log at which this process's output starts
    since: float | None = None  # when it became the service, in seconds since the epoch; None: when it was started

    def alive(self) -> bool:
        """Return whether the process is still running."""
        return self.child.poll() is None if self.child else self.identity.alive()

    def exit_code(self) -> int | None:
        """Return the exit code, or None if the process is still running or was adopted."""
        return self.child.poll() if self.child else None


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    cwd: Path | None = None,
    reads: Path = Path(os.devnull),
) -> Running:
    """Start a child process that appends its output to `log` and gets the file `reads` as its standard input.

    Raises `StackError` if the process can't be started.
    """
    try:
        with log.open("ab") as output, reads.open("rb") as given:
            began = output.tell()
            child = subprocess.Popen(
                command,
                stdin=given,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
            )
    except OSError as error:
        raise StackError(f"cannot start {command[0]}: {error.strerror} (log: {log})", program=command[0]) from None
    # Until the parent waits for a child, the child keeps its process table entry, even if it has already exited.
    return Running(identity=of_pid(child.pid), child=child, logs_from=began)


def ask_to_end(process: Running, how: signal.Signals) -> None:
    """Send the signal, unless the process has ended and its ID belongs to another process."""
    if process.alive():
        with suppress(ProcessLookupError):
            os.kill(process.identity.pid, how)


def end_all(parts: Mapping[str, Running]) -> None:
    """Stop the worker and the HTTP service first, while the others still respond to them. Then stop the others."""
    first = {name: process for name, process in parts.items() if name in ON_SERVICES}
    for some in (first, {name: process for name, process in parts.items() if name not in first}):
        _end_together(some)


def _end_together(parts: Mapping[str, Running]) -> None:
    for name, process in parts.items():
        ask_to_end(process, HOW_TO_END[name])
    for name, process in parts.items():
        end(name, process)


def end(name: str, process: Running) -> None:
    """Ask the process to exit and wait. If it doesn't exit in time, kill it. Then kill any processes that it has left
    behind. A process that had already exited is left alone, because its ID may belong to somebody else.
    """
    if not process.alive():
        return
    ask_to_end(process, HOW_TO_END[name])
    if not wait_until(lambda: not process.alive(), seconds=GRACE):
        ask_to_end(process, signal.SIGKILL)
        wait_until(lambda: not process.alive(), seconds=5)
    kill_process_group(process)


def kill_process_group(exited: Running) -> None:
    """Kill the processes that a process has left behind, such as the memory process of a killed worker.

    Call this only directly after the process has exited. While its group has members, the system gives the group's ID
    to no other process.
    """

    def is_gone() -> bool:
        members = _group_of(exited.identity.pid)
        if any(each.pid == exited.identity.pid for each in members):  # somebody else's process, with a reused ID
            return True
        for each in members:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        return not members

    if not wait_until(is_gone, seconds=1):
        _log.warning("process %s has exited, but processes that it started are still running", exited.identity.pid)


def _group_of(leader: int) -> list[psutil.Process]:
    """Return the running members of a process group."""
    members = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members


def wait_until(condition: Callable[[], bool], *, seconds: float) -> bool:
    """Wait until the condition is true. Return False if it is still false after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.03)
    return True
