"""What people do to a running agent, by signal, update and query, on a real server."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import psutil
import pytest
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.update.v1 import Request as UpdateRequest
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest, RespondWorkflowTaskCompletedRequest
from temporalio.client import Client, Interceptor, OutboundInterceptor, WorkflowUpdateFailedError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from loom._worker import worker
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest, RefusedError
from loom.domain.core.requests import RunStatus
from loom.testing.harness import Addresses, harness
from loom.testing.model_server import ToolUse, calls, hang, script, text
from loom.testing.waiting import eventually
from tests.integration.workflows.conftest import Working
from tests.processes import command_of

WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")


async def test_an_approved_call_runs_and_the_run_goes_on(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]))
    run_id = await loom.start()
    ask = (await loom.asked(run_id))["pending_approvals"][0]
    assert (ask["tool"], ask["call_id"], ask["arguments"]["path"]) == ("write_file", "w1", "out.txt")
    assert not (workspace / "out.txt").exists()

    receipt = await loom.client.approve(run_id, "w1", digest=ask["digest"], by="ann")

    assert receipt["accepted"]
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (workspace / "out.txt").read_text() == "hello"


async def test_a_denied_call_does_not_run_and_the_model_reads_why(working: Working, workspace: Path) -> None:
    loom, model = await working(script([calls(WRITE), text("I see")]))
    run_id = await loom.start()
    await loom.asked(run_id)

    await loom.client.deny(run_id, reason="wrong folder", by="ann")

    assert (await loom.client.result(run_id)).output == "I see"
    assert "wrong folder" in model.requests[1].messages[-1]["content"]
    assert not (workspace / "out.txt").exists()


async def test_edited_arguments_are_what_runs_and_the_model_is_told(working: Working, workspace: Path) -> None:
    loom, model = await working(script([calls(WRITE), text("fine")]))
    run_id = await loom.start()
    await loom.asked(run_id)

    await loom.client.approve(run_id, "w1", arguments={"path": "other.txt", "content": "changed"})

    await loom.client.result(run_id)
    assert (workspace / "other.txt").read_text() == "changed"
    assert not (workspace / "out.txt").exists()
    assert "A person changed the arguments" in model.requests[1].messages[-1]["content"]


async def test_several_asks_are_answered_in_any_order(working: Working, workspace: Path) -> None:
    three = [ToolUse("write_file", {"path": f"{n}.txt", "content": n}, n) for n in ("a", "b", "c")]
    loom, model = await working(script([calls(*three), text("ok")]))
    run_id = await loom.start()
    await loom.asked(run_id, 3)

    await loom.client.approve(run_id, "c")
    await loom.client.deny(run_id, "a", reason="no")
    await loom.client.approve(run_id, "b")

    await loom.client.result(run_id)
    assert sorted(p.name for p in workspace.iterdir()) == ["b.txt", "c.txt"]
    assert [m["tool_call_id"] for m in model.requests[1].messages if m["role"] == "tool"] == ["a", "b", "c"]


MANY = [ToolUse("bash", {"command": f"echo {number}"}, f"c{number}") for number in range(20)]


async def test_twenty_updates_at_once_are_all_taken(working: Working) -> None:
    loom, _ = await working(script([calls(*MANY), text("done")]))
    run_id = await loom.start(permissions={"bash": "ask"})
    await loom.asked(run_id, len(MANY))
    run = loom.client.temporal.get_workflow_handle(run_id)  # of any client: Loom's own would send signals instead
    await asyncio.gather(*(run.execute_update("approve", {"call_id": call.id}) for call in MANY))

    assert (await loom.client.result(run_id)).tool_calls == len(MANY)


@pytest.fixture
async def narrow() -> AsyncIterator[str]:
    """The address of a server that takes one update of a run at a time."""
    program = str(Path(sys.executable).with_name("temporal"))
    flags = ["--dynamic-config-value", "history.maxInFlightUpdates=1"]
    async with await WorkflowEnvironment.start_local(
        dev_server_existing_path=program, dev_server_extra_args=flags
    ) as server:
        yield server.client.service_client.config.target_host


@pytest.mark.slow
async def test_a_server_that_takes_few_updates_at_once_gets_the_others_as_signals(
    narrow: str, working: Working
) -> None:
    loom, _ = await working(script([calls(*MANY), text("done")]), TEMPORAL_ADDRESS=narrow, temporal_namespace="default")
    run_id = await loom.start(permissions={"bash": "ask"})
    await loom.asked(run_id, len(MANY))

    receipts = await asyncio.gather(*(loom.client.approve(run_id, str(call.id)) for call in MANY))

    assert all(receipt["accepted"] for receipt in receipts)
    assert (await loom.client.result(run_id)).tool_calls == len(MANY)


class LosesUpdates(Interceptor):
    """A client whose updates come while a workflow task fails."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - the SDK's name
        class Losing(OutboundInterceptor):
            async def start_workflow_update(self, _: Any) -> Any:
                raise RPCError("unexpected workflow task failure", RPCStatusCode.FAILED_PRECONDITION, b"")

        return Losing(next)


