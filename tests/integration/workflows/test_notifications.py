"""People are told what waits for them and how runs end, through every outage, by a real receiver over HTTP."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.history.v1 import History
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError, WorkflowHistory
from temporalio.common import WorkerDeploymentVersion
from temporalio.worker import Replayer

from loom._worker import worker
from loom.activities.adapters.temporal.deployments import TemporalDeployments
from loom.activities.adapters.temporal.notifications import TemporalNotifications
from loom.domain.core.requests import RunStatus
from loom.testing.harness import Harness
from loom.testing.model_server import ToolUse, calls, script, status, text
from loom.testing.waiting import eventually
from loom.workflows import options
from loom.workflows.payload_converter import data_converter
from loom.workflows.runner import WORKFLOW_RUNNER, WORKFLOWS
from tests.deployments import served
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate
from tests.webhook_receiver import SECRET, Message, WebhookReceiver

TOKEN = "ghp_" + "a1B2c3D4e5F6" * 3
"""A secret that nobody has set: it is recognized by its form."""
WRITE = calls(ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1"))


def told(receiver: WebhookReceiver, **more: Any) -> dict[str, Any]:
    """The settings of a worker that notifies this receiver."""
    return {"notify_url": receiver.url, "notify_secret": SECRET, **more}


async def arrived(receiver: WebhookReceiver, run_id: str, *events: str, path: str = "/hook") -> list[Message]:
    """Wait until these notifications about the run are here, and no others."""

    async def look() -> list[Message] | None:
        found = receiver.about(run_id, path)
        return found if [each.event for each in found] == list(events) else None

    return await eventually(look)


async def notify_workflows(loom: Harness) -> dict[str, WorkflowExecutionStatus | None]:
    """What has become of each notification on the harness's queue."""
    query = f"WorkflowType = 'Notify' AND TaskQueue = '{loom.settings.task_queue}'"
    return {each.id: each.status async for each in loom.client.temporal.list_workflows(query)}


async def notify_histories(loom: Harness) -> list[WorkflowHistory]:
    """The histories of notifications, once the server lists some. It lists a workflow a moment after its start."""

    async def listed() -> list[str] | None:
        return list(await notify_workflows(loom)) or None

    client = loom.client.temporal
    return [await client.get_workflow_handle(name).fetch_history() for name in await eventually(listed)]


def stored(history: WorkflowHistory) -> bytes:
    """The history as the server has it. As JSON, its payloads would be in base64."""
    return History(events=history.events).SerializeToString()


async def test_an_ask_and_the_end_of_its_run_reach_the_receiver_with_what_to_do(
    working: Working, receiver: WebhookReceiver
) -> None:
    loom, _ = await working(script([WRITE, text("written <!channel>")]), **told(receiver))
    run_id = await loom.start("write it", session_id="s1")
    (asked,) = await arrived(receiver, run_id, "ask")
    pending = (await loom.asked(run_id))["pending_approvals"][0]
    assert asked.body["data"] == {
        "event": "ask",
        "run_id": run_id,
        "root_run_id": run_id,
        "session_id": "s1",
        "agent": "default",
        "since": pending["asked_at"],
        "summary": f"write_file: out.txt\n{pending['reason']}",
        "commands": [f"loom approve {run_id} w1", f"loom deny {run_id} w1 --reason TEXT"],
        "call_id": "w1",
        "tool": "write_file",
        "risk": pending["risk"],
        "digest": pending["digest"],
        "escalated": False,
    }
    assert asked.body["text"].splitlines()[:2] == [
        f"default asks for approval · {run_id} · risk: {pending['risk']}",
        "write_file: out.txt",
    ]

    await loom.client.approve(run_id, "w1")
    _, ended = await arrived(receiver, run_id, "ask", "ended")
    assert (ended.body["data"]["status"], ended.body["data"]["summary"]) == ("completed", "written <!channel>")
    assert "<!channel>" not in ended.body["text"]
    assert len({each.headers["webhook-id"] for each in receiver.messages}) == 2


