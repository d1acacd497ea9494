"""What a token of one tenant learns of another: nothing, from any route, stream, list or error text."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import quote
from uuid import uuid4

import httpx2
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from ag_ui.core import ResumeEntry

from loom.serve.access.roles import Role
from loom.serve.faces.agui import Asked
from loom.testing.model_server import ToolUse, calls, script, text
from tests.integration.serve.conftest import Serving
from tests.integration.serve.test_access import BODIES, operations

Asking: TypeAlias = tuple[str, str, Any]
"""A request: method, path and body."""
A2A: Final = "/v1/agents/default/a2a"
DELEGATE: Final = calls(ToolUse("delegate_task", {"description": "a part", "prompt": "secret work", "tools": ["bash"]}))
ASKS: Final = calls(ToolUse("bash", {"command": "echo secret > out.txt"}))
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
            path.format(run_id=in_path, artifact_id=artifact, agent="default", path="a.txt"),
            bodies.get(what["operationId"]),
        )
        for verb, path, what in described
        if "{run_id}" in path
    ]
    filters = [("GET", f"/v1/runs?{name}={in_path}", None) for name in ("below", "session", "tenant")]
    starts: list[dict[str, Any]] = [
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


def requests_about_tenant(described: Sequence[tuple[str, str, Any]], tenant: str) -> Iterator[Asking]:
    """Requests that name the tenant: for all lists, and for all that is done with Ann's chat."""
    for verb, path, what in described:
        if any(each["name"] == "tenant" for each in what.get("parameters", ())):
            place = path.format(session="plan", message_id="m-1")
            for more in ("", "&wait=1") if path.endswith("{message_id}") else ("",):
                user = "&user_id=ann" if "{session}" in path else ""
                yield verb.upper(), f"{place}?tenant={tenant}{user}{more}", None
        elif "{session}" in path:
            body = {"text": "hello", "tenant": tenant, "user_id": "ann"}
            yield verb.upper(), path.format(session="plan"), body


async def told(http: httpx2.AsyncClient, asking: Asking, name: str) -> Any:
    """The whole answer but for the date. The tenant's name in it is replaced."""
    method, path, body = asking
    answer = await http.request(method, path, json=body, headers={"A2A-Version": "1.0"})
    headers = sorted((key, value) for key, value in answer.headers.items() if key != "date")
    return answer.status_code, headers, re.sub(re.escape(name), "TENANT", answer.text, flags=re.IGNORECASE)


async def test_a_token_of_one_tenant_sees_nothing_of_another(serving: Serving) -> None:
    api = await serving(script([text("the secret answer"), DELEGATE, ASKS, text("done")], repeat_last=True))
    tenant, nobody = f"acme-{uuid4().hex[:6]}", f"acme-{uuid4().hex[:6]}"
    anns = {"tenant": tenant, "user_id": "ann"}
    asks = {"text": "the secret question", "message_id": "m-1", "workspace": str(api.loom.workspace), **anns}
    chat = (await api.http.post("/v1/chats/plan/messages", json=asks)).json()["chat"]
    api.loom.started.append(chat)
    assert (await api.http.get("/v1/chats/plan/messages/m-1", params={"wait": 60, **anns})).status_code == 200
    run_id = await api.start(
        "the secret plan", tenant=tenant, run_id=f"{tenant}:plan", permissions={"write_file": "ask"}
    )
    ask = await api.asked(run_id)
    own = await api.with_token("ann", Role.VIEWER, tenant=tenant)
    assert [run["run_id"] for run in (await own.get("/v1/runs")).json()["runs"]] == [run_id, chat]
    assert (await own.get(f"/v1/runs/{run_id}")).json()["tenant"] == tenant
    assert [each["run_id"] for each in (await own.get("/v1/approvals")).json()["waiting"]] == [run_id]

    described = await operations(api)

    def asked_of(name: str) -> list[Asking]:
        ids = (each.replace(tenant, name) for each in (run_id, ask["made_by"], chat))
        about = (each for id_ in ids for each in requests_about(described, id_, ask["call_id"]))
        return [*about, *requests_about_tenant(described, name)]

    def read_of(name: str) -> list[Asking]:
        id_ = f"{name}:plan"
        odd = (id_, f"{id_}/", f"{id_}\u200b", id_.upper(), f"./{id_}", f"{id_}%2F..", "@last")
        return [("GET", f"/v1/runs/{quote(each, safe='')}", None) for each in odd]

    async def compare(stranger: httpx2.AsyncClient, requests_of: Callable[[str], list[Asking]]) -> None:
        asked, absent = requests_of(tenant), requests_of(nobody)
        seen = await asyncio.gather(*(told(stranger, each, tenant) for each in asked))
        expected = await asyncio.gather(*(told(stranger, each, nobody) for each in absent))
        for asking, existing, missing in zip(asked, seen, expected, strict=True):
            assert existing == missing, asking
            assert not any(word in existing[-1] for word in ("secret", "bash")), asking

    await compare(await api.with_token("ann", Role.ADMIN, tenant="evil"), asked_of)
    for other in (f"{tenant}2", tenant[:-1], tenant.upper()):
        stranger = await api.with_token("ann", Role.ADMIN, tenant=other)
        await compare(stranger, read_of)
        lists = {
            "/v1/runs?tasks=true": "runs",
            "/v1/chats?tasks=true": "chats",
            "/v1/inbox": "waiting",
            "/v1/costs": "groups",
        }
        for path, listed in lists.items():
            assert (await stranger.get(path)).json()[listed] == [], (other, path)
    assert (await api.http.get(f"/v1/runs/{run_id}")).json()["status"] == "waiting_for_approval"
    said = (await api.http.get("/v1/chats/plan/messages", params=anns)).json()["messages"]
    assert [each["content"] for each in said if each["role"] == "user"] == ["the secret question"]
    await api.http.post(f"/v1/runs/{run_id}/abort")
    await api.result(run_id)
