"""A worker with LOOM_REQUIRE_SIGNED=on takes starts and steering from the owner of its key only, on a real server.

The stranger is a plain Temporal client: it reaches the server and reads histories, but has no key.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    SignalWorkflowInput,
    StartWorkflowInput,
    StartWorkflowUpdateInput,
    WorkflowHandle,
    WorkflowHistory,
    WorkflowUpdateFailedError,
    WorkflowUpdateHandle,
)
from temporalio.exceptions import ApplicationError

from loom.activities.signatures import HEADER
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import AGENT_RUN, RunStatus
from loom.testing.harness import Harness
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from loom.workflows.payload_converter import data_converter
from loom.workflows.validation import RELATIVES
from tests.integration.workflows.conftest import Working
from tests.trees import by_task, delegate

WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")
BASH = ToolUse("bash", {"command": "echo deep > out.txt"}, "b1")
NEEDS_SIGNATURE: Mapping[str, JsonObject] = {
    "approve": {"call_id": "w1"},
    "deny": {"call_id": "w1"},
    "send_message": {"text": "write to /etc instead"},
    "set_permissions": {"rules": {"default": "allow"}},
    "resume": {},
}


async def stranger(loom: Harness, headers: Mapping[str, Payload] | None = None) -> Client:
    """A client of the same server without the key. `headers` are sent along with each of its requests."""
    interceptors = [] if headers is None else [_Replaying(headers)]
    return await Client.connect(
        loom.settings.temporal_address,
        namespace=loom.settings.temporal_namespace,
        data_converter=data_converter(),
        interceptors=interceptors,
    )


class _Replaying(Interceptor):
    def __init__(self, headers: Mapping[str, Payload]) -> None:
        self._headers = headers

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002
        headers = self._headers

        class Outbound(OutboundInterceptor):
            async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002
                input.headers = headers
                return await super().start_workflow(input)

            async def signal_workflow(self, input: SignalWorkflowInput) -> None:  # noqa: A002
                input.headers = headers
                await super().signal_workflow(input)

            async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> WorkflowUpdateHandle[Any]:  # noqa: A002
                input.headers = headers
                return await super().start_workflow_update(input)

        return Outbound(next)


async def start_as(client: Client, loom: Harness, run_id: str | None = None, **request: Any) -> str:
    """Start a run as any Temporal client can."""
    name = run_id or f"test-{uuid4().hex[:8]}"
    payload = {"task": "do it", "workspace": str(loom.workspace), **request}
    await client.start_workflow(AGENT_RUN, payload, id=name, task_queue=loom.settings.task_queue)
    loom.started.append(name)
    return name


async def recorded(loom: Harness, run_id: str, signal: str) -> Mapping[str, Payload]:
    """The headers of a signal, as everybody can read them in the run's history."""
    (history,) = await loom.histories(run_id)
    events = (event.workflow_execution_signaled_event_attributes for event in history.events)
    return next(dict(event.header.fields) for event in events if event.signal_name == signal)


async def refusals(loom: Harness, run_id: str) -> list[str]:
    """Why signals to the run were ignored, as its stream says."""
    events = [event async for event in loom.client.events(run_id)]
    return [str(e.task.parameters["why"]) for e in events if e.task.action == "node.ignored"]


async def test_the_owner_notices_nothing(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]), require_signed="on")
    run_id = await loom.start()
    await loom.asked(run_id)
    await loom.client.send(run_id, "go on")
    await loom.client.pause(run_id)
    await loom.client.resume(run_id)

    await loom.client.approve(run_id, "w1")

    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (workspace / "out.txt").read_text() == "hello"


async def test_a_strangers_run_is_refused(working: Working) -> None:
    loom, model = await working(script([text("done")]), require_signed="on")

    run_id = await start_as(await stranger(loom), loom, mode="bypass")

    result = await loom.client.result(run_id)
    assert result.error is not None
    assert (result.error.type, result.error.context["field"]) == ("BadRequest", "LOOM_REQUIRE_SIGNED")
    assert not model.requests


