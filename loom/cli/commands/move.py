"""The `move` command, which moves runs from an embedded stack to the configured server."""

from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from loom.cli.arguments import Json, local_path, new_app
from loom.cli.connection import with_client
from loom.cli.output import one_line, print_json
from loom.client import LoomClient
from loom.composition.live_workers import live_pollers
from loom.composition.load_settings import load_settings
from loom.composition.settings import Settings
from loom.composition.temporal_connection import connected
from loom.doctor import with_addresses_of
from loom.domain.core.errors import BadRequest
from loom.exit_codes import FAILED
from loom.run_move import MovedRunReport, RunMove
from loom.stack import state as stack_state
from loom.stack.state import own_addresses

app = new_app()


@app.command()
def move(
    source: Annotated[
        Path, typer.Option("--from", metavar="DIR", help="The .loom folder of the stack that the runs are on.")
    ],
    run_id: Annotated[str | None, typer.Argument(metavar="RUN", help="One run. By default, all of them.")] = None,
    as_json: Json = False,
) -> None:
    """Move waiting runs from an embedded stack to the configured server.

    A run keeps its id, its conversation, its pending approvals and what it has spent. The stack must be up without a
    worker: `loom up --no-worker`. Copy its database first. Exit code 1: at least one run couldn't be moved.
    """
    settings = load_settings()
    old = _settings_of(source, settings)
    if "temporal_address" not in settings.model_fields_set or old.temporal_address == settings.temporal_address:
        raise BadRequest("set TEMPORAL_ADDRESS to the server that the runs move to", field="TEMPORAL_ADDRESS")
    reports = with_client(lambda loom: _moved(loom, settings, old, run_id), settings)
    if as_json:
        print_json([asdict(report) for report in reports])
    else:
        for report in reports:
            what = f"moved, waiting on {report.waiting_on}" if report.moved else f"not moved: {report.reason}"
            typer.echo(f"{one_line(report.run_id)}: {one_line(what)}")
    if any(not report.moved for report in reports):
        raise typer.Exit(FAILED)


def _settings_of(folder: Path, settings: Settings) -> Settings:
    """Return the settings of the stack in a folder. Raises BadRequest if none is running there."""
    home = local_path(folder, "--from")
    found = own_addresses(home)
    if missing := [part for part in ("temporal", "postgres", "redis") if part not in found]:
        raise BadRequest(
            f"--from: no {missing[0]} is running in {home}: run `LOOM_HOME={home} loom up --no-worker --detach`",
            field="--from",
        )
    old = with_addresses_of(settings, stack_state.read(home))
    return old.model_copy(update={"home": home, "signing_key": None, "temporal_namespace": "default"})


async def _moved(loom: LoomClient, settings: Settings, old: Settings, run_id: str | None) -> list[MovedRunReport]:
    async with connected(old) as source:
        if await live_pollers(source, settings.task_queue):
            raise BadRequest(
                "a worker of the old stack is running, so its runs may continue: run `loom down`, and then"
                " `loom up --no-worker`",
                field="--from",
            )
        moving = RunMove(source, loom.temporal, task_queue=settings.task_queue, address=settings.temporal_address)
        if run_id is not None:
            return [await moving.one(run_id)]
        async with aclosing(moving.all()) as reports:
            return [report async for report in reports]
