"""Implement `loom up` and `loom down`."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from loom.stack import state
from loom.stack.errors import AlreadySupervised, StackError, tail
from loom.stack.found_home import FILE
from loom.stack.home import locked, log_path, prepare
from loom.stack.plan import Plan
from loom.stack.processes import GRACE, Running, ask_to_end, end, end_all, wait_until
from loom.stack.state import Identity, Recorded, StackState
from loom.stack.supervisor import Supervisor

DEADLINE = 60.0  # seconds until everything is ready, including services that another `up` is starting


def up_detached(plan: Plan, *, replaces: Recorded | None = None) -> StackState:
    """Start the missing services under a new daemon, and return once everything is ready.

    `replaces` is a worker that must not go on, even if it matches the plan: its code may have changed. Raises
    `StackError` if a service can't be started.
    """
    prepare(plan.home)
    deadline = time.monotonic() + DEADLINE
    while True:
        if running := _already_up(plan, replaces, deadline):
            return running
        _end_worker(replaces)
        try:
            _start_daemon(plan, deadline)
        except AlreadySupervised:
            _wait_for_the_other(plan.home, deadline)
        else:
            return state.read(plan.home)  # also if the HTTP service has refused its settings


def up_here(plan: Plan, on_ready: Callable[[StackState], None], *, replaces: Recorded | None = None) -> bool:
    """Supervise the stack in this process until a signal stops it. `replaces` is as for `up_detached`.

    Return False if the stack is already running under another supervisor.
    """
    prepare(plan.home)
    deadline = time.monotonic() + DEADLINE
    while True:
        if running := _already_up(plan, replaces, deadline):
            on_ready(running)
            return False
        _end_worker(replaces)
        try:
            Supervisor(plan).run(on_ready)
        except AlreadySupervised:
            _wait_for_the_other(plan.home, deadline)
        else:
            return True


def down(home: Path) -> tuple[str, ...]:
    """Stop the processes of this home's stack, and return the names of those that were running.

    Raises `StackError` if the stack is another user's, or if the record of its processes can't be read.
    """
    if state.is_foreign(home):
        raise StackError(f"the stack in {home} belongs to another user: only this user can stop it", home=str(home))
    if not (home / FILE).exists():
        return ()
    deadline = time.monotonic() + DEADLINE
    ran: tuple[str, ...] = ()
    while True:
        now = state.read(home)
        ran = ran or tuple(now.living())
        if now.supervised() and now.supervisor is not None:
            _end_supervisor(now.supervisor)
        try:
            with locked(home):
                _end_leftovers(home)
            return ran
        except AlreadySupervised:
            _wait_for_the_other(home, deadline)


def _already_up(plan: Plan, replaces: Recorded | None, deadline: float) -> StackState | None:
    """Return the state of the running stack if it matches the plan.

    If its worker, its app or its workspaces differ, if its worker is to be replaced, or if the HTTP service is down,
    take over the stack and return None.
    """
    while (now := state.read(plan.home)).supervised():
        if now.private is not plan.private:
            runs = "with" if now.private else "without"
            raise StackError(f"the stack in {plan.home} runs {runs} --private: stop it first with `loom down`")
        same = plan.app in (None, now.app) and plan.workspaces in ((), now.workspaces)
        stays = replaces is None or now.parts.get("worker") != replaces
        serves = plan.serve_port is None or "serve" in now.living()
        if now.ready and (plan.worker is None or (now.worker_wanted and same and stays and serves)):
            return now
        if now.ready and now.supervisor is not None:
            _take_over(now.supervisor)
            return None
        if time.monotonic() >= deadline:
            raise StackError(
                f"the stack in {plan.home} is not ready after {DEADLINE:.0f} s. "
                f"Stop it with `loom down`.\n{tail(log_path(plan.home, 'supervisor'))}"
            )
        time.sleep(0.05)
    return None


def _take_over(supervisor: Identity) -> None:
    """Make the current supervisor hand over its services to a new one.

    The new worker then runs in the environment of *this* process, with its API keys.
    """
    process = Running(identity=supervisor)
    ask_to_end(process, signal.SIGUSR1)
    if not wait_until(lambda: not process.alive(), seconds=15):
        raise StackError(f"process {supervisor.pid} does not hand over its stack: stop it with `loom down`")


def _end_worker(replaced: Recorded | None) -> None:
    """End the worker that is to be replaced. Its runs wait for the next worker."""
    if replaced is not None:
        end("worker", Running(identity=replaced.identity))


def _wait_for_the_other(home: Path, deadline: float) -> None:
    """Wait briefly until the process that holds the lock records itself or releases the lock."""
    if time.monotonic() >= deadline:
        raise StackError(f"another process has locked {home} for {DEADLINE:.0f} s and has not recorded itself")
    time.sleep(0.1)


def _start_daemon(plan: Plan, deadline: float) -> None:
    log = log_path(plan.home, "supervisor")
    reading, writing = os.pipe()
    command = (
        sys.executable, "-P", "-m", "loom.stack.supervisor",
        "--plan", plan.to_json(), "--report-fd", str(writing),
    )  # fmt: skip
    try:
        daemon = _daemon(command, log, writing)
        try:
            said = _report(reading, deadline)
        except KeyboardInterrupt:
            daemon.send_signal(signal.SIGTERM)  # it has a session of its own, so Ctrl-C hasn't reached it
            daemon.wait()
            raise
    finally:
        os.close(reading)
    if said is None:
        daemon.send_signal(signal.SIGTERM)
        raise StackError(f"the stack is not ready after {DEADLINE:.0f} s\n{tail(log)}")
    if said == {}:
        daemon.returncode = 0  # the daemon outlives this process; this avoids a ResourceWarning
        return
    daemon.wait()
    kind = AlreadySupervised if said.get("kind") == AlreadySupervised.__name__ else StackError
    raise kind(said.get("error") or f"the supervisor exited during startup\n{tail(log)}")


def _daemon(command: tuple[str, ...], log: Path, report: int) -> "subprocess.Popen[bytes]":
    try:
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(report,),
                start_new_session=True,
            )
    except OSError as error:
        raise StackError(f"cannot start {command[0]}: {error.strerror} (log: {log})") from None
    finally:
        os.close(report)


def _report(pipe: int, deadline: float) -> dict[str, str] | None:
    """Return the daemon's report: `{}` if the stack is ready, or else an error. Return None after the deadline."""
    text = b""
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        chunk = os.read(pipe, 65536)
        if not chunk:
            return dict(json.loads(text)) if text else {"error": ""}
        text += chunk


def _end_supervisor(supervisor: Identity) -> None:
    """Ask the supervisor to stop, and wait until its services have had time to stop. If it doesn't stop, kill it."""
    process = Running(identity=supervisor)
    ask_to_end(process, signal.SIGTERM)
    if not wait_until(lambda: not process.alive(), seconds=3 * GRACE):
        ask_to_end(process, signal.SIGKILL)  # only the supervisor; `_end_leftovers` stops the services
        wait_until(lambda: not process.alive(), seconds=5)


def _end_leftovers(home: Path) -> None:
    """Stop services whose supervisor was killed."""
    before = state.read(home)
    end_all({name: Running(identity=part.identity) for name, part in before.living().items()})
    with suppress(OSError):  # without this record, the start times still show that these processes have ended
        state.write(home, StackState(ports=before.ports, worker_wanted=before.worker_wanted, private=before.private))
