"""Requests of strangers, and of callers who mean harm: refused, whole, and without a trace of anything else."""

import asyncio
from typing import Final
from urllib.parse import quote

import pytest

from loom.serve import connections
from loom.serve.access.roles import Role
from loom.serve.app import LARGEST_BODY, PUBLIC
from loom.testing.model_server import script, text
from tests.integration.serve.conftest import Serving
from tests.integration.serve.served import Served

UI: Final = "https://ui.example"
EVIL: Final = "https://evil.example"
POSTED: Final = ("/v1/runs", "/v1/agents/default/agui", "/v1/agents/default/a2a", "/mcp")
"""Where bodies are parsed, by four libraries."""
ROUNDABOUT: Final = (
    "/v1/runs",
    "//v1/runs",
    "/healthz/../v1/runs",
    "/healthz%2f..%2fv1/runs",
    "/%2e%2e/v1/runs",
    "/healthz/",
    "/app.js/../v1/runs",
    "/app.js%00",
    "/..%2f..%2fapp.py",
)
"""Paths that look public to a careless reader."""


async def status_of(api: Served, request: bytes) -> int:
    """Send bytes, which no client library has improved, and return the status of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rpartition(":")[2]))
    writer.write(request)
    answer = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    return int(answer.split()[1])


async def test_a_stranger_reaches_nothing_but_what_is_public(serving: Serving) -> None:
    api = await serving(script([text("done")]), serve_origins=(UI,))
    described = (await api.anonymous.get("/openapi.json")).json()["paths"]
    for path in {*described, "/mcp", "/codec/decode", "/nothing"} - PUBLIC:
        for method in ("OPTIONS", "HEAD", "BREW"):
            assert (await api.anonymous.request(method, path)).status_code == 401, (method, path)
    for path in ROUNDABOUT:
        assert await status_of(api, f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()) in {400, 401}, path
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for origin, is_known in ((UI, True), (EVIL, False), ("null", False)):
        for answer in (
            await api.anonymous.options("/v1/runs", headers={"Origin": origin, **asked}),
            await api.http.get("/v1/runs", headers={"Origin": origin}),
        ):
            assert (answer.headers.get("access-control-allow-origin") == origin) is is_known, answer.request
            assert "access-control-allow-credentials" not in answer.headers
            assert "set-cookie" not in answer.headers


async def test_hostile_requests_of_a_caller_are_refused(serving: Serving) -> None:
    api = await serving(script([text("done")], repeat_last=True))
    eve = await api.with_token("eve", Role.ADMIN, tenant="evil")
    run_id = await api.start("the plan of acme")
    await api.result(run_id)
    json = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "A2A-Version": "1.0"}
    for path in POSTED:
        for body in (b"[" * 100_000, b'{"task": ' * 50_000, b"\xff", b'{"task": "\\ud800"}', b"9" * 50_000):
            answer = await eve.post(path, content=body, headers=json)
            assert answer.status_code < 500, (path, body[:9])
            assert "result" not in answer.text, (path, body[:9])
        token = eve.headers["authorization"]
        large = f"POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: {token}\r\nContent-Length: {LARGEST_BODY + 1}\r\n"
        told = "".join(f"{name}: {value}\r\n" for name, value in json.items())
        assert await status_of(api, f"{large}{told}\r\n".encode()) == 413, path

    for budget in ({"tokens": 10**400}, {"cost_usd": 1e308}, {"tool_calls": 10**301}):
        answer = await eve.post("/v1/runs", json={"task": "x", "budget": budget, "run_id": "evil:large"})
        assert (answer.status_code, answer.json()["field"]) == (422, f"budget.{next(iter(budget))}"), answer.text

    work = {"task": "x", "workspace": str(api.loom.workspace)}
    injected = await eve.post("/v1/runs", json={**work, "run_id": "evil:x\r\nSet-Cookie: a=b"})
    assert (injected.status_code, injected.json()["field"]) == (422, "run_id"), injected.text
    started = await eve.post("/v1/runs", json={**work, "run_id": "evil:x; a=b"})
    assert started.status_code == 201, started.text
    own = quote(started.json()["run_id"], safe="")
    assert (await eve.get(f"/v1/runs/{own}/result", params={"wait": 60})).status_code == 200
    for name in ("../" * 5 + "etc/passwd", f"../{run_id}/t1-x", "a\r\nb", "\0", "x" * 900):
        answer = await eve.get(f"/v1/runs/{own}/artifacts/{quote(quote(name, safe=''), safe='')}")
        assert 400 <= answer.status_code < 500, (name, answer.text)
    for last in (run_id, "-1", "1e3", "9" * 40, "1,2"):
        answer = await eve.get(f"/v1/runs/{own}/events", headers={"Last-Event-ID": last})
        assert (answer.status_code, answer.json()["field"]) == (422, "Last-Event-ID"), last


async def test_a_stranger_holds_no_connection_without_a_request(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends a byte now and then, so that the connection doesn't look idle."""
    monkeypatch.setattr(connections, "REQUEST_WITHIN", 0.5)
    api = await serving(script([]))

    async def hold(begin: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(api.url.rpartition(":")[2]))
        writer.write(begin)
        reading = asyncio.create_task(reader.read())
        while not (await asyncio.wait({reading}, timeout=0.1))[0]:
            writer.write(b"x")
        writer.close()

    post = b"POST /v1/runs HTTP/1.1\r\nHost: a\r\nContent-Length: 999\r\n\r\n"
    async with asyncio.timeout(10):
        await asyncio.gather(hold(b""), hold(b"GET /healthz HTTP/1.1\r\nHost: a\r\nA: "), hold(post))


async def test_an_mcp_client_holds_no_streams_on_which_nothing_is_sent(serving: Serving) -> None:
    api = await serving(script([text("done")]))
    answer = await api.http.get("/mcp", headers={"Accept": "text/event-stream"})
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["title"] == "MethodNotAllowed"
    version = "2026-07-28"
    meta = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientInfo": {"name": "eve", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"_meta": meta, "notifications": {"toolsListChanged": True}}
    listen = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": version,
        "Mcp-Method": "subscriptions/listen",
    }
    answer = await asyncio.wait_for(api.http.post("/mcp", json=listen, headers=headers), 10)
    assert answer.json()["error"]["message"] == "Method not found", answer.text


async def test_no_redirect_tells_a_client_to_send_its_token_elsewhere(serving: Serving) -> None:
    api = await serving(script([text("done")]))
    for path in ("/v1/runs/", "/v1/runs/x/", "/v1/runs/%0Ax/", "/mcp/", "/v1/agents/default/a2a/"):
        answer = await api.http.get(path, headers={"Host": "evil.example"})
        assert (answer.status_code, answer.headers.get("location")) == (404, None), path


async def test_without_tokens_pages_of_other_sites_get_nothing(serving: Serving) -> None:
    """A page may load anything as an image or a script. Such requests name no origin."""
    api = await serving(script([text("done")]), has_tokens=False, serve_origins=(UI,))
    for site, origin, expected in (
        ("cross-site", None, 403),
        ("same-site", None, 403),
        ("same-origin", None, 200),
        ("none", None, 200),
        ("cross-site", UI, 200),
        ("cross-site", EVIL, 403),
        ("same-site", "http://127.0.0.1:1", 403),
    ):
        headers = {"Sec-Fetch-Site": site, **({"Origin": origin} if origin else {})}
        answer = await api.http.get("/v1/runs", headers=headers)
        assert answer.status_code == expected, (site, origin, answer.text)
