"""A worker with real parts and a scripted model, which replays each of its runs."""

import asyncio
import faulthandler
import os
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType
from typing import Any, Final, TypeVar
from uuid import uuid4

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetStickyTaskQueueRequest
from temporalio.client import WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer, Worker

from loom._worker import worker
from loom.app.loom_app import LoomApp
from loom.client import LoomClient
from loom.composition.replay import has_begun
from loom.composition.settings import Settings
from loom.domain.core.errors import RunNotFoundError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import AGENT_RUN, RunResult
from loom.domain.core.tasks import Action
from loom.testing.cassettes import Cassette
from loom.testing.model_server import ModelServer
from loom.testing.recorded_run import RecordedRun
from loom.testing.waiting import eventually
from loom.watching import closing
from loom.workflows.runner import WORKFLOW_RUNNER, WORKFLOWS
from loom.workflows.signing import SignedRequests

T = TypeVar("T")

PATIENT_WITH_REDIS: Final = 30.0
"""Seconds. After the usual second, which a busy machine may take, a run goes on without its events."""

HANGS_AFTER: Final = 100.0
"""Seconds; less than a test's own limit, so that its failure can say more than that time ran out."""


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where the session's servers listen."""

    temporal: str
    database: str
    redis: str
    ui: str
    namespace: str = "default"
    """The Namespace on the Temporal server."""
    home: Path = Path()
    """The folder with the servers' files."""


@dataclass
class Harness:
    """A running worker and what a test needs around it."""

    client: LoomClient
    settings: Settings
    workspace: Path
    started: list[str] = field(default_factory=list)

    async def start(self, task: str = "do it", **request: Any) -> str:
        """Start a run in the test's workspace."""
        request.setdefault("workspace", str(self.workspace))
        run_id = await self.client.start(task, run_id=f"test-{uuid4().hex[:8]}", **request)
        self.started.append(run_id)
        return run_id

    async def start_unseen(self, task: str = "do it", *, workflow: str = AGENT_RUN, **request: Any) -> str:
        """Start a run as a client in another language does: nothing validates the request before the worker."""
        run_id = f"test-{uuid4().hex[:8]}"
        payload = {"task": task, "workspace": str(self.workspace), **request}
        await self.client.temporal.start_workflow(workflow, payload, id=run_id, task_queue=self.settings.task_queue)
        self.started.append(run_id)
        return run_id

    async def run(self, task: str = "do it", **request: Any) -> RunResult:
        """Start a run and wait for its result. If it hangs, the failure shows the state of its tree."""
        return await self._result(await self.start(task, **request))

    async def run_unseen(self, task: str = "do it", **request: Any) -> RunResult:
        """Start a run whose request nothing validates before the worker, and wait for its result."""
        return await self._result(await self.start_unseen(task, **request))

    async def _result(self, run_id: str) -> RunResult:
        try:
            async with asyncio.timeout(HANGS_AFTER):
                return await self.client.result(run_id)
        except TimeoutError:
            told = [await self._last_seen(each) for each in (run_id, *await self.below(run_id))]
        raise AssertionError(f"not ended after {HANGS_AFTER} s:\n" + "\n".join(told))

    async def until(self, run_id: str, holds: Callable[[JsonObject], bool]) -> JsonObject:
        """Wait until the run's status satisfies `holds`, and return it. A sub-agent may be about to start."""

        async def look() -> JsonObject | None:
            try:
                status = await self.client.status(run_id)
            except RunNotFoundError:
                return None
            return status if holds(status) else None

        return await eventually(look)

    async def recorded(self, run_id: str) -> RecordedRun:
        """Wait until the run ends, and return its events and tool calls."""
        await self._result(run_id)
        return await RecordedRun.of(self.client, run_id)

    async def until_runs(self, run_id: str, tool: str) -> None:
        """Wait until a worker runs this tool for the run."""
        async with asyncio.timeout(HANGS_AFTER), closing(self.client.events(run_id, follow=True)) as events:
            async for event in events:
                if event.task.action is Action.TOOL_CALL and event.task.parameters["tool"] == tool:
                    return
        raise AssertionError(f"the run ended without a call of {tool}\n{await self.recorded(run_id)}")

    async def asked(self, run_id: str, calls: int = 1) -> JsonObject:
        """Wait until that many calls wait for a person."""
        return await self.until(run_id, lambda status: len(status["pending_approvals"]) == calls)

    async def forget_workers(self) -> None:
        """Let any worker take the next task of the runs that this harness has started.

        Otherwise, each run first waits for the worker that has cached it, for a second if that worker is dead.
        """
        temporal = self.client.temporal
        for run_id in self.started:
            request = ResetStickyTaskQueueRequest(
                namespace=temporal.namespace, execution=WorkflowExecution(workflow_id=run_id)
            )
            try:
                await temporal.workflow_service.reset_sticky_task_queue(request)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:  # the run has ended
                    raise

    async def below(self, run_id: str) -> list[str]:
        """Return the ids of all sub-agents of a run, at any depth."""
        try:
            children = (await self.client.status(run_id))["children"]
        except RunNotFoundError:
            return []  # its parent is about to start it
        ids = [str(child["run_id"]) for child in children]
        return [each for child in ids for each in (child, *await self.below(child))]

    async def _last_seen(self, run_id: str) -> str:
        handle = self.client.temporal.get_workflow_handle(run_id)
        described = (await handle.describe()).raw_description
        events = (await handle.fetch_history()).events
        ends = [f"{each.event_time.ToJsonString()} {EventType.Name(each.event_type)}" for each in events[-3:]]
        pending = [
            f"{each.activity_type.name}, attempt {each.attempt}: {each.last_failure.message}"
            for each in described.pending_activities
        ]
        status = await self.client.status(run_id)
        return f"{run_id}: {status}\n  last events {ends}\n  activities {pending}\n  {described.pending_workflow_task}"

    async def histories(self, run_id: str) -> list[WorkflowHistory]:
        """Return the history of each execution of a run, oldest first, across continue-as-new."""
        chain: list[WorkflowHistory] = []
        execution: str | None = None
        while True:
            handle = self.client.temporal.get_workflow_handle(run_id, run_id=execution)
            history = await handle.fetch_history()
            chain.insert(0, history)
            started = history.events[0].workflow_execution_started_event_attributes
            execution = started.continued_execution_run_id or None
            if execution is None:
                return chain


