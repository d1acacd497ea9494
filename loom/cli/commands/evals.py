"""The `eval` command, which runs a data set of tasks with checks and reports how many pass."""

import sys
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from loom.app.forms.eval_case import read_eval_cases
from loom.cli.arguments import Budget, Json, new_app, read_fields, read_object
from loom.cli.commands.run import warn_without_worker
from loom.cli.connection import with_client
from loom.cli.evals.checks import rules_of
from loom.cli.evals.eval_runs import EvalOptions, EvalRuns
from loom.cli.evals.planned_runs import checked_name, planned_runs
from loom.cli.evals.report_view import print_report, report_view
from loom.cli.evals.total_budget import TotalBudget
from loom.cli.output import counted, one_line, print_json, print_notice
from loom.client import LoomClient
from loom.domain.evals.report import CheckedRun, Comparison, EvalReport, compared
from loom.exit_codes import COMPLETED, FAILED, LIMIT

WORKSPACES: Final = Path("eval-workspaces")

app = new_app()


@app.command("eval")
def evaluate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Cases: a list in a .yaml file, or one JSON object on each line.")
    ],
    *,
    name: Annotated[
        str | None,
        typer.Option(help="Name of this eval. An interrupted eval with this name resumes. Default: a new name."),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, max=1000, metavar="K", help="Run each case K times.")] = 1,
    at_once: Annotated[int, typer.Option(min=1, max=500, metavar="N", help="Run up to N runs at the same time.")] = 4,
    agent: Annotated[str | None, typer.Option(help="Agent for all runs, instead of the cases' own.")] = None,
    model: Annotated[str | None, typer.Option(help="Model for all runs, instead of the cases' own.")] = None,
    permissions: Annotated[
        str | None, typer.Option(metavar="FILE|JSON", help="Rules that override the cases' own.")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="Permission mode for all runs, instead of the cases' own.")] = None,
    model_options: Annotated[
        str | None, typer.Option(metavar="JSON", help="Options for all runs' model calls, instead of the cases' own.")
    ] = None,
    budget: Budget = None,
    total_budget: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help='Limits for all runs together: {"cost_usd", "tokens"}. Each run also needs its own.'
        ),
    ] = None,
    judge_model: Annotated[
        str | None, typer.Option(metavar="M", help="Model for judges, unless the check names one.")
    ] = None,
    workspaces: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the runs' copies of the cases' workspaces.")
    ] = WORKSPACES,
    against: Annotated[
        str | None, typer.Option(metavar="NAME", help="Compare with another eval of these cases, case by case.")
    ] = None,
    min_pass: Annotated[
        float | None,
        typer.Option(min=0, max=1, metavar="RATE", help="Exit with code 1 if the pass rate is lower, such as 0.9."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Approve every tool call. Otherwise, calls that need approval are denied.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a data set of tasks with checks, and report how many pass.

    Each run is an ordinary run: `loom list`, `loom show` and the Web UI show it. Ctrl-C detaches, and the runs
    continue. To resume an eval, run the same command with its --name. Exit codes: 0 done, 1 pass rate below
    --min-pass, 2 invalid file or option, 4 total budget used up, 5 no server.
    """
    cases = read_eval_cases(file)
    named = checked_name(name if name is not None else f"{_stem(file)}-{datetime.now(UTC):%Y%m%d-%H%M%S}")
    replaced = read_fields(
        agent=agent,
        model=model,
        permissions=permissions,
        mode=mode,
        model_options=model_options,
        budget=budget,
    )
    runs = planned_runs(cases, name=named, repeats=repeat, changes=replaced, workspaces=workspaces)
    limits = TotalBudget(read_object(total_budget, "--total-budget") if total_budget is not None else {}, runs)
    with redirect_stdout(sys.stderr):  # a rule's own output must not mix with the report
        options = EvalOptions(
            name=named,
            at_once=at_once,
            rules=rules_of(cases, file.parent),
            judge_model=judge_model,
            approves=yes,
            told=_Progress(len(runs)),
        )

        async def work(loom: LoomClient) -> tuple[EvalReport, Comparison | None]:
            await warn_without_worker(loom)
            working = EvalRuns(loom, options)
            # An eval that doesn't exist is an error before anything runs.
            other = None if against is None else await working.recorded(cases, checked_name(against, "--against"))
            report = await working.report(cases, runs, limits)
            return report, None if other is None else compared(report, other)

        print_notice(f"eval {named}: {counted(len(cases), 'case')}, {counted(len(runs), 'run')}")
        try:
            report, comparison = with_client(work)
        except KeyboardInterrupt:
            print_notice(f"detached; the runs that have started continue. To resume this eval, use `--name {named}`")
            raise typer.Exit(COMPLETED) from None
    if as_json:
        print_json(report_view(report, comparison))
    else:
        print_report(report, comparison)
    raise typer.Exit(_code(report, min_pass))


class _Progress:
    """Reports the progress of an eval on standard error."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._done = 0

    def __call__(self, checked: CheckedRun) -> None:
        """Count a run that has ended."""
        self._done += 1
        told = "passed" if checked.passed else one_line("; ".join(checked.failures), 100)
        print_notice(f"{self._done}/{self._runs} {checked.run.case} ({checked.run.repeat}): {told}")


def _stem(file: Path) -> str:
    """Return the file's name as the beginning of an eval's name."""
    letters = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in file.stem)
    return letters.strip("-")[:40] or "eval"


def _code(report: EvalReport, min_pass: float | None) -> int:
    if report.not_run:
        return LIMIT
    rate = report.totals.rate
    return FAILED if min_pass is not None and rate is not None and rate.value < min_pass else COMPLETED
