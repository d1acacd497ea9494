"""Show an eval's report: as tables for people, and as one JSON value for programs."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from rich.table import Table

from loom.cli.output import console, counted, money, one_line, seconds
from loom.domain.evals.intervals import Difference, Interval
from loom.domain.evals.report import CaseReport, CheckedRun, Comparison, EvalReport, Totals

NAME: Final = 40
SHOWN: Final = 20
"""The maximum number of runs whose failures are printed. `--json` prints all of them."""


def report_view(report: EvalReport, comparison: Comparison | None) -> dict[str, Any]:
    """Return the report as JSON values."""
    compared = {} if comparison is None else {"against": _comparison_view(comparison)}
    return {
        "eval": report.name,
        "total": _totals_view(report.totals, report.not_run),
        "cases": [_case_view(case) for case in report.cases],
        **compared,
    }


def print_report(report: EvalReport, comparison: Comparison | None) -> None:
    """Print the report for people."""
    out = console(wide=True)
    out.print(_table(report))
    failed = [each for case in report.cases for each in case.runs if not each.passed]
    for each in failed[:SHOWN]:
        out.print(f"\n{each.run.case} ({each.run.repeat}) didn't pass: loom show {each.run.run_id}", soft_wrap=True)
        for why in each.failures:
            out.print(f"  {one_line(why, 400)}", soft_wrap=True)
    if len(failed) > SHOWN:
        out.print(f"\nand {counted(len(failed) - SHOWN, 'more run')}: --json shows all of them")
    if report.not_run:
        out.print(f"\n{counted(report.not_run, 'run')} not started: the total budget is used up", style="yellow")
    if comparison is not None:
        for line in _comparison_lines(comparison):
            out.print(line, soft_wrap=True)


def _table(report: EvalReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("case", "passed", "rate", "95 % interval", "cost", "turns", "time"):
        table.add_column(name, justify="left" if name == "case" else "right")
    for case in report.cases:
        table.add_row(*_row(case.name, case.totals))
    if len(report.cases) > 1:
        table.add_row(*_row("all", report.totals))
    return table


def _row(name: str, totals: Totals) -> tuple[str, ...]:
    if totals.rate is None:
        return (one_line(name, NAME), "not run", "", "", "", "", "")
    return (
        one_line(name, NAME),
        f"{totals.passed}/{totals.runs}",
        _percent(totals.rate.value),
        f"{_percent(totals.rate.low)} to {_percent(totals.rate.high)}",
        money(totals.cost),
        f"{totals.turns:.1f}",
        seconds(totals.seconds),
    )


def _comparison_lines(comparison: Comparison) -> Iterator[str]:
    yield ""
    if (difference := comparison.difference) is None:
        yield f"{comparison.b.name} has no runs of the same cases"
        return
    a, b = comparison.a, comparison.b
    yield f"{a.name} against {b.name}, on {counted(comparison.cases, 'case')}: {_told(difference)}"
    for what, names in (("better", comparison.better), ("worse", comparison.worse), ("only here", comparison.unpaired)):
        if names:
            yield f"  {what}: {one_line(', '.join(names), 400)}"
    ours, theirs = a.totals, b.totals
    yield f"  cost {money(ours.cost)} against {money(theirs.cost)}"
    yield f"  turns {ours.turns:.1f} against {theirs.turns:.1f}"
    yield f"  time {seconds(ours.seconds)} against {seconds(theirs.seconds)}"


def _told(difference: Difference) -> str:
    rate = difference.rate
    points = f"{_points(rate.value)} points, 95 % interval {_points(rate.low)} to {_points(rate.high)}"
    return f"{points}, p = {difference.p:.3f}"


def _percent(rate: float) -> str:
    return f"{100 * rate:.0f} %"


def _points(rate: float) -> str:
    return f"{100 * rate:+.0f}"


def _totals_view(totals: Totals, not_run: int) -> dict[str, Any]:
    return {
        "runs": totals.runs,
        "passed": totals.passed,
        "not_run": not_run,
        **_rate_view(totals.rate),
        "cost": totals.cost,
        "tokens": totals.tokens,
        "turns": totals.turns,
        "seconds": totals.seconds,
    }


def _rate_view(rate: Interval | None) -> dict[str, Any]:
    return {
        "pass_rate": None if rate is None else rate.value,
        "interval": None if rate is None else [rate.low, rate.high],
    }


def _case_view(case: CaseReport) -> dict[str, Any]:
    return {"name": case.name, **_totals_view(case.totals, case.not_run), "results": [_run_view(r) for r in case.runs]}


def _run_view(checked: CheckedRun) -> dict[str, Any]:
    run = checked.run
    return {
        "run_id": run.run_id,
        "repeat": run.repeat,
        "passed": checked.passed,
        "status": run.status,
        "error": run.error,
        "output": run.output,
        "checks": [asdict(check) for check in checked.checks],
        "cost": run.cost,
        "tokens": run.tokens,
        "turns": run.turns,
        "seconds": run.seconds,
    }


def _comparison_view(comparison: Comparison) -> dict[str, Any]:
    difference = comparison.difference
    told = {} if difference is None else {"p": difference.p}
    return {
        "eval": comparison.b.name,
        "total": _totals_view(comparison.b.totals, comparison.b.not_run),
        "cases": comparison.cases,
        "difference": None if difference is None else difference.rate.value,
        "interval": None if difference is None else [difference.rate.low, difference.rate.high],
        **told,
        "better": comparison.better,
        "worse": comparison.worse,
        "unpaired": comparison.unpaired,
    }
