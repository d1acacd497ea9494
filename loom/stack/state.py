"""Read and write `stack.json`, which records the stack's processes and their addresses.

A process is identified by its ID *and* its start time, because IDs are reused. Loom never signals a process that it
didn't start. The file is replaced atomically, and only its owner can read it because the addresses contain passwords.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from loom.stack.errors import UnreadableState
from loom.stack.found_home import FILE, is_own

LOCK = "supervisor.lock"


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """A process on this machine."""

    pid: int
    started: float  # seconds since the epoch, as the operating system reports it

    def alive(self) -> bool:
        """Return whether this process is still running. A zombie process doesn't count as running."""
        try:
            process = psutil.Process(self.pid)
            return bool(process.status() != psutil.STATUS_ZOMBIE) and self._same(process.create_time())
        except psutil.NoSuchProcess:
            return False

    def _same(self, created: float) -> bool:
        return abs(created - self.started) < 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """The record of a service or worker that was started."""

    pid: int
    started: float
    address: str | None = None  # None for the worker, which accepts no connections
    since: float | None = None  # when a spare became the worker; None if the process was started as the service

    @property
    def identity(self) -> Identity:
        """The identity of the recorded process."""
        return Identity(pid=self.pid, started=self.started)


@dataclass(frozen=True, kw_only=True, slots=True)
class StackState:
    """The contents of `stack.json`."""

    supervisor: Identity | None = None
    parts: Mapping[str, Recorded] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)  # kept after `down` so that addresses don't change
    worker_wanted: bool = False
    ready: bool = False  # whether all requested services have responded
    ui: str | None = None  # Temporal's Web UI
    app: str | None = None  # the app that the worker has loaded
    workspaces: tuple[str, ...] = ()  # LOOM_WORKSPACES of the worker, if `--workspace-root` was given
    private: bool = False  # whether only this user's processes reach Temporal

    def supervised(self) -> bool:
        """Return whether a supervisor is running."""
        return self.supervisor is not None and self.supervisor.alive()

    def living(self) -> dict[str, Recorded]:
        """Return the records of the services and the worker whose processes are running."""
        return {name: part for name, part in self.parts.items() if part.identity.alive()}


def of_pid(pid: int) -> Identity:
    """Return the identity of a running process. Raises `psutil.NoSuchProcess` if there is no such process."""
    return Identity(pid=pid, started=psutil.Process(pid).create_time())


def lived_at(pid: int, moment: float) -> bool:
    """Return whether the current process with this ID was already running at the given time. IDs are reused."""
    try:
        return Identity(pid=pid, started=(started := of_pid(pid).started)).alive() and started <= moment + 1
    except psutil.NoSuchProcess:
        return False


def command_line(pid: int) -> tuple[str, ...]:
    """Return a process's command line, or an empty one if the process has ended or can't be inspected."""
    try:
        return tuple(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ()


def read(home: Path) -> StackState:
    """Return the recorded state, or an empty state if there is no file or if it is another user's.

    Raises `UnreadableState` if the file is damaged, or if a release that writes it differently has written it.
    """
    if not is_own(home / FILE):
        return StackState()
    try:
        return _decode(json.loads((home / FILE).read_text(encoding="utf-8")))
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except (ValueError, KeyError, TypeError, AttributeError):
        reason = "it is damaged, or another release of Loom has written it"
    raise UnreadableState(f"{home / FILE} can't be read: {reason}. {_way_out(home)}", home=str(home))


def is_foreign(home: Path) -> bool:
    """Return whether the home's stack belongs to another user."""
    return (home / FILE).exists() and not is_own(home / FILE)


def write(home: Path, state: StackState) -> None:
    """Replace `stack.json` atomically."""
    path = home / FILE
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)


def socket_path(home: Path) -> Path:
    """Return the socket through which a private Temporal server is reached."""
    return home / "temporal.sock"


def own_addresses(home: Path) -> dict[str, str]:
    """Return the addresses of the running services by name: temporal, postgres, redis.

    Temporal's address is included even while Temporal isn't running, because Temporal will use the same address when it
    starts again. Until then, a server that listens at Temporal's usual address isn't part of this stack.
    """
    found = read(home)
    port = found.ports.get("temporal")
    down = {"temporal": f"unix:{socket_path(home)}" if found.private else f"127.0.0.1:{port}"} if port else {}
    return down | {name: part.address for name, part in found.living().items() if part.address is not None}


def _way_out(home: Path) -> str:
    """Say which processes of a stack with an unreadable record are running, and what to do."""
    running = _writers(home.resolve())
    if not running:
        return "None of its processes is running: delete the file, and `loom up` starts the stack with its data."
    named = ", ".join(f"{name} ({pid})" for name, pid in running.items())
    if "supervisor" in running:
        return f"Its processes are running: {named}. `kill {running['supervisor']}` stops them all and writes the file."
    pids = " ".join(map(str, running.values()))
    return f"Its processes are running: {named}. `kill {pids}` stops them. Then delete the file."


def _writers(home: Path) -> dict[str, int]:
    """Return the IDs of a stack's processes by name. Each has a session of its own and writes the log of its name. A
    supervisor in the foreground has only the lock.
    """
    names = {str(path): path.stem for path in (*home.glob("logs/*.log"), home / LOCK)}
    found: dict[str, int] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            leads = os.getsid(process.pid) == process.pid
            for file in process.open_files():
                if (
                    file.path in names
                    and getattr(file, "mode", "a") == "a"
                    and (leads or file.path == str(home / LOCK))
                ):
                    found.setdefault(names[file.path], process.pid)  # Postgres starts others like itself
    return found


def _decode(raw: dict[str, Any]) -> StackState:
    supervisor = raw["supervisor"]
    return StackState(
        supervisor=Identity(**supervisor) if supervisor else None,
        parts={name: Recorded(**part) for name, part in raw["parts"].items()},
        ports={name: int(port) for name, port in raw["ports"].items()},
        worker_wanted=bool(raw["worker_wanted"]),
        ready=bool(raw["ready"]),
        ui=raw["ui"],
        app=raw.get("app"),  # earlier releases don't write this field or the next two
        workspaces=tuple(raw.get("workspaces", ())),
        private=raw.get("private", False),
    )
