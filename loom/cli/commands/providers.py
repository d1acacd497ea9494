"""The `providers` command, which shows the circuit breakers and rate limits that all workers share."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

import typer
from rich.table import Table

from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.permits import PermitState, read_states
from loom.activities.ports import StreamUnavailable
from loom.cli.arguments import Json, new_app
from loom.cli.logs import silence
from loom.cli.output import console, one_line, print_json
from loom.composition.load_settings import load_settings
from loom.domain.core.errors import BadRequest, UnreachableError

app = new_app()


@app.command()
def providers(as_json: Json = False) -> None:
    """Show which models can be called, and how much of their rate limits is used.

    The list shows the models that were called in the last hour. Without Redis, each worker counts its own calls, and no
    other process can see them.
    """
    url = load_settings().redis_url
    if url is None:
        raise BadRequest(
            "without Redis each worker counts its own calls: set LOOM_REDIS_URL, or start Redis with `loom up`",
            field="LOOM_REDIS_URL",
        )
    silence()
    try:
        found = asyncio.run(_read(url))
    except StreamUnavailable as error:
        raise UnreachableError(str(error)) from error
    if as_json:
        print_json([asdict(each) for each in found])
    elif found:
        _print(found)
    else:
        typer.echo("No model was called in the last hour.")


async def _read(url: str) -> Sequence[PermitState]:
    link = RedisConnection(url)
    try:
        return await link.call(read_states)
    finally:
        await link.aclose()


def _print(found: Sequence[PermitState]) -> None:
    table = Table("model", "state", "failures", "rpm", "tpm", "waiting", box=None, pad_edge=False)
    for each in found:
        name = f"{each.model} (agent {each.agent})" if each.agent else each.model
        failures = "" if each.agent else f"{each.failures} of {each.calls}"
        used = (_used(each.rpm, each.rpm_limit), _used(each.tpm, each.tpm_limit))
        table.add_row(one_line(name), _state(each), failures, *used, str(each.waiting))
    console(wide=True).print(table)
    for each in found:
        if each.because:
            typer.echo(f"{one_line(each.model)}: {one_line(each.because)}")


def _state(each: PermitState) -> str:
    match each.state:
        case "open":
            return f"open, probe in {each.seconds:.0f} s"
        case "half-open":
            return "half-open, next call probes"
        case "paused":
            return f"paused for {each.seconds:.0f} s"
        case _:
            return each.state


def _used(now: int, limit: int | None) -> str:
    return "" if limit is None else f"{now} of {limit}"
