"""Sign a person in at an MCP server: open the authorization server in a browser, and wait for the browser to return."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult

from loom.activities.adapters.mcp.error_text import readable
from loom.activities.adapters.mcp.http_client import http_client
from loom.activities.adapters.mcp.oauth import SignInFile, signing_in
from loom.domain.core.errors import BadRequest, LoomError, UnreachableError
from loom.domain.tools.mcp_servers import McpServer

PATIENCE: Final = 300.0
"""Seconds that a person has to sign in."""
_PAGE: Final = b"You are signed in, and can close this page."


async def sign_in(
    server: McpServer, environment: Mapping[str, str], home: Path, show: Callable[[str], Awaitable[None]]
) -> int:
    """Sign a person in, store the tokens, and return the number of tools that the server then lists.

    `show` receives the address to open in a browser. Raises BadRequest if nobody can sign in at this server, and
    UnreachableError if signing in fails.
    """
    if server.oauth is None or server.oauth.client_secret:
        raise BadRequest(f"nobody signs in at mcp.{server.name}: set `oauth = {{}}`, without a client_secret")
    file = SignInFile(home, server)
    file.clear()  # an earlier registration of Loom has another address to return to
    async with _redirects() as (address, came_back):
        auth = signing_in(server, home, address, opened=show, came_back=came_back)
        try:
            async with (
                asyncio.timeout(PATIENCE),
                http_client(server, environment, lambda _status: None, auth) as http,
                Client(streamable_http_client(server.url, http_client=http), cache=None) as client,
            ):
                tools = len((await client.list_tools()).tools)
        except LoomError:
            raise
        except Exception as error:  # noqa: BLE001 - a server or a library may fail in any way
            raise UnreachableError(f"the sign-in at {server.url} failed: {readable(error)}") from None
    if file.stored.tokens is None:
        raise BadRequest(f"{server.url} lets anyone in: remove `oauth` from mcp.{server.name}")
    return tools


@asynccontextmanager
async def _redirects() -> AsyncIterator[tuple[str, Callable[[], Awaitable[AuthorizationCodeResult]]]]:
    """Listen on a free port of this machine. Yield the address to return to, and a function that waits for it."""
    came: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readline()).decode("latin-1").split(" ")
        given = {name: values[0] for name, values in parse_qs(urlsplit(request[1]).query).items()}
        if "code" in given and not came.done():
            kept = {name: given.get(name) for name in ("state", "iss")}
            came.set_result(AuthorizationCodeResult(code=given["code"], **kept))
        elif "error" in given and not came.done():
            came.set_exception(UnreachableError(f"the authorization server refused: {given['error'][:200]}"))
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: "
        writer.write(head + str(len(_PAGE)).encode() + b"\r\n\r\n" + _PAGE)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]

        async def came_back() -> AuthorizationCodeResult:
            return await came

        yield f"http://127.0.0.1:{port}/callback", came_back