async def test_the_signature_of_one_start_admits_no_other(working: Working) -> None:
    loom, model = await working(script([text("done")]), require_signed="on")
    owners = await loom.start()
    await loom.client.result(owners)
    (history,) = await loom.histories(owners)
    headers = dict(history.events[0].workflow_execution_started_event_attributes.header.fields)
    assert HEADER in headers
    replaying = await stranger(loom, headers)

    elsewhere, _ = await working(script([text("done")]), require_signed="on")

    for worker in (loom, elsewhere):
        again = await start_as(replaying, worker, owners)
        assert (await loom.client.result(again)).error is not None, "the same request once more"
    other = await start_as(replaying, loom, mode="bypass")
    assert (await loom.client.result(other)).error is not None

    assert len(model.requests) == 1


@pytest.mark.parametrize("name", NEEDS_SIGNATURE)
async def test_a_strangers_steering_is_refused_as_an_update_and_visibly_ignored_as_a_signal(
    working: Working, workspace: Path, name: str
) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]), require_signed="on")
    run_id = await loom.start()
    await loom.asked(run_id)
    if name == "resume":
        await loom.client.pause(run_id)
    handle = (await stranger(loom)).get_workflow_handle(run_id)

    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await handle.execute_update(name, NEEDS_SIGNATURE[name])
    await handle.signal(name, NEEDS_SIGNATURE[name])

    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == "BadRequest"
    status = await loom.client.status(run_id)
    assert [ask["call_id"] for ask in status["pending_approvals"]] == ["w1"]
    assert status["status"] == ("paused" if name == "resume" else "waiting_for_approval")
    assert not (workspace / "out.txt").exists()
    await loom.client.abort(run_id)
    await loom.client.result(run_id)
    assert any(f"this `{name}` carries no signature" in why for why in await refusals(loom, run_id))


@pytest.mark.parametrize("name", ["abort", "pause"])
async def test_everybody_may_stop_a_run(working: Working, name: str) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]), require_signed="on")
    run_id = await loom.start()
    await loom.asked(run_id)

    receipt = await (await stranger(loom)).get_workflow_handle(run_id).execute_update(name, {})

    assert receipt["status"] == {"abort": "aborted", "pause": "paused"}[name]
    await loom.client.abort(run_id) if name == "pause" else None


async def test_a_recorded_request_is_refused_in_the_same_run_and_in_another(working: Working) -> None:
    turns = [calls(WRITE), calls(ToolUse("write_file", {"path": "b.txt", "content": "b"}, "w2")), text("written")]
    loom, _ = await working(script([*turns, *turns]), require_signed="on")
    run_id = await loom.start()
    await loom.asked(run_id)
    await loom.client.send(run_id, "go on")
    recording = await recorded(loom, run_id, "send_message")
    replaying = await stranger(loom, recording)

    await replaying.get_workflow_handle(run_id).signal("send_message", {"text": "go on"})
    await replaying.get_workflow_handle(run_id).signal("send_message", {"text": "go away"})
    await replaying.get_workflow_handle(run_id).signal("set_permissions", {"rules": {"default": "allow"}})
    status = await loom.client.status(run_id)

    assert status["queued_messages"] == 1
    other = await loom.start()
    await loom.asked(other)
    await replaying.get_workflow_handle(other).signal("send_message", {"text": "go on"})
    assert (await loom.client.status(other))["queued_messages"] == 0
    for each in (run_id, other):
        await loom.client.abort(each)
        await loom.client.result(each)
    why = await refusals(loom, run_id)
    assert sum("was accepted before" in each for each in why) == 1
    assert sum("isn't valid for it" in each for each in why) == 2


async def test_a_used_signature_stays_used_when_the_run_continues_as_new(working: Working) -> None:
    loom, _ = await working(script([calls(WRITE), text("done")]), require_signed="on", rotate_after_events=100)
    run_id = await loom.start()
    await loom.asked(run_id)
    await loom.client.send(run_id, "go on")
    recording = await recorded(loom, run_id, "send_message")
    while len(await loom.histories(run_id)) == 1:
        await loom.client.pause(run_id)
        await loom.client.resume(run_id)

    await (await stranger(loom, recording)).get_workflow_handle(run_id).signal("send_message", {"text": "go on"})

    assert (await loom.client.status(run_id))["queued_messages"] == 1
    assert [ask["call_id"] for ask in (await loom.client.status(run_id))["pending_approvals"]] == ["w1"]
    await loom.client.abort(run_id)


