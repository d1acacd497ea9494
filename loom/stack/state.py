"""`stack.json`: which processes belong to the stack, and where they listen.

A process is identified by its id *and* its start time, because ids are reused. Loom never signals a process that it did
not start. The file is replaced atomically, and only its owner can read it, since the addresses contain passwords.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

FILE = "stack.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Identity:
    """A process of this machine."""

    pid: int
    started: float  # seconds since the epoch, as the operating system reports it

    def alive(self) -> bool:
        """Whether this process is still running; a zombie is not."""
        try:
            process = psutil.Process(self.pid)
            return bool(process.status() != psutil.STATUS_ZOMBIE) and self._same(process.create_time())
        except psutil.NoSuchProcess:
            return False

    def _same(self, created: float) -> bool:
        return abs(created - self.started) < 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """A service or worker as it was started."""

    pid: int
    started: float
    address: str | None = None  # None: it accepts no connections (the worker)

    @property
    def identity(self) -> Identity:
        """The process."""
        return Identity(pid=self.pid, started=self.started)


@dataclass(frozen=True, kw_only=True, slots=True)
class StackState:
    """The contents of `stack.json`."""

    supervisor: Identity | None = None
    parts: Mapping[str, Recorded] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)  # kept after `down`, so that addresses do not change
    worker_wanted: bool = False
    ready: bool = False  # everything that was requested has responded
    ui: str | None = None  # Temporal's Web UI
    app: str | None = None  # what the worker has loaded

    def supervised(self) -> bool:
        """Whether a supervisor is running."""
        return self.supervisor is not None and self.supervisor.alive()

    def living(self) -> dict[str, Recorded]:
        """The parts whose process is running."""
        return {name: part for name, part in self.parts.items() if part.identity.alive()}


def of_pid(pid: int) -> Identity:
    """The identity of a running process; raises `psutil.NoSuchProcess`."""
    return Identity(pid=pid, started=psutil.Process(pid).create_time())


def lived_at(pid: int, moment: float) -> bool:
    """Whether the process that has this id now already had it at that time; ids are reused."""
    try:
        return Identity(pid=pid, started=(started := of_pid(pid).started)).alive() and started <= moment + 1
    except psutil.NoSuchProcess:
        return False


def command_line(pid: int) -> tuple[str, ...]:
    """The command line of a process; empty if it has ended or cannot be inspected."""
    try:
        return tuple(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ()


def read(home: Path) -> StackState:
    """The recorded state; empty if there is no file, or one that cannot be read."""
    try:
        return _decode(json.loads((home / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return StackState()


def write(home: Path, state: StackState) -> None:
    """Replace `stack.json` atomically."""
    path = home / FILE
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)


def own_addresses(home: Path) -> dict[str, str]:
    """The addresses of the running services by name: temporal, postgres, redis.

    The address of Temporal is included even while it is down. It will have the same one after its next start, and until
    then a server at Temporal's usual address belongs to someone else.
    """
    found = read(home)
    down = {"temporal": f"127.0.0.1:{found.ports['temporal']}"} if "temporal" in found.ports else {}
    return down | {name: part.address for name, part in found.living().items() if part.address is not None}


def _decode(raw: dict[str, Any]) -> StackState:
    supervisor = raw["supervisor"]
    return StackState(
        supervisor=Identity(**supervisor) if supervisor else None,
        parts={name: Recorded(**part) for name, part in raw["parts"].items()},
        ports={name: int(port) for name, port in raw["ports"].items()},
        worker_wanted=bool(raw["worker_wanted"]),
        ready=bool(raw["ready"]),
        ui=raw["ui"],
        app=raw.get("app"),  # not written by earlier releases
    )
