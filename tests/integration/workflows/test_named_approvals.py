"""The approvals of Loom's clients name the call and its digest, and hold for nothing else, on a real server."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from loom import client as client_module
from loom.activities.prepare_run import Preparation
from loom.domain.core.errors import RefusedError, UnreachableError
from loom.domain.core.requests import RunStatus
from loom.domain.run.activity_payloads import Prepared, PrepareRequest
from loom.testing.model_server import ToolUse, calls, script, text
from tests.approvals import decisions
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_signed_requests import refusals, start_as, stranger
from tests.trees import by_task, delegate

WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")
BASH = ToolUse("bash", {"command": "echo deep > out.txt"}, "b1")


@pytest.mark.parametrize("call_id", [None, "w1"], ids=["no call", "the call only"])
async def test_an_approval_without_a_digest_gets_that_of_the_pending_call(
    working: Working, call_id: str | None
) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]))
    run_id = await loom.start()
    (ask,) = (await loom.asked(run_id))["pending_approvals"]

    receipt = await loom.client.approve(run_id, call_id)

    assert (receipt["accepted"], receipt["call_id"], receipt["tool"]) == (True, "w1", "write_file")
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    (sent,) = decisions(await loom.histories(run_id))
    assert (sent["call_id"], sent["digest"]) == ("w1", ask["digest"])


async def test_a_denial_without_a_call_gets_the_id_of_the_pending_call(working: Working) -> None:
    loom, _ = await working(script([calls(WRITE), text("pity")]))
    run_id = await loom.start()
    await loom.asked(run_id)

    receipt = await loom.client.deny(run_id, reason="no")

    assert (receipt["call_id"], receipt["tool"]) == ("w1", "write_file")
    await loom.client.result(run_id)
    assert decisions(await loom.histories(run_id)) == [{"call_id": "w1", "reason": "no"}]


async def test_a_digest_that_the_caller_has_seen_is_the_one_that_counts(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]))
    run_id = await loom.start()
    await loom.asked(run_id)

    for call_id in (None, "w1"):
        with pytest.raises(RefusedError, match="look at the call"):
            await loom.client.approve(run_id, call_id, digest="0" * 12)

    assert not (workspace / "out.txt").exists()
    await loom.client.abort(run_id)


async def test_several_pending_calls_are_listed_and_none_is_decided(working: Working) -> None:
    loom, _ = await working(script([calls(WRITE, BASH), text("done")]))
    run_id = await loom.start()
    asked = await loom.asked(run_id, 2)

    for decide in (loom.client.approve, loom.client.deny):
        with pytest.raises(RefusedError) as caught:
            await decide(run_id)
        assert caught.value.message == "2 calls are waiting for approval; name one: w1 (write_file), b1 (bash)"

    with pytest.raises(RefusedError, match="call 'w2' is not waiting for approval"):
        await loom.client.approve(run_id, "w2")
    assert await loom.client.status(run_id) == asked
    await loom.client.abort(run_id)
    with pytest.raises(RefusedError, match="ended"):
        await loom.client.approve(run_id)


async def test_the_call_of_a_sub_agent_is_named_at_the_root(working: Working, workspace: Path) -> None:
    replies = by_task(
        {
            "the root": [calls(delegate("w", "write it", tools=["bash"])), text("ok")],
            "write it": [calls(BASH), text("done")],
        }
    )
    loom, _ = await working(replies)
    run_id = await loom.start("the root")
    (ask,) = (await loom.asked(run_id))["pending_approvals"]

    receipt = await loom.client.approve(run_id)

    assert (receipt["call_id"], receipt["tool"]) == (ask["call_id"], "bash")
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (workspace / "out.txt").read_text() == "deep\n"


async def test_an_approval_that_names_nothing_is_never_queued(
    working: Working, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "STATUS_TRIES", 1)
    loom, _ = await working(script([]), replay=False)
    run_id = "nobody-serves-it"
    await loom.client.temporal.start_workflow("AgentRun", {"task": "x"}, id=run_id, task_queue="nobody")

    for decide in (loom.client.approve, loom.client.deny):
        with pytest.raises(UnreachableError, match="pass the call's id"):
            await decide(run_id)

    assert (await loom.client.approve(run_id, "w1"))["queued"]
    await loom.client.temporal.get_workflow_handle(run_id).terminate()


@pytest.mark.parametrize("payload", [{}, {"by": "ann", "scope": "run"}], ids=["nothing", "everything but the call"])
async def test_a_run_refuses_a_signed_approval_that_names_nothing(working: Working, payload: dict[str, Any]) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]))
    run_id = await loom.start()
    await loom.asked(run_id)
    handle = loom.client.temporal.get_workflow_handle(run_id)  # of a client that signs

    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await handle.execute_update("approve", payload)
    await handle.signal("approve", payload)

    assert isinstance(caught.value.cause, ApplicationError)
    assert (caught.value.cause.type, "must name what it approves" in caught.value.cause.message) == ("BadRequest", True)
    assert len((await loom.client.status(run_id))["pending_approvals"]) == 1
    await loom.client.abort(run_id)
    await loom.client.result(run_id)
    assert ["must name what it approves" in why for why in await refusals(loom, run_id)] == [True]


@pytest.mark.parametrize("name", ["call_id", "digest"])
async def test_a_signed_approval_that_waited_for_a_worker_names_the_call_or_its_digest(
    working: Working, workspace: Path, name: str
) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]))
    run_id = await loom.start()
    (ask,) = (await loom.asked(run_id))["pending_approvals"]

    await loom.client.temporal.get_workflow_handle(run_id).signal("approve", {name: ask[name]})

    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (workspace / "out.txt").read_text() == "hello"


async def test_an_unsigned_approval_may_name_nothing(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]))
    run_id = await start_as(await stranger(loom), loom)
    await loom.asked(run_id)

    await (await stranger(loom)).get_workflow_handle(run_id).signal("approve", {})

    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (workspace / "out.txt").read_text() == "hello"


async def test_a_run_of_an_earlier_release_takes_a_signed_approval_that_names_nothing(
    working: Working, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = Preparation._prepared

    async def as_before(self: Preparation, request: PrepareRequest) -> Prepared:
        return replace(await prepared(self, request), approvals_are_named=False)

    monkeypatch.setattr(Preparation, "_prepared", as_before)
    loom, _ = await working(script([calls(WRITE), text("written")]))
    run_id = await loom.start()
    await loom.asked(run_id)

    await loom.client.temporal.get_workflow_handle(run_id).signal("approve", {})

    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (workspace / "out.txt").read_text() == "hello"