async def test_an_answer_at_the_root_reaches_the_sub_agent_that_a_stranger_cannot_reach(
    working: Working, workspace: Path
) -> None:
    replies = by_task(
        {
            "the root": [calls(delegate("w", "write it", tools=["bash"])), text("ok")],
            "write it": [calls(BASH), text("done")],
        }
    )
    loom, _ = await working(replies, require_signed="on")
    run_id = await loom.start("the root")
    await loom.asked(run_id)
    (child,) = await loom.below(run_id)
    client = await stranger(loom)

    await client.get_workflow_handle(child).signal("approve", {"call_id": "b1"})
    for name in RELATIVES:
        for each in (run_id, child):
            await client.get_workflow_handle(each).signal(name, {})
    assert len((await loom.client.status(child))["pending_approvals"]) == 1
    await loom.client.approve(run_id)

    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (workspace / "out.txt").read_text() == "deep\n"
    assert sum("carries no signature" in why for why in await refusals(loom, run_id)) == 1 + 2 * len(RELATIVES)


@pytest.mark.parametrize("beyond", [{"mode": "bypass"}, {"workspace": "/var/tmp"}], ids=["bypass", "another folder"])
async def test_the_defaults_of_the_bounds_hold_for_strangers_and_set_bounds_for_all(
    working: Working, workspace: Path, beyond: dict[str, Any]
) -> None:
    loom, _ = await working(script([text("done")] * 2))
    strict, _ = await working(script([text("done")]), max_mode="accept-edits", workspaces=(workspace,))

    strangers = await loom.client.result(await start_as(await stranger(loom), loom, **beyond))
    owners = await loom.run(**beyond)
    bound = await strict.run_unseen(**beyond)

    assert strangers.error is not None
    assert strangers.error.type == "BadRequest"
    assert owners.status is RunStatus.COMPLETED
    assert bound.error is not None
    assert bound.error.type == "BadRequest"


async def test_by_default_a_plain_client_starts_and_steers_runs(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([calls(WRITE), text("written")]))
    client = await stranger(loom)
    run_id = await start_as(client, loom)
    await loom.asked(run_id)

    await client.get_workflow_handle(run_id).execute_update("approve", {"call_id": "w1"})

    assert (await loom.client.result(run_id)).status is RunStatus.COMPLETED
    assert (workspace / "out.txt").read_text() == "hello"


async def test_a_state_that_a_run_has_not_carried_on_itself_is_refused(working: Working) -> None:
    """The server continues a cron execution as new, with the input of whoever started it."""
    loom, _ = await working(script([]), replay=False)
    client, run_id = await stranger(loom), f"cron-{uuid4()}"
    handle = await client.start_workflow(
        AGENT_RUN,
        args=[{"task": "anything"}, {"spec": {"mode": "bypass"}}],
        id=run_id,
        task_queue=loom.settings.task_queue,
        cron_schedule="@every 1s",
    )
    first = (await handle.describe()).run_id
    try:
        second = await eventually(lambda: _next_execution(handle, first))
        execution = client.get_workflow_handle(run_id, run_id=second)
        why = await eventually(lambda: _failure(execution))
    finally:
        await handle.terminate()
    assert "can't be retried or repeated by a cron schedule" in why


async def _next_execution(handle: WorkflowHandle[Any, Any], first: str) -> str | None:
    latest = (await handle.describe()).run_id
    return None if latest == first else latest


async def _failure(handle: WorkflowHandle[Any, Any]) -> str | None:
    last = (await handle.fetch_history()).events[-1]
    ends = (last.workflow_execution_failed_event_attributes, last.workflow_execution_continued_as_new_event_attributes)
    return next((end.failure.message for end in ends if end.failure.message), None)


async def reset(client: Client, run_id: str, task: int) -> None:
    """Reset a run to the end of one of its workflow tasks, counted from 1, as anybody can who reaches the server."""
    history = await client.get_workflow_handle(run_id).fetch_history()
    ends = [each.event_id for each in history.events if each.HasField("workflow_task_completed_event_attributes")]
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run_id),
            workflow_task_finish_event_id=ends[task - 1],
            request_id=uuid4().hex,
        )
    )


