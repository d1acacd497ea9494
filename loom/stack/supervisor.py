"""The embedded stack's long-lived process, which starts, restarts and stops the services, the worker and `loom serve`.

    bring up ──▶ watch ──▶ end all        SIGTERM, SIGINT, SIGHUP
                   └─────▶ leave all      SIGUSR1: another supervisor takes over

If a supervisor is killed, its services keep running, and the next supervisor adopts the services that respond. A
supervisor runs as `python -m loom.stack.supervisor --plan JSON --report-fd N`, or inside `loom up`.
"""

import argparse
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from loom.stack import ports, state
from loom.stack import services as parts
from loom.stack.errors import StackError, tail
from loom.stack.home import locked, log_path, prepare
from loom.stack.plan import LOOM_WORKER, Plan
from loom.stack.postgres import postgres
from loom.stack.processes import ON_SERVICES, Running, end, end_all, kill_process_group, spawn, wait_until
from loom.stack.services import SERVICES, Part
from loom.stack.spare import Spare
from loom.stack.state import Identity, Recorded, StackState

_log = logging.getLogger("loom.stack")

TRIES = 3  # another process may take a port after it is chosen and before the service listens on it
PATIENCE = 45.0  # seconds for a service to respond; crash recovery can take a while
ADOPTION = 3.0  # seconds for an already running service to respond; it may have only just started
INVALID = 2  # the exit code of a command whose settings or options are invalid
PAUSE = 1.0  # seconds between two starts of a service, which limits the load of a crash loop
SETTLED = 10.0  # seconds that a worker has run before its spare is loaded; until then, runs recover
SPARE_PAUSE = 60.0  # seconds until another spare is loaded after one has failed


@dataclass(kw_only=True, slots=True)
class _Service:
    """A service and its current process."""

    part: Part
    process: Running
    adopted: bool = False
    started: float = field(default_factory=time.monotonic)
    is_cleared: bool = False

    def has_exited(self) -> bool:
        """Return whether the process has exited. If it has, kill what it has left behind, the first time only."""
        if self.process.alive():
            return False
        if not self.is_cleared:
            self.is_cleared = True
            kill_process_group(self.process)
        return True


class _Ordered(BaseException):
    """Raised when a signal tells the supervisor to stop."""


