"""The audit log of a real run: what people do through the client, over HTTP and at the Temporal server, each once."""

import asyncio
import getpass
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from a2a.client import A2AClientError
from temporalio.api.common.v1 import WorkflowExecution as ExecutionId
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowHandle
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.adapters.encryption.key_ring import new_key, write_keys
from loom.activities.adapters.postgres.audit import AuditFilter, PostgresAuditLog
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.temporal.run_acts import ReadActs, TemporalRunActs
from loom.composition.audit import AuditedHistories
from loom.composition.audit_log import opened_log
from loom.domain.audit.chain import AuditRow
from loom.domain.audit.entries import AuditEntry, content_digest
from loom.serve.access.audit_trail import FROM_ONE_ORIGIN
from loom.serve.access.roles import Role
from loom.testing.harness import Addresses, Harness, harness
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from loom.testing.worker_processes import mortal
from tests.commands import commands_in
from tests.databases import as_superuser, fresh_database, rows
from tests.docs_pages import blocks
from tests.integration.serve.conftest import Serving
from tests.integration.serve.served import Served
from tests.integration.serve.test_a2a import client_of, events, message, user
from tests.integration.serve.test_agui import agui, answer_to, interrupt
from tests.integration.serve.test_mcp_server import over_http

MESSAGES = 100
"""So many signals make a run continue as new."""
ASKS = {"write_file": "ask"}


def writes(name: str) -> Any:
    return calls(ToolUse("write_file", {"path": name, "content": "new\n"}))


@asynccontextmanager
async def log_of(loom: Harness) -> AsyncIterator[PostgresAuditLog]:
    async with aclosing(Database(str(loom.settings.database_url))) as database:
        yield opened_log(loom.settings, database)


async def rows_of(loom: Harness, count: int, **chosen: Any) -> list[AuditEntry]:
    """Wait until the log has so many such rows, and return what they say, oldest first."""
    async with log_of(loom) as log:

        async def look() -> Sequence[AuditRow] | None:
            found = await log.newest(AuditFilter(**chosen), 1000)
            return found if len(found) >= count else None

        found = await eventually(look)
        assert not (await log.verify(await log.checkpoint())).findings
        return [row.entry for row in reversed(found)]


async def test_everything_that_people_do_over_http_is_recorded_once(serving: Serving) -> None:
    model = script([writes("a"), writes("b"), writes("c"), text("done")], repeat_last=True)
    api: Served = await serving(model, audit="on")
    ann = await api.with_token("ann", Role.APPROVER, tenant="acme")
    viewer = await api.with_token("vic", Role.VIEWER, tenant="acme")
    eve = await api.with_token("eve", Role.ADMIN, tenant="evil")
    run_id = await api.start("the secret plan", permissions=ASKS, tenant="acme", run_id="acme:audited")
    never = {"task": "x", "tenant": "acme", "run_id": "acme:refused", "permissions": {"bash( )": "deny"}}
    assert (await api.http.post("/v1/runs", json=never)).status_code == 422
    await api.asked(run_id)
    assert (await viewer.post(f"/v1/runs/{run_id}/abort")).status_code == 403
    assert (await eve.post(f"/v1/runs/{run_id}/abort")).status_code == 404
    assert (await api.anonymous.post(f"/v1/runs/{run_id}/abort")).status_code == 401
    assert (await ann.post(f"/v1/runs/{run_id}/approve")).status_code == 200
    await api.asked(run_id)
    assert (await ann.post(f"/v1/runs/{run_id}/deny", json={"reason": "no"})).status_code == 200
    await api.asked(run_id)
    for act, what in (("messages", {"text": "hurry"}), ("pause", None), ("resume", None)):
        assert (await ann.post(f"/v1/runs/{run_id}/{act}", json=what)).status_code == 200, act
    assert (await api.http.post(f"/v1/runs/{run_id}/permissions", json={"rules": {"bash": "deny"}})).status_code == 200
    assert (await ann.post(f"/v1/runs/{run_id}/abort", json={"reason": "enough"})).status_code == 200
    await api.result(run_id)

    acts = await rows_of(api.loom, 10, run_id=run_id)
    assert sorted((each.act, each.by, each.tenant) for each in acts) == sorted(
        [
            ("start", "root", "acme"),
            ("set_permissions", "root", "acme"),
            ("refuse", "vic", "acme"),
            ("refuse", "eve", "evil"),
            *((act, "ann", "acme") for act in ("approve", "deny", "pause", "resume", "send_message", "abort")),
        ]
    )
    # A busy server doesn't take an Update in time. The client then sends a Signal, except to approve without an id.
    sources = {each.act: each.source for each in acts}
    assert [sources.pop(act) for act in ("start", "refuse", "send_message", "approve")] == [
        "temporal",
        "http",
        "signal",
        "update",
    ]
    assert set(sources.values()) <= {"update", "signal"}
    assert never["run_id"] not in {each.run_id for each in await rows_of(api.loom, 1)}
    (anonymous,) = [each for each in await rows_of(api.loom, 1) if each.act == "refuse" and not each.run_id]
    assert (anonymous.by, anonymous.identity, anonymous.subject[:5]) == ("", "127.0.0.1", "POST ")
    assert "secret" not in json.dumps([str(each) for each in acts])