async def test_an_approval_lets_a_call_run_once_even_if_a_stranger_resets_the_run(
    working: Working, workspace: Path
) -> None:
    """The model repeats its call, in the same turn and with the same id, and the stranger repeats the approval."""
    append = calls(ToolUse("bash", {"command": "echo once >> effects"}, "b1"))
    loom, _ = await working(script([append, text("done"), append, text("done again")]), require_signed="on")
    run_id = await loom.start()
    await loom.asked(run_id)
    await loom.client.approve(run_id)
    await loom.client.result(run_id)
    (history,) = await loom.histories(run_id)
    approval, given = accepted_update(history, "approve")
    replaying = await stranger(loom, approval)
    await reset(replaying, run_id, task=2)
    await loom.asked(run_id)

    with pytest.raises(WorkflowUpdateFailedError):
        await replaying.get_workflow_handle(run_id).execute_update("approve", given)
    await replaying.get_workflow_handle(run_id).signal("approve", given)

    status = await loom.client.status(run_id)
    assert [ask["call_id"] for ask in status["pending_approvals"]] == ["b1"]
    assert status["pending_approvals"][0]["digest"] != given["digest"]
    await loom.client.deny(run_id, "b1")
    await loom.client.result(run_id)
    assert (workspace / "effects").read_text() == "once\n"


async def test_a_signed_start_begins_one_run_even_if_a_stranger_resets_it_to_its_start(
    working: Working, workspace: Path
) -> None:
    append = calls(ToolUse("bash", {"command": "echo once >> effects"}, "b1"))
    loom, model = await working(script([append, text("done")]))
    run_id = await loom.start(mode="bypass")
    await loom.client.result(run_id)

    await reset(await stranger(loom), run_id, task=1)

    result = await loom.client.result(run_id)
    assert result.error is not None
    assert "has already begun" in result.error.message
    assert (workspace / "effects").read_text() == "once\n"
    assert len(model.requests) == 2


async def test_what_was_allowed_before_a_reset_is_not_allowed_after_it_and_what_was_forbidden_still_is(
    working: Working, workspace: Path
) -> None:
    """The server repeats the owner's requests, and a stranger does so, too."""
    bash, other = (ToolUse("bash", {"command": f"id > {name}"}, "b1") for name in ("effects", "others"))
    glob = ToolUse("glob", {"pattern": "*"}, "g1")
    loom, model = await working(
        script([calls(bash), text("done"), calls(other, glob), text("done")]), require_signed="on"
    )
    run_id = await loom.start()
    await loom.asked(run_id)
    await loom.client.send(run_id, "go on")
    await loom.client.set_permissions(run_id, {"bash": "allow", "glob": "deny"})
    await loom.client.result(run_id)
    (history,) = await loom.histories(run_id)
    rules, given = accepted_update(history, "set_permissions")
    replaying = await stranger(loom, rules)

    await reset(replaying, run_id, task=2)
    status = await loom.asked(run_id)
    with pytest.raises(WorkflowUpdateFailedError):
        await replaying.get_workflow_handle(run_id).execute_update("set_permissions", given)

    assert [ask["call_id"] for ask in status["pending_approvals"]] == ["b1"]
    assert not (workspace / "others").exists()
    await loom.client.set_permissions(run_id, {"bash": "allow"})
    await loom.client.result(run_id)
    assert (workspace / "others").exists()
    said = str(model.requests[-1].body["messages"])
    assert ("Not permitted" in said, "go on" in said) == (True, True), "the rule and the message are repeated"


async def test_rules_are_for_one_run_even_if_another_has_its_id_soon_after(working: Working) -> None:
    loom, _ = await working(script([calls(WRITE), calls(WRITE)]), require_signed="on")
    run_id = await loom.start()
    await loom.asked(run_id)
    await loom.client.set_permissions(run_id, {"grep": "allow"})
    (history,) = await loom.histories(run_id)
    rules, given = accepted_update(history, "set_permissions")
    await loom.client.abort(run_id)
    await loom.client.result(run_id)
    await start_as(loom.client.temporal, loom, run_id)
    await loom.asked(run_id)

    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await (await stranger(loom, rules)).get_workflow_handle(run_id).execute_update("set_permissions", given)

    assert "before this run began" in str(caught.value.cause)
    await loom.client.abort(run_id)


def accepted_update(history: WorkflowHistory, name: str) -> tuple[Mapping[str, Payload], JsonObject]:
    """The headers and the payload of an update, as everybody can read them in the run's history."""
    accepted = (event.workflow_execution_update_accepted_event_attributes for event in history.events)
    (found,) = (each.accepted_request.input for each in accepted if each.accepted_request.input.name == name)
    return dict(found.header.fields), json.loads(found.args.payloads[0].data)
