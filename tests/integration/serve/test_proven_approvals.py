"""Approvals that are proven: nobody who reaches Temporal can approve a call, even with the workers' own signing key.

The attacker is the worker's own client: it signs what it sends with the worker's key, and reads every history. It lacks
the key that proves approvals.
"""

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from temporalio.client import WorkflowUpdateFailedError

from loom.activities.adapters.postgres.audit import AuditFilter
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.signing.approval_key_files import create_approval_key, public_file, read_approval_keys
from loom.activities.approval_keys import ApprovalKey
from loom.composition.audit_log import opened_log
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import AGENT_RUN
from loom.domain.core.tasks import Action
from loom.pending_approvals import PendingApproval, read_approval
from loom.serve.access.roles import Role
from loom.testing.fork_server import ForkServer
from loom.testing.harness import Addresses, Harness
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from loom.testing.worker_processes import mortal
from tests.integration.serve.conftest import Serving
from tests.integration.serve.served import Served
from tests.integration.testing_kit import slow_shop
from tests.integration.workflows.test_signed_requests import accepted_update, reset
from tests.trees import by_task, delegate


def appends(word: str, call_id: str) -> ToolUse:
    return ToolUse("bash", {"command": f"echo {word} >> effects"}, call_id)


TWICE: Final = calls(appends("twice", "b1"))
OTHER: Final = ToolUse("bash", {"command": "touch other"}, "b3")
MODEL: Final = by_task(
    {
        "forge": [calls(appends("once", "b1")), text("done")],
        "repeat": [TWICE, TWICE, text("done")],
        "alike": [
            TWICE,
            calls(appends("twice", "b2")),
            calls(ToolUse("bash", {"command": "touch other"}, "b3")),
            text("done"),
        ],
        "the root": [calls(delegate("w", "write it", tools=["bash"])), text("ok")],
        "write it": [calls(appends("deep", "b1")), text("done")],
    }
)


@dataclass
class Attacker:
    """Somebody who reaches the Temporal server and has the workers' signing key."""

    loom: Harness

    async def signals(self, run_id: str, name: str, payload: JsonObject) -> None:
        await self.loom.client.temporal.get_workflow_handle(run_id).signal(name, payload)

    async def asks_for(self, run_id: str, name: str, payload: JsonObject) -> str:
        """Send an update that the run refuses, and return why."""
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await self.loom.client.temporal.get_workflow_handle(run_id).execute_update(name, payload)
        return str(refused.value.cause)

    async def starts(self, run_id: str, task: str, **request: Any) -> None:
        payload = {"task": task, "workspace": str(self.loom.workspace), **request}
        queue = self.loom.settings.task_queue
        await self.loom.client.temporal.start_workflow(AGENT_RUN, payload, id=run_id, task_queue=queue)
        self.loom.started.append(run_id)

    async def recorded(self, run_id: str) -> JsonObject:
        """The approval of a run, as everybody can read it in its history."""
        (history,) = await self.loom.histories(run_id)
        return dict(accepted_update(history, "approve")[1])


def effects(workspace: Path) -> list[str]:
    path = workspace / "effects"
    return path.read_text().split() if path.exists() else []


async def pending(loom: Harness, run_id: str, call_id: str = "b1", *, because: str = "") -> PendingApproval:
    """Wait until this call of the run waits for a person."""

    def is_it(ask: Mapping[str, Any]) -> bool:
        return str(ask["call_id"]).endswith(call_id) and because in ask["reason"]

    status = await loom.until(run_id, lambda status: any(map(is_it, status["pending_approvals"])))
    return read_approval(next(filter(is_it, status["pending_approvals"])))


def approval(ask: PendingApproval, run_id: str, key: ApprovalKey) -> JsonObject:
    proof = key.proof(ask.proven(run_id, ask.digest), by="ann, bob")
    return {"call_id": ask.call_id, "digest": ask.digest, "by": "ann, bob", "proof": proof}


def keys(folder: Path) -> dict[str, Path]:
    create_approval_key(folder / "approval.key")
    return {"approval_key": folder / "approval.key", "approval_keys": public_file(folder / "approval.key")}


