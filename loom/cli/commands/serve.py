"""The `serve` command, which runs the HTTP service."""

import asyncio
from typing import Annotated

import typer

from loom.cli.arguments import new_app
from loom.composition.load_settings import load_settings
from loom.composition.logs import configure_logs
from loom.composition.secret_mask import secret_mask
from loom.serve.server import serve as run

app = new_app()


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on. 0: any free port. [default: 8000]")
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="If there are no tokens, give full access to everyone who can reach the address."
        ),
    ] = False,
) -> None:
    """Serve the HTTP API and the web page, until SIGTERM or Ctrl-C.

    Callers need a token (`loom tokens add`). As long as there are no tokens, the service listens only on this machine.
    """
    settings = load_settings()
    chosen = settings.serve_port or 0 if port is None else port
    configure_logs(settings.log_level, settings.log_format, secret_mask(settings).redact)
    asyncio.run(run(settings, host=host, port=chosen, insecure=insecure))
