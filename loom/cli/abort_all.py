"""Abort many runs: show them, ask for confirmation, and print what has ended and what hasn't."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import typer

from loom.cli.arguments import user_name
from loom.cli.connection import with_client
from loom.cli.output import age, counted, one_line, print_json, print_notice
from loom.cli.watch.keyboard import at_terminal
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.exit_codes import FAILED
from loom.run_overviews import RunOverview
from loom.running_runs import RunFilter, Running, RunningRuns
from loom.visibility import REPAIR, RunSummary

SHOWN: Final = 20
"""Maximum number of runs to show before the person confirms, and to name in a notice."""


def abort_all(which: RunFilter, *, reason: str, yes: bool, as_json: bool) -> None:
    """Abort the runs that match the filter. Raises BadRequest if confirmation is needed and there is nobody to ask."""
    if not yes and (as_json or not at_terminal()):
        raise BadRequest(
            "without a terminal, or with --json, nobody can confirm: to abort all these runs, use --yes", field="yes"
        )
    found = with_client(lambda loom: RunningRuns(loom.temporal).meant_by(which))
    if found.runs and not yes:
        _confirm(found.runs)
    left, since = with_client(lambda loom: aborted(loom, which, found, reason))
    ended = [run for run in found.runs if run.summary.run_id not in {each.run_id for each in left}]
    if as_json:
        print_json(
            {
                "aborted": [_view(run) for run in ended],
                "running": [each.run_id for each in left],
                "started": [run.summary.run_id for run in since.runs],
                "unread": since.unread,
            }
        )
    else:
        _tell(ended, left, since)
    if left or since.runs or since.unread:
        raise typer.Exit(FAILED)


async def aborted(
    loom: LoomClient, which: RunFilter, found: Running, reason: str
) -> tuple[Sequence[RunSummary], Running]:
    """Abort the runs. Return those that haven't ended, and the other runs that match the filter now."""
    runs = RunningRuns(loom.temporal)
    known = {run.summary.run_id for run in found.runs}
    left = await runs.abort(known, reason=reason, by=user_name())
    known |= {each.run_id for each in left}
    now = await runs.meant_by(which)
    return left, replace(now, runs=tuple(run for run in now.runs if run.summary.run_id not in known))


def _confirm(runs: Sequence[RunOverview]) -> None:
    now = datetime.now(UTC)
    for run in runs[:SHOWN]:
        passed = age((now - run.summary.started_at).total_seconds())
        typer.echo(f"{_line(run)} · {passed} · {run.summary.status}")
    if len(runs) > SHOWN:
        typer.echo(f"and {counted(len(runs) - SHOWN, 'other run')}")
    these = "this run" if len(runs) == 1 else f"these {len(runs)} runs"
    try:
        if typer.confirm(f"Abort {these}?"):
            return
    except typer.Abort:  # Ctrl-C; typer would print "Aborted!"
        typer.echo()
    print_notice("nothing was aborted")
    raise typer.Exit(FAILED)


def _tell(ended: Sequence[RunOverview], left: Sequence[RunSummary], since: Running) -> None:
    for run in ended:
        typer.echo(f"aborted {_line(run)}")
    if not ended:
        typer.echo("no run was aborted")
    elif len(ended) > 1:
        typer.echo(f"aborted {counted(len(ended), 'run')}")
    failing = [each.run_id for each in left if each.waiting_on == REPAIR]
    slow = [each.run_id for each in left if each.waiting_on != REPAIR]
    if slow:
        print_notice(f"not ended yet: {_named(slow)}. A run ends once a worker is back (`loom worker` or `loom up`)")
    if failing:
        print_notice(f"not ended, because their workflow tasks fail: {_named(failing)}. Run `loom repair --all`")
    if since.runs:
        print_notice(
            f"started in the meantime: {_named([run.summary.run_id for run in since.runs])}. Run the command again"
        )
    if since.unread:
        print_notice(f"left alone, because their requests can't be read: {_named(since.unread)}")


def _named(run_ids: Sequence[str]) -> str:
    shown = ", ".join(one_line(each) for each in run_ids[:SHOWN])
    return shown if len(run_ids) <= SHOWN else f"{shown} and {counted(len(run_ids) - SHOWN, 'other run')}"


def _line(run: RunOverview) -> str:
    facts = (run.summary.run_id, run.summary.agent, run.task)
    return " · ".join(one_line(fact) for fact in facts if fact)


def _view(run: RunOverview) -> JsonObject:
    summary = run.summary
    return {"run_id": summary.run_id, "agent": summary.agent, "tenant": summary.tenant, "task": run.task}
