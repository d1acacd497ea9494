"""The `repair` command, which continues runs that no worker can replay."""

from dataclasses import asdict
from typing import Annotated

import typer

from loom.cli.arguments import OptionalRunId, new_app
from loom.cli.connection import with_client
from loom.cli.output import counted, one_line, print_json, print_notice
from loom.cli.run_names import with_run
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest, LoomError
from loom.domain.core.messages import JsonObject
from loom.exit_codes import FAILED
from loom.run_repair import Repair
from loom.visibility import REPAIR

MOST_REPAIRED = 10_000
"""Maximum number of runs that one command repairs."""

app = new_app()


@app.command()
def repair(
    run_id: OptionalRunId = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Repair all runs whose workflow task fails.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON and nothing else.")] = False,
) -> None:
    """Continue a run whose workflow task fails.

    This is for runs whose history the code can't replay. The run goes on from its last sound workflow task. It handles
    again what it has received since then. A repair that would repeat an effect is refused. Run this command where Loom
    is of the same release as the workers. Exit code 1: with --all, at least one run couldn't be repaired.
    """
    if every is (run_id is not None):
        raise BadRequest("name one run, or use --all", field="run_id")
    if run_id is not None:
        done = with_run(run_id, lambda loom, run: loom.repair(run))
        print_json(asdict(done)) if as_json else _tell(done)
        return
    reports = with_client(_repaired)
    refused = [each for each in reports if not isinstance(each, Repair)]
    if as_json:
        print_json([asdict(each) if isinstance(each, Repair) else each for each in reports])
    else:
        for each in reports:
            if isinstance(each, Repair):
                _tell(each)
            else:
                print_notice(f"{one_line(str(each['run_id']))}: {one_line(str(each['why']), 400)}")
        typer.echo(f"repaired {counted(len(reports) - len(refused), 'run')}" if reports else "no run needs a repair")
    if refused:
        raise typer.Exit(FAILED)


async def _repaired(loom: LoomClient) -> list[Repair | JsonObject]:
    reports: list[Repair | JsonObject] = []
    for run in await loom.list(waiting=REPAIR, limit=MOST_REPAIRED):
        try:
            reports.append(await loom.repair(run.run_id))
        except LoomError as error:
            reports.append({"run_id": run.run_id, "why": error.message})
    return reports


def _tell(done: Repair) -> None:
    typer.echo(f"{one_line(done.run_id)} goes on from event {done.event} of its history")
    again = [
        counted(number, what)
        for number, what in ((done.requests, "request"), (done.model_calls, "model call"))
        if number
    ]
    left = f"left out: {counted(done.events, 'later event')}"
    print_notice(f"{left}; happens again: {' and '.join(again)}" if again else left)
    print_notice(f"cause: {one_line(done.error, 400)}")
