"""The `mcp` commands, which sign a person in at MCP servers. These commands need no worker."""

import asyncio
import os
import webbrowser
from typing import Annotated

import typer

from loom.cli.arguments import new_app
from loom.cli.output import print_notice
from loom.composition.load_settings import load_settings
from loom.domain.core.errors import BadRequest
from loom.domain.core.suggestions import nearest
from loom.domain.tools.mcp_servers import read_servers

app = new_app("mcp", "Sign in at MCP servers.")


@app.callback()
def group() -> None:
    """Keep this a group of commands while it has only one."""


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
