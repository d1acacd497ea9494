"""Requests that take long: how many a caller may have, and that they end with the caller's token."""

import asyncio
from typing import Any

import httpx2
import pytest

from loom.serve.access import authentication, tokens
from loom.serve.access.roles import Role
from loom.testing.model_server import ToolUse, calls, script
from loom.testing.waiting import eventually
from tests.integration.serve.conftest import Serving
from tests.integration.serve.served import Served

WRITE = calls(ToolUse("write_file", {"path": "a.txt", "content": "new\n"}))


async def with_revocable_token(api: Served, role: Role) -> tuple[str, httpx2.AsyncClient]:
    """The ID of a token, and a client that uses it."""
    id_, token = await api.tokens.add("ann", role, tenant=None, expires_at=None, created_by="a test")
    headers = {"Authorization": f"Bearer {token}"}
    http = httpx2.AsyncClient(base_url=api.url, timeout=30, headers=headers)
    return id_, await api.stack.enter_async_context(http)


def rpc(run_id: str) -> dict[str, Any]:
    """A request of MCP that waits for a run, and one of A2A that follows it."""
    return {
        "/mcp": {"method": "tools/call", "params": {"name": "run_result", "arguments": {"run_id": run_id, "wait": 60}}},
        "/v1/agents/default/a2a": {"method": "SubscribeToTask", "params": {"id": run_id}},
    }


async def test_requests_that_wait_end_when_their_token_is_revoked(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "CHECKED_EVERY", 0.2)
    monkeypatch.setattr("loom.serve.access.tokens.KEPT", 0.0)
    api = await serving(script([calls(ToolUse("bash", {"command": "sleep 60"}))]))
    run_id = await api.start(permissions={"bash": "allow"})
    id_, ann = await with_revocable_token(api, Role.OPERATOR)
    headers = {"Accept": "application/json, text/event-stream", "A2A-Version": "1.0"}

    (mcp, call), (a2a, subscribe) = ((path, {"jsonrpc": "2.0", "id": 1, **body}) for path, body in rpc(run_id).items())
    async with (
        ann.stream("GET", f"/v1/runs/{run_id}/events") as events,
        ann.stream("POST", a2a, json=subscribe, headers=headers) as updates,
    ):
        assert (events.status_code, updates.status_code) == (200, 200)
        waiting = [
            asyncio.create_task(ann.get(f"/v1/runs/{run_id}/result", params={"wait": 60})),
            asyncio.create_task(ann.post(mcp, json=call, headers=headers)),
        ]
        done, _ = await asyncio.wait(waiting, timeout=1.0)
        assert not done, [each.result().text for each in done]
        await api.tokens.revoke(id_)
        async with asyncio.timeout(30):
            result, called = await asyncio.gather(*waiting)
            await asyncio.gather(events.aread(), updates.aread())
    assert (result.status_code, result.json()["title"]) == (401, "NotAuthenticatedError")
    assert "event: end" not in events.text
    assert "COMPLETED" not in updates.text
    assert called.status_code in (200, 401)
    assert '"result"' not in called.text
    await api.http.post(f"/v1/runs/{run_id}/abort")
    await api.result(run_id)


def test_a_revoked_token_ends_within_five_seconds() -> None:
    assert tokens.KEPT + authentication.CHECKED_EVERY < 5


async def test_a_caller_follows_only_so_many_runs_at_once(serving: Serving) -> None:
    api = await serving(script([WRITE], repeat_last=True), serve_streams=2)
    run_id = await api.start(permissions={"write_file": "ask"})
    await api.asked(run_id)
    path = f"/v1/runs/{run_id}/events"
    other = await api.with_token("ann", Role.VIEWER)
    async with api.http.stream("GET", path), api.http.stream("GET", path) as last:
        for place in (path, f"/v1/runs/{run_id}/result?wait=60"):
            refused = await api.http.get(place)
            assert (refused.status_code, refused.json()["title"]) == (429, "TooManyStreamsError"), place
        for place, body in rpc(run_id).items():
            headers = {"Accept": "application/json, text/event-stream", "A2A-Version": "1.0"}
            refused = await api.http.post(place, json={"jsonrpc": "2.0", "id": 1, **body}, headers=headers)
            assert "LOOM_SERVE_STREAMS" in refused.text, place
        async with other.stream("GET", path) as others:
            assert others.status_code == 200
        await last.aclose()

        async def has_room() -> bool:
            async with api.http.stream("GET", path) as again:
                return bool(again.status_code == 200)

        await eventually(has_room)
    await api.http.post(f"/v1/runs/{run_id}/abort")
    await api.result(run_id)