async def test_what_people_do_over_other_protocols_is_recorded_once_and_so_is_what_they_may_not(
    serving: Serving,
) -> None:
    api: Served = await serving(script([writes("a"), text("done")] * 3), audit="on")
    viewer = await api.with_token("vic", Role.VIEWER)

    work = {"task": "write", "workspace": str(api.loom.workspace), "run_id": "over-mcp"}
    async with over_http(api, viewer) as client:
        assert (await client.call_tool("start_run", work)).is_error
    async with over_http(api, api.http) as client:
        assert not (await client.call_tool("start_run", work)).is_error
        api.loom.started.append("over-mcp")
        pending = await api.asked("over-mcp")
        decision = {"run_id": "over-mcp", "call_id": pending["call_id"], "digest": pending["digest"]}
        assert not (await client.call_tool("approve_call", decision)).is_error
    await api.result("over-mcp")

    asked = interrupt(await agui(api))
    await agui(api, resume=answer_to(asked, {"approved": True}))

    async with client_of(api.url, user(viewer), streaming=False) as client:
        with pytest.raises(A2AClientError, match="403"):
            await events(client.send_message(message("write")))
    async with client_of(api.url, user(api.http), streaming=False) as client:
        (waits,) = await events(client.send_message(message("write")), api)
        await events(client.send_message(message("approve", task=waits.task)))

    acts = await rows_of(api.loom, 8)
    assert Counter((each.act, each.by) for each in acts) == {
        ("start", "root"): 3,
        ("approve", "root"): 3,
        ("refuse", "vic"): 2,
    }
    assert {each.subject for each in acts if each.act == "refuse"} == {"start"}


