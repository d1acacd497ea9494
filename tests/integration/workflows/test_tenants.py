"""Runs of tenants: their priority and fairness key, and the limits of each tenant."""

import asyncio
from typing import Any

import pytest
from temporalio.api.common.v1 import Priority
from temporalio.client import Client, WorkflowHistory

from loom.activities.adapters.temporal.waiting_runs import TemporalWaitingRuns
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunStatus
from loom.domain.core.tenants import ADMISSION_ID, TenantLimits
from loom.testing.harness import Harness
from loom.testing.model_server import ModelServer, Reply, SeenRequest, ToolUse, calls, hang, text
from loom.testing.waiting import eventually
from tests.integration.workflows.conftest import Working
from tests.trees import delegate

READ = calls(ToolUse("list_dir", {"path": "."}, "c1"))
HELPER = delegate("help", "say something", "d1")


def by_last_word(request: SeenRequest) -> Reply:
    """The task says what the model does: it hangs, calls a tool, delegates, or answers."""
    said = [message for message in request.messages if message["role"] == "user"]
    task, done = str(said[0]["content"]), any(message["role"] == "tool" for message in request.messages)
    if "hang" in task:
        return hang()
    if "read" in task and not done:
        return READ
    return calls(HELPER) if "delegate" in task and not done else text("done")


def priorities(history: WorkflowHistory) -> list[tuple[str, Priority]]:
    """The priority of each activity and child workflow that a run has scheduled, by its type."""
    scheduled = [event.activity_task_scheduled_event_attributes for event in history.events]
    initiated = [event.start_child_workflow_execution_initiated_event_attributes for event in history.events]
    return [(one.activity_type.name, one.priority) for one in scheduled if one.activity_type.name] + [
        (one.workflow_type.name, one.priority) for one in initiated if one.workflow_id
    ]


def admission_attempts(history: WorkflowHistory) -> list[int]:
    """How often a run has looked by itself whether it is admitted."""
    started = [event.activity_task_started_event_attributes for event in history.events]
    attempts = {one.scheduled_event_id: one.attempt for one in started}
    scheduled = [(e.event_id, e.activity_task_scheduled_event_attributes.activity_id) for e in history.events]
    return [attempts[event_id] for event_id, activity_id in scheduled if activity_id == ADMISSION_ID]


async def test_all_of_a_tenants_work_carries_its_priority_and_fairness_key(working: Working) -> None:
    loom, _ = await working(by_last_word)
    request = {"task": "delegate", "workspace": str(loom.workspace), "priority": 1, "tenant": "acme"}
    plain: Client = loom.client.temporal
    await plain.execute_workflow("AgentRun", request, id="plain-tenant", task_queue=loom.settings.task_queue)

    found = dict(priorities((await loom.histories("plain-tenant"))[0]))
    assert set(found) == {"prepare_run", "call_model", "publish", "AgentRun"}
    assert set(map(str, found.values())) == {str(Priority(priority_key=1, fairness_key="acme"))}
    (child,) = await loom.below("plain-tenant")
    assert {str(each) for _, each in priorities((await loom.histories(child))[0])} == set(map(str, found.values()))

    described = await plain.get_workflow_handle(await loom.start(priority=5, tenant="acme")).describe()
    assert described.raw_description.workflow_execution_info.priority == Priority(priority_key=5, fairness_key="acme")


async def test_runs_are_listed_by_tenant(working: Working) -> None:
    loom, _ = await working(by_last_word)
    ours, _ = await loom.start(tenant="ours.list", priority=2), await loom.start(tenant="theirs.list")
    await loom.client.result(ours)

    async def listed() -> bool:
        return [(run.run_id, run.tenant) for run in await loom.client.list(tenant="ours.list")] == [(ours, "ours.list")]

    await eventually(listed)
    status = await loom.client.status(ours)
    assert (status["tenant"], status["priority"]) == ("ours.list", 2)


@pytest.mark.parametrize(
    ("field", "value"), [("priority", 0), ("priority", 6), ("tenant", "a b"), ("tenant", ""), ("tenant", "x" * 64)]
)
async def test_a_wrong_priority_or_tenant_is_refused(working: Working, field: str, value: object) -> None:
    loom, _ = await working(by_last_word)
    with pytest.raises(BadRequest) as refused:
        await loom.start(**{field: value})
    assert refused.value.context["field"] == field


async def limited(working: Working, **limits: Any) -> tuple[Harness, ModelServer]:
    """A worker that limits the tenant `acme`."""
    started: tuple[Harness, ModelServer] = await working(by_last_word, tenants={"acme": TenantLimits(**limits)})
    return started


def waits(status: JsonObject) -> bool:
    return bool(status["waiting_on"] == "other runs of tenant acme")


async def test_a_run_waits_until_another_run_of_its_tenant_ends(working: Working) -> None:
    loom, _ = await limited(working, runs=1)
    first = await loom.start("hang", tenant="acme")
    await loom.until(first, lambda status: status["waiting_on"] == "model")
    second, third = await loom.start("read", tenant="acme"), await loom.start("hang", tenant="acme")
    await loom.until(second, waits)
    await loom.until(third, waits)
    assert (await loom.run("read", tenant="other")).status is RunStatus.COMPLETED
    assert (await loom.run("read")).status is RunStatus.COMPLETED

    await loom.client.abort(third)
    assert (await loom.client.result(third)).status is RunStatus.ABORTED
    assert waits(await loom.client.status(second))
    await loom.client.abort(first)
    assert (await loom.client.result(second)).status is RunStatus.COMPLETED
    assert admission_attempts((await loom.histories(second))[0]) == [1], "a second one would look in ten minutes"

    async def listed() -> bool:
        return [run.waiting_on for run in await loom.client.list(tenant="acme") if run.run_id == second] == [""]

    await eventually(listed)


async def test_a_tenant_that_has_used_its_tokens_ends_its_runs(working: Working) -> None:
    loom, model = await limited(working, tokens_per_day=1)
    spent = await loom.run("read", tenant="acme")

    assert spent.status is RunStatus.BUDGET_EXHAUSTED
    assert spent.error is not None
    assert (spent.error.type, spent.error.context) == (
        "BudgetExceededError",
        {"tenant": "acme", "limit": "tokens_per_day"},
    )
    assert spent.error.message.startswith("tenant 'acme' has 1 of 1 tokens left today, and the next model call may")
    assert model.requests == []
    assert (await loom.run("read", tenant="other")).status is RunStatus.COMPLETED


@pytest.mark.slow
async def test_a_tenants_backlog_does_not_delay_another_tenant(working: Working) -> None:
    loom, _ = await working(by_last_word, replay=False, max_concurrent_activities=1)
    noisy = await asyncio.gather(*(loom.start("read", tenant="noisy") for _ in range(40)))
    await loom.run("read", tenant="quiet")

    left = [run for run in noisy if not await loom.client.has_ended(run)]
    assert len(left) > len(noisy) / 4  # without fair queues, none of them
    await asyncio.gather(*map(loom.client.result, noisy))


async def test_the_server_knows_which_runs_have_ended(working: Working) -> None:
    loom, _ = await working(by_last_word, replay=False)
    server = TemporalWaitingRuns(loom.client.temporal)
    run = await loom.start("hang")
    assert await server.is_running(run)
    assert await server.wake(run)  # it doesn't wait; a waiting run whose attempt has just ended looks again

    await loom.client.temporal.get_workflow_handle(run).terminate()
    assert not await server.is_running(run)
    assert not await server.wake(run)
    assert not await server.is_running("nobody")
