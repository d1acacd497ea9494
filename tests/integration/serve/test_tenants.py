"""What a token of one tenant learns of another: nothing, from any route, stream, list or error text."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import quote
from uuid import uuid4

import httpx2
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from ag_ui.core import ResumeEntry
from pydantic_core import from_json, to_json

from loom.serve.access.roles import Role
from loom.serve.faces.agui import Asked
from loom.testing.model_server import ToolUse, calls, script, text
from tests.integration.serve.conftest import Serving
from tests.integration.serve.test_access import BODIES, operations

Asking: TypeAlias = tuple[str, str, Any]
"""A request: method, path and body."""
A2A: Final = "/v1/agents/default/a2a"
DELEGATE: Final = calls(
    ToolUse("delegate_task", {"description": "a part", "prompt": "secret work", "tools": ["write_file"]}, "d1")
)
WRITE: Final = calls(ToolUse("write_file", {"path": "secret.txt", "content": "new\n"}, "w1"))
DIGEST: Final = "0" * 12


def a2a_requests(run_id: str) -> Iterator[Asking]:
    """A request about this run for each method that the protocol's library knows."""
    message = {"messageId": "m", "role": "ROLE_USER", "taskId": run_id, "parts": [{"text": "approve"}]}
    params: dict[str, Any] = {
        **{method: {"id": run_id} for method in ("GetTask", "CancelTask", "SubscribeToTask")},
        **{method: {"message": message} for method in ("SendMessage", "SendStreamingMessage")},
        "ListTasks": {"contextId": run_id},
        "CreateTaskPushNotificationConfig": {"taskId": run_id, "url": "https://evil.example"},
        "ListTaskPushNotificationConfigs": {"taskId": run_id},
        "GetTaskPushNotificationConfig": {"taskId": run_id, "id": "c"},
        "DeleteTaskPushNotificationConfig": {"taskId": run_id, "id": "c"},
        "GetExtendedAgentCard": {},
    }
    assert params.keys() == JsonRpcDispatcher.METHOD_TO_MODEL.keys()
    for method, given in params.items():
        yield "POST", A2A, {"jsonrpc": "2.0", "id": 1, "method": method, "params": given}


def agui_requests(run_id: str, call_id: str) -> Iterator[Asking]:
    """Answers to what the run asks."""
    common: dict[str, Any] = {"run_id": run_id, "after": 0, "shown_as": None}
    asked = (
        (Asked(call_id=call_id, digest=DIGEST, **common), {"approved": True}),
        (Asked(call_id=None, digest=None, **common), "yes"),
    )
    for each, payload in asked:
        entry = ResumeEntry(interrupt_id=each.id, status="resolved", payload=payload).model_dump(
            mode="json", by_alias=True
        )
        yield "POST", "/v1/agents/default/agui", {"threadId": "t", "runId": "r", "messages": [], "resume": [entry]}


def requests_about(described: Sequence[tuple[str, str, Any]], run_id: str, call_id: str) -> list[Asking]:
    """Requests for all that the service says about a run, and for all that it does with one."""
    in_path, artifact = quote(run_id, safe=""), quote(quote("a/b", safe=""), safe="")
    bodies = {**BODIES, "approve_call": {"call_id": call_id, "digest": DIGEST}, "deny_call": {"call_id": call_id}}
    about = [
        (
            verb.upper(),
            path.format(run_id=in_path, artifact_id=artifact, agent="default"),
            bodies.get(what["operationId"]),
        )
        for verb, path, what in described
        if "{run_id}" in path
    ]
    filters = [("GET", f"/v1/runs?{name}={in_path}", None) for name in ("below", "session", "tenant")]
    starts = [
        {"run_id": run_id},
        {"forked_from": {"run_id": run_id, "turn": 0}},
        {"tenant": run_id.partition(":")[0]},
    ]
    return [
        *about,
        *filters,
        *(("POST", "/v1/runs", {"task": "x", **start}) for start in starts),
        ("GET", f"/v1/runs/{in_path}/result?wait=1", None),
        ("HEAD", f"/v1/runs/{in_path}", None),
        *a2a_requests(run_id),
        *agui_requests(run_id, call_id),
    ]


async def told(http: httpx2.AsyncClient, asking: Asking, name: str) -> Any:
    """The whole answer but for the date. The tenant's name in it is replaced."""
    method, path, body = asking
    answer = await http.request(method, path, json=body, headers={"A2A-Version": "1.0"})
    headers = sorted((key, value) for key, value in answer.headers.items() if key != "date")
    return answer.status_code, headers, answer.text.replace(name, "TENANT")


async def test_a_token_of_one_tenant_sees_nothing_of_another(serving: Serving) -> None:
    api = await serving(script([DELEGATE, WRITE, text("done")], repeat_last=True))
    tenant, nobody = f"acme-{uuid4().hex[:6]}", f"acme-{uuid4().hex[:6]}"
    run_id = await api.start(
        "the secret plan", tenant=tenant, run_id=f"{tenant}:plan", permissions={"write_file": "ask"}
    )
    ask = await api.asked(run_id)
    own = await api.with_token("ann", Role.VIEWER, tenant=tenant)
    assert [run["run_id"] for run in (await own.get("/v1/runs")).json()["runs"]] == [run_id]
    assert (await own.get(f"/v1/runs/{run_id}")).json()["tenant"] == tenant
    assert [each["run_id"] for each in (await own.get("/v1/approvals")).json()["waiting"]] == [run_id]

    def renamed(asked: list[Asking]) -> list[Asking]:
        """The same requests about a tenant that has nothing."""
        return from_json(to_json(asked).replace(tenant.encode(), nobody.encode()))

    async def compare(stranger: httpx2.AsyncClient, asked: list[Asking]) -> None:
        seen = await asyncio.gather(*(told(stranger, each, tenant) for each in asked))
        expected = await asyncio.gather(*(told(stranger, each, nobody) for each in renamed(asked)))
        for asking, existing, missing in zip(asked, seen, expected, strict=True):
            assert existing == missing, asking
            assert not any(word in existing[-1] for word in ("secret", "write_file")), asking

    described = await operations(api)
    about = [each for id_ in (run_id, ask["made_by"]) for each in requests_about(described, id_, ask["call_id"])]
    await compare(await api.with_token("ann", Role.ADMIN, tenant="evil"), about)
    odd = (run_id, f"{run_id}/", f"{run_id}\u200b", run_id.upper(), f"./{run_id}", "@last", f"{run_id}%2F..")
    for other in (f"{tenant}2", tenant[:-1], tenant.upper()):
        stranger = await api.with_token("ann", Role.ADMIN, tenant=other)
        await compare(stranger, [("GET", f"/v1/runs/{quote(id_, safe='')}", None) for id_ in odd])
        for path, listed in (("/v1/runs?tasks=true", "runs"), ("/v1/approvals", "waiting")):
            assert (await stranger.get(path)).json()[listed] == [], (other, path)
    assert (await api.http.get(f"/v1/runs/{run_id}")).json()["status"] == "waiting_for_approval"
    await api.http.post(f"/v1/runs/{run_id}/abort")
    await api.result(run_id)
