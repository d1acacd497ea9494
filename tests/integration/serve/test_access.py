"""Who may do what over HTTP: every role on every route, tenants, and tokens that end."""

import json
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, Final
from uuid import uuid4

import pytest
from ag_ui.core import ResumeEntry

from loom.serve.access.roles import Role
from loom.serve.app import CODEC, PUBLIC, build_app
from loom.serve.faces.agui import Asked
from loom.serve.faces.mcp_server import PATH as MCP
from loom.serve.routes.caller import ROLE
from loom.testing.model_server import ToolUse, calls, script, text
from tests.integration.serve.conftest import Serving
from tests.integration.serve.served import Served

WRITE = calls(ToolUse("write_file", {"path": "a.txt", "content": "new\n"}))
BODIES: dict[str, Any] = {
    "start_run": {"task": "do it", "workspace": "/nowhere"},
    "fork_run": {"turn": 99},
    "send_message": {"text": "hello"},
    "agui_run": {"threadId": "t", "runId": "r", "messages": []},
    "a2a_request": {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {}},
    "set_permissions": {"rules": {"bash": "deny"}},
    "send_chat_message": {"text": "hello", "workspace": "/nowhere"},
}
"""Valid bodies that change nothing that later requests need. Other routes need none."""
NAMES: Final = {"artifact_id": "none", "agent": "default", "session": "none", "message_id": "none"}
"""The other parameters of paths."""
ELSEWHERE: Final = {MCP: "test_mcp_server.py", CODEC: "test_codec.py", "": "test_page.py"}
"""Routes that the schema doesn't describe, and the files that test who may use them."""


def paths_of(routes: Iterable[Any]) -> Iterator[str]:
    """The paths of routes, and of those in the routers among them."""
    for route in routes:
        if (included := getattr(route, "original_router", None)) is not None:
            yield from paths_of(included.routes)
        else:
            yield route.path


def test_no_route_is_left_out_of_the_tests_of_access() -> None:
    client = SimpleNamespace(temporal=SimpleNamespace(data_converter=SimpleNamespace(payload_codec=object())))
    service: Any = SimpleNamespace(settings=SimpleNamespace(serve_origins=()), client=client)
    app = build_app(service, SimpleNamespace())
    described = app.openapi()["paths"]
    assert set(paths_of(app.routes)) == {*described, *ELSEWHERE, "/openapi.json"}
    without_role = {path for path, methods in described.items() if any(ROLE not in what for what in methods.values())}
    assert without_role == PUBLIC - {"/openapi.json"}


async def operations(api: Served) -> list[tuple[str, str, Any]]:
    """All routes of the API's own schema that need a token: method, path, and what the schema says."""
    schema = (await api.http.get("/openapi.json")).json()
    each = [(method, path, what) for path, methods in schema["paths"].items() for method, what in methods.items()]
    return [(method, path, what) for method, path, what in each if path not in PUBLIC]


async def test_every_route_refuses_every_role_below_its_own_and_nobody_else(serving: Serving) -> None:
    api = await serving(script([WRITE, text("done")], repeat_last=True))
    run_id = await api.start(permissions={"write_file": "ask"})
    await api.asked(run_id)
    refused, expected = {}, {}
    people = {role: await api.with_token("ann", role) for role in Role}
    for method, path, what in await operations(api):
        needed = Role(what[ROLE])
        for role, http in people.items():
            place = path.format(run_id=run_id, **NAMES)
            async with http.stream(method.upper(), place, json=BODIES.get(what["operationId"])) as answer:
                assert answer.status_code < 500, (method, path, await answer.aread())
                is_refused = answer.status_code == 403
                refused[method, path, role] = is_refused and "needed" in json.loads(await answer.aread())
            expected[method, path, role] = not role.includes(needed)
        anonymous = await api.anonymous.request(method.upper(), path.format(run_id=run_id, **NAMES))
        assert (anonymous.status_code, anonymous.headers["www-authenticate"]) == (401, "Bearer"), path
    assert refused == expected


def agui_answers(run_id: str) -> list[dict[str, Any]]:
    """AG-UI runs that answer what the run asks."""
    common: dict[str, Any] = {"run_id": run_id, "after": 0, "digest": None, "shown_as": None}
    asked = (Asked(call_id="call_1", **common), {"approved": True}), (Asked(call_id=None, **common), "yes")
    entries = [ResumeEntry(interrupt_id=each.id, status="resolved", payload=payload) for each, payload in asked]
    return [
        {"threadId": "t", "runId": "r", "messages": [], "resume": [entry.model_dump(mode="json", by_alias=True)]}
        for entry in entries
    ]


async def test_no_path_leads_out_of_the_folders_for_workspaces(serving: Serving) -> None:
    api = await serving(script([text("done")], repeat_last=True))
    inside = api.loom.workspace
    (inside / "link").symlink_to(inside.parent)
    operator = await api.with_token("ann", Role.OPERATOR)
    run_id = await api.start()
    await api.result(run_id)
    for workspace in (inside.parent, f"{inside}/..", f"{inside}/../{inside.name}", inside / "link", ".", "~/..", "/\0"):
        body = {"task": "x", "workspace": str(workspace)}
        assert (await operator.post("/v1/runs", json=body)).status_code == 422, workspace
        fork = {"turn": 0, "workspace": str(workspace)}
        assert (await operator.post(f"/v1/runs/{run_id}/fork", json=fork)).status_code == 422, workspace


