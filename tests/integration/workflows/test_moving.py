"""Runs that move to another server: here, to another namespace of the session's server, with workers of its own."""

import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, RegisterNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from loom import run_move
from loom.activities.adapters.temporal.run_history import executions
from loom.domain.core.requests import AGENT_RUN, RunStatus
from loom.run_move import RunMove, state_at_end
from loom.testing.harness import Addresses, Harness, harness
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from loom.workflows.moved_run import MOVED_RUN
from loom.workflows.options import TASK_TIMEOUT
from tests.archives import tar_of
from tests.git_server import repository
from tests.webhook_receiver import SECRET, WebhookReceiver

WRITE = calls(ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1"))
ASK = {"write_file": "ask"}


@pytest.fixture
async def elsewhere(addresses: Addresses) -> str:
    """A namespace that has nothing of the first one."""
    name = f"elsewhere-{uuid4().hex[:8]}"
    service = (await Client.connect(addresses.temporal, namespace=addresses.namespace)).workflow_service
    await service.register_namespace(
        RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=Duration(seconds=86_400))
    )

    async def is_known() -> bool:
        try:
            await (await Client.connect(addresses.temporal, namespace=name)).count_workflows()
        except RPCError:
            return False
        return bool(await service.describe_namespace(DescribeNamespaceRequest(namespace=name)))

    await eventually(is_known)
    return name


def moving(old: Harness, new: Harness) -> RunMove:
    there = new.settings
    return RunMove(
        old.client.temporal, new.client.temporal, task_queue=there.task_queue, address=there.temporal_address
    )


async def key_of_effect(addresses: Addresses, run_id: str, call_id: str) -> str:
    """The key under which a call is recorded. It is the same on both servers, so that no effect is repeated."""
    async with await psycopg.AsyncConnection.connect(addresses.database) as connection:
        cursor = await connection.execute("SELECT key FROM loom_effects WHERE run_id = %s", (run_id,))
        (found,) = [key for (key,) in await cursor.fetchall() if f"/{call_id}/" in key]
    return str(found)


async def test_a_run_that_waits_for_an_approval_goes_on_elsewhere_as_it_was(
    addresses: Addresses, workspace: Path, elsewhere: str
) -> None:
    async with harness(addresses, workspace, script([WRITE, text("done")]), replay=False) as (old, _):
        run_id = await old.start("write it", permissions=ASK)
        before = await old.asked(run_id)
    async with harness(addresses, workspace, script([text("done")]), temporal_namespace=elsewhere, replay=False) as (
        new,
        model,
    ):
        report = await moving(old, new).one(run_id)
        assert (report.moved, report.waiting_on, report.reason) == (True, "approval: write_file: out.txt", None)
        described = await old.client.temporal.get_workflow_handle(run_id).describe()
        assert described.status is WorkflowExecutionStatus.TERMINATED

        after = dict(await new.client.status(run_id))
        assert {name: after[name] for name in before if name != "stale"} == before
        assert [run.run_id for run in await new.client.list(waiting="approval")] == [run_id]
        await new.client.approve(run_id, "w1")
        result = await new.client.result(run_id)
        assert (result.output, result.turns, (workspace / "out.txt").read_text()) == ("done", 2, "hello")
        assert [message["role"] for message in model.requests[0].messages[-2:]] == ["assistant", "tool"]
        first_execution = described.run_id.replace("-", "")[:20]
        assert (await key_of_effect(addresses, run_id, "w1")).startswith(f"{run_id}/{first_execution}/")
        new.started.append(run_id)


@pytest.mark.parametrize("kind", ["repository", "archive"])
async def test_a_run_in_a_clone_finds_its_files_on_the_machine_that_it_moves_to(
    addresses: Addresses, workspace: Path, elsewhere: str, tmp_path: Path, kind: str
) -> None:
    files = {"a.txt": "one\n"}
    repository(tmp_path / "app.git", files)
    url = f"file://{tmp_path}/app.git"
    named: Any = {"git": url} if kind == "repository" else {"archive": {"data": tar_of(files)}}
    fix = calls(ToolUse("edit_file", {"path": "a.txt", "old_string": "one", "new_string": "two"}, "e1"))
    settings: dict[str, Any] = {"repositories": (url,), "run_workspaces": tmp_path / "clones"}
    async with harness(addresses, workspace, script([fix, WRITE]), replay=False, **settings) as (old, _):
        run_id = await old.start("fix it", workspace=named, permissions={"edit_file": "allow", **ASK})
        await old.asked(run_id)
        home = old.settings.home
    for disk in (home / "clones", tmp_path / "clones"):
        shutil.rmtree(disk)  # the other machine has none of this

    settings["temporal_namespace"] = elsewhere
    async with harness(addresses, workspace, script([text("done")]), replay=False, **settings) as (new, _):
        assert (await moving(old, new).one(run_id)).moved
        await new.client.approve(run_id, "w1")
        result = await new.client.result(run_id)

        assert result.workspace is not None
        assert (result.output, result.workspace["files"], result.workspace["problem"]) == ("done", 2, None)
        patch = await new.client.artifact(run_id, "workspace.patch")
        assert [line for line in patch.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")] == [
            "-one",
            "+two",
            "+hello",
        ]
        new.started.append(run_id)


