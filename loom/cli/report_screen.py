"""Render a run's report at the terminal and as JSON, and the estimate for a run."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final, Literal

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from loom.cli.output import counted, money, one_line, plain, seconds, tokens
from loom.domain.core.repositories import repository_line
from loom.domain.history.estimates import RunEstimate, Spread
from loom.domain.history.run_report import OTHER, WAITS, RunReport, Spending, SubAgentReport

NAMES: Final[Mapping[str, str]] = {
    "tool": "tools",
    "model": "model",
    "compression": "compression",
    "lost": "lost with a worker",
    "sub_agent": "sub-agents",
    "paused": "paused",
    "ended": "ended, until it was retried",
    "provider": "parked: provider",
    "operator": "parked: operator",
    "permit": "rate limit or breaker",
    "retry": "before another attempt",
    "approval": "approval",
    "question": "an answer",
    "start": "start",
    OTHER: "Loom and Temporal",
}
"""The display name of each kind of span."""

_BAR: Final = 24


def print_report(report: RunReport, out: Console) -> None:
    """Print a report."""
    for line in _lines(report, out):
        out.print(line, soft_wrap=not out.is_terminal and isinstance(line, Text))


def print_estimate(estimate: RunEstimate, out: Console) -> None:
    """Print what a run will probably cost and take."""
    of_model = f" with {one_line(estimate.model)}" if estimate.model else ""
    whose = f"agent {one_line(estimate.agent)}{of_model}"
    if not estimate.runs:
        out.print(f"no estimate: there is no completed run of {whose} yet", markup=False, soft_wrap=True)
        return
    out.print(f"{whose} · from {counted(estimate.runs, 'completed run')}", markup=False, style="dim", soft_wrap=True)
    rows: tuple[tuple[str, Spread | None, Callable[[float], str]], ...] = (
        ("cost", estimate.cost, money),
        ("tokens", estimate.tokens, lambda count: tokens(int(count))),
        ("turns", estimate.turns, lambda count: f"{count:.0f}"),
        ("time", estimate.seconds, seconds),
    )
    table = _table("", ">median", ">from", ">to")
    for name, spread, shown in rows:
        figures = (spread.median, spread.low, spread.high) if spread else ()
        table.add_row(name, *(map(shown, figures) if figures else ("unknown",)))
    out.print(table)
    if estimate.unknown and estimate.cost:
        out.print(f"the cost of {counted(estimate.unknown, 'run')} is unknown", style="yellow")


def report_view(report: RunReport) -> dict[str, Any]:
    """Return a report for `--json`."""
    return {
        **asdict(report),
        "seconds": report.seconds,
        "spans": [{**asdict(span), "seconds": span.seconds} for span in report.spans],
        "sub_agents": [
            {**asdict(each), "report": report_view(each.report) if each.report else None} for each in report.sub_agents
        ],
    }


def costs(spending: Spending) -> str:
    """Format a cost. Calls without a known price are counted apart."""
    if spending.unpriced and not spending.cost:
        return "unknown"
    known = money(spending.cost)
    return f"{known} + {counted(spending.unpriced, 'unpriced call')}" if spending.unpriced else known


def used(spending: Spending) -> str:
    """Format what model calls used."""
    cached = f" ({tokens(spending.cached_tokens)} cached)" if spending.cached_tokens else ""
    return f"{tokens(spending.input_tokens)} in{cached}, {tokens(spending.output_tokens)} out"


def headline(report: RunReport) -> list[str]:
    """Return the facts of a report's first line."""
    calls = sum(tool.calls for tool in report.tools)
    return [
        seconds(report.seconds),
        counted(len(report.turns), "turn"),
        counted(report.spending.model_calls, "model call"),
        counted(calls, "tool call"),
    ]


def expenses(report: RunReport) -> list[str]:
    """Return what a run and its sub-agents used."""
    return [used(report.total), costs(report.total)]


def _lines(report: RunReport, out: Console) -> Iterator[RenderableType]:
    yield Text.assemble((one_line(report.run_id), "bold"), f" · {report.status.replace('_', ' ')}")
    yield Text(" · ".join([f"agent {one_line(report.agent)}", *headline(report)]), style="dim")
    yield Text(" · ".join(expenses(report)), style="dim")
    if report.workspace:
        yield Text(one_line(repository_line(report.workspace), 400), style="dim")
    if report.error:
        yield Text(one_line(f"{report.error.get('type')}: {report.error.get('message')}", 400), style="red")
    yield Text("")
    yield from _time(report)
    tables = {
        "turns": _turns(report) if report.turns else None,
        "tools": _tools(report) if report.tools else None,
        "models": _models(report) if report.models else None,
        "waits": _waits(report) if report.waits else None,
        "sub-agents": _sub_agents(report) if report.sub_agents else None,
    }
    for title, table in tables.items():
        if table is not None:
            yield from (Text(""), Text(title, style="bold"), table)
    yield Text("")
    if not report.advice:
        yield Text("no advice", style="dim")
    for advice in report.advice:
        yield Text(
            f"{'+' if advice.is_praise else '!'} {plain(advice.text)}", style="green" if advice.is_praise else ""
        )


