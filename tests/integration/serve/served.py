"""The HTTP service as a test sees it: over a real socket, with a real HTTP client."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpx2

from loom.composition.settings import Settings
from loom.serve.access.roles import Role
from loom.serve.access.tokens import AccessTokens
from loom.serve.app import build_app
from loom.serve.caller_runs import Service
from loom.serve.server import Server, address_of, bound, callers_of, service_for
from loom.testing.harness import Addresses, Harness, harness
from loom.testing.waiting import eventually
from tests.databases import fresh_database

NO_LIMITS: Final = httpx2.Limits(max_connections=None)
"""A hundred watchers have a hundred connections."""


@dataclass(frozen=True)
class Event:
    """A server-sent event."""

    id: str | None
    type: str
    data: Any


@dataclass
class Served:
    """The service, and the worker behind it."""

    http: httpx2.AsyncClient
    """Somebody who may do everything."""
    anonymous: httpx2.AsyncClient
    loom: Harness
    url: str
    service: Service
    tokens: AccessTokens
    stack: AsyncExitStack
    instance: AsyncExitStack
    """Stops the service."""

    async def move(self) -> None:
        """Stop this instance of the service, and go on at another one."""
        other = AsyncExitStack()
        service, url = await other.enter_async_context(listening_service(self.loom.settings))
        await self.instance.aclose()
        assert service.tokens is not None
        self.instance, self.service, self.tokens, self.url = other, service, service.tokens, url
        self.http.base_url = self.anonymous.base_url = httpx2.URL(url)

    async def with_token(self, name: str, role: Role, *, tenant: str | None = None) -> httpx2.AsyncClient:
        """A client of a person who has this role."""
        _, token = await self.tokens.add(name, role, tenant=tenant, expires_at=None, created_by="a test")
        headers = {"Authorization": f"Bearer {token}"}
        return await self.stack.enter_async_context(
            httpx2.AsyncClient(base_url=self.url, timeout=120, headers=headers, limits=NO_LIMITS)
        )

    async def replica(self) -> httpx2.AsyncClient:
        """The same person at another service, which shares nothing with the first one but the servers behind both."""
        _, url = await self.stack.enter_async_context(listening_service(self.loom.settings))
        headers = {"Authorization": self.http.headers["Authorization"]}
        return await self.stack.enter_async_context(httpx2.AsyncClient(base_url=url, timeout=120, headers=headers))

    async def with_own_tenant(self) -> None:
        """Go on as somebody who sees no runs of other tests."""
        tenant = f"tenant-{uuid4().hex[:8]}"
        self.http = await self.with_token("ann", Role.ADMIN, tenant=tenant)

    async def start(self, task: str = "do it", **request: Any) -> str:
        """Start a run in the test's workspace."""
        answer = await self.http.post("/v1/runs", json={"task": task, "workspace": str(self.loom.workspace), **request})
        assert answer.status_code == 201, answer.text
        run_id: str = answer.json()["run_id"]
        self.loom.started.append(run_id)
        return run_id

    async def result(self, run_id: str) -> Any:
        """Wait for a run's result."""
        answer = await self.http.get(f"/v1/runs/{run_id}/result", params={"wait": 60})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def asked(self, run_id: str) -> Any:
        """Wait until one call of the run waits for a person, and return it."""

        async def look() -> Any:
            waiting = (await self.http.get("/v1/approvals")).json()["waiting"]
            return next((each for each in waiting if each["run_id"] == run_id and each["kind"] == "approval"), None)

        return await eventually(look)

    async def events(self, run_id: str, **how: Any) -> list[Event]:
        """Read a run's events until the response ends."""
        async with self.http.stream("GET", f"/v1/runs/{run_id}/events", **how) as answer:
            assert answer.status_code == 200, await answer.aread()
            return [event async for event in events_in(answer)]


async def events_in(answer: httpx2.Response) -> AsyncIterator[Event]:
    """Parse server-sent events."""
    lines: list[str] = []
    async for line in answer.aiter_lines():
        if line:
            lines.append(line)
        elif lines:
            for event in _parsed(lines):
                yield event
            lines = []


def _parsed(lines: list[str]) -> Iterator[Event]:
    fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
    if "data" in fields:
        yield Event(id=fields.get("id"), type=fields.get("event", "message"), data=json.loads(fields["data"]))


@asynccontextmanager
async def listening_service(
    settings: Settings, *, port: int = 0, stalled_after: float = 60.0
) -> AsyncIterator[tuple[Service, str]]:
    """An instance of the service, and its address."""
    async with service_for(settings) as service:
        with bound("127.0.0.1", port, stalled_after=stalled_after) as listening:
            server = Server(build_app(service, callers_of(service, is_local=True)), service.streams)
            serving = asyncio.create_task(server.serve([listening]))
            try:
                yield service, address_of(listening)
            finally:
                server.stop()
                await serving


@asynccontextmanager
async def served(
    addresses: Addresses,
    workspace: Path,
    script: Any,
    *,
    has_tokens: bool = True,
    port: int = 0,
    stalled_after: float = 60.0,
    **settings: Any,
) -> AsyncIterator[Served]:
    """Serve HTTP beside a worker of its own, with a database of its own, so that the tokens are the test's."""
    async with (
        fresh_database(addresses.database) as url,
        harness(addresses, workspace, script, **{"database_url": url, **settings}) as (loom, _),
        AsyncExitStack() as stack,
    ):
        instance = AsyncExitStack()
        service, base = await instance.enter_async_context(
            listening_service(loom.settings, port=port, stalled_after=stalled_after)
        )
        assert service.tokens is not None
        anonymous = await stack.enter_async_context(httpx2.AsyncClient(base_url=base, timeout=120, limits=NO_LIMITS))
        api = Served(
            http=anonymous,
            anonymous=anonymous,
            loom=loom,
            url=base,
            service=service,
            tokens=service.tokens,
            stack=stack,
            instance=instance,
        )
        try:
            if has_tokens:
                api.http = await api.with_token("root", Role.ADMIN)
            yield api
        finally:
            await stack.aclose()
            await api.instance.aclose()
