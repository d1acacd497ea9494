"""Audit a folder of source code with a run that survives the death of its worker (`make demo`).

The demo starts its own stack in `.loom-demo` (LOOM_DEMO_HOME). A run reads the sources in parallel and asks for
approval before it writes its report. While the run is waiting, the demo kills its worker. The supervisor starts another
worker, which rebuilds the run from its history and continues. At the end, the demo checks that it kept its promises.

The exit code is 0 if all promises were kept, 1 if some were not, 2 if another demo is running in the same folder, and
130 if the demo was interrupted. In each case, the demo stops the processes that it started.
"""

import asyncio
import fcntl
import logging
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final, TypeVar
from uuid import uuid4

import structlog

from examples.audit.proof import Evidence, broken_promises, history_of
from examples.audit.telling import Teller
from loom import LoomClient
from loom.cli.output import console, counted, seconds
from loom.cli.watch.follower import Follower
from loom.cli.watch.pending_approvals import Decision
from loom.composition.load_settings import load_settings
from loom.domain.core.errors import LoomError
from loom.domain.core.messages import JsonObject
from loom.pending_approvals import PendingApproval
from loom.stack import state
from loom.stack import up_down as stack
from loom.stack.home import prepare
from loom.stack.plan import Plan
from loom.stack.state import StackState

T = TypeVar("T")

SOURCES: Final = Path(__file__).parent / "sources"
CHECKOUT: Final = Path(__file__).parents[2]
TASK: Final = "Audit the source code in this folder and write the report to report.md."
PERSON: Final = "demo user"
LONGEST: Final = 180.0
"""Maximum duration of the run in seconds. It usually takes about ten seconds."""
PATIENCE: Final = 60.0
"""Maximum number of seconds until a new worker responds."""
FOREIGN: Final = ("LOOM_", "TEMPORAL_")
"""Prefixes of environment variables that the demo ignores, because it has its own stack."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The demo's folder, and the directory where the demo was started."""

    home: Path
    started_from: Path

    @property
    def workspace(self) -> Path:
        """The folder to audit."""
        return self.home / "workspace"

    def named(self, path: Path) -> str:
        """Return the path relative to the directory where the demo was started, if it is inside that directory."""
        inside = path.is_relative_to(self.started_from)
        return str(path.relative_to(self.started_from) if inside else path)

    def loom(self, words: str) -> str:
        """Return a `loom` command for the demo's stack."""
        return f"LOOM_HOME={self.named(self.home)} {self.named(Path(sys.executable).parent / 'loom')} {words}"


class Demo:
    """Runs the demo, from starting the stack to checking the promises."""

    def __init__(self, place: Place, teller: Teller) -> None:
        self._place = place
        self._teller = teller
        self._run_id = f"audit-{uuid4().hex[:8]}"
        self._killed: tuple[int, int] | None = None
        self._approved = ""

    async def run(self) -> int:
        """Run the demo, and return the exit code."""
        up = await self._bring_up()
        _fill(self._place.workspace)
        address = f"{up.ui}/namespaces/default/workflows/{self._run_id}"
        self._teller.line(f"run    {self._run_id}\nwatch  {address}\n", "dim")
        async with LoomClient.connected(load_settings()) as loom, asyncio.timeout(LONGEST):
            await loom.start(TASK, run_id=self._run_id, model="demo", workspace=str(self._place.workspace))
            seen = await self._follow(loom)
        return self._conclude(seen, address)

    async def _bring_up(self) -> StackState:
        self._teller.line(f"starting Temporal, Postgres, Redis and a worker in {self._place.named(self._place.home)} …")
        begun = monotonic()
        up = await asyncio.to_thread(stack.up_detached, Plan(home=self._place.home))
        took = seconds(monotonic() - begun)
        self._teller.line(f"ready after {took}; the worker is process {up.parts['worker'].pid}\n")
        return up

    async def _follow(self, loom: LoomClient) -> Evidence:
        async def answer(ask: PendingApproval) -> Decision:
            return await self._answer(loom, ask)

        follower = Follower(loom, self._run_id, self._teller, answer, PERSON)
        result = await follower.follow(just_started=True)
        steps, history_events = await history_of(loom, self._run_id)
        return Evidence(
            result=result,
            steps=steps,
            history_events=history_events,
            stream=tuple(self._teller.events),
            report=self._place.workspace / "report.md",
            approved=self._approved,
            workers=self._killed or (0, 0),
        )

    async def _answer(self, loom: LoomClient, ask: PendingApproval) -> Decision:
        """Approve the call as a person would. Before the first approval, kill the worker."""

        async def shown() -> bool | None:
            return self._teller.has_shown(ask) or None

        await _eventually(shown)
        if self._killed is None:
            self._killed = await self._replace_worker(loom, ask)
        self._approved = str(ask.arguments.get("content", ""))
        self._teller.line(f"  the demo approves the call for you, as “{PERSON}”")
        return Decision(approved=True)

    async def _replace_worker(self, loom: LoomClient, ask: PendingApproval) -> tuple[int, int]:
        """Kill the worker, wait until the next one has rebuilt the run, and return the process ids of both."""
        before, tell = state.read(self._place.home).living()["worker"].pid, self._teller.line
        os.kill(before, signal.SIGKILL)
        begun = monotonic()
        tell(f"  ✗ kill -9 {before}: the worker is killed while the run is waiting", "bold red")

        async def successor() -> int | None:
            worker = state.read(self._place.home).living().get("worker")
            return worker.pid if worker and worker.pid != before else None

        async def rebuilt() -> tuple[int, JsonObject] | None:
            """Return the worker that answers, which is another one if the first could not start, and the status."""
            worker, status = await successor(), await loom.status(self._run_id)
            waits = any(pending["digest"] == ask.digest for pending in status["pending_approvals"])
            if worker is None or worker != await successor() or not waits or status.get("stale"):
                return None
            return worker, status

        started = await _eventually(successor)
        tell(f"  ↻ the supervisor has started worker {started}, {seconds(monotonic() - begun)} later", "cyan")
        after, status = await _eventually(rebuilt)
        done = counted(status["tool_calls"], "tool call")
        tell(f"  ↻ {seconds(monotonic() - begun)} after the kill, it has rebuilt the run from its history:", "cyan")
        tell(f"    turn {status['turn']}, {done} done, and the same call still waits (digest {ask.digest})", "cyan")
        return before, after

    def _conclude(self, seen: Evidence, address: str) -> int:
        """Print the outcome and the broken promises, and return the exit code."""
        wrong = broken_promises(seen)
        for name, value in self._summary(seen, address):
            self._teller.line(f"{name:<11} {value}")
        if not wrong:
            kept = "no step ran twice, each tool call ran once, and the report is the approved text"
            self._teller.line(f"{'checked':<11} {kept}", "green")
        for promise in wrong:
            self._teller.line(f"PROMISE BROKEN: {promise}", "bold red")
        return 1 if wrong else 0

    def _summary(self, seen: Evidence, address: str) -> Iterator[tuple[str, str]]:
        result, (before, after) = seen.result, seen.workers
        if seen.report.is_file():
            shutil.copy(seen.report, self._place.home / "report.md")
        yield f"\n{result.status}:", f"{result.output}\n"
        yield "turns", str(result.turns)
        yield "tool calls", f"{result.tool_calls}, up to {seen.group} side by side"
        yield "approval", "; ".join(seen.decisions) or "none"
        first, second = counted(seen.done_by(before), "step"), counted(seen.done_by(after), "step")
        yield "workers", f"{before} did {first} until it was killed, {after} did the remaining {second}"
        yield "events", f"{len(seen.stream)} on the live stream, {seen.history_events} in the history"
        yield "report", str(self._place.home / "report.md")
        yield "Web UI", address
        yield "look again", f"{self._place.loom('up')}   then open the Web UI, or"
        yield "", self._place.loom(f"show {self._run_id}")