async def test_an_operator_forks_no_run_that_has_more_rights_than_its_agent(serving: Serving) -> None:
    api = await serving(script([text("done")], repeat_last=True))
    operator = await api.with_token("ann", Role.OPERATOR)
    plain, entitled = await api.start(), await api.start(permissions={"bash": "allow"})
    for run_id in (plain, entitled):
        await api.result(run_id)
    again = {"turn": 0}
    assert (await operator.post(f"/v1/runs/{entitled}/fork", json=again)).status_code == 403
    unmentioned = {"task": "x", "forked_from": {"run_id": entitled, "turn": 0}}
    assert (await operator.post("/v1/runs", json=unmentioned)).status_code == 403
    for who, run_id in ((operator, plain), (api.http, entitled)):
        answer = await who.post(f"/v1/runs/{run_id}/fork", json=again)
        assert answer.status_code == 201, answer.text
        await api.result(answer.json()["run_id"])


async def test_a_token_of_one_tenant_sees_nothing_of_another(serving: Serving) -> None:
    api = await serving(script([WRITE, text("done")], repeat_last=True))
    secret, tenant = "the plan of acme", f"acme-{uuid4().hex[:8]}"  # other tests have runs of `acme`
    run_id = await api.start(secret, permissions={"write_file": "ask"}, tenant=tenant, run_id=f"{tenant}:plan")
    await api.asked(run_id)
    stranger = await api.with_token("eve", Role.ADMIN, tenant="evil")
    owner = await api.with_token("ann", Role.VIEWER, tenant=tenant)
    told = []
    for method, path, what in await operations(api):
        place = path.format(run_id=run_id, **NAMES)
        absent = path.format(run_id=f"{tenant}:never", **NAMES)
        body = BODIES.get(what["operationId"])
        answer = await stranger.request(method.upper(), place, json=body)
        told.append(answer.text)
        if "{run_id}" in path:
            other = await stranger.request(method.upper(), absent, json=body)
            assert answer.status_code == other.status_code == 404, (path, answer.text)
            assert answer.text.replace(run_id, f"{tenant}:never") == other.text
    listed = await stranger.get("/v1/runs", params={"tenant": tenant})
    told += [listed.text, (await stranger.get("/v1/runs", params={"below": run_id})).text]
    told.append((await stranger.post("/v1/runs", json={"task": "x", "run_id": run_id})).text)
    forked = {"task": "x", "forked_from": {"run_id": run_id, "turn": 0}}
    told.append((await stranger.post("/v1/runs", json=forked)).text)
    told += [(await stranger.post("/v1/agents/default/agui", json=answer)).text for answer in agui_answers(run_id)]
    assert not [text for text in told if secret in text or "a.txt" in text]
    assert listed.json() == {"runs": [], "next": None}
    assert [run["run_id"] for run in (await owner.get("/v1/runs")).json()["runs"]] == [run_id]
    assert (await owner.get(f"/v1/runs/{run_id}")).json()["tenant"] == tenant
    assert [each["run_id"] for each in (await owner.get("/v1/approvals")).json()["waiting"]] == [run_id]


async def test_a_run_that_a_tenant_starts_is_its_own(serving: Serving) -> None:
    api = await serving(script([text("done")]))
    http = await api.with_token("ann", Role.OPERATOR, tenant="acme")
    refused = await http.post("/v1/runs", json={"task": "x", "tenant": "other"})
    assert (refused.status_code, refused.json()["field"]) == (403, "tenant")
    refused = await http.post("/v1/runs", json={"task": "x", "run_id": "plan"})
    assert (refused.status_code, refused.json()["field"]) == (422, "run_id")
    started = await http.post("/v1/runs", json={"task": "x", "run_id": "acme:mine", "session_id": "s"})
    run_id = started.json()["run_id"]
    api.loom.started.append(run_id)
    await api.result(run_id)
    assert (await http.get(f"/v1/runs/{run_id}")).json()["tenant"] == "acme"
    assert await api.loom.client.started_by(run_id) == "ann"
    found = (await http.get("/v1/runs", params={"session": "s"})).json()["runs"]
    assert [(run["run_id"], run["session"]) for run in found] == [(run_id, "s")]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"permissions": {"bash": "allow"}}, "permissions.bash"),
        ({"permissions": {"bash": "ask"}}, "permissions.bash"),
        ({"mode": "accept-edits"}, "mode"),
        ({"crew": {"name": "c", "members": []}}, "crew"),
    ],
)
async def test_an_operator_gives_no_run_more_rights_than_its_agent_has(
    serving: Serving, given: dict[str, Any], field: str
) -> None:
    api = await serving(script([text("done")]))
    http = await api.with_token("ann", Role.OPERATOR)
    answer = await http.post("/v1/runs", json={"task": "x", **given})
    assert (answer.status_code, answer.json()["title"], answer.json()["field"]) == (403, "AccessDeniedError", field)


async def test_the_first_token_closes_a_service_that_was_open(serving: Serving) -> None:
    api = await serving(script([text("done")]), has_tokens=False)
    assert (await api.anonymous.get("/v1/runs")).status_code == 200
    foreign = await api.anonymous.get("/v1/runs", headers={"Origin": "https://evil.example"})
    assert (foreign.status_code, foreign.json()["title"]) == (403, "AccessDeniedError")
    rebound = await api.anonymous.get("/v1/runs", headers={"Host": "evil.example"})
    assert rebound.status_code == 403
    viewer = await api.with_token("ann", Role.VIEWER)
    assert (await api.anonymous.get("/v1/runs")).status_code == 401
    assert (await viewer.get("/v1/runs")).status_code == 200
    assert (await api.anonymous.get("/healthz")).json() == {"ok": True}
