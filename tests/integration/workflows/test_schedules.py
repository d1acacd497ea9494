"""Runs that a schedule of the real server starts."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from temporalio.client import Schedule, ScheduleActionStartWorkflow, ScheduleSpec

from loom import LoomClient, RunSummary
from loom.activities.adapters.encryption.codec import key_of
from loom.activities.adapters.encryption.key_ring import new_key, write_keys
from loom.activities.signatures import signature_in
from loom.activities.start_gate import SigningKey, StartGate
from loom.domain.core.errors import BadRequest
from loom.domain.core.schedules import SCHEDULED
from loom.domain.core.signatures import SignedStart, Statement
from loom.schedules import ScheduleSummary
from loom.testing.model_server import ToolUse, calls, script, text, turns
from loom.testing.waiting import eventually
from tests.integration.workflows.conftest import Working

ONCE_A_YEAR = "0 0 1 1 *"


async def listed(client: LoomClient, name: str) -> ScheduleSummary:
    """The schedule, once the server lists it."""

    async def look() -> ScheduleSummary | None:
        return next((each for each in await client.schedules.list() if each.name == name), None)

    return await eventually(look)


async def runs(client: LoomClient, name: str, count: int) -> list[RunSummary]:
    """The schedule's runs, once there are so many."""

    async def look() -> list[RunSummary] | None:
        found = [each for each in await client.list() if each.run_id.startswith(f"schedule-{name}-")]
        return found if len(found) == count else None

    return await eventually(look)


async def test_runs_of_a_schedule_push_to_branches_of_their_own(working: Working) -> None:
    loom, _ = await working(script([text("never")]))
    workspace = {"git": "https://git.example/app", "push": "nightly"}
    with pytest.raises(BadRequest, match="such as `nightly-{run}`"):
        await loom.client.schedules.add(ONCE_A_YEAR, "Fix it", workspace=workspace)
    name = await loom.client.schedules.add(ONCE_A_YEAR, "Fix it", workspace={**workspace, "push": "nightly-{run}"})
    await loom.client.schedules.remove(name)


async def test_a_triggered_run_is_listed_like_others_and_names_its_schedule(working: Working) -> None:
    loom, _ = await working(turns(0, "", {}, "all is well"))
    name = f"report-{uuid4().hex[:6]}"
    schedules = loom.client.schedules
    added = await schedules.add(
        ONCE_A_YEAR,
        "Write the report",
        name=name,
        timezone="Europe/Berlin",
        tenant=f"tenant-of-{name}",
        workspace=str(loom.workspace),
        by="ann",
    )
    assert added == name
    await schedules.pause(name, note="holidays")
    await schedules.trigger(name)
    (run,) = await runs(loom.client, name, 1)
    loom.started.append(run.run_id)
    assert await loom.client.started_by(run.run_id) == "ann"
    assert (await loom.client.result(run.run_id)).output == "all is well"
    assert (await eventually(lambda: loom.client.list(tenant=f"tenant-of-{name}")))[0].run_id == run.run_id
    seen = await listed(loom.client, name)
    assert (seen.cron, seen.timezone, seen.task, seen.note) == (
        ONCE_A_YEAR,
        "Europe/Berlin",
        "Write the report",
        "holidays",
    )
    assert (seen.paused, seen.last_runs) == (True, (run.run_id,))
    await schedules.resume(name)
    assert (await schedules.list())[0].next_times
    with pytest.raises(BadRequest, match="already exists"):
        await schedules.add(ONCE_A_YEAR, "again", name=name)
    await schedules.remove(name)
    with pytest.raises(BadRequest, match=f"no schedule '{name}'"):
        await schedules.trigger(name)


async def test_a_schedule_that_another_client_has_made_is_listed_with_what_is_known(working: Working) -> None:
    loom, _ = await working(script([text("never")]))
    name, client = f"foreign-{uuid4().hex[:8]}", loom.client.temporal
    action = ScheduleActionStartWorkflow("AgentRun", {}, id=f"schedule-{name}", task_queue=loom.settings.task_queue)
    spec = ScheduleSpec(cron_expressions=[ONCE_A_YEAR])
    made = await client.create_schedule(f"{SCHEDULED}{name}", Schedule(action=action, spec=spec))
    try:
        seen = await listed(loom.client, name)
        assert (seen.task, seen.cron) == ("", "")
    finally:
        await made.delete()


