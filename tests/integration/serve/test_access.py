"""Who may do what over HTTP: every role on every route, tenants, and tokens that end."""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import httpx2
import pytest
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher

from loom.serve.access.roles import Role
from loom.serve.app import CODEC, PUBLIC, build_app
from loom.serve.faces.mcp_server import PATH as MCP
from loom.serve.routes.caller import ROLE
from loom.testing.model_server import ToolUse, calls, script, text
from tests.archives import member, tar
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
NEEDED_OVER_A2A: Final = {
    **dict.fromkeys(JsonRpcDispatcher.METHOD_TO_MODEL, Role.VIEWER),
    "SendMessage": Role.OPERATOR,
    "SendStreamingMessage": Role.OPERATOR,
    "CancelTask": Role.OPERATOR,
    "SendMessage to approve": Role.APPROVER,
    "SendMessage to deny": Role.APPROVER,
}
"""The least role for each method of A2A."""
NAMES: Final = {"artifact_id": "none", "agent": "default", "session": "none", "message_id": "none", "path": "none"}
"""The other parameters of paths."""
ELSEWHERE: Final = {MCP: "test_mcp_server.py", CODEC: "test_codec.py", "": "test_page.py"}
"""Routes that the schema doesn't describe, and the files that test who may use them."""


def paths_of(routes: Iterable[Any]) -> Iterator[str]:
    """The paths of routes, and of those in the routers among them."""
    for route in routes:
        if (included := getattr(route, "original_router", None)) is not None:
            yield from paths_of(included.routes)
        else:
            yield route.path.replace(":path}", "}")


def test_no_route_is_left_out_of_the_tests_of_access() -> None:
    client = SimpleNamespace(temporal=SimpleNamespace(data_converter=SimpleNamespace(payload_codec=object())))
    service: Any = SimpleNamespace(settings=SimpleNamespace(serve_origins=()), client=client)
    app = build_app(service, SimpleNamespace())
    described = app.openapi()["paths"]
    assert set(paths_of(app.routes)) == {*described, *ELSEWHERE, "/openapi.json"}
    without_role = {path for path, methods in described.items() if any(ROLE not in what for what in methods.values())}
    assert without_role == PUBLIC - {"/openapi.json"}


def test_no_body_says_who_sends_it() -> None:
    client = SimpleNamespace(temporal=SimpleNamespace(data_converter=SimpleNamespace(payload_codec=None)))
    service: Any = SimpleNamespace(settings=SimpleNamespace(serve_origins=()), client=client)
    schema = build_app(service, SimpleNamespace()).openapi()
    found = 0
    for path, methods in schema["paths"].items():
        for method, what in methods.items():
            said = {"by", "name", "user"} & {each["name"] for each in what.get("parameters", ())}
            assert not said or method == "get", (method, path)  # `by` of costs says how they are grouped
            for name in re.findall(r"#/components/schemas/([\w.-]+)", str(what.get("requestBody"))):
                body = schema["components"]["schemas"][name]
                is_own = not path.endswith("/agui")  # whose fields are those of the protocol
                assert "by" not in body["properties"], name
                assert body.get("additionalProperties") is False or not is_own, name
                found += 1
    assert found >= 10


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
    assert await refusals_over_a2a(people, run_id) == {
        (method, role): not role.includes(needed) for method, needed in NEEDED_OVER_A2A.items() for role in Role
    }
    found = await operations(api)
    for method, path, what in found:
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
    for method, path, what in found:
        if "{run_id}" in path or (method == "get" and "{session}" in path):
            place, body = path.format(run_id="never", **NAMES), BODIES.get(what["operationId"])
            answer = await people[Role.ADMIN].request(method.upper(), place, json=body)
            assert (answer.status_code, answer.json()["title"]) == (404, "RunNotFoundError"), (method, path)
            assert "`loom " not in answer.json()["detail"], "that is advice for the command line"
    missing = await people[Role.ADMIN].get(f"/v1/runs/{run_id}/artifacts/none")
    assert (missing.status_code, missing.json()["title"]) == (404, "ArtifactNotFoundError")


async def refusals_over_a2a(people: Mapping[Role, httpx2.AsyncClient], run_id: str) -> dict[tuple[str, Role], bool]:
    """Which methods refuse which roles, for the run's pending call and for an empty task."""

    def message(said: Any, **more: str) -> Any:
        return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [said], **more}}

    decisions = [{"data": {"approved": each, "call_id": "never"}} for each in (True, False)]
    params: dict[str, Any] = {
        **{method: {"id": "never", "taskId": "never"} for method in JsonRpcDispatcher.METHOD_TO_MODEL},
        "SendMessage": message({"text": " "}),
        "SendStreamingMessage": message({"text": " "}),
        "SendMessage to approve": message(decisions[0], taskId=run_id),
        "SendMessage to deny": message(decisions[1], taskId=run_id),
    }
    refused = {}
    for name, given in params.items():
        body = {"jsonrpc": "2.0", "id": 1, "method": name.split()[0], "params": given}
        for role, http in people.items():
            answer = await http.post("/v1/agents/default/a2a", json=body, headers={"A2A-Version": "1.0"})
            assert "error" in answer.json() or answer.status_code == 403, (name, answer.text)
            refused[name, role] = answer.status_code == 403 and "needed" in answer.json()
    return refused


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
        ({"workspace": {"git": "https://git.example/app", "push": "fix"}}, "workspace.push"),
    ],
)
async def test_an_operator_gives_no_run_more_rights_than_its_agent_has(
    serving: Serving, given: dict[str, Any], field: str
) -> None:
    api = await serving(script([text("done")]))
    http = await api.with_token("ann", Role.OPERATOR)
    answer = await http.post("/v1/runs", json={"task": "x", **given})
    assert (answer.status_code, answer.json()["title"], answer.json()["field"]) == (403, "AccessDeniedError", field)


async def test_an_operator_of_a_tenant_starts_a_run_on_a_large_archive(serving: Serving) -> None:
    api = await serving(script([text("done")]))
    http = await api.with_token("ann", Role.OPERATOR, tenant="acme")
    content = tar(member("large", Random(1).randbytes(1_500_000)))
    archive = {"data": b64encode(content).decode(), "name": "large.tar"}

    started = await http.post("/v1/runs", json={"task": "x", "workspace": {"archive": archive}})

    assert started.status_code == 201, started.text
    api.loom.started.append(started.json()["run_id"])
    result = await api.result(started.json()["run_id"])
    assert result["workspace"]["archive"] == sha256(content).hexdigest()
    assert result["workspace"]["name"] == "large.tar"


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
