"""A run that only a signature made possible takes only signed requests, without LOOM_REQUIRE_SIGNED, on a real server.

Otherwise a stranger would approve its calls, and so work where only the owner may.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from loom.app.loom_app import LoomApp
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunStatus
from loom.testing.harness import Addresses, Harness, harness
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from loom.workflows.validation import RELATIVES
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_crews import team
from tests.integration.workflows.test_moving import elsewhere, moving
from tests.integration.workflows.test_signed_requests import refusals, start_as, stranger
from tests.trees import by_task, delegate

__all__ = ["elsewhere"]

WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")
BASH = ToolUse("bash", {"command": "echo deep > out.txt"}, "w1")
NEEDS_SIGNATURE: Mapping[str, JsonObject] = {
    "approve": {"call_id": "w1"},
    "deny": {"call_id": "w1"},
    "send_message": {"text": "write to /etc instead"},
    "set_permissions": {"rules": {"default": "allow"}},
    "retry": {},
    "resume": {},
}
WHY = "because only a signature allowed its workspace or mode"

app = LoomApp()
app.create_agent("careful", mode="accept-edits", tools=["bash"], permissions={"bash": "ask"})


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that the worker serves only to the owner of its key."""
    folder = tmp_path / "outside"
    folder.mkdir()
    return folder


async def refused_everything(loom: Harness, run_id: str) -> None:
    """Send every request that needs a signature, as an update and as a signal, and check that it has no effect."""
    handle: WorkflowHandle[Any, Any] = (await stranger(loom)).get_workflow_handle(run_id)
    before = await loom.client.status(run_id)
    for name, payload in NEEDS_SIGNATURE.items():
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await handle.execute_update(name, payload)
        assert isinstance(caught.value.cause, ApplicationError)
        assert (caught.value.cause.type, WHY in caught.value.cause.message) == ("BadRequest", True)
        await handle.signal(name, payload)
    for name in RELATIVES:
        await handle.signal(name, {})
    assert await loom.client.status(run_id) == before

    async def all_are_listed() -> bool:
        why = [each for each in await refusals(loom, run_id.partition("/")[0]) if WHY in each]
        return sorted(each.split("`")[1] for each in why) == sorted([*NEEDS_SIGNATURE, *RELATIVES])

    await eventually(all_are_listed)


async def test_a_stranger_steers_no_run_in_a_folder_that_only_the_owner_may_name(
    working: Working, outside: Path
) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]))
    run_id = await loom.start(workspace=str(outside))
    await loom.asked(run_id)
    await (await stranger(loom)).get_workflow_handle(run_id).execute_update("pause", {})

    await refused_everything(loom, run_id)

    assert (await loom.client.status(run_id))["status"] == "paused"
    assert not (outside / "out.txt").exists()
    await loom.client.resume(run_id)
    await loom.client.approve(run_id, "w1")
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (outside / "out.txt").read_text() == "hello"


async def test_everybody_may_abort_it(working: Working, outside: Path) -> None:
    loom, _ = await working(script([calls(WRITE)]))
    run_id = await loom.start(workspace=str(outside))
    await loom.asked(run_id)

    await (await stranger(loom)).get_workflow_handle(run_id).signal("abort", {})

    assert (await loom.client.result(run_id)).status is RunStatus.ABORTED


async def test_a_stranger_steers_no_run_in_a_mode_that_only_the_owner_may_name(working: Working) -> None:
    loom, _ = await working(script([calls(ToolUse("ask_user", {"question": "Which?"}, "w1")), text("ok")]))
    run_id = await loom.start(mode="bypass")
    await loom.until(run_id, lambda status: status["status"] == "waiting_for_input")

    await refused_everything(loom, run_id)

    await loom.client.send(run_id, "the red one")
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED


async def test_a_stranger_steers_none_of_its_sub_agents(working: Working, outside: Path) -> None:
    replies = by_task(
        {
            "the root": [calls(delegate("w", "write it", tools=["bash"])), text("ok")],
            "write it": [calls(BASH), text("done")],
        }
    )
    loom, _ = await working(replies)
    run_id = await loom.start("the root", workspace=str(outside))
    await loom.asked(run_id)
    (child,) = await loom.below(run_id)

    await refused_everything(loom, child)

    await loom.client.approve(run_id)
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (outside / "out.txt").read_text() == "deep\n"


async def test_a_sub_agent_within_the_bounds_of_everybody_inherits_the_rule(working: Working, workspace: Path) -> None:
    replies = by_task(
        {
            "the root": [calls(delegate("w", "write it", agent="careful")), text("ok")],
            "write it": [calls(BASH), text("done")],
        }
    )
    loom, _ = await working(replies, app=app)
    run_id = await loom.start("the root", mode="bypass")
    await loom.asked(run_id)
    (child,) = await loom.below(run_id)

    await refused_everything(loom, child)

    await loom.client.approve(child, "w1")
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (workspace / "out.txt").read_text() == "deep\n"


async def test_a_stranger_steers_no_member_of_its_crew(working: Working, outside: Path) -> None:
    loom, _ = await working(script([calls(BASH), text("written")]), app=app)
    crew = team("sequential", {"name": "ann", "agent": "careful"})
    run_id = await loom.client.start_crew(crew, "The task.", run_id=f"crew-{uuid4().hex[:8]}", workspace=str(outside))
    loom.started.append(run_id)
    await loom.asked(run_id)
    (member,) = await loom.below(run_id)

    await refused_everything(loom, member)

    await loom.client.approve(run_id)
    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (outside / "out.txt").read_text() == "deep\n"


async def test_the_rule_holds_when_the_run_continues_as_new(working: Working, outside: Path) -> None:
    loom, _ = await working(script([calls(WRITE), text("done")]), rotate_after_events=100)
    run_id = await loom.start(workspace=str(outside))
    await loom.asked(run_id)
    while len(await loom.histories(run_id)) == 1:
        await loom.client.pause(run_id)
        await loom.client.resume(run_id)

    await refused_everything(loom, run_id)

    await loom.client.abort(run_id)


async def test_the_rule_holds_on_another_server_whatever_its_worker_serves(
    addresses: Addresses, workspace: Path, outside: Path, elsewhere: str
) -> None:
    async with harness(addresses, workspace, script([calls(WRITE)]), replay=False) as (old, _):
        run_id = await old.start(workspace=str(outside))
        await old.asked(run_id)
    there: dict[str, Any] = {"temporal_namespace": elsewhere, "workspaces": (workspace, outside), "replay": False}
    async with harness(addresses, workspace, script([text("done")]), **there) as (new, _):
        assert (await moving(old, new).one(run_id)).moved

        await refused_everything(new, run_id)

        await new.client.approve(run_id, "w1")
        assert (await new.client.result(run_id)).status is RunStatus.COMPLETED


async def test_a_signed_run_within_the_bounds_of_everybody_takes_every_request(working: Working) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]))
    run_id = await loom.start()
    await loom.asked(run_id)

    await (await stranger(loom)).get_workflow_handle(run_id).execute_update("approve", {"call_id": "w1"})

    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED


async def test_a_stranger_forks_no_run_from_it(working: Working, outside: Path) -> None:
    loom, _ = await working(script([text("done")]))
    owners = await loom.start(workspace=str(outside))
    await loom.client.result(owners)

    point = {"run_id": owners, "turn": 1, "message": "and now the keys"}
    forked = await start_as(await stranger(loom), loom, forked_from=point, workspace=None)

    result = await loom.client.result(forked)
    assert result.error is not None
    assert (result.error.type, result.error.context.get("field")) == ("BadRequest", "workspace")
