"""Requests that no route handles, and requests for what a server has that doesn't respond."""

import re
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from loom.composition.settings import Settings
from loom.serve.access.roles import Caller, Role
from loom.serve.app import build_app
from loom.serve.caller_runs import CallerRuns
from loom.serve.faces.mcp_server import PATH as MCP
from loom.serve.problems import MEDIA_TYPE

ADMIN = Caller(name="ann", role=Role.ADMIN)
METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "BREW")


class Everybody:
    """Takes every caller for an admin."""

    async def caller(self, headers: object) -> Caller:
        """See `Authenticator`."""
        del headers
        return ADMIN


class NoServer:
    """The servers as `Readiness` sees them if none responds."""

    async def parts(self) -> dict[str, bool]:
        """See `Readiness`."""
        return {"temporal": False, "redis": False}


@pytest.fixture
def app() -> FastAPI:
    """The service, without any server."""
    client = SimpleNamespace(temporal=SimpleNamespace(data_converter=SimpleNamespace(payload_codec=None)))
    parts = dict.fromkeys(("streams", "approvals", "tasks", "following"))
    settings = Settings(redis_url="redis://127.0.0.1:1")
    audit = SimpleNamespace(refused=lambda *_, **__: None)
    service: Any = SimpleNamespace(client=client, settings=settings, audit=audit, **parts)
    service.runs_for = lambda caller, address: CallerRuns(service, caller, address)
    app = build_app(service, Everybody())
    app.state.readiness = NoServer()
    return app


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the service."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://loom") as http:
        yield http


def filled(path: str) -> str:
    """A path with values for its parameters."""
    return re.sub(r"\{\w+\}", "none", path)


def problem(answer: httpx2.Response) -> tuple[int, str]:
    """The status and the type of a problem."""
    assert answer.headers["content-type"] == MEDIA_TYPE, answer.text
    if answer.request.method != "HEAD":
        assert answer.json()["status"] == answer.status_code
        return answer.status_code, answer.json()["title"]
    return answer.status_code, ""


async def test_every_path_names_all_its_methods_to_whoever_uses_another(app: FastAPI, http: httpx2.AsyncClient) -> None:
    described = app.openapi()["paths"]
    assert any(len(methods) > 1 for methods in described.values())
    for path, methods in {**described, MCP: ("post",), "/": ("get", "head")}.items():
        place = filled(path)
        for method in METHODS:
            if method.lower() not in methods:
                answer = await http.request(method, place)
                assert problem(answer)[0] == 405, (method, path)
                named = answer.headers["allow"].split(", ")
                assert sorted(named) == sorted(map(str.upper, methods)), (method, path)


async def test_nothing_is_at_other_paths(app: FastAPI, http: httpx2.AsyncClient) -> None:
    places = [filled(path) for path in app.openapi()["paths"] if "/files" not in path]  # these take any path
    for place in ("/v1", "/favicon.ico", "/v2/runs", *(f"{place}/x/y/z" for place in places)):
        for method in ("GET", "POST"):
            answer = await http.request(method, place)
            assert problem(answer) == (404, "NotFound"), place
            assert place in answer.json()["detail"]
            assert "allow" not in answer.headers


async def test_what_a_server_has_that_does_not_respond_is_not_said_to_be_nothing(http: httpx2.AsyncClient) -> None:
    for place in ("/v1/agents", "/v1/tools", "/v1/skills"):
        answer = await http.get(place)
        assert problem(answer) == (503, "StreamUnavailable"), place
        assert "Redis" in answer.json()["detail"]
        assert int(answer.headers["retry-after"]) > 0


async def test_a_service_that_is_not_ready_says_when_to_ask_again(http: httpx2.AsyncClient) -> None:
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["ok"], int(answer.headers["retry-after"]) > 0) == (503, False, True)
