"""The `replay` command, which checks before a release that the new code can continue the runs."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer
from temporalio.client import WorkflowHistory
from temporalio.converter import DataConverter

from loom.activities.adapters.postgres.payloads import PostgresPayloads
from loom.cli.arguments import Json, OptionalRunId, new_app
from loom.cli.connection import with_client
from loom.cli.logs import silence
from loom.cli.output import counted, one_line, print_json, print_notice
from loom.cli.run_names import run_named
from loom.client import LoomClient
from loom.composition.encryption import encryption_from
from loom.composition.load_settings import load_settings
from loom.composition.replay import RUNNING, Replay, histories_in, histories_matching, histories_of, replay
from loom.domain.core.errors import BadRequest
from loom.exit_codes import FAILED
from loom.workflows.payload_converter import data_converter

PROGRESS: Final = 100
"""Number of replays between two lines of progress."""

app = new_app()


@app.command(name="replay")
def replay_runs(
    run_id: OptionalRunId = None,
    every: Annotated[bool, typer.Option("--all", help="Replay all runs that are in progress.")] = False,
    query: Annotated[
        str | None, typer.Option(metavar="FILTER", help="Replay the runs that match Temporal's List Filter instead.")
    ] = None,
    file: Annotated[
        list[Path] | None, typer.Option(help="Replay a history in a JSON file, without a server; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that this code can continue runs, by replaying their histories.

    Run this command with the new code before you deploy that code. Exit code 1: at least one history can't be replayed.
    """
    if (run_id is not None) + (every or query is not None) + bool(file) != 1:
        raise BadRequest("give one of RUN, --all (or --query FILTER) and --file FILE", field="RUN")
    if not logging.getLogger().isEnabledFor(logging.DEBUG):
        logging.getLogger("temporalio").setLevel(logging.CRITICAL)  # the report says what failed
    if file:
        replays = asyncio.run(_replay_files(file))
    else:
        replays = with_client(lambda loom: _replay_runs(loom, run_id, query or RUNNING))
    failed = [each for each in replays if each.error is not None]
    if as_json:
        print_json({"replayed": len(replays), "failed": len(failed), "histories": [asdict(each) for each in replays]})
    else:
        _print_report(len(replays), failed)
    if failed:
        raise typer.Exit(FAILED)


async def _replay_files(files: list[Path]) -> list[Replay]:
    silence()
    settings = load_settings()
    storage = PostgresPayloads(settings.database_url) if settings.database_url else None
    encryption = encryption_from(settings)
    try:
        converter = data_converter(storage, encryption.codec, encrypts=encryption.cipher.is_on)
        return await _replayed(histories_in(files), converter)
    finally:
        await encryption.aclose()
        if storage is not None:
            await storage.aclose()


async def _replay_runs(loom: LoomClient, run_id: str | None, query: str) -> list[Replay]:
    temporal = loom.temporal
    if run_id is None:
        return await _replayed(histories_matching(temporal, query), temporal.data_converter)
    return await _replayed(histories_of(temporal, await run_named(loom, run_id)), temporal.data_converter)


async def _replayed(histories: AsyncIterator[WorkflowHistory], converter: DataConverter) -> list[Replay]:
    replays: list[Replay] = []
    async with aclosing(replay(histories, converter)) as outcomes:
        async for each in outcomes:
            replays.append(each)
            if len(replays) % PROGRESS == 0:
                print_notice(f"{len(replays)} histories replayed")
    return replays


def _print_report(replayed: int, failed: list[Replay]) -> None:
    for each in failed:
        typer.echo(f"{one_line(each.run_id)} ({each.workflow}, {counted(each.events, 'event')}) can't be replayed:")
        typer.echo(f"  {one_line(each.error or '', 600)}")
    told = f"{counted(replayed, 'history', 'histories')} replayed"
    typer.echo(f"{told}, {len(failed)} can't be continued by this code" if failed else f"{told} without an error")
