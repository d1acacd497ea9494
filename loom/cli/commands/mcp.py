"""The `mcp` commands: sign in at MCP servers, and serve Loom as one."""

import asyncio
import os
import webbrowser
from typing import Annotated

import typer

from loom.cli.arguments import new_app
from loom.cli.output import print_notice
from loom.composition.load_settings import load_settings
from loom.composition.logs import configure_logs
from loom.composition.secret_mask import secret_mask
from loom.domain.core.errors import BadRequest
from loom.domain.core.suggestions import nearest
from loom.domain.tools.mcp_servers import read_servers

app = new_app("mcp", "Sign in at MCP servers, and serve Loom as one.")


@app.command()
def login(
    name: Annotated[str, typer.Argument(metavar="SERVER", help="Name of the server in loom.toml.")],
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the address in a browser.")] = True,
) -> None:
    """Sign in at a server over HTTP that requires OAuth. Workers with this LOOM_HOME then use the sign-in."""
    settings = load_settings()
    servers = {server.name: server for server in read_servers(settings.mcp)}
    if (server := servers.get(name)) is None:
        hint = nearest(name, servers, f"known: {', '.join(servers) or 'none'}")
        raise BadRequest(f"loom.toml has no MCP server {name!r}; {hint}", field=f"mcp.{name}")

    async def show(address: str) -> None:
        print_notice(f"Sign in at {address}")
        if browser:
            await asyncio.to_thread(webbrowser.open, address)

    from loom.activities.adapters.mcp.login import sign_in  # noqa: PLC0415 - importing the library takes a second

    tools = asyncio.run(sign_in(server, os.environ, settings.home, show))
    print_notice(f"Signed in: {name} lists {tools} tools.")


@app.command()
def serve(
    http: Annotated[
        bool, typer.Option("--http", help="Serve streamable HTTP at /mcp instead, as `loom serve` does.")
    ] = False,
    host: Annotated[str, typer.Option(help="With --http: the address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --http: the port. 0: any free port.")] = 8000,
) -> None:
    """Serve Loom as an MCP server, whose tools start, follow and control runs.

    Over stdin and stdout, the client that starts this command has the rights that you have on the command line.
    Over HTTP, callers need a token (`loom tokens add`), and the service also serves the HTTP API.
    """
    from loom.serve import server  # noqa: PLC0415 - not for `login`: importing the service takes a second

    settings = load_settings()
    configure_logs(settings.log_level, settings.log_format, secret_mask(settings).redact)
    if http:
        asyncio.run(server.serve(settings, host=host, port=port, insecure=False))
    else:
        asyncio.run(server.serve_mcp_over_stdio(settings))