def _time(report: RunReport) -> Iterator[RenderableType]:
    table = _table("", ">", ">", "")
    for kind, spent in sorted(report.time.items(), key=lambda each: -each[1]):
        share = spent / report.seconds if report.seconds else 0.0
        style = "yellow" if kind in WAITS else ""
        table.add_row(NAMES[kind], seconds(spent), f"{share:.0%}", Text("█" * round(share * _BAR), style=style))
    yield Text("time", style="bold")
    yield table


def _turns(report: RunReport) -> Table:
    table = _table("turn", ">took", ">model", ">tools", ">waits", ">calls", ">tokens in", ">out", ">cost")
    for turn in report.turns:
        tools = turn.time.get("tool", 0.0) + turn.time.get("sub_agent", 0.0)
        waits = sum(turn.time.get(kind, 0.0) for kind in WAITS)
        failed = f" ({turn.failed_tool_calls} failed)" if turn.failed_tool_calls else ""
        table.add_row(
            str(turn.number),
            seconds(turn.seconds),
            seconds(turn.time.get("model", 0.0)),
            seconds(tools) if tools else "",
            seconds(waits) if waits else "",
            f"{turn.tool_calls}{failed}",
            tokens(turn.spending.input_tokens),
            tokens(turn.spending.output_tokens),
            costs(turn.spending),
        )
    return table


def _tools(report: RunReport) -> Table:
    table = _table("tool", ">calls", ">failed", ">took", ">longest")
    for tool in report.tools:
        failed = str(tool.failed) if tool.failed else ""
        # A call without attempts has taken no time of its own: it delegated its work, or it never ran.
        took = (seconds(tool.seconds), seconds(tool.longest)) if tool.attempts else ("", "")
        table.add_row(one_line(tool.name, 40), str(tool.calls), failed, *took)
    return table


def _models(report: RunReport) -> Table:
    table = _table("model", ">calls", ">failed", ">took", ">longest", ">tokens in", ">cached", ">out", ">cost")
    for model in report.models:
        spent = model.spending
        table.add_row(
            one_line(model.name, 40),
            str(spent.model_calls),
            str(spent.failed) if spent.failed else "",
            seconds(spent.seconds),
            seconds(model.longest),
            tokens(spent.input_tokens),
            tokens(spent.cached_tokens),
            tokens(spent.output_tokens),
            costs(spent),
        )
    return table


def _waits(report: RunReport) -> Table:
    table = _table("for", ">times", ">took", ">longest", "ended by")
    for wait in report.waits:
        people = dict.fromkeys(span.by for span in report.spans if span.kind == wait.kind and span.by)
        by = one_line(", ".join(people), 40)
        table.add_row(NAMES[wait.kind], str(wait.count), seconds(wait.seconds), seconds(wait.longest), by)
    return table


def _sub_agents(report: RunReport) -> Table:
    table = _table("agent", "task", "status", ">took", ">turns", ">tokens in", ">out", ">cost")
    for depth, child in nested(report):
        below = child.report
        table.add_row(
            f"{'  ' * depth}{one_line(child.agent, 30)}",
            one_line(child.description, 40),
            child.status.replace("_", " "),
            seconds(child.seconds),
            str(len(below.turns)) if below else "?",
            tokens(below.total.input_tokens) if below else "?",
            tokens(below.total.output_tokens) if below else "?",
            costs(below.total) if below else "unknown",
        )
    return table


def nested(report: RunReport, depth: int = 0) -> Iterator[tuple[int, SubAgentReport]]:
    """Yield all sub-agents with their level below the run, each before its own sub-agents."""
    for child in report.sub_agents:
        yield depth, child
        if child.report is not None:
            yield from nested(child.report, depth + 1)


def _table(*columns: str) -> Table:
    """Return a table. A `>` before a column's name aligns it to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=any(name.strip(">") for name in columns))
    for name in columns:
        is_figure = name.startswith(">")
        side: Literal["left", "right"] = "right" if is_figure else "left"
        table.add_column(name.removeprefix(">"), justify=side, no_wrap=is_figure, header_style="dim")
    return table