async def test_an_update_that_meets_a_failed_workflow_task_arrives_as_a_signal(working: Working) -> None:
    loom, _ = await working(script([calls(WRITE)]))
    run_id = await loom.start()
    await loom.asked(run_id)
    config = loom.client.temporal.config()
    unlucky = LoomClient(Client(**{**config, "interceptors": [LosesUpdates()]}), task_queue=loom.settings.task_queue)

    assert (await unlucky.abort(run_id, reason="enough"))["accepted"]
    assert (await loom.client.result(run_id)).status is RunStatus.ABORTED


async def test_an_update_that_a_worker_takes_and_does_not_answer_is_sent_again(
    addresses: Addresses, workspace: Path
) -> None:
    """The SDK loses an update that reaches a run together with queries, shortly after a worker has started. Here, a
    worker of the test's own loses it.
    """
    async with harness(addresses, workspace, script([calls(WRITE)]), replay=False) as (loom, _):
        run_id = await loom.start()
        await loom.asked(run_id)
    async with LoomClient.connected(loom.settings) as client:
        abort = asyncio.ensure_future(client.abort(run_id, reason="enough"))
        service, namespace = client.temporal.workflow_service, client.temporal.namespace
        queue = TaskQueue(name=loom.settings.task_queue)
        taken = await service.poll_workflow_task_queue(
            PollWorkflowTaskQueueRequest(namespace=namespace, task_queue=queue)
        )
        assert [message.body.Is(UpdateRequest.DESCRIPTOR) for message in taken.messages] == [True]
        await service.respond_workflow_task_completed(
            RespondWorkflowTaskCompletedRequest(namespace=namespace, task_token=taken.task_token)
        )
        async with worker(loom.settings):
            assert "queued" not in await abort, "it came as a signal"
            assert (await client.result(run_id)).status is RunStatus.ABORTED


async def test_an_approval_for_the_run_covers_later_calls(working: Working) -> None:
    again = ToolUse("write_file", {"path": "two.txt", "content": "2"}, "w2")
    loom, _ = await working(script([calls(WRITE), calls(again), text("both")]))
    run_id = await loom.start()
    ask = (await loom.asked(run_id))["pending_approvals"][0]
    assert ask["for_run"] == ["write_file"]

    await loom.client.approve(run_id, scope="run")

    assert (await loom.client.result(run_id)).output == "both"


async def test_wrong_late_and_double_answers_are_refused_and_change_nothing(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([calls(WRITE), text("ok")]))
    run_id = await loom.start()
    await loom.asked(run_id)

    with pytest.raises(RefusedError, match="is not waiting"):
        await loom.client.approve(run_id, "nonsense")
    with pytest.raises(RefusedError, match="digest"):
        await loom.client.approve(run_id, "w1", digest="000000000000")
    with pytest.raises(BadRequest, match="scope"):
        await loom.client.approve(run_id, "w1", scope=cast("Any", "forever"))
    await loom.client.approve(run_id, "w1")
    await loom.client.result(run_id)
    with pytest.raises(RefusedError, match="ended"):
        await loom.client.approve(run_id, "w1")