class Supervisor:
    """Supervises one home's stack from the call to `run` until a stop signal arrives."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._home = plan.home
        self._services: dict[str, _Service] = {}
        self._before = StackState()
        self._ports: dict[str, int] = {}
        self._app: str | None = None  # the app that the worker loads
        self._workspaces: tuple[str, ...] = ()  # the worker's LOOM_WORKSPACES; if empty, those of the environment
        self._spare: Spare | None = None
        self._next_spare = 0.0  # when the next spare may be loaded
        self._ready = False
        self._itself: Identity | None = None
        self._order: signal.Signals | None = None

    def run(self, on_ready: Callable[[StackState], None]) -> None:
        """Start the stack, call `on_ready` once it is ready, and supervise it until a signal arrives."""
        prepare(self._home)
        with locked(self._home), self._listening():
            self._before = state.read(self._home)
            self._ports = dict(self._before.ports)
            has_worker = "worker" in self._before.living()
            self._app = self._plan.app or (self._before.app if has_worker else None)
            self._workspaces = self._plan.workspaces or (self._before.workspaces if has_worker else ())
            self._itself = state.of_pid(os.getpid())
            try:
                if self._plan.has_spare and not has_worker:  # it loads while the services start
                    self._spare = Spare.load(LOOM_WORKER)
                self._bring_up()
                on_ready(self._state())
                self._watch()
            except _Ordered:
                pass
            except BaseException:
                self._end([name for name, service in self._services.items() if not service.adopted])
                self._sign_off()
                raise
            finally:
                self._discard_spare()
            if self._order is not signal.SIGUSR1:
                self._end(list(self._services))
            self._sign_off()

    def _bring_up(self) -> None:
        self._record()
        for name in SERVICES:
            if not self._adopt(name):
                self._start(name)
        for name in SERVICES:
            self._await(name)
        same_addresses = all(self._services[name].adopted for name in SERVICES)
        same_worker = (self._app, self._workspaces) == (self._before.app, self._before.workspaces)
        self._bring_up_on_services(can_stay=same_addresses and same_worker)
        self._ready = True
        self._record()

    def _bring_up_on_services(self, *, can_stay: bool) -> None:
        wanted = [name for name in ON_SERVICES if self._wants(name)]
        for name in ON_SERVICES:
            if name not in wanted or not can_stay:
                self._end_recorded(name)
        for name in wanted:
            if not self._adopt(name):
                self._start(name)
            if name == "worker":  # runs need no HTTP, so the stack is ready while the HTTP service starts
                self._await(name)

    def _wants(self, name: str) -> bool:
        return (self._plan.worker if name == "worker" else self._plan.serve_port) is not None

    def _watch(self) -> None:
        while self._order is None:
            for name, service in self._services.items():
                is_over = service.has_exited() and time.monotonic() - service.started >= PAUSE
                if is_over and not self._is_misconfigured(name):
                    self._revive(name, service)
            self._keep_spare()
            time.sleep(0.1)

    def _keep_spare(self) -> None:
        """Load the next spare once the worker has settled. If a spare fails, wait before loading another one."""
        now = time.monotonic()
        if self._spare is not None and (code := self._spare.child.poll()) is not None:
            _log.warning("the spare worker ended (exit code %s)", code)
            self._discard_spare()
            self._next_spare = now + SPARE_PAUSE
        if self._spare is None and self._plan.has_spare and now >= self._next_spare:
            worker = self._services["worker"]
            if worker.process.alive() and now - worker.started >= SETTLED:
                self._spare = Spare.load(LOOM_WORKER)
                if self._spare is None:
                    _log.warning("a spare worker cannot be started")
                    self._next_spare = now + SPARE_PAUSE

    def _is_misconfigured(self, name: str) -> bool:
        """Return whether the HTTP service has refused its settings. It would refuse them again."""
        return name == "serve" and self._services[name].process.exit_code() == INVALID

    def _revive(self, name: str, service: _Service) -> None:
        _log.warning("%s ended (exit code %s), starting it again", name, service.process.exit_code())
        service.started = time.monotonic()
        if name in ON_SERVICES:  # another process may have taken its port
            self._choose_ports(name)
            service.part = self._part(name)
        try:
            self._spawn(service.part)
            self._record()
        except (StackError, OSError) as error:  # for example, a full disk may have free space again later
            _log.error("%s cannot be started: %s", name, error)

    def _adopt(self, name: str) -> bool:
        """Take over a service from an earlier supervisor if the service is still running and responds."""
        recorded = self._before.parts.get(name)
        if recorded is None or not recorded.identity.alive():
            return False
        part = self._part(name)
        process = Running(identity=recorded.identity, since=recorded.since)
        if wait_until(lambda: part.answers(recorded.since or recorded.started), seconds=ADOPTION):
            self._services[name] = _Service(part=part, process=process, adopted=True)
            return True
        self._end_recorded(name)
        return False

    def _end_recorded(self, name: str) -> None:
        recorded = self._before.parts.get(name)
        if recorded is not None:
            end(name, Running(identity=recorded.identity))

    def _start(self, name: str) -> None:
        self._choose_ports(name)
        self._spawn(self._part(name))
        self._record()

    def _spawn(self, part: Part) -> None:
        part.prepare()
        log = log_path(self._home, part.name)
        process = self._from_spare(part, log) if part.name == "worker" else None
        process = process or spawn(part.command, log=log, env=part.env, cwd=part.cwd, reads=part.reads)
        self._services[part.name] = _Service(part=part, process=process)

    def _from_spare(self, part: Part, log: Path) -> Running | None:
        spare, self._spare = self._spare, None
        return spare.become_worker(part.env, log) if spare else None

    def _await(self, name: str) -> None:
        """Wait until the service responds.

        A service that exits is restarted. If it exited because its port was taken, it is restarted on another port.
        """
        deadline = time.monotonic() + PATIENCE
        tries = 1
        while not self._answers(name):
            if self._order is not None:
                raise _Ordered
            if self._services[name].has_exited():
                if tries == TRIES:
                    raise self._failure(name, "exits as soon as it is started")
                tries += 1
                self._start(name)
            if time.monotonic() >= deadline:
                raise self._failure(name, f"does not answer within {PATIENCE:.0f} s")
            time.sleep(0.05)
        self._services[name].part.settle()

    def _answers(self, name: str) -> bool:
        service = self._services[name]
        process = service.process
        return process.alive() and service.part.answers(process.since or process.identity.started)

    def _failure(self, name: str, what: str) -> StackError:
        log = log_path(self._home, name)
        last = tail(log, since=self._services[name].process.logs_from)
        return StackError(f"{name} {what}. The end of its log says why:\n{last}", part=name, log=str(log))

    def _choose_ports(self, name: str) -> None:
        if name == "serve" and self._plan.serve_port not in (0, ports.USUAL[name], None):
            self._ports[name] = self._plan.serve_port
            return
        for port in {"temporal": ("temporal", "ui"), "worker": ("metrics",)}.get(name, (name,)):
            others = [number for other, number in self._ports.items() if other != port]
            self._ports[port] = ports.choose(port, self._ports.get(port), others)

    def _part(self, name: str) -> Part:
        match name:
            case "temporal":
                plan = self._plan
                return parts.temporal(
                    self._home, self._ports, plan.namespace, private=plan.private, codec=plan.codec_endpoint
                )
            case "redis":
                return parts.redis(self._home, self._ports, self._plan.redis_server)
            case "postgres":
                return postgres(self._home, self._ports)
            case "serve":
                return parts.serve(self._ports["serve"], self._env())
            case _:
                plan = self._plan
                command = plan.worker or ()
                ui = self._services["temporal"].part.ui or ""
                return parts.worker(command, ui, plan.namespace, plan.task_queue, self._env())

    def _env(self) -> dict[str, str]:
        """Return this process's environment with the stack's addresses."""
        address = {name: str(self._services[name].part.address) for name in SERVICES}
        of_other_servers = ("TEMPORAL_API_KEY", "TEMPORAL_TLS")
        env = {name: value for name, value in os.environ.items() if not name.startswith(of_other_servers)}
        if self._plan.metrics_port == ports.USUAL["metrics"]:
            env["LOOM_METRICS_PORT"] = str(self._ports["metrics"])
        if self._app is not None:
            env["LOOM_APP"] = self._app
        if self._workspaces:
            env["LOOM_WORKSPACES"] = os.pathsep.join(self._workspaces)
        return env | {
            "TEMPORAL_ADDRESS": address["temporal"],
            "TEMPORAL_NAMESPACE": self._plan.namespace,
            "LOOM_DATABASE_URL": address["postgres"],
            "LOOM_REDIS_URL": address["redis"],
            "LOOM_TASK_QUEUE": self._plan.task_queue,
            "LOOM_HOME": str(self._home),
            **self._ui_to_link(),
            "LOOM_DEPLOYMENT": "off",  # no other worker would go on with its runs
            "PYTHONUNBUFFERED": "1",
        }

    def _ui_to_link(self) -> dict[str, str]:
        """Return the setting for links to the Web UI, unless there is one, or no browser can open the UI."""
        ui = self._services["temporal"].part.ui or ""
        return {"LOOM_TEMPORAL_UI": ui} if ui.startswith("http") and "LOOM_TEMPORAL_UI" not in os.environ else {}

    def _state(self) -> StackState:
        running = {
            name: Recorded(
                pid=service.process.identity.pid,
                started=service.process.identity.started,
                address=service.part.address,
                since=service.process.since,
            )
            for name, service in self._services.items()
        }
        # This supervisor must also stop services of an earlier supervisor that it hasn't adopted yet.
        left = {name: part for name, part in self._before.living().items() if name not in running}
        temporal = self._services.get("temporal")
        return StackState(
            supervisor=self._itself,
            parts=left | running,
            ports=self._ports,
            worker_wanted=self._plan.worker is not None,
            ready=self._ready,
            ui=temporal.part.ui if temporal else None,
            private=self._plan.private,
            app=self._app if "worker" in running else self._before.app if "worker" in left else None,
            workspaces=self._workspaces if "worker" in running else self._before.workspaces if "worker" in left else (),
        )

    def _record(self) -> None:
        try:
            state.write(self._home, self._state())
        except OSError as error:
            raise StackError(f"cannot write to {self._home}: {error.strerror}", home=str(self._home)) from None

    def _sign_off(self) -> None:
        """Record that no supervisor is running.

        If the record can't be written, the supervisor's recorded start time shows that it has ended.
        """
        self._itself = None
        with suppress(StackError):
            self._record()

    def _discard_spare(self) -> None:
        if self._spare is not None:
            self._spare.discard()
            self._spare = None

    def _end(self, names: list[str]) -> None:
        ending = {name: self._services.pop(name) for name in names}
        end_all({name: service.process for name, service in ending.items() if not service.has_exited()})

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Record a received signal as an order. The supervisor checks for an order before each step."""

        def note(number: int, _: FrameType | None) -> None:
            self._order = signal.Signals(number)

        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
        before = {number: signal.signal(number, note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def main() -> None:
    """Run the daemon. It reports on a pipe whether the stack started, and then runs until a signal stops it."""
    options = argparse.ArgumentParser(prog="python -m loom.stack.supervisor")
    options.add_argument("--plan", type=Plan.from_json, required=True)
    options.add_argument("--report-fd", type=int, required=True)
    given = options.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")

    def report(**said: str) -> None:
        with open(given.report_fd, "w", encoding="utf-8") as pipe:  # noqa: PTH123 - a descriptor, not a path
            json.dump(said, pipe)

    try:
        Supervisor(given.plan).run(lambda _: report())
    except StackError as error:
        report(error=error.message, kind=type(error).__name__)
        sys.exit(5)


if __name__ == "__main__":
    main()