async def test_a_moved_run_keeps_who_started_it_and_tells_the_people_of_its_new_workers(
    addresses: Addresses, workspace: Path, elsewhere: str, receiver: WebhookReceiver
) -> None:
    async with harness(addresses, workspace, script([WRITE]), replay=False) as (old, _):
        run_id = await old.client.start(
            "write it", by="ann", permissions=ASK, workspace=str(workspace), priority=2, tenant="acme"
        )
        await old.asked(run_id)
    told = {"temporal_namespace": elsewhere, "notify_url": receiver.url, "notify_secret": SECRET}
    async with harness(addresses, workspace, script([text("done")]), **told, replay=False) as (new, _):
        assert (await moving(old, new).one(run_id)).moved

        async def asks() -> bool:
            return [each.event for each in receiver.about(run_id)] == ["ask"]

        await eventually(asks)
        assert await new.client.started_by(run_id) == "ann"
        described = (await new.client.temporal.get_workflow_handle(run_id).describe()).raw_description
        priority = described.workflow_execution_info.priority
        assert (priority.priority_key, priority.fairness_key) == (2, "acme")
        assert described.execution_config.default_workflow_task_timeout.ToTimedelta() == TASK_TIMEOUT


async def test_a_run_that_no_worker_admits_in_time_stays_where_it_is(
    addresses: Addresses, workspace: Path, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_move, "ADMITTED_WITHIN", 0.5)
    async with harness(addresses, workspace, script([WRITE]), replay=False) as (loom, _):
        run_id = await loom.start("write it", permissions=ASK)
        await loom.asked(run_id)
        new = await Client.connect(
            addresses.temporal, namespace=elsewhere, data_converter=loom.client.temporal.data_converter
        )
        nobody = RunMove(loom.client.temporal, new, task_queue=f"nobody-{uuid4().hex[:8]}", address="the new server")
        report = await nobody.one(run_id)
        assert (report.moved, (report.reason or "").partition(":")[0]) == (
            False,
            "no worker of the new server has admitted it",
        )
        there = await new.get_workflow_handle(run_id).describe()
        assert there.status is WorkflowExecutionStatus.TERMINATED
        assert (await loom.client.status(run_id))["status"] == "waiting_for_approval"