async def _eventually(look: Callable[[], Awaitable[T | None]]) -> T:
    """Call `look` until it returns a value other than None, and return that value."""
    async with asyncio.timeout(PATIENCE):
        while (seen := await look()) is None:  # noqa: ASYNC110 - other processes do not set events
            await asyncio.sleep(0.05)
        return seen


def _fill(workspace: Path) -> None:
    shutil.rmtree(workspace, ignore_errors=True)
    shutil.copytree(SOURCES, workspace, ignore=shutil.ignore_patterns("__pycache__"))


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Lock the folder, because two demos would stop each other's stack."""
    prepare(home)
    with (home / "demo.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _settle_in(home: Path) -> None:
    """Use only the demo's own settings, without the caller's variables and the files in the current folder."""
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        del os.environ[name]
    os.environ |= {"LOOM_HOME": str(home), "LOOM_MODEL": "demo"}
    os.chdir(home)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


async def _interruptible(work: Awaitable[int]) -> int:
    """Shut down properly on SIGTERM and when the terminal is closed, in the same way as on Ctrl-C."""
    this: asyncio.Task[Any] | None = asyncio.current_task()
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel if this else lambda: None)
    return await work


def _play(place: Place, teller: Teller) -> int:
    """Run the demo, and stop its stack unless the stack was already running."""
    found = state.read(place.home).supervised()
    try:
        return asyncio.run(_interruptible(Demo(place, teller).run()))
    except (KeyboardInterrupt, asyncio.CancelledError):
        teller.line("\ninterrupted", "yellow")
        return 130
    except (LoomError, TimeoutError) as error:
        teller.line(f"\nthe demo failed: {error or 'it took too long'}", "bold red")
        return 1
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        teller.line(_leave_running(place) if found else _end(place.home), "dim")


def _leave_running(place: Place) -> str:
    return f"\nThe stack was already running before the demo, and it still is. To stop it: `{place.loom('down')}`"


def _end(home: Path) -> str:
    ended = stack.down(home)
    left = state.read(home).living()
    return f"\nStill running: {', '.join(left)}" if left else f"\nStopped: {', '.join(ended)}. Nothing is left running."


def main() -> int:
    """Run the demo, and return the exit code."""
    named = os.environ.get("LOOM_DEMO_HOME")
    place = Place(home=Path(named or CHECKOUT / ".loom-demo").absolute(), started_from=Path.cwd())
    teller = Teller(console())
    teller.line("Loom demo: a rule-based model audits six source files. It needs no key and no network.\n", "bold")
    try:
        with _alone(place.home):
            _settle_in(place.home)
            return _play(place, teller)
    except BlockingIOError:
        teller.line(f"another demo is running in {place.home}: wait for it, or set LOOM_DEMO_HOME to another folder")
        return 2
    except LoomError as error:
        teller.line(str(error), "bold red")
        return 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the SDK's threads may call into an interpreter that is shutting down
