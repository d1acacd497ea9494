"""Run an MCP server's program and ensure that none of its processes outlives the worker or the program.

This module is a standalone program: `python -I -S process_guard.py WORKER_PID COMMAND…`. It needs only the standard
library. Linux sends the guard a signal when the worker dies for any reason. Linux also makes the guard the parent of
all processes that the server leaves behind, including detached processes. The guard kills all of these processes before
it exits.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

GRACE: Final = 1.0
"""Grace period in seconds for the server to shut down after a stop request."""

_DEATH_SIGNAL: Final = 1
_SUBREAPER: Final = 36
_ASKED: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_WATCHED: Final = _ASKED | {signal.SIGCHLD}
_NOT_STARTED: Final = 127


def guarded(command: Sequence[str]) -> list[str]:
    """Return the command prefixed with the guard. On systems that don't support the guard, return the command
    unchanged.
    """
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main(worker: int, command: Sequence[str]) -> int:
    """Run the command until it ends, the worker dies or a stop is requested. Return the command's exit code."""
    _control(_DEATH_SIGNAL, signal.SIGTERM)
    _control(_SUBREAPER, 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    if os.getppid() != worker:  # the worker died before the signal was set up
        return 0
    server = os.fork()
    if server == 0:
        _become(command)
    _let_go_of_pipes()
    code = _watch(server)
    _kill_all()
    return code


def _watch(server: int) -> int:
    """Wait for the server to end and return its exit code. After a stop request, wait no longer than `GRACE`."""
    while True:
        number = signal.sigwaitinfo(_WATCHED).si_signo
        if number != signal.SIGCHLD:
            break
        if (code := _reaped(server)) is not None:
            return code
    with suppress(ProcessLookupError):
        os.kill(server, signal.SIGTERM)
    while signal.sigtimedwait({signal.SIGCHLD}, GRACE) is not None:
        if (code := _reaped(server)) is not None:
            return code
    return -signal.SIGKILL


def _reaped(server: int) -> int | None:
    """Reap all children that have ended. If the server is among them, return its exit code."""
    found: int | None = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == server:
                found = os.waitstatus_to_exitcode(ended[1])
    return found


def _kill_all() -> None:
    """Kill child processes until none are left. When a process is killed, the guard becomes the parent of that
    process's children.
    """
    with suppress(ChildProcessError):
        while True:
            for child in _children():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)


def _children() -> list[int]:
    me = str(os.getpid())
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The name in parentheses can contain any character. The state and the parent follow the last parenthesis.
            if entry.read_text("utf-8", "replace").rpartition(")")[2].split()[1] == me:
                found.append(int(entry.parent.name))
    return found


def _become(command: Sequence[str]) -> NoReturn:
    _control(_DEATH_SIGNAL, signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
    try:
        os.execvp(command[0], list(command))  # noqa: S606 - the operator configured this command
    except OSError as error:
        os.write(2, f"{command[0]} cannot be started: {error.strerror}\n".encode())
    os._exit(_NOT_STARTED)


def _let_go_of_pipes() -> None:
    """Close this process's ends of the pipes, so that the pipes close when the server ends."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)


def _control(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]) & 0xFF)
