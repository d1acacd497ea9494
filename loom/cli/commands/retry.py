"""The `retry` command, which continues runs that wait or have ended."""

import shlex
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from loom.cli.arguments import Budget, OptionalRunId, new_app, read_object, user_name
from loom.cli.connection import with_client
from loom.cli.output import counted, fault_told, one_line, print_json, print_notice
from loom.cli.run_names import with_run
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest, LoomError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import ParkedOn

MOST_RETRIED: Final = 10_000
"""Maximum number of runs that one command retries."""

app = new_app()


@app.command()
def retry(
    run_id: OptionalRunId = None,
    *,
    model: Annotated[
        str | None, typer.Option(help="Continue with this model: openai:NAME, anthropic:NAME or demo.")
    ] = None,
    max_turns: Annotated[int | None, typer.Option(help="New maximum number of turns for an ended run.")] = None,
    budget: Budget = None,
    message: Annotated[str, typer.Option(metavar="TEXT", help="Message to the agent of an ended run.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Retry all waiting runs, including sub-agents.")] = False,
    waiting: Annotated[
        ParkedOn | None, typer.Option(help="With --all: retry only runs that wait for their provider or operator.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the receipts as JSON and nothing else.")] = False,
) -> None:
    """Continue a run that is waiting or has ended.

    A run that is waiting for its provider or operator tries its model call now. A run that failed, was aborted, or
    reached a limit continues from its end and doesn't repeat finished steps.
    """
    if every is (run_id is not None):
        raise BadRequest("name one run, or use --all", field="run_id")
    if waiting is not None and not every:
        raise BadRequest("--waiting chooses runs for --all; a single run needs no --waiting", field="waiting")
    changes: dict[str, Any] = {
        "max_turns": max_turns,
        "budget": None if budget is None else read_object(budget, "--budget"),
    }
    if every and (message or any(changes.values())):
        raise BadRequest("--max-turns, --budget and --message are for a single run that has ended", field="all")
    if run_id is None:
        chosen = tuple(ParkedOn) if waiting is None else (waiting,)
        receipts = with_client(lambda loom: _retried(loom, chosen, model))
    else:
        by = user_name()
        receipts = [with_run(run_id, lambda loom, run: loom.retry(run, model=model, message=message, by=by, **changes))]
    if as_json:
        print_json(receipts if run_id is None else receipts[0])
    else:
        _tell(receipts)


async def _retried(loom: LoomClient, waiting: Sequence[ParkedOn], model: str | None) -> list[JsonObject]:
    """Retry all runs that wait. A run that refuses, perhaps because it has just gone on, doesn't stop the others."""
    found = [run for on in waiting for run in await loom.list(waiting=on, limit=MOST_RETRIED)]
    receipts: list[JsonObject] = []
    for run in found:
        try:
            receipts.append(await loom.retry(run.run_id, model=model, by=user_name()))
        except LoomError as error:
            receipts.append({"accepted": False, "run_id": run.run_id, "why": error.message})
    return receipts


def _tell(receipts: Sequence[JsonObject]) -> None:
    for receipt in receipts:
        if not receipt["accepted"]:
            print_notice(f"{one_line(str(receipt['run_id']))}: {one_line(str(receipt['why']), 400)}")
    accepted = [receipt for receipt in receipts if receipt["accepted"]]
    typer.echo(f"retrying {counted(len(accepted), 'run')}" if accepted else "no run was retried")
    for receipt in accepted:
        _tell_of(receipt)
    if any(receipt.get("queued") and "fault" not in receipt for receipt in accepted):
        print_notice("no worker is responding; the runs will try once a worker is back (`loom worker` or `loom up`)")


def _tell_of(receipt: JsonObject) -> None:
    if "retried_by" in receipt:
        by = f" by {one_line(str(receipt['retried_by']))}" if receipt["retried_by"] else ""
        print_notice(f"another retry{by} has already continued this run in the same way")
    if "after" in receipt:
        typer.echo(f"it was {receipt['after']}; watch it with: loom watch {shlex.quote(str(receipt['run_id']))}")
    if fault := receipt.get("fault"):
        print_notice(fault_told(str(receipt["run_id"]), fault))