async def test_a_run_that_is_due_while_the_last_one_runs_is_left_out(working: Working) -> None:
    loom, _ = await working([calls(ToolUse("bash", {"command": "ls"})), text("done")])
    name = f"slow-{uuid4().hex[:6]}"
    await loom.client.schedules.add(
        ONCE_A_YEAR, "look", name=name, permissions={"bash": "ask"}, workspace=str(loom.workspace)
    )
    await loom.client.schedules.trigger(name)
    (first,) = await runs(loom.client, name, 1)
    loom.started.append(first.run_id)
    await loom.asked(first.run_id)
    await loom.client.schedules.trigger(name)
    handle = loom.client.temporal.get_schedule_handle(f"schedule-{name}")

    async def left_out() -> bool:
        skipped: int = (await handle.describe()).info.num_actions_skipped_overlap
        return skipped == 1

    await eventually(left_out)
    await loom.client.deny(first.run_id)
    await loom.client.result(first.run_id)
    assert len(await runs(loom.client, name, 1)) == 1
    await loom.client.schedules.remove(name)


def test_a_schedule_s_signature_holds_for_its_own_runs_only() -> None:
    key = SigningKey(Ed25519PrivateKey.generate())
    signed = Statement(kind="schedule", name="AgentRun", run_id="schedule-nightly", arguments="digest")
    signature = signature_in(key.header(signed, datetime(2026, 1, 1, tzinfo=UTC)))
    assert signature is not None

    def accepted(run_id: str, arguments: str = "digest") -> bool:
        statement = replace(signed, kind="start", run_id=run_id, arguments=arguments)
        start = SignedStart(statement=statement, signature=signature, began_at=0, execution=uuid4().hex)
        return gate.is_signed_by_owner(start)

    gate = StartGate(key, requires_signature=False)
    assert accepted("schedule-nightly-2026-11-25T08:00:00Z")
    assert accepted("schedule-nightly-2026-11-26T08:00:00Z")
    assert not accepted("schedule-nightly-2026-11-26T08:00:00Z"), "a run was started again under the same id"
    assert not accepted("schedule-nightly-2026-11-27T08:00:00Z", arguments="others")
    assert not accepted("schedule-weekly-2026-11-25T08:00:00Z")
    assert not accepted("schedule-nightly")
    assert not accepted("run-1")


async def test_workers_that_accept_only_signed_runs_accept_those_of_a_signed_schedule(working: Working) -> None:
    loom, _ = await working(turns(0, "", {}, "signed"), require_signed="on")
    name = f"signed-{uuid4().hex[:6]}"
    await loom.client.schedules.add(ONCE_A_YEAR, "look", name=name, workspace=str(loom.workspace))
    await loom.client.schedules.trigger(name)
    (run,) = await runs(loom.client, name, 1)
    loom.started.append(run.run_id)
    assert (await loom.client.result(run.run_id)).output == "signed"
    await loom.client.schedules.remove(name)


async def test_the_key_of_its_tenant_encrypts_a_schedule_and_its_runs(working: Working, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    write_keys(keys, [new_key()])
    loom, _ = await working(turns(0, "", {}, "sealed"), encryption_keys=keys)
    name = f"sealed-{uuid4().hex[:6]}"
    given = {"tenant": "acme", "workspace": str(loom.workspace)}
    await loom.client.schedules.add(ONCE_A_YEAR, "a secret task", name=name, **given)
    await loom.client.schedules.trigger(name)
    (run,) = await runs(loom.client, name, 1)
    loom.started.append(run.run_id)
    assert (await loom.client.result(run.run_id)).output == "sealed"
    assert (await listed(loom.client, name)).task == "a secret task"
    async with LoomClient.connected(loom.settings.model_copy(update={"encryption_keys": None})) as without_keys:
        assert (await listed(without_keys, name)).task == ""
    described = (await loom.client.temporal.get_schedule_handle(f"schedule-{name}").describe()).raw_description
    assert b"a secret task" not in described.SerializeToString()
    started = described.schedule.action.start_workflow
    (sealed,) = started.input.payloads
    another = await loom.start("another", **given)
    await loom.client.result(another)
    (history,) = await loom.histories(another)
    (beside,) = history.events[0].workflow_execution_started_event_attributes.input.payloads
    assert key_of(sealed) == key_of(beside) == key_of(started.memo.fields["task"]) is not None
    await loom.client.schedules.remove(name)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"cron": "61 * * * *"}, "minute '61' isn't between 0 and 59"),
        ({"timezone": "Mars/Base"}, "time zone 'Mars/Base' isn't known"),
        ({"name": "a b"}, "use up to 80 letters"),
        ({"overlap": "never"}, "must be one of skip, buffer_one"),
        ({"max_turns": 0}, "max_turns"),
        ({"parts": [{"text": "x"}]}, "can't send parts"),
    ],
)
async def test_what_a_schedule_can_t_do_is_refused_before_the_server_sees_it(
    changed: dict[str, Any], told: str
) -> None:
    nowhere: Any = None
    loom = LoomClient(nowhere)
    given: dict[str, Any] = {"cron": ONCE_A_YEAR, "task": "look", **changed}
    with pytest.raises(BadRequest, match=told):
        await loom.schedules.add(given.pop("cron"), given.pop("task"), **given)
