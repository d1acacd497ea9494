"""OAuth at MCP servers over HTTP: the tokens of a worker, and the sign-in of a person."""

import json
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from loom.activities.adapters.mcp.login import sign_in
from loom.domain.core.errors import BadRequest, UnreachableError
from loom.domain.tools.mcp_servers import McpServer, OAuth, read_servers
from loom.testing.waiting import eventually
from tests.integration.activities.test_mcp import TESTS, Http, call, connect, serving, until, until_available

GUARDED = (sys.executable, str(TESTS / "mcp_oauth_server.py"), "PORT")
SECRET: Mapping[str, str] = {"ROBOT": "r0b0t-s3cret"}


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Http]:
    """A server with a tool for those who are signed in."""
    diary = tmp_path / "diary"
    diary.touch()
    async with serving(Http(*GUARDED, str(diary), diary=diary)) as web:
        yield web


def grants(web: Http) -> list[str]:
    """The grants for which the server has given tokens."""
    return web.diary.read_text().splitlines()


async def listening(web: Http) -> None:
    """Wait until the server answers."""

    async def look() -> bool:
        async with httpx2.AsyncClient() as client:
            try:
                return (await client.get(f"http://127.0.0.1:{web.port}/mcp")).status_code == 401
            except httpx2.HTTPError:
                return False

    await eventually(look)


def robot(web: Http, secret: str) -> McpServer:
    """The server, for a worker with its own tokens."""
    issuer = f"http://127.0.0.1:{web.port}"
    return web.server(oauth=OAuth(client_id="robot", client_secret=secret, issuer=issuer))


async def browse(address: str) -> None:
    """What a person's browser does."""
    async with httpx2.AsyncClient(follow_redirects=True) as client:
        page = await client.get(address)
        assert page.text == "You are signed in, and can close this page."


async def test_a_worker_with_a_secret_gets_its_own_tokens(guarded: Http) -> None:
    async with connect(robot(guarded, "${ROBOT}"), environment=SECRET) as servers:
        await until_available(servers, "mcp__web__secret")
        assert (await call(servers, "mcp__web__secret")).text == "42"
    assert set(grants(guarded)) == {"client_credentials"}


async def test_a_wrong_secret_is_a_problem_of_the_server_that_does_not_show_it(guarded: Http) -> None:
    await listening(guarded)
    async with connect(robot(guarded, "${ROBOT}"), environment={"ROBOT": "wr0ng-s3cret"}) as servers:
        await until(lambda: "invalid_client" in str(servers.report()))
        assert "wr0ng-s3cret" not in str(servers.report())


async def test_a_person_signs_in_and_workers_use_and_renew_the_sign_in(guarded: Http, tmp_path: Path) -> None:
    await listening(guarded)
    server = guarded.server(oauth=OAuth())
    async with connect(server, home=tmp_path) as servers:
        await until(lambda: "run `loom mcp login web`" in str(servers.report()))

    assert await sign_in(server, {}, tmp_path, browse) == 1
    stored = tmp_path / "mcp" / "web.oauth.json"
    assert stored.stat().st_mode & 0o077 == 0

    async with connect(server, home=tmp_path) as servers:
        await until_available(servers, "mcp__web__secret")
        assert (await call(servers, "mcp__web__secret")).text == "42"
    assert grants(guarded) == ["authorization_code"]

    kept = json.loads(stored.read_text())
    stored.write_text(json.dumps({**kept, "expires_at": kept["expires_at"] - 7200}))
    async with connect(server, home=tmp_path) as servers:
        await until_available(servers, "mcp__web__secret")
        assert (await call(servers, "mcp__web__secret")).text == "42"
    assert grants(guarded) == ["authorization_code", "refresh_token"]
    assert json.loads(stored.read_text())["expires_at"] > kept["expires_at"] - 7200


async def test_a_sign_in_is_for_one_address_only(guarded: Http, tmp_path: Path) -> None:
    await listening(guarded)
    await sign_in(guarded.server(oauth=OAuth()), {}, tmp_path, browse)
    other = McpServer(name="web", url=f"http://localhost:{guarded.port}/mcp", oauth=OAuth())
    async with connect(other, home=tmp_path) as servers:
        await until(lambda: "web" in servers.report() and not servers.report()["web"]["ok"])
        assert "does not match expected" in str(servers.report()["web"]["hint"])


async def test_a_sign_in_that_is_refused_or_not_possible_says_so(guarded: Http, tmp_path: Path) -> None:
    await listening(guarded)

    async def refuse(address: str) -> None:
        back = dict(pair.split("=", 1) for pair in urlsplit(address).query.split("&"))["redirect_uri"]
        async with httpx2.AsyncClient() as client:
            await client.get(httpx2.URL(back.replace("%3A", ":").replace("%2F", "/")), params={"error": "denied"})

    with pytest.raises(UnreachableError, match="refused: denied"):
        await sign_in(guarded.server(oauth=OAuth()), {}, tmp_path, refuse)
    with pytest.raises(BadRequest, match="nobody signs in"):
        await sign_in(guarded.server(), {}, tmp_path, browse)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"command": "x", "oauth": {}}, "`oauth` is for servers with `url`"),
        ({"url": "http://x", "oauth": {"client_secret": "s"}}, "needs `client_id` and `issuer`"),
        ({"url": "http://x", "oauth": {"client_id": "s"}}, "needs `client_secret`"),
        ({"url": "http://x", "oauth": {"who": "s"}}, "a table of strings: client_id"),
        ({"url": "http://x", "oauth": {}, "headers": {"authorization": "s"}}, "either `oauth` or the header"),
    ],
)
def test_a_table_that_cannot_work_is_refused(table: dict[str, object], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        read_servers({"web": table})