async def test_a_move_that_was_interrupted_does_not_bring_the_run_twice(
    addresses: Addresses, workspace: Path, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    refusal = RunMove._refusal

    async def killed(*args: Any) -> None:
        assert await refusal(*args) is None
        raise Killed

    async with harness(addresses, workspace, script([WRITE]), replay=False) as (old, _):
        run_id = await old.start("write it", permissions=ASK)
        await old.asked(run_id)
    async with harness(addresses, workspace, script([text("done")]), temporal_namespace=elsewhere, replay=False) as (
        new,
        _,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(RunMove, "_refusal", killed)
            with pytest.raises(Killed):
                await moving(old, new).one(run_id)
        await new.client.approve(run_id, "w1")
        assert (await new.client.result(run_id)).output == "done"
        there = new.client.temporal.get_workflow_handle(run_id)
        before = (await there.describe()).run_id
        assert (await moving(old, new).one(run_id)).moved
        assert (await there.describe()).run_id == before
        described = await old.client.temporal.get_workflow_handle(run_id).describe()
        assert described.status is WorkflowExecutionStatus.TERMINATED
        new.started.append(run_id)


async def test_signals_that_arrive_during_the_move_reach_the_run_once(
    addresses: Addresses, workspace: Path, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted = RunMove._refusal

    async with harness(addresses, workspace, script([WRITE]), replay=False) as (old, _):
        run_id = await old.start("write it", permissions=ASK)
        await old.asked(run_id)

    async def meanwhile(move: RunMove, there: Any) -> str | None:
        refusal = await admitted(move, there)
        here = old.client.temporal.get_workflow_handle(run_id)
        await here.signal("send_message", {"text": "in red", "by": "ann"})
        await here.signal("approve", {"call_id": "w1", "by": "ann"})
        return refusal

    async with harness(addresses, workspace, script([text("done")]), temporal_namespace=elsewhere, replay=False) as (
        new,
        model,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(RunMove, "_refusal", meanwhile)
            assert (await moving(old, new).one(run_id)).moved
        assert (await moving(old, new).one(run_id)).moved  # as if the first call had been interrupted at its end
        assert (await new.client.result(run_id)).output == "done"
        told = [str(message["content"]) for message in model.requests[-1].messages if message["role"] == "user"]
        assert [("in red" in each) for each in told].count(True) == 1
        new.started.append(run_id)


async def test_a_further_move_sends_nothing_twice_after_the_run_has_continued_as_new(
    addresses: Addresses, workspace: Path, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness(addresses, workspace, script([WRITE]), rotate_after_events=100, replay=False) as (old, _):
        run_id = await old.start("write it", permissions=ASK)
        await old.asked(run_id)
    async with harness(addresses, workspace, script([text("done")]), temporal_namespace=elsewhere, replay=False) as (
        new,
        model,
    ):
        await _moved_while(old, new, run_id, monkeypatch, ("send_message", {"text": "in red", "by": ""}))
        there = new.client.temporal.get_workflow_handle(run_id)
        received = (await there.describe()).run_id

        said = ["in red"]
        while (await there.describe()).run_id == received:
            said.append(f"message {len(said)}")
            await new.client.send(run_id, said[-1])
            await new.until(run_id, lambda status: status["queued_messages"] == len(said))
            assert len(said) < 200
        assert (await moving(old, new).one(run_id)).moved

        await new.client.approve(run_id, "w1")
        assert (await new.client.result(run_id)).output == "done"
        told = [message["content"] for message in model.requests[-1].messages if message["role"] == "user"]
        assert told[1:] == said
        new.started.append(run_id)


async def test_what_a_move_had_not_sent_on_when_it_was_interrupted_the_next_one_sends(
    addresses: Addresses, workspace: Path, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    async def killed(*args: Any) -> None:
        raise Killed

    async with harness(addresses, workspace, script([WRITE]), replay=False) as (old, _):
        run_id = await old.start("write it", permissions=ASK)
        await old.asked(run_id)
    async with harness(addresses, workspace, script([text("done")]), temporal_namespace=elsewhere, replay=False) as (
        new,
        _,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(RunMove, "_send", killed)
            with pytest.raises(Killed):
                await _moved_while(old, new, run_id, monkeypatch, ("approve", {"call_id": "w1", "by": "ann"}))
        await new.asked(run_id)
        assert (await moving(old, new).one(run_id)).moved
        assert (await new.client.result(run_id)).output == "done"
        new.started.append(run_id)


async def test_requests_of_a_moved_run_do_not_reach_another_run_with_its_id(
    addresses: Addresses, workspace: Path, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness(addresses, workspace, script([WRITE]), replay=False) as (old, _):
        run_id = await old.start("write it", permissions=ASK)
        await old.asked(run_id)
    async with harness(
        addresses, workspace, script([WRITE, text("done")]), temporal_namespace=elsewhere, replay=False
    ) as (new, _):
        await _moved_while(old, new, run_id, monkeypatch, None)
        assert (await new.client.result(run_id)).status is RunStatus.ABORTED
        again = {"task": "write it again", "permissions": ASK, "workspace": str(workspace)}
        await new.client.temporal.start_workflow(AGENT_RUN, again, id=run_id, task_queue=new.settings.task_queue)
        await new.asked(run_id)

        assert (await moving(old, new).one(run_id)).moved
        await new.client.approve(run_id, "w1")
        assert (await new.client.result(run_id)).output == "done"
        new.started.append(run_id)


async def _moved_while(
    old: Harness, new: Harness, run_id: str, monkeypatch: pytest.MonkeyPatch, signal: tuple[str, Any] | None
) -> None:
    """Move the run. During the move, a signal or a cancellation reaches it on the old server."""
    admitted = RunMove._refusal

    async def meanwhile(move: RunMove, there: Any) -> str | None:
        refusal = await admitted(move, there)
        here = old.client.temporal.get_workflow_handle(run_id)
        await (here.cancel() if signal is None else here.signal(signal[0], signal[1]))
        return refusal

    with monkeypatch.context() as patched:
        patched.setattr(RunMove, "_refusal", meanwhile)
        assert (await moving(old, new).one(run_id)).moved


async def test_a_run_that_has_ended_or_is_at_work_stays(addresses: Addresses, workspace: Path) -> None:
    long = calls(ToolUse("bash", {"command": "sleep 30"}, "b1"))
    async with harness(addresses, workspace, script([long]), replay=False) as (loom, _):
        run_id = await loom.start("sleep", permissions={"bash": "allow"})
        await loom.until(run_id, lambda seen: seen["turn"] == 1)
        at_work = await moving(loom, loom).one(run_id)
        assert at_work.reason is not None
        assert at_work.reason.startswith("it is at work: run `loom pause")
        await loom.client.abort(run_id)
        await loom.client.result(run_id)
        assert (await moving(loom, loom).one(run_id)).reason == "it has ended"


async def test_only_the_owner_of_the_worker_s_key_brings_a_run(addresses: Addresses, workspace: Path) -> None:
    async with harness(addresses, workspace, script([WRITE, text("done")]), replay=False) as (loom, _):
        run_id = await loom.start("write it", permissions=ASK)
        await loom.asked(run_id)
        history = await anext(executions(loom.client.temporal, run_id))
        state = await state_at_end(history, loom.client.temporal)
        stranger = await Client.connect(
            addresses.temporal, namespace=addresses.namespace, data_converter=loom.client.temporal.data_converter
        )
        await loom.client.abort(run_id)
        await loom.client.result(run_id)
        with pytest.raises(WorkflowFailureError) as refused:
            await stranger.execute_workflow(
                MOVED_RUN, args=[{"task": "write it"}, state], id=run_id, task_queue=loom.settings.task_queue
            )
    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == "BadRequest"
    assert "a moved run must be signed with the worker's key" in refused.value.cause.message
