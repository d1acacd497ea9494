"""List the files that one plain run enters: `python -m bench.reading_path`. `--write` updates docs/architecture.md.

A plain run has one tool call and an answer. It runs without a server, in three parts:

    the client       `LoomClient.start` on a connection that never connects; an interceptor takes the request
    the workflow     Temporal's replayer, with the recorded history of such a run
    the activities   the history's activities, with the same order and inputs, built from settings as in a worker

A profiler hook records each call of a Loom function. Imports and class bodies do not count.
"""

import argparse
import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NoReturn, cast, get_type_hints

from structlog.testing import capture_logs
from temporalio.client import Client, Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowHistory
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Replayer

import loom
from bench.report import put, table
from loom.client import LoomClient
from loom.composition.build import parts_from
from loom.composition.settings import Settings
from loom.composition.worker_parts import WorkerParts
from loom.domain.core.tasks import Action, Notice
from loom.domain.run.activity_payloads import ModelReply, Prepared, PublishRequest
from loom.workflows.agent_run import AgentRun
from loom.workflows.payload_converter import data_converter
from loom.workflows.runner import WORKFLOW_RUNNER

ROOT: Final = Path(__file__).parent.parent
PACKAGE: Final = Path(loom.__file__).parent
HISTORY: Final = ROOT / "tests" / "replay" / "histories" / "0.3.0-reading-path-0.json"
"""The history of a run with the demo model and TASK. The run lists its workspace, which contains FILE, and answers."""
TASK: Final = "Look around."
FILE: Final = ("a.txt", "alpha\nbeta\n")
DOC: Final = ROOT / "docs" / "architecture.md"
MARKS: Final = ("<!-- reading path: begin -->", "<!-- reading path: end -->")
HEADINGS: Final = {
    "client": "The client starts the run",
    "workflow": "The workflow decides what is next (files that are new here)",
    "activities": "The activities touch the world (files that are new here)",
}


@dataclass(frozen=True, kw_only=True)
class Entered:
    """A file of Loom that the run enters."""

    path: str
    """The path relative to the repository's root."""
    part: str
    """The part of the run that enters the file first."""
    lines: int
    functions: tuple[str, ...]
    """The called functions, in the order of their first calls."""