async def test_requests_of_strangers_do_not_fill_the_log(serving: Serving, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("[[rules]]\n")
    api: Served = await serving(script([text("done")]), audit="on", approval_policy=tmp_path / "policy.toml")
    viewer = await api.with_token("vic", Role.VIEWER)
    for _ in range(FROM_ONE_ORIGIN + 5):
        assert (await api.anonymous.get("/v1/runs")).status_code == 401
    assert (await viewer.post("/v1/runs", json={"task": "x"})).status_code == 403
    api.service.audit.end_window()
    policy, *refused = await rows_of(api.loom, FROM_ONE_ORIGIN + 3)
    assert (policy.act, policy.by, policy.subject) == ("set_approval_policy", getpass.getuser(), "policy.toml")
    assert [each.by for each in refused].count("vic") == 1
    counted = refused[-1]
    assert (counted.identity, counted.subject) == ("127.0.0.1", "5 more requests within 60 seconds")
    assert len(refused) == FROM_ONE_ORIGIN + 2


async def test_acts_of_any_client_are_recorded_once_also_after_continue_as_new_and_a_reset(
    addresses: Addresses, workspace: Path
) -> None:
    model = script([writes("a"), writes("b"), text("done")], repeat_last=True)
    async with (
        fresh_database(addresses.database) as url,
        harness(addresses, workspace, model, audit="on", database_url=url, rotate_after_events=100) as (loom, _),
    ):
        run_id = await loom.start_unseen(permissions=ASKS, tenant="acme")
        (ask,) = (await loom.asked(run_id))["pending_approvals"]
        handle = loom.client.temporal.get_workflow_handle(run_id)
        for number in range(MESSAGES):
            await handle.signal("send_message", {"text": f"message {number}", "by": "otto"})

        async def has_rotated() -> bool:
            return len(await loom.histories(run_id)) > 1

        await eventually(has_rotated)
        await handle.signal("approve", {"call_id": ask["call_id"], "by": "otto"})
        await loom.asked(run_id)
        await handle.cancel()
        await loom.until(run_id, lambda status: status["status"] == "aborted")
        await eventually(lambda: loom.client.has_ended(run_id))
        await loom.client.retry(run_id, by="ben")
        await loom.asked(run_id)
        await handle.terminate("enough")

        acts = await rows_of(loom, MESSAGES + 6, run_id=run_id)
        sent = [each.digest for each in acts if each.act == "send_message"]
        contents = [{"text": f"message {number}", "by": "otto"} for number in range(MESSAGES)]
        assert sent == [content_digest(content) for content in contents]
        assert [(each.act, each.by, each.source, each.tenant) for each in acts if each.digest not in sent] == [
            ("start", "", "temporal", "acme"),
            ("approve", "otto", "signal", "acme"),
            ("cancel", "", "temporal", "acme"),
            ("reset", "", "temporal", "acme"),
            ("retry", "ben", "signal", "acme"),
            ("terminate", "", "temporal", "acme"),
        ]
        loom.started.remove(run_id)  # its end isn't its own, so it can't be replayed to it


async def test_signals_that_a_reset_repeats_are_the_same_acts(addresses: Addresses, workspace: Path) -> None:
    model = script([writes("a"), text("done")], repeat_last=True)
    async with harness(addresses, workspace, model, replay=False) as (loom, _):
        run_id = await loom.start(permissions=ASKS)
        await loom.asked(run_id)
        client = loom.client.temporal
        executions = []
        for number in range(2):
            handle = client.get_workflow_handle(run_id)
            await handle.signal("send_message", {"text": f"message {number}", "by": "otto"})
            await handle.signal("deny", {"by": "otto"})
            first = await eventually(partial(first_task, handle))
            executions.append((await handle.describe()).run_id)
            await client.workflow_service.reset_workflow_execution(
                ResetWorkflowExecutionRequest(
                    namespace=client.namespace,
                    workflow_execution=ExecutionId(workflow_id=run_id, run_id=executions[-1]),
                    workflow_task_finish_event_id=first,
                    request_id=f"reset {number}",
                )
            )
        acts = TemporalRunActs(client, loom.settings.task_queue)
        executions.append((await client.get_workflow_handle(run_id).describe()).run_id)
        read = [each for execution in executions for each in (await acts.acts(run_id, execution, {}, None)).entries]
        assert len(read) > len({each.key for each in read})
        found = Counter(each.act for each in {each.key: each for each in read}.values())
        assert found == {"start": 1, "send_message": 2, "deny": 2, "reset": 2, "terminate": 2}


async def first_task(handle: WorkflowHandle[Any, Any]) -> int | None:
    """The event that completed the first workflow task of an execution, once there is one."""
    events = (await handle.fetch_history()).events
    return next((e.event_id for e in events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED), None)


class SomeUnreadable(TemporalRunActs):
    """Histories of which some can't be read."""

    unreadable: frozenset[str] = frozenset()

    async def acts(self, run_id: str, *args: Any) -> ReadActs:
        if run_id in self.unreadable:
            raise RPCError("history is corrupt", RPCStatusCode.DATA_LOSS, b"")
        return await super().acts(run_id, *args)


async def test_a_history_that_cannot_be_read_keeps_no_other_from_being_read(
    addresses: Addresses, workspace: Path
) -> None:
    async with (
        fresh_database(addresses.database) as url,
        harness(addresses, workspace, script([text("done")], repeat_last=True), database_url=url) as (loom, _),
        log_of(loom) as log,
    ):
        corrupt, intact = await loom.start(), await loom.start()
        for run_id in (corrupt, intact):
            await loom.client.result(run_id)
        acts = SomeUnreadable(loom.client.temporal, loom.settings.task_queue)
        acts.unreadable = frozenset({corrupt})
        server = await acts.server()

        async def found() -> set[str]:
            await AuditedHistories().sweep(acts, log)
            return {row.entry.run_id for row in await log.newest(AuditFilter(), 10)}

        await eventually(lambda: _equal(found(), {intact}))
        assert [run_id for run_id, _ in await log.unread(server, acts.task_queue)] == [corrupt]
        (history,) = await loom.histories(intact)
        newest = history.events[-1].event_time.ToDatetime(tzinfo=UTC)
        assert await log.read_until(server, acts.task_queue) == newest, "the server's clock counts, not the worker's"
        assert await log.has_been_read(server, acts.task_queue, within=60)
        acts.unreadable = frozenset()
        assert await found() == {corrupt, intact}
        assert not await log.unread(server, acts.task_queue)


async def _equal(found: Awaitable[set[str]], expected: set[str]) -> bool:
    return await found == expected


async def test_an_act_is_recorded_although_the_worker_dies_before_that(addresses: Addresses, workspace: Path) -> None:
    async with (
        fresh_database(addresses.database) as url,
        mortal(addresses, workspace, script([writes("a"), text("done")]), audit="on", database_url=url) as (
            loom,
            _,
            workers,
        ),
    ):
        worker = await workers.start()
        run_id = await loom.start(permissions=ASKS, by="ann")
        await loom.asked(run_id)
        await rows_of(loom, 1, run_id=run_id)
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await connection.execute("LOCK TABLE loom_audit IN EXCLUSIVE MODE")  # nothing can be recorded
            await loom.client.approve(run_id, by="ann")
            await workers.kill(worker)
        await workers.start()
        await loom.client.result(run_id)
        acts = await rows_of(loom, 2, run_id=run_id)
        assert [(each.act, each.by) for each in acts] == [("start", "ann"), ("approve", "ann")]


async def test_runs_go_on_without_the_database_and_their_acts_are_recorded_later(
    addresses: Addresses, workspace: Path, tmp_path: Path
) -> None:
    write_keys(tmp_path / "keys", [new_key()])
    async with (
        fresh_database(addresses.database) as url,
        harness(
            addresses,
            workspace,
            script([writes("a"), text("done")]),
            audit="on",
            database_url=url,
            encryption_keys=tmp_path / "keys",
        ) as (loom, _),
    ):
        run_id = await loom.start(permissions=ASKS, by="ann")
        await loom.asked(run_id)
        await rows_of(loom, 1, run_id=run_id)
        name = url.rpartition("/")[2]
        await rows(addresses.database, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'.encode())
        await rows(
            addresses.database, b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        await loom.client.deny(run_id, reason="no", by="ann")
        await loom.client.result(run_id)
        await rows(addresses.database, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'.encode())
        acts = await rows_of(loom, 2, run_id=run_id)
        assert [(each.act, each.by) for each in acts] == [("start", "ann"), ("deny", "ann")]
        async with log_of(loom) as log:
            assert (await log.verify()).sealed_from == 1


async def forge(url: str) -> None:
    await rows(url, b"SET session_replication_role = replica; UPDATE loom_audit SET by = 'eve' WHERE sequence = 1")


def program_of_the_page() -> str:
    (program,) = [block.text for block in blocks("python") if block.page == "docs/audit.md"]
    return program


def as_the_page_says(folder: Path) -> str:
    """Run what docs/audit.md tells an auditor, where Loom isn't installed, and return the output."""
    commands = [
        line for block in blocks("console") if block.page == "docs/audit.md" for line in block.text.splitlines()
    ]
    others = [line[2:] for line in commands if line.startswith(("$ python", "$ openssl"))]
    script = "\n".join(["set -e", f'python() {{ {sys.executable} -I "$@"; }}', *others])
    return subprocess.run(["/bin/sh", "-c", script], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_commands_record_changes_of_policy_and_show_the_log(
    url: str, addresses: Addresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"LOOM_DATABASE_URL": url, "TEMPORAL_ADDRESS": addresses.temporal}
    with commands_in(tmp_path, monkeypatch, **env) as loom:
        assert loom("audit", "list").out == "no acts are recorded\n"
        made = json.loads(loom("tokens", "add", "ann", "--role", "viewer", "--tenant", "acme", "--json").out)
        kept = loom("audit", "checkpoint").out.strip()
        loom("tokens", "revoke", made["id"])
        listed = json.loads(loom("audit", "list", "--json").out)
        assert [(each["row"], each["act"], each["subject"], each["tenant"]) for each in listed] == [
            (2, "revoke_token", made["id"], ""),
            (1, "add_token", made["id"], "acme"),
        ]
        for chosen, counted in (((), "left out: 0"), (("--tenant", "acme"), "left out: 1")):
            exported = loom("audit", "export", *chosen).out
            (tmp_path / "acts.jsonl").write_text(exported)
            (tmp_path / "check_export.py").write_text(program_of_the_page())
            said = as_the_page_says(tmp_path)
            assert said.splitlines()[0] == f"intact; sealed rows: 0; {counted}"
            assert said.splitlines()[-1] == "Signature Verified Successfully"
        assert "add_token" in loom("audit", "list", "--since", "1h", "--by", listed[0]["by"]).out
        intact = loom("audit", "verify", "--checkpoint", kept)
        assert (intact.code, intact.out[:15]) == (0, "2 rows, intact,")
        other = loom("audit", "verify", "--checkpoint", f"3:{'0' * 64}", "--json")
        assert (other.code, json.loads(other.out)["findings"][0]["row"]) == (1, 3)
        asyncio.run(forge(as_superuser(addresses.home, url)))
        assert loom("audit", "verify").out == "row 1: it was changed: its hash doesn't match its content\n"
        assert loom("audit", "export").code == 1
        wrong = loom("audit", "verify", "--checkpoint", "yesterday")
        assert (wrong.code, "is not a checkpoint" in wrong.err) == (2, True)
        monkeypatch.setenv("LOOM_AUDIT", "off")
        loom("tokens", "add", "ben", "--role", "viewer")
        assert len(json.loads(loom("audit", "list", "--json").out)) == 2
        monkeypatch.setenv("LOOM_DATABASE_URL", f"postgresql://x@/x?host={tmp_path}")
        for command in ("list", "verify", "checkpoint", "export"):
            away = loom("audit", command)
            assert (away.code, "Loom's Postgres does not respond" in away.err) == (5, True), command