async def test_a_question_a_parked_run_and_a_failed_one_are_told(working: Working, receiver: WebhookReceiver) -> None:
    ask = calls(ToolUse("ask_user", {"question": f"Which colour? {TOKEN}"}, "q1"))
    wrong_key = status(401, message="no such key")
    loom, _ = await working(script([ask, wrong_key], repeat_last=True), **told(receiver), patience=0.5)
    run_id = await loom.start("paint it")
    (question,) = await arrived(receiver, run_id, "question")
    assert question.body["data"]["summary"].startswith("Which colour? ")
    assert TOKEN not in str(question.body)
    (kept,) = [stored(history) for history in await notify_histories(loom)]
    assert b"Which colour?" in kept
    assert TOKEN.encode() not in kept
    assert question.body["data"]["commands"] == [f'loom send {run_id} "your answer"']

    await loom.client.send(run_id, "blue")
    with pytest.raises(WorkflowFailureError):
        await loom.client.temporal.get_workflow_handle(run_id).result()
    _, parked, failed = await arrived(receiver, run_id, "question", "parked", "failed")
    assert parked.body["data"]["summary"].startswith("waits for its operator: ")
    assert failed.body["data"]["status"] == "failed"
    assert failed.body["data"]["commands"] == [f"loom show {run_id}", f"loom retry {run_id}"]


async def test_a_run_that_is_refused_at_its_start_is_told_as_failed(
    working: Working, receiver: WebhookReceiver
) -> None:
    loom, _ = await working(script([]), **told(receiver))
    run_id = await loom.start_unseen("do it", agent="nobody")
    (failed,) = await arrived(receiver, run_id, "failed")
    assert "nobody" in failed.body["data"]["summary"]


async def test_a_sub_agent_tells_of_its_asks_and_only_the_root_of_its_end(
    working: Working, receiver: WebhookReceiver
) -> None:
    stories = {
        "the part": [calls(ToolUse("bash", {"command": "echo hello > out.txt"})), text("part done")],
        "the whole": [calls(delegate("write", "the part", tools=["bash"])), text("done")],
    }
    loom, _ = await working(by_task(stories), **told(receiver))
    root = await loom.start("the whole")
    pending = (await loom.asked(root))["pending_approvals"][0]
    (asked,) = await arrived(receiver, pending["run_id"], "ask")
    assert asked.body["data"]["root_run_id"] == root

    # The command in the message answers it.
    await loom.client.approve(asked.run_id, asked.body["data"]["call_id"], digest=asked.body["data"]["digest"])
    await loom.client.result(root)
    await arrived(receiver, root, "ended")
    assert [each.event for each in receiver.about(pending["run_id"])] == ["ask"]


async def test_a_receiver_that_is_away_or_fails_gets_each_message_once_it_is_back(
    working: Working, receiver: WebhookReceiver
) -> None:
    receiver.answers += [500, 500]
    loom, _ = await working(script([WRITE, text("written")]), **told(receiver))
    run_id = await loom.start("write it")
    (asked,) = await arrived(receiver, run_id, "ask")
    assert receiver.refused == [asked.headers["webhook-id"]] * 2

    away = WebhookReceiver()
    async with away.listening():
        pass  # nobody listens on this port now
    loom, _ = await working(script([text("done")]), **told(away))
    run_id = await loom.start("do it")
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    async with away.listening():
        await arrived(away, run_id, "ended")


async def test_what_still_waits_is_escalated_and_what_was_answered_is_not(
    working: Working, receiver: WebhookReceiver
) -> None:
    second = receiver.url.replace("/hook", "/second")
    settings = told(receiver, notify_escalate_url=second, notify_escalate_after=1.5, notify_on=("ask",))
    loom, _ = await working(script([WRITE]), **settings)
    waits = await loom.start("write it")
    (first,) = await arrived(receiver, waits, "ask")
    (escalated,) = await arrived(receiver, waits, "ask", path="/second")
    assert escalated.body["data"] == {**first.body["data"], "escalated": True}
    assert escalated.body["text"].startswith("Still waiting: ")
    assert escalated.headers["webhook-id"] != first.headers["webhook-id"]

    model_says_again, _ = await working(script([WRITE, text("written")]), **settings)
    answered = await model_says_again.start("write it")
    await arrived(receiver, answered, "ask")
    await model_says_again.client.approve(answered)

    async def all_over() -> bool:
        states = await notify_workflows(model_says_again)
        return set(states.values()) == {WorkflowExecutionStatus.COMPLETED}

    await eventually(all_over)
    assert receiver.about(answered, "/second") == []