@pytest.mark.parametrize("payload", [["w1"], "w1", 7, {"cal_id": "w1"}, {"call_id": 5}, {"scope": "for ever"}])
async def test_malformed_signals_are_ignored_and_the_run_waits_on(working: Working, payload: object) -> None:
    loom, _ = await working(script([calls(WRITE), text("ok")]))
    run_id = await loom.start()
    await loom.asked(run_id)
    handle = loom.client.temporal.get_workflow_handle(run_id)

    await handle.signal("approve", payload)
    await handle.signal("approve", args=[payload, payload])
    await handle.signal("no_such_signal", payload)
    assert (await loom.asked(run_id))["status"] == "waiting_for_approval"

    await handle.signal("approve", {"call_id": "w1"})
    assert (await loom.client.result(run_id)).output == "ok"


async def test_an_unanswered_ask_counts_as_denied(working: Working, workspace: Path) -> None:
    loom, model = await working(script([calls(WRITE), text("pity")]), approval_timeout=0.5)

    assert (await loom.run()).output == "pity"
    assert "nobody answered in time" in model.requests[1].messages[-1]["content"]


async def test_what_is_sent_before_any_worker_runs_is_not_lost(
    addresses: Addresses, working: Working, workspace: Path
) -> None:
    queue = f"early-{uuid4().hex[:8]}"
    temporal = await Client.connect(addresses.temporal, namespace=addresses.namespace)
    run_id = f"test-{queue}"
    handle = await temporal.start_workflow("AgentRun", {"task": "write it"}, id=run_id, task_queue=queue)
    await handle.signal("no_such_signal", {"a": 1})
    await handle.signal("send_message", {"text": "in blue"})
    await handle.signal("pause", {"by": "ann"})

    loom, model = await working(script([text("ok")]), task_queue=queue)
    status = await loom.until(run_id, lambda status: status["status"] == "paused")
    assert status["queued_messages"] == 1
    loom.started.append(run_id)
    await handle.signal("resume")

    assert (await loom.client.result(run_id)).output == "ok"
    assert [m["content"] for m in model.requests[0].messages[-2:]] == ["write it", "in blue"]


async def test_nothing_new_starts_while_a_run_is_paused(working: Working, workspace: Path) -> None:
    loom, model = await working(script([calls(WRITE), text("ok")]))
    run_id = await loom.start()
    await loom.asked(run_id)

    await loom.client.pause(run_id, by="ann")
    with pytest.raises(RefusedError, match="already paused"):
        await loom.client.pause(run_id)
    await loom.client.approve(run_id)
    assert (await loom.client.status(run_id))["status"] == "paused"
    assert not (workspace / "out.txt").exists()

    await loom.client.resume(run_id)
    assert (await loom.client.result(run_id)).output == "ok"
    assert len(model.requests) == 2


async def test_a_message_is_read_at_the_next_turn_and_keeps_the_run_going(working: Working) -> None:
    loom, model = await working(script([calls(WRITE), text("with the change")]))
    run_id = await loom.start()
    await loom.asked(run_id)

    await loom.client.send(run_id, "use blue, not red", by="ann")
    await loom.client.approve(run_id)

    await loom.client.result(run_id)
    assert model.requests[1].messages[-1]["content"] == "use blue, not red"