async def test_only_an_approval_that_the_service_has_proven_lets_a_call_run(
    serving: Serving, workspace: Path, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[[rules]]\ntools = ["bash"]\napprovals = 2\n')
    settings: dict[str, Any] = {**keys(tmp_path), "approval_policy": policy, "audit": "on"}
    api: Served = await serving(MODEL, **settings)
    loom, attacker = api.loom, Attacker(api.loom)
    people = [await api.with_token(name, Role.APPROVER) for name in ("ann", "bob")]

    async def approved(run_id: str, **body: Any) -> None:
        first, second = [await person.post(f"/v1/runs/{run_id}/approve", json=body) for person in people]
        assert (first.status_code, second.status_code, second.json()["accepted"]) == (202, 200, True), second.text

    # Nothing that a run is told makes the call run: its own rules, its mode, an approval without a proof, a forged one.
    run_id = f"test-{uuid4().hex[:8]}"
    await attacker.starts(run_id, "forge", permissions={"bash": "allow"}, mode="accept-edits")
    await pending(loom, run_id)
    widened = {"rules": {"default": "allow", "bash(*)": "allow"}}
    await loom.client.temporal.get_workflow_handle(run_id).execute_update("set_permissions", widened)
    ask = await pending(loom, run_id)
    plain = {"call_id": ask.call_id, "digest": ask.digest, "by": "ann, bob"}
    assert "isn't proven" in await attacker.asks_for(run_id, "approve", plain)
    await attacker.signals(run_id, "approve", plain)
    stranger = ApprovalKey(Ed25519PrivateKey.generate())
    await attacker.signals(run_id, "approve", approval(ask, run_id, stranger))
    ask = await pending(loom, run_id, because="no key of this worker")
    stranger.id = read_approval_keys(settings["approval_keys"]).ids[0]
    await attacker.signals(run_id, "approve", approval(ask, run_id, stranger))
    await pending(loom, run_id, because="signature isn't valid")
    assert effects(workspace) == []

    await approved(run_id)
    assert (await api.result(run_id))["status"] == "completed"
    assert effects(workspace) == ["once"]
    whys = [e.data["parameters"]["why"] for e in await api.events(run_id) if e.data.get("action") == "node.ignored"]
    assert [("isn't proven" in why, "no key" in why, "isn't valid" in why) for why in whys] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]

    rebuilt = [task.action for task in (await loom.client.recorded_tasks(run_id)).tasks]
    assert (rebuilt.count(Action.TOOL_CALL), rebuilt.count(Action.TOOL_RESULT)) == (1, 1), "refused calls haven't run"

    # The audit log keeps the proof, and whoever has the public key can verify it.
    async with aclosing(Database(str(loom.settings.database_url))) as database:
        log = opened_log(loom.settings, database)

        async def recorded() -> str | None:
            rows = await log.newest(AuditFilter(run_id=run_id), 100)
            given = [row.entry.proof for row in rows if row.entry.act == "approve" and row.entry.source == "update"]
            return given[0] if given else None

        proof = await eventually(recorded)
        assert not (await log.verify()).findings
    stated = read_approval_keys(settings["approval_keys"]).verified(proof, datetime.now(UTC))
    assert (stated.run, stated.call, stated.digest, stated.by) == (run_id, "b1", ask.digest, "ann, bob")

    # What was approved once counts for nothing else: not after a reset, and not in another run with the same id.
    given = await attacker.recorded(run_id)
    await reset(loom.client.temporal, run_id, task=2)
    ask = await pending(loom, run_id)
    await attacker.signals(run_id, "approve", given)
    assert "before it was reset" in await attacker.asks_for(run_id, "approve", {**given, "digest": ask.digest})
    await loom.client.abort(run_id)
    await api.result(run_id)
    await attacker.starts(run_id, "forge")
    ask = await pending(loom, run_id)
    assert "another run" in await attacker.asks_for(run_id, "approve", {**given, "digest": ask.digest})
    await loom.client.abort(run_id)

    # Nor for the same call in a later turn.
    run_id = await api.start("repeat")
    await pending(loom, run_id)
    await approved(run_id)
    given = await attacker.recorded(run_id)
    status = await loom.until(run_id, lambda status: status["turn"] == 2 and bool(status["pending_approvals"]))
    (second,) = status["pending_approvals"]
    again = {**given, "call_id": second["call_id"], "digest": second["digest"]}
    assert "another digest" in await attacker.asks_for(run_id, "approve", again)
    await loom.client.deny(run_id)
    await api.result(run_id)
    assert effects(workspace) == ["once", "twice"]

    # An approval for the rest of the run covers the rules that people have seen, and a sub-agent's call is proven, too.
    run_id = await api.start("alike")
    await pending(loom, run_id)
    await approved(run_id, scope="run")
    await pending(loom, run_id, "b3")
    await loom.client.deny(run_id)
    await api.result(run_id)
    assert effects(workspace) == ["once", "twice", "twice", "twice"]

    run_id = await api.start("the root")
    ask = await pending(loom, run_id)
    (child,) = await loom.below(run_id)
    await attacker.signals(child, "approve", approval(await pending(loom, child), child, stranger))
    await pending(loom, run_id, because="signature isn't valid")
    await approved(run_id)
    assert (await api.result(run_id))["status"] == "completed"
    assert effects(workspace)[-1] == "deep"


async def test_a_proof_holds_for_the_next_attempt_if_its_worker_is_killed(
    addresses: Addresses, workspace: Path, tmp_path: Path, loom_forks: ForkServer
) -> None:
    """The worker has only the public key. The client, which has the private one, approves as `loom approve` does."""
    app = f"{Path(slow_shop.__file__)}:app"
    model = script([calls(ToolUse("find_order", {"number": 7}, "f1")), text("done")])
    both = keys(tmp_path)
    settings: dict[str, Any] = {"app": app, "approval_key": both["approval_key"], "forks": loom_forks}
    async with mortal(addresses, workspace, model, **settings) as (loom, _, workers):
        public = {"LOOM_APPROVAL_KEYS": str(both["approval_keys"])}
        await workers.start(**public)
        run_id = await loom.start(permissions={"find_order": "ask"})
        await pending(loom, run_id, "f1")
        await loom.client.approve(run_id, by="ann")
        await loom.until_runs(run_id, "find_order")
        await workers.crash()
        await loom.forget_workers()
        await workers.start(**public)
        run = await loom.recorded(run_id)
    (call,) = run.calls
    assert (call.status, call.output, call.attempts) == ("success", "order 7: paid", 2)