async def test_a_command_reads_the_message_and_nothing_of_an_address_or_a_secret_is_in_history(
    working: Working, receiver: WebhookReceiver, tmp_path: Path
) -> None:
    written = tmp_path / "told.json"
    command = ("tee", str(written))
    loom, _ = await working(script([text("done")]), **told(receiver, notify_command=command))
    run_id = await loom.start("do it")
    await arrived(receiver, run_id, "ended")
    body = await eventually(lambda: _read(written))
    assert body == receiver.messages[-1].body

    replayer = Replayer(workflows=WORKFLOWS, workflow_runner=WORKFLOW_RUNNER, data_converter=data_converter())
    for history in await notify_histories(loom):
        await replayer.replay_workflow(history)
        assert run_id.encode() in stored(history)
        for secret in (SECRET, receiver.url, str(written)):
            assert secret.encode() not in stored(history)


async def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


async def test_a_receiver_that_is_gone_for_good_is_not_asked_again(working: Working, receiver: WebhookReceiver) -> None:
    receiver.answers += [410]
    loom, _ = await working(script([text("done")]), **told(receiver))
    await loom.run("do it")

    async def failed() -> bool:
        return set((await notify_workflows(loom)).values()) == {WorkflowExecutionStatus.FAILED}

    await eventually(failed)
    assert (len(receiver.refused), receiver.messages) == (1, [])


async def test_without_the_settings_a_run_costs_nothing_more(working: Working) -> None:
    loom, _ = await working(script([WRITE, text("written")]))
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    await loom.client.approve(run_id)
    await loom.client.result(run_id)
    (history,) = await loom.histories(run_id)
    assert "notify" not in history.to_json()
    assert await notify_workflows(loom) == {}


async def test_a_delivery_does_not_keep_an_old_version_of_the_workers(
    working: Working, receiver: WebhookReceiver
) -> None:
    first = WorkerDeploymentVersion(f"test-{uuid4().hex[:8]}", "1")
    versioned = {"deployment": first.deployment_name, "build": first.build_id}
    receiver.answers += [503] * 100
    loom, _ = await working(script([text("done")]), **told(receiver, **versioned))
    deployments = TemporalDeployments(loom.client.temporal)
    await deployments.promote(first)
    run_id = await loom.start("do it")
    await loom.client.result(run_id)
    await eventually(lambda: _is_true(receiver.refused))
    async with worker(loom.settings.model_copy(update={"build": "2"})):
        await deployments.promote(WorkerDeploymentVersion(first.deployment_name, "2"))
        receiver.answers.clear()
        await arrived(receiver, run_id, "ended")
        (name,) = await notify_workflows(loom)
        handle = loom.client.temporal.get_workflow_handle(name)
        await handle.result()
        assert "2" in served([await handle.fetch_history()])[0].split("+")


@pytest.mark.parametrize("answers", [True, False], ids=["it refuses", "it is silent"])
async def test_a_run_answers_ends_and_replays_although_the_server_takes_no_notification(
    working: Working, receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch, *, answers: bool
) -> None:
    async def not_taken(*_: object) -> None:
        if answers:
            raise RuntimeError("no more workflows")
        await asyncio.Event().wait()

    monkeypatch.setattr(TemporalNotifications, "start", not_taken)
    monkeypatch.setitem(options.NOTIFY, "schedule_to_close_timeout", timedelta(seconds=0.3))
    monkeypatch.setattr(options, "END_AGAIN", timedelta(seconds=0.1))
    loom, _ = await working(script([WRITE, text("written")]), **told(receiver))  # replays the run when the test ends
    run_id = await loom.start("write it")
    await loom.asked(run_id)
    await loom.client.approve(run_id)
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED


async def _is_true(value: object) -> bool:
    return bool(value)