def served(script: Any, workspace: Path) -> ModelServer:
    """Return the model server of a script, or the cassette that replaces it."""
    if isinstance(script, Cassette):
        script.workspace = workspace
        return script
    return ModelServer(script)


@asynccontextmanager
async def harness(
    addresses: Addresses,
    workspace: Path,
    script: Any,
    *,
    app: LoomApp | str | None = None,
    replay: bool = True,
    **settings: Any,
) -> AsyncIterator[tuple[Harness, ModelServer]]:
    """Run a worker on a separate task queue, with a model server that follows `script`."""
    if isinstance(app, str):
        settings["app"], app = app, None
    async with served(script, workspace) as model:
        chosen = settings_for(addresses, workspace, model, **settings)
        async with ends_in_time(worker(chosen, app=app)), LoomClient.connected(chosen) as client:
            ready = Harness(client=client, settings=chosen, workspace=workspace)
            yield ready, model
            if replay:
                await replay_all(ready)


def settings_for(addresses: Addresses, workspace: Path, server: ModelServer, **given: Any) -> Settings:
    """Return the settings of a worker with the session's servers and a scripted model."""
    return Settings(
        **{
            "model": "openai:scripted",
            "TEMPORAL_ADDRESS": addresses.temporal,
            "database_url": addresses.database,
            "redis_url": addresses.redis,
            "OPENAI_API_KEY": "sk-test",
            "OPENAI_BASE_URL": server.openai_url,
            "ANTHROPIC_API_KEY": "sk-test",
            "ANTHROPIC_BASE_URL": server.anthropic_url,
            "temporal_namespace": addresses.namespace,
            "task_queue": f"test-{os.getpid()}-{uuid4().hex[:6]}",
            "workspace": workspace,
            "home": workspace.parent / ".loom",
            "redis_timeout": PATIENT_WITH_REDIS,
            "first_retry_delay": 0.05,
            "metrics_port": None,
            "skills_home": None,
            "memory": "off",
            # The session's database has memories of other tests, and a script has no replies for their texts.
            "memory_model": "off",
            "audit": "off",
            # Scripts say the same for as many turns as a test needs.
            "loop_window": 0,
            **given,
        }
    )


@asynccontextmanager
async def ends_in_time(serving: AbstractAsyncContextManager[Worker]) -> AsyncIterator[None]:
    """Stop the worker at the end. If it doesn't stop, the failure shows what its tasks and threads wait for."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving)
        yield
        told: list[str] = []
        # Before the limit cancels anything.
        look = asyncio.get_running_loop().call_later(HANGS_AFTER, lambda: told.append(still_at_work()))
        try:
            async with asyncio.timeout(HANGS_AFTER):
                await stack.aclose()
        except TimeoutError:
            raise AssertionError("\n".join((f"the worker didn't stop within {HANGS_AFTER} s:", *told))) from None
        finally:
            look.cancel()


async def replay_all(ready: Harness) -> None:
    """Replay every run of the harness. Fail if a replay differs from its history, or doesn't end."""
    replayer = Replayer(
        workflows=WORKFLOWS,
        workflow_runner=WORKFLOW_RUNNER,
        data_converter=ready.client.temporal.data_converter,
        interceptors=[SignedRequests()],  # without the key: only the recorded public key may matter
    )
    for root in ready.started:
        for run_id in (root, *await in_time(ready.below(root), f"finding the sub-agents of {root}")):
            for history in await in_time(ready.histories(run_id), f"fetching the history of {run_id}"):
                if has_begun(history):
                    ends = [EventType.Name(each.event_type) for each in history.events[-3:]]
                    what = (
                        f"replaying {len(history.events)} events of {run_id}, execution {history.run_id}, up to {ends}"
                    )
                    await in_time(replayer.replay_workflow(history), what)


async def in_time(work: Coroutine[Any, Any, T], what: str) -> T:
    """Return the work's result. Work that hangs is left alone, because a replay that hangs can't be cancelled."""
    task = asyncio.create_task(work)
    await asyncio.wait({task}, timeout=HANGS_AFTER)
    if task.done():
        return task.result()
    told = still_at_work()
    task.cancel()
    raise AssertionError(f"{what}: not ended after {HANGS_AFTER} s\n{told}")


def still_at_work() -> str:
    """Return where each task of this event loop, and each other thread, waits."""
    lines = []
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        lines += [f"  task {task.get_name()}", *_places(traceback.StackSummary.extract(walked(task)))]
    with TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        lines += ["", file.read()]
    return "\n".join(lines)


def walked(task: asyncio.Task[Any]) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of the coroutines that the task is in, from the outermost one."""
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
        if frame is not None:
            yield frame, frame.f_lineno
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "ag_await", None)


def _places(stack: traceback.StackSummary) -> list[str]:
    return [f"    {each.filename}:{each.lineno} in {each.name}" for each in stack[-4:]]
