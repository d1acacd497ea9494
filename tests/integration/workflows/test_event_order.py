"""A run gets its events in the same order in the worker and in a replay.

A local activity ends while its run answers a query: the end is recorded with the workflow task that the query
completes, but the SDK tells the run with the next task, together with what that brings. It tells a replay before.

A run registers its handlers when it is created, as Loom's runs do. Requests that come with its first task reach it in
the order of the handlers, but in a replay in the order of arrival: if the task calls `workflow.patched`, or if it was
empty, another worker continues, and an update is among them.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeAlias
from uuid import uuid4

import pytest
from temporalio import activity, workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.update.v1 import UpdateRef
from temporalio.api.workflowservice.v1 import PollWorkflowExecutionUpdateRequest, ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker, WorkflowRunner
from temporalio.workflow import NondeterminismError

from loom.testing.harness import Addresses
from loom.testing.waiting import eventually
from loom.workflows.event_order import InHistoryOrder

Steering: TypeAlias = tuple[WorkflowHandle[Any, Any], Callable[[], Worker]]
Hearing: TypeAlias = Callable[[Addresses, WorkflowRunner], Awaitable[WorkflowHandle[Any, Any]]]

PLAIN: Final = UnsandboxedWorkflowRunner()
TASK_TIMEOUT: Final = timedelta(seconds=1)
"""The worker renews a workflow task in which a local activity runs when 0.8 of this has passed."""


@dataclass
class Meanwhile:
    """What a run, its local activity and its query wait for."""

    worker: Worker | None = None
    has_begun: threading.Event = field(default_factory=threading.Event)
    is_asked: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)

    def answer_when_it_has_ended(self) -> None:
        """Return when the worker has handed the end of the local activity over."""
        self.has_begun.wait()
        self.is_asked.set()
        assert self.worker is not None
        assert self.worker._activity_worker is not None
        while self.worker._activity_worker._running_activities:
            threading.Event().wait(0.005)


_MEANWHILE: Final[dict[str, Meanwhile]] = {}
"""By run id."""


@activity.defn
async def read() -> None:
    """End when the test says so."""
    meanwhile = _MEANWHILE[str(activity.info().workflow_id)]
    meanwhile.has_begun.set()
    await asyncio.to_thread(meanwhile.may_end.wait)


@activity.defn
async def model() -> str:
    """Answer."""
    return "done"


@workflow.defn
class Reader:
    """Reads, and then either goes on or waits first, like a run that is paused."""

    def __init__(self) -> None:
        self.is_paused = False

    @workflow.run
    async def run(self) -> str:
        """Run."""
        await workflow.execute_local_activity(read, start_to_close_timeout=timedelta(minutes=1))
        if self.is_paused:
            await workflow.sleep(timedelta(milliseconds=10))
        return await workflow.execute_activity(model, start_to_close_timeout=timedelta(seconds=10))

    @workflow.signal
    def pause(self) -> None:
        """Pause."""
        self.is_paused = True

    @workflow.update
    def pause_and_say(self) -> bool:
        """Pause."""
        self.is_paused = True
        return True

    @workflow.query
    def status(self) -> bool:
        """Answer after the local activity has ended."""
        _MEANWHILE[workflow.info().workflow_id].answer_when_it_has_ended()
        return self.is_paused


@workflow.defn
class Steered:
    """Hears two requests, and waits if the pause came last, or if an activity had ended before the last one."""

    gets_events_in_parts = True

    def __init__(self) -> None:
        self.heard: list[str] = []
        workflow.set_signal_handler("pause", lambda: self.heard.append("pause"))
        workflow.set_signal_handler("resume", lambda: self.heard.append("resume"))
        workflow.set_update_handler("resume", lambda: self.heard.append("resume"))
        workflow.set_update_handler("late", lambda: self.heard.append(f"after {self.ended} ends"))
        self.ended = 0

    @workflow.run
    async def run(self, is_patched: bool | None) -> list[str]:
        """Run."""
        is_patient = not is_patched or workflow.patched("patient")
        if is_patched is None:
            reading = workflow.start_activity(read, start_to_close_timeout=timedelta(minutes=1))
            reading.add_done_callback(self._count)
        await workflow.wait_condition(lambda: len(self.heard) == 2)
        if is_patient and self.heard[-1] in ("pause", "after 1 ends"):
            await workflow.sleep(timedelta(milliseconds=10))
        await workflow.execute_activity(model, start_to_close_timeout=timedelta(seconds=10))
        return self.heard

    def _count(self, _: object) -> None:
        self.ended += 1


@asynccontextmanager
async def asked_while_it_reads(
    addresses: Addresses, runner: WorkflowRunner
) -> AsyncIterator[WorkflowHandle[Reader, str]]:
    """A run that is answering a query. After the body, its local activity ends, and then the query."""
    client = await Client.connect(addresses.temporal, namespace=addresses.namespace)
    run_id = f"reader-{uuid4().hex[:8]}"
    meanwhile = _MEANWHILE[run_id] = Meanwhile()
    async with Worker(
        client, task_queue=run_id, workflows=[Reader], activities=[read, model], workflow_runner=runner
    ) as meanwhile.worker:
        handle = await client.start_workflow(Reader.run, id=run_id, task_queue=run_id, task_timeout=TASK_TIMEOUT)
        query = asyncio.create_task(handle.query(Reader.status))
        await asyncio.to_thread(meanwhile.is_asked.wait)
        yield handle
        meanwhile.may_end.set()
        await query
        assert await handle.result() == "done"


async def _replayed(handle: WorkflowHandle[Any, Any], runner: WorkflowRunner = PLAIN) -> list[str]:
    """Replay the run, and return the kinds of its events."""
    history = await handle.fetch_history()
    await Replayer(workflows=[Reader, Steered], workflow_runner=runner).replay_workflow(history)
    return [str(event.WhichOneof("attributes")).removesuffix("_event_attributes") for event in history.events]


async def _is_known(handle: WorkflowHandle[Any, Any], update: str) -> bool:
    """Whether the server has got an update."""
    execution = WorkflowExecution(workflow_id=handle.id)
    asked = PollWorkflowExecutionUpdateRequest(
        namespace=handle._client.namespace, update_ref=UpdateRef(workflow_execution=execution, update_id=update)
    )
    try:
        await handle._client.workflow_service.poll_workflow_execution_update(asked)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


async def test_without_the_guard_a_replay_has_another_order(addresses: Addresses) -> None:
    async with asked_while_it_reads(addresses, PLAIN) as handle:
        await handle.signal(Reader.pause)

    with pytest.raises(NondeterminismError):
        await _replayed(handle)


@pytest.mark.parametrize("how", ["signal", "update"])
async def test_what_comes_meanwhile_comes_after_the_end(addresses: Addresses, how: str) -> None:
    async with asked_while_it_reads(addresses, InHistoryOrder(PLAIN)) as handle:
        if how == "signal":
            await handle.signal(Reader.pause)
        else:
            update = asyncio.create_task(handle.execute_update(Reader.pause_and_say, id="u"))
            await eventually(lambda: _is_known(handle, "u"))

    events = await _replayed(handle)
    assert how == "signal" or await update
    assert events.count("workflow_task_failed") == 1
    assert "timer_started" not in events


@asynccontextmanager
async def steered(addresses: Addresses, runner: WorkflowRunner, *, is_patched: bool | None) -> AsyncIterator[Steering]:
    """A run that no worker serves, until the end of the body."""
    client = await Client.connect(addresses.temporal, namespace=addresses.namespace)
    run_id = f"steered-{uuid4().hex[:8]}"
    handle = await client.start_workflow(
        Steered.run, is_patched, id=run_id, task_queue=run_id, task_timeout=TASK_TIMEOUT
    )

    def worker() -> Worker:
        return Worker(client, task_queue=run_id, workflows=[Steered], activities=[read, model], workflow_runner=runner)

    yield handle, worker
    async with worker():
        await handle.result()


async def heard_before_its_first_task(addresses: Addresses, runner: WorkflowRunner) -> WorkflowHandle[Steered, Any]:
    """A run that hears of a resume and a pause before its first task, which calls `workflow.patched`."""
    async with steered(addresses, runner, is_patched=True) as (handle, _):
        await handle.signal("resume")
        await handle.signal("pause")
    return handle


async def heard_after_an_empty_task(addresses: Addresses, runner: WorkflowRunner) -> WorkflowHandle[Steered, Any]:
    """A run whose first task does nothing, and that hears of a pause and a resume on another worker."""
    async with steered(addresses, runner, is_patched=False) as (handle, worker):
        async with worker():
            await eventually(lambda: _has_had_tasks(handle, 1))
        update = asyncio.create_task(handle.execute_update("resume", id="u"))
        await eventually(lambda: _is_known(handle, "u"))
        await handle.signal("pause")
    await update
    return handle


async def heard_after_empty_tasks(addresses: Addresses, runner: WorkflowRunner) -> WorkflowHandle[Steered, Any]:
    """A run that does nothing when it hears of a resume and when its activity ends, and that hears of something else on
    another worker.
    """
    async with steered(addresses, runner, is_patched=None) as (handle, worker):
        meanwhile = _MEANWHILE[handle.id] = Meanwhile()
        async with worker():
            await asyncio.to_thread(meanwhile.has_begun.wait)
            await handle.signal("resume")
            await eventually(lambda: _has_had_tasks(handle, 2))
            meanwhile.may_end.set()
            await eventually(lambda: _has_had_tasks(handle, 3))
        update = asyncio.create_task(handle.execute_update("late", id="u"))
        await eventually(lambda: _is_known(handle, "u"))
    await update
    return handle


async def _has_had_tasks(handle: WorkflowHandle[Any, Any], number: int) -> bool:
    events = (await handle.fetch_history()).events
    return sum(event.HasField("workflow_task_completed_event_attributes") for event in events) == number


async def _has_read(handle: WorkflowHandle[Any, Any]) -> bool:
    events = (await handle.fetch_history()).events
    return any(event.HasField("activity_task_completed_event_attributes") for event in events)


HEARINGS: Final = (heard_before_its_first_task, heard_after_an_empty_task, heard_after_empty_tasks)


@pytest.mark.parametrize("heard", HEARINGS)
async def test_without_the_guard_a_replay_has_requests_in_another_order(addresses: Addresses, heard: Hearing) -> None:
    handle = await heard(addresses, PLAIN)

    with pytest.raises(NondeterminismError):
        await _replayed(handle)


@pytest.mark.parametrize("heard", HEARINGS)
async def test_requests_come_in_one_order(addresses: Addresses, heard: Hearing) -> None:
    handle = await heard(addresses, InHistoryOrder(PLAIN))

    await _replayed(handle, InHistoryOrder(PLAIN))


async def test_the_first_signals_come_in_the_order_of_arrival(addresses: Addresses) -> None:
    handle = await heard_before_its_first_task(addresses, InHistoryOrder(PLAIN))
    assert await handle.result() == ["resume", "pause"]


async def test_a_reset_brings_the_requests_and_results_after_its_point(addresses: Addresses) -> None:
    runner = InHistoryOrder(PLAIN)
    async with steered(addresses, runner, is_patched=None) as (handle, worker):
        meanwhile = _MEANWHILE[handle.id] = Meanwhile()
        async with worker():
            await asyncio.to_thread(meanwhile.has_begun.wait)
            await handle.signal("resume")
            await eventually(lambda: _has_had_tasks(handle, 2))
            await handle.execute_update("late")
            assert await handle.result() == ["resume", "after 0 ends"]
        meanwhile.may_end.set()
        again = await _reset(handle, task=2)
        async with Worker(handle._client, task_queue=handle.id, activities=[read]):
            await eventually(lambda: _has_read(again))
        async with worker(), asyncio.timeout(60):
            heard = await again.result()

    assert heard == ["resume", "after 1 ends"]
    await _replayed(again, runner)


async def _reset(handle: WorkflowHandle[Any, Any], *, task: int) -> WorkflowHandle[Any, Any]:
    """Reset the run to just before this workflow task."""
    client, events = handle._client, (await handle.fetch_history()).events
    ends = [event.event_id for event in events if event.HasField("workflow_task_completed_event_attributes")]
    done = await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id),
            workflow_task_finish_event_id=ends[task - 1],
            request_id=uuid4().hex,
        )
    )
    return client.get_workflow_handle(handle.id, run_id=done.run_id)