class Calls:
    """Records each called function, in order, with the part of the run that called it first."""

    def __init__(self) -> None:
        self._first: dict[CodeType, str] = {}
        self._part = ""

    @contextmanager
    def noted(self, part: str) -> Iterator[None]:
        """Record calls in the body, in this thread and in threads that it starts."""
        self._part = part
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(cast("Any", None))
            self._part = ""  # an executor's threads keep the hook

    def _hook(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and self._part and frame.f_code not in self._first:
            self._first[frame.f_code] = self._part

    def files(self) -> tuple[Entered, ...]:
        """Return the files of Loom that contain called functions, in the order that they were entered."""
        found: dict[Path, list[CodeType]] = {}
        for code in self._first:
            path = Path(code.co_filename)
            if code.co_flags & CO_OPTIMIZED and path.is_relative_to(PACKAGE):  # false for modules and class bodies
                found.setdefault(path.resolve(), []).append(code)
        return tuple(
            Entered(
                path=str(path.relative_to(ROOT)),
                part=self._first[codes[0]],
                lines=len(path.read_text(encoding="utf-8").splitlines()),
                functions=tuple(dict.fromkeys(code.co_qualname for code in codes)),
            )
            for path, codes in found.items()
        )


class _Caught(Exception):
    """Raised instead of sending the request to start a workflow."""


class _Outbound(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> NoReturn:  # noqa: A002 - the SDK's name for it
        raise _Caught(input.workflow)


class _Catch(Interceptor):
    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's name for it
        return _Outbound(next)


async def reading_path() -> tuple[Entered, ...]:
    """Return the files that one plain run enters, in order."""
    calls = Calls()
    history = WorkflowHistory.from_json("plain", HISTORY.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="loom-bench-") as name, capture_logs():
        folder = Path(name)
        (folder / FILE[0]).write_text(FILE[1])
        settings = Settings(
            model="demo", workspace=folder, home=folder / ".loom", skills_home=None, redis_url=None, database_url=None
        )
        await _start(calls)
        await _replay(calls, history)
        async with parts_from(settings) as parts:
            await _perform(calls, history, parts, str(folder))
    return calls.files()


async def _start(calls: Calls) -> None:
    """Start a run as a program does, but stop before anything is sent."""
    connection = await Client.connect(
        "localhost:1", lazy=True, interceptors=[_Catch()], data_converter=data_converter()
    )
    client = LoomClient(connection)
    with calls.noted("client"):
        try:
            await client.start(TASK)
        except _Caught:
            return
    raise AssertionError("nothing was sent")


async def _replay(calls: Calls, history: WorkflowHistory) -> None:
    """Replay the workflow with its whole history."""
    began = history.events[0].workflow_execution_started_event_attributes
    with calls.noted("workflow"):
        replayer = Replayer(workflows=[AgentRun], workflow_runner=WORKFLOW_RUNNER, data_converter=data_converter())
        await replayer.replay_workflow(replace(history, workflow_id=began.workflow_id))


async def _perform(calls: Calls, history: WorkflowHistory, parts: WorkerParts, workspace: str) -> None:
    """Run the history's activities. Raises AssertionError if an activity asks for data that it should already have."""
    unused = cast("Any", None)
    activities = parts.activities(_no_search_attributes, unused, unused, unused, unused, lookup=unused)
    performed = {each.__name__: each for each in activities}
    here = {"workspace": workspace, "spec_digest": ""}
    environment = ActivityEnvironment()
    origin: Any = None
    for event in history.events:
        scheduled = event.activity_task_scheduled_event_attributes
        if not scheduled.activity_type.name:
            continue
        run = performed[scheduled.activity_type.name]
        request = (await data_converter().decode(scheduled.input.payloads, [_input_type(run)]))[0]
        request = replace(request, **{field: here[field] for field in here if hasattr(request, field)})
        origin = request.origin
        with calls.noted("activities"):
            came = await environment.run(run, request)
        if isinstance(came, Prepared):
            here["spec_digest"] = came.spec.digest
        elif came.resend if not isinstance(came, ModelReply) else came.message is None:
            raise AssertionError(
                f"{scheduled.activity_type.name} needs data that isn't available here: record the history again"
            )
    ended = Notice(action=Action.COMPLETE, key="end", at=datetime.now(UTC))
    with calls.noted("activities"):  # a local activity, whose input isn't in the history
        await environment.run(performed["publish"], PublishRequest(origin=origin, turn=2, notices=(ended,)))


async def _no_search_attributes() -> frozenset[str]:
    return frozenset()


def _input_type(performed: Callable[..., Any]) -> type:
    return cast("type", get_type_hints(performed)["request"])


def report(files: tuple[Entered, ...]) -> str:
    """Return the files as Markdown, in order, with totals."""
    lines = []
    for number, file in enumerate(files, 1):
        first = ", ".join(f"`{name}`" for name in _shown(file.functions))
        lines.append([number, f"`{file.path}`", file.lines, first])
    sections = []
    for part in HEADINGS:
        rows = [line for line, file in zip(lines, files, strict=True) if file.part == part]
        sections.append(f"**{HEADINGS[part]}**\n\n{table(['', 'file', 'lines', 'functions entered first'], rows)}")
    total = f"{len(files)} files, {sum(file.lines for file in files):,} lines."
    return "\n\n".join([*sections, total])


def _shown(functions: tuple[str, ...]) -> tuple[str, ...]:
    """Return up to three functions, without lambdas and comprehensions."""
    return tuple(name.replace(".<locals>", "") for name in functions if not name.endswith(">"))[:3]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"replace the list in {DOC.name}")
    given = parser.parse_args()
    text = report(asyncio.run(reading_path()))
    sys.stdout.write(f"{text}\n")
    if given.write:
        put(DOC, MARKS, text)


if __name__ == "__main__":
    main()
