"""Approvals that need several people, over HTTP."""

import asyncio
from pathlib import Path

from loom.activities.adapters.postgres.access import PostgresCallApprovals
from loom.activities.adapters.postgres.database import Database
from loom.serve.access.roles import Role
from loom.testing.model_server import ToolUse, calls, script, text
from tests.integration.serve.conftest import Serving

WRITE = calls(ToolUse("write_file", {"path": "a.txt", "content": "new\n"}))


async def test_two_different_people_approve_a_grave_call_and_nobody_their_own(serving: Serving, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rules]]\ntools = ["write_*"]\napprovals = 2\nown_runs = false\n')
    api = await serving(script([WRITE, text("done")]), approval_policy=policy)
    run_id = await api.start(permissions={"write_file": "ask"})
    ask = await api.asked(run_id)
    assert (ask["approvals"], ask["approved_by"]) == (2, [])
    people = {name: await api.with_token(name, Role.APPROVER) for name in ("ann", "bob")}
    path = f"/v1/runs/{run_id}/approve"

    own = await api.http.post(path)
    assert (own.status_code, own.json()["title"]) == (403, "AccessDeniedError")
    assert "started this run" in own.json()["detail"]

    first = {"accepted": False, "run_id": run_id, "approved_by": ["ann"], "approvals": 2}
    for _ in range(2):  # the same person counts once
        answer = await people["ann"].post(path)
        assert (answer.status_code, answer.json()) == (202, first)
    assert (await api.asked(run_id))["approved_by"] == ["ann"]

    other = await people["bob"].post(path, json={"scope": "run"})  # something else than what the first approved
    assert other.json()["approved_by"] == ["bob"]
    stale = await people["bob"].post(path, json={"digest": "0" * 12})
    assert (stale.status_code, stale.json()["title"]) == (409, "RefusedError")

    answer = await people["bob"].post(path, json={"call_id": ask["call_id"], "digest": ask["digest"]})
    assert (answer.status_code, answer.json()["accepted"]) == (200, True)
    assert (await api.result(run_id))["status"] == "completed"
    events = await api.events(run_id)
    (decided,) = [event.data for event in events if event.data.get("action") == "node.approval_decided"]
    assert decided["parameters"]["by"] == "ann, bob"


async def test_of_two_people_who_approve_at_the_same_time_one_sees_both(database: Database) -> None:
    approvals = PostgresCallApprovals(database)
    for number in range(20):
        call = ("run", f"call-{number}", "2026-11-26T12:00:00Z", b"decision")
        seen = await asyncio.gather(*(approvals.add(*call, name) for name in ("ann", "bob")))
        assert sorted(len(people) for people in seen) == [1, 2]