async def test_a_question_to_a_person_is_answered_by_the_next_message(working: Working) -> None:
    ask = calls(ToolUse("list_dir", {"path": "."}, "l"), ToolUse("ask_user", {"question": "Red or blue?"}, "q"))
    loom, model = await working(script([ask, text("blue it is")]))
    run_id = await loom.start()
    status = await loom.until(run_id, lambda status: status["status"] == "waiting_for_input")
    assert (status["question"], status["waiting_on"]) == ("Red or blue?", "answer: Red or blue?")

    await loom.client.send(run_id, "blue", by="ann")

    assert (await loom.client.result(run_id)).output == "blue it is"
    assert model.requests[1].messages[-1]["content"] == "ann answers: blue"


async def test_new_rules_judge_waiting_calls_again(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([calls(WRITE), text("ok")]))
    run_id = await loom.start()
    await loom.asked(run_id)

    await loom.client.set_permissions(run_id, {"write_file": "allow"})

    assert (await loom.client.result(run_id)).output == "ok"
    assert (workspace / "out.txt").exists()


async def test_an_abort_cuts_a_streaming_model_call(working: Working) -> None:
    loom, model = await working(lambda _: hang(), model_timeout=3600)
    run_id = await loom.start()
    await loom.until(run_id, lambda status: status["waiting_on"] == "model" and bool(model.requests))

    await loom.client.abort(run_id, reason="enough", by="ann")
    result = await loom.client.result(run_id)

    assert result.status is RunStatus.ABORTED
    assert result.error is not None
    assert "enough" in result.error.message

    async def hung_up() -> bool | None:
        return model.requests[0].disconnected or None

    await eventually(hung_up)


async def test_an_abort_ends_a_tool_with_its_whole_process_tree(working: Working) -> None:
    mark = f"sleep 61{os.getpid()}.5"
    command = f"setsid {mark} & ({mark} &) ; {mark}"
    loom, _ = await working(script([calls(ToolUse("bash", {"command": command, "timeout": 600}))]))
    run_id = await loom.start(permissions={"bash": "allow"})

    async def three_sleepers() -> bool | None:
        return len(_processes(mark)) == 3 or None

    await eventually(three_sleepers)
    await loom.client.abort(run_id)
    assert (await loom.client.result(run_id)).status is RunStatus.ABORTED
    assert _processes(mark) == []


@pytest.mark.parametrize(
    ("payload", "reason"),
    [({"reason": 5}, "5"), (["now"], '["now"]'), ("enough", "enough"), ({"reason": "enough", "x": 1}, "enough")],
)
async def test_an_abort_stops_the_run_whatever_is_sent_with_it(working: Working, payload: object, reason: str) -> None:
    loom, _ = await working(script([calls(WRITE)]))
    run_id = await loom.start()
    await loom.asked(run_id)
    handle = loom.client.temporal.get_workflow_handle(run_id)

    with pytest.raises(WorkflowUpdateFailedError):
        await handle.execute_update("abort", payload)
    await handle.signal("abort", payload)
    result = await loom.client.result(run_id)

    assert result.status is RunStatus.ABORTED
    assert result.error is not None
    assert result.error.context == {"reason": reason, "by": ""}


@pytest.mark.parametrize("payload", [["now"], "now", {"x": 1}, {"by": 5}])
async def test_a_pause_holds_the_run_whatever_is_sent_with_it(working: Working, payload: object) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]))
    run_id = await loom.start()
    await loom.asked(run_id)
    handle = loom.client.temporal.get_workflow_handle(run_id)

    await handle.signal("pause", payload)
    await loom.until(run_id, lambda status: status["status"] == "paused")

    await handle.signal("resume")
    await loom.client.approve(run_id)
    assert (await loom.client.result(run_id)).output == "written"


async def test_cancelling_through_temporal_is_an_abort(working: Working) -> None:
    loom, model = await working(lambda _: hang())
    run_id = await loom.start()
    await loom.until(run_id, lambda _: bool(model.requests))

    await loom.client.temporal.get_workflow_handle(run_id).cancel()

    assert (await loom.client.result(run_id)).status is RunStatus.ABORTED


def _processes(command: str) -> list[int]:
    return [process.pid for process in psutil.process_iter() if command_of(process) == command.split()]
