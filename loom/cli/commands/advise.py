"""The `advise` command, which suggests how to make runs faster, cheaper and more reliable."""

from contextlib import suppress
from dataclasses import asdict
from functools import reduce
from operator import add
from typing import Annotated

import typer

from loom.cli.arguments import RUN_HELP, Json, new_app
from loom.cli.connection import with_client
from loom.cli.output import console, counted, one_line, print_json
from loom.cli.run_names import run_named
from loom.client import LoomClient
from loom.domain.core.errors import RunNotFoundError
from loom.domain.core.messages import JsonObject
from loom.domain.core.tasks import Task
from loom.domain.history.advice import RunFigures, advice_for, figures_of

app = new_app()


@app.command()
def advise(
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN", help=f"{RUN_HELP} Several are possible.")] = None,
    *,
    last: Annotated[int, typer.Option(min=1, help="Without ids, the number of newest runs to look at.")] = 20,
    as_json: Json = False,
) -> None:
    """Suggest how to make runs faster, cheaper and more reliable.

    The advice is based on the histories of the runs and their sub-agents: tokens, failed calls, slow tools,
    compressions, and the use of the provider's cache. This command doesn't need a worker.
    """
    found = with_client(lambda loom: _figures(loom, runs or [], last))
    figures = reduce(add, found) if found else RunFigures(runs=0)
    advice = advice_for(figures)
    if as_json:
        counts: JsonObject = {**asdict(figures), "tokens": figures.tokens, "tool_calls": figures.tool_calls}
        print_json({"figures": counts, "advice": [asdict(each) for each in advice]})
        return
    out = console()
    out.print(
        f"{counted(figures.runs, 'run')}, {counted(figures.model_calls, 'model call')}, {figures.tokens:,} tokens, "
        f"{counted(figures.tool_calls, 'tool call')}",
        style="dim",
    )
    for each in advice:
        out.print(f"{'+' if each.is_praise else '!'} {one_line(each.text, 400)}", markup=False, soft_wrap=True)
    if not advice:
        typer.echo("nothing to improve" if figures.runs else "no run to advise on; start one with `loom run`")


async def _figures(loom: LoomClient, runs: list[str], last: int) -> list[RunFigures]:
    """Return the figures of each run with its sub-agents. Raises RunNotFoundError for unknown ids."""
    if runs:
        return [figures_of(await _tasks(loom, await run_named(loom, name))) for name in runs]
    figures: list[RunFigures] = []
    for each in await loom.list(limit=last):
        with suppress(RunNotFoundError):  # the server has just deleted it
            figures.append(figures_of(await _tasks(loom, each.run_id)))
    return figures


async def _tasks(loom: LoomClient, run_id: str) -> list[Task]:
    recorded = await loom.recorded_tasks(run_id)
    tasks = [*recorded.tasks]
    for child in recorded.children:
        with suppress(RunNotFoundError):  # it never started, or the server has deleted its history
            tasks += await _tasks(loom, child)
    return tasks
