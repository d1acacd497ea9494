"""Runs whose history the workers can't replay are named wherever people look, and go on after `loom repair`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from loom import doctor_checks
from loom._worker import worker
from loom.chat_session import ChatSession
from loom.client import LoomClient
from loom.composition.failing_runs import FailingRuns
from loom.domain.core.errors import RefusedError
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action, Segment, Task
from loom.domain.run.actions import Backoff
from loom.inbox import SilentRun
from loom.run_repair import RunRepair
from loom.status_fields import FaultFields
from loom.testing.harness import Addresses, Harness, replay_all, settings_for
from loom.testing.model_server import ModelServer, Reply, SeenRequest, ToolUse, calls, script, status, text
from loom.testing.waiting import eventually
from loom.workflows.agent_run import AgentRun
from tests.acceptance.test_command_line import command_line

DIVERGES = "TMPRL1100"
ASK = calls(ToolUse("ask_user", {"question": "which one?"}, "q1"))

Stuck: TypeAlias = Callable[..., AbstractAsyncContextManager[tuple[Harness, ModelServer]]]


@pytest.fixture
def stuck(addresses: Addresses, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Stuck:
    """`async with stuck(replies, begin) as (loom, model)`: `begin` starts runs on a worker without timers in backoffs.
    Then a worker with today's code serves them, which can't replay their histories.
    """
    wait = AgentRun._wait

    async def hurried(run: AgentRun, action: Any, until: datetime | None) -> bool:
        return True if isinstance(action, Backoff) else await wait(run, action, until)

    @asynccontextmanager
    async def begun(replies: Any, begin: Any, **settings: Any) -> AsyncIterator[tuple[Harness, ModelServer]]:
        async with ModelServer(replies) as model:
            chosen = settings_for(addresses, workspace, model, **settings)
            async with LoomClient.connected(chosen) as client:
                loom = Harness(client=client, settings=chosen, workspace=workspace)
                with monkeypatch.context() as patch:
                    patch.setattr(AgentRun, "_wait", hurried)
                    async with worker(chosen):
                        await begin(loom)
                async with worker(chosen):
                    yield loom, model
                    await replay_all(loom)

    return begun


async def failing(loom: Harness, run_id: str) -> FaultFields:
    """Make the run need a worker, and wait until the server says that its workflow task fails."""

    async def fault() -> FaultFields | None:
        return (await loom.client.status(run_id)).get("fault")

    return await eventually(fault)


async def test_a_run_that_no_worker_can_replay_is_named_and_goes_on_after_its_repair(stuck: Stuck) -> None:
    run_ids: list[str] = []

    async def begin(loom: Harness) -> None:
        run_ids.append(run_id := await loom.start("choose"))
        await loom.until(run_id, lambda status: status["question"])

    async with stuck(script([status(503), ASK, text("I see"), text("done")]), begin) as (loom, model):
        (run_id,) = run_ids
        receipt = await loom.client.send(run_id, "the second", by="ann")
        fault = await failing(loom, run_id)

        assert receipt["accepted"]
        assert DIVERGES in fault["error"]
        assert (await loom.client.status(run_id))["waiting_on"] == "repair"
        late = await loom.client.pause(run_id)
        assert DIVERGES in late["fault"]["error"]
        await loom.client.resume(run_id)
        outdated = await loom.client.temporal.get_workflow_handle(run_id).describe()
        watching = asyncio.create_task(loom.client.result(run_id))

        done = await loom.client.repair(run_id)
        with pytest.raises(RefusedError, match="gone on meanwhile"):
            await RunRepair(loom.client.temporal).one(outdated)
        result = await watching

        assert (result.status, result.output) == (RunStatus.COMPLETED, "done")
        assert DIVERGES in done.error
        assert done.requests >= 1  # others may be buffered until the reset
        assert done.model_calls == 1
        assert "the second" in str(model.requests[-1].messages)
        with pytest.raises(RefusedError, match="has ended"):
            await loom.client.repair(run_id)


@pytest.mark.slow
async def test_a_chat_that_no_worker_can_replay_answers_its_messages_after_the_repair(stuck: Stuck) -> None:
    numbers = count(1)

    def reply(request: SeenRequest) -> Reply:
        said = [message["content"] for message in request.messages if message["role"] == "user"]
        return status(503) if next(numbers) == 1 else text(f"heard {said[-1]}")

    async def begin(loom: Harness) -> None:
        chat = ChatSession(loom.client, "stuck", workspace=str(loom.workspace))
        loom.started.append(chat.run_id)
        assert (await chat.ask("one")).output == "heard one"

    async with stuck(reply, begin) as (loom, _):
        chat = ChatSession(loom.client, "stuck")
        two = await chat.send("two", message_id="two")
        three = await chat.send("three", message_id="three")
        await failing(loom, chat.run_id)

        await loom.client.repair(chat.run_id)

        assert [(await chat.answer(each)).output for each in (two, three)] == ["heard two", "heard three"]
        assert (await chat.status())["chat"]["answered"] == 3


@pytest.mark.slow
async def test_a_call_that_was_made_since_is_not_made_again(stuck: Stuck, workspace: Path) -> None:
    mark = calls(ToolUse("bash", {"command": "echo once >> marks"}, "m1"))
    run_ids: list[str] = []

    async def begin(loom: Harness) -> None:
        run_ids.append(run_id := await loom.start("mark", mode="bypass"))
        await loom.until(run_id, lambda status: status["question"])

    async with stuck(script([status(503), mark, ASK, text("done")]), begin) as (loom, _):
        (run_id,) = run_ids
        await loom.client.send(run_id, "go on")
        await failing(loom, run_id)

        with pytest.raises(RefusedError, match=r"since then, it has called bash \(m1\)"):
            await loom.client.repair(run_id)

        assert (workspace / "marks").read_text() == "once\n"
        loom.started.clear()  # its history can't be replayed
        await loom.client.temporal.get_workflow_handle(run_id).terminate("by hand")


async def test_a_run_that_is_sound_needs_no_repair(stuck: Stuck) -> None:
    async def begin(_: Harness) -> None:
        pass

    async with stuck(script([ASK, text("done")]), begin) as (loom, _):
        run_id = await loom.start("choose")
        await loom.until(run_id, lambda status: status["question"])

        with pytest.raises(RefusedError, match="needs no repair"):
            await loom.client.repair(run_id)

        await loom.client.abort(run_id)


@pytest.mark.slow  # the server marks a run after two failures, which takes ten seconds
async def test_lists_doctor_and_the_stream_name_a_failing_run(stuck: Stuck) -> None:
    run_ids: list[str] = []

    async def begin(loom: Harness) -> None:
        run_ids.append(run_id := await loom.start("choose"))
        await loom.until(run_id, lambda status: status["question"])

    async with stuck(script([status(503), ASK, text("I see"), text("done")]), begin) as (loom, _):
        (run_id,) = run_ids
        await loom.client.send(run_id, "go on")
        fault = await failing(loom, run_id)
        await eventually(lambda: _listed(loom, run_id))
        assert [run.waiting_on for run in await loom.client.list(limit=500) if run.run_id == run_id] == ["repair"]
        (unread,) = [each for each in await loom.client.pending() if each.run_id == run_id]
        assert isinstance(unread, SilentRun)
        assert "loom repair" in unread.error
        found = await doctor_checks.runs(loom.settings)
        assert run_id in [each["run_id"] for each in found["failing"]]
        assert f"{run_id}: {fault['error']}" in found["hint"]
        stream = Kept()
        runs = FailingRuns(stream, loom.client.temporal, loom.settings.task_queue)

        await runs.tell()
        await runs.tell()

        (task,) = [task for task in stream.tasks if task.run_id == run_id]
        assert task.action is Action.PARKED
        assert DIVERGES in task.parameters["message"]
        assert task.parameters["way_out"] == f"run `loom repair {run_id}`"
        cli = command_line(loom)
        shown = (await cli("status", run_id)).out
        assert "waiting on repair" in shown.splitlines()
        assert f"run `loom repair {run_id}`" in shown
        assert run_id in (await cli("list", "--waiting", "repair")).out
        repaired = await cli("repair", run_id)
        assert repaired.out.startswith(f"{run_id} goes on from event ")
        assert DIVERGES in repaired.err
        assert (await loom.client.result(run_id)).output == "done"
        assert "has ended" in (await cli("repair", run_id)).err


class Kept:
    """A stream that keeps what is written."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    async def publish(self, tasks: Any, segment: Segment | None = None) -> bool:
        """See the port."""
        self.tasks += tasks
        return True


async def _listed(loom: Harness, run_id: str) -> bool:
    return run_id in [run.run_id for run in await loom.client.list(waiting="repair")]
