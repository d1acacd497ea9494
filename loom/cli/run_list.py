"""Render lists of runs: as a table, and as the tree of a run and its sub-agents."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from loom.cli.output import age, counted, money, one_line, seconds
from loom.run_overviews import RunOverview

STYLES: Final[Mapping[str, str]] = {
    "completed": "green",
    "failed": "red",
    "aborted": "yellow",
    "limit_reached": "yellow",
    "budget_exhausted": "yellow",
    "waiting_for_approval": "bold yellow",
    "waiting_for_input": "bold yellow",
    "paused": "yellow",
}
"""The style of each status."""

MARKS: Final[Mapping[str, str]] = {"completed": "✓", "failed": "✗", "running": "●", "paused": "‖"}
SHORT: Final[Mapping[str, str]] = {
    "waiting_for_approval": "waiting",
    "waiting_for_input": "waiting",
    "limit_reached": "limit",
    "budget_exhausted": "budget",
}
"""Names of statuses in narrow tables."""

WIDE: Final = 110
"""Columns from which on a table shows all facts."""
LONGEST_ID: Final = 18
"""Maximum length of an id in a narrow table. Its row is a name, too."""


def run_table(overviews: Sequence[RunOverview], now: datetime, width: int) -> Table:
    """Render a table that fits `width` columns, and uses them."""
    is_wide = width >= WIDE
    padding = (0, 2 if is_wide else 1, 0, 0)
    table = Table(box=None, pad_edge=False, padding=padding, header_style="dim", expand=True)
    table.add_column("", style="dim", no_wrap=True)
    table.add_column("run", no_wrap=True, overflow="ellipsis", max_width=None if is_wide else LONGEST_ID)
    table.add_column("status", no_wrap=True)
    for name in ("age", *(("took",) if is_wide else ()), "turns", "cost"):
        table.add_column(name, no_wrap=True, justify="right")
    if is_wide:
        table.add_column("agent", no_wrap=True, overflow="ellipsis", max_width=16)
    table.add_column("task", no_wrap=True, overflow="ellipsis", ratio=1)
    for row, overview in enumerate(overviews, 1):
        run = overview.summary
        began = overview.started_at
        table.add_row(
            f"@{row}",
            one_line(run.run_id, 400),
            _status(run.status, is_short=not is_wide),
            "" if began is None else age((now - began).total_seconds()),
            *([_took(overview, now)] if is_wide else []),
            "" if overview.turns is None else str(overview.turns),
            "" if overview.cost is None else money(overview.cost),
            *([one_line(run.agent)] if is_wide else []),
            _task_and_wait(overview),
        )
    return table


def run_tree(overviews: Sequence[RunOverview], now: datetime) -> Tree:
    """Render a run and all its sub-agents, whose ids begin with their parent's. Raises ValueError without a run."""
    branches: dict[str, Tree] = {}
    top: Tree | None = None
    for overview in sorted(overviews, key=lambda each: (each.summary.run_id.count("/"), each.summary.started_at)):
        run_id = overview.summary.run_id
        label = _branch(overview, now)
        above = branches.get(run_id.rpartition("/")[0], top)
        branches[run_id] = Tree(label, guide_style="dim") if above is None else above.add(label)
        top = branches[run_id] if top is None else top
    if top is None:
        raise ValueError("a tree needs at least its root")
    return top


def _branch(overview: RunOverview, now: datetime) -> Text:
    run = overview.summary
    style = STYLES.get(run.status, "")
    facts = [run.agent] if run.agent else []
    facts += [counted(overview.turns, "turn")] if overview.turns is not None else []
    facts += [money(overview.cost)] if overview.cost is not None else []
    facts += [took] if (took := _took(overview, now)) else []
    line = Text.assemble((f"{MARKS.get(run.status, '■')} ", style), (one_line(run.run_id, 400), "bold"))
    line.append(f" · {' · '.join(map(one_line, facts))}", "dim")
    if run.status not in MARKS:
        line.append(f" · {run.status.replace('_', ' ')}", style)
    shown = [Text(one_line(overview.task, 400))] if overview.task else []
    shown += [_wait(overview)] if overview.waits_for else []
    label = Text("\n").join([line, *shown])
    label.no_wrap, label.overflow = True, "ellipsis"
    return label


def _took(overview: RunOverview, now: datetime) -> str:
    if overview.started_at is None:
        return ""
    return seconds(((overview.summary.closed_at or now) - overview.started_at).total_seconds())


def _status(status: str, *, is_short: bool) -> Text:
    name = SHORT.get(status, status) if is_short else status
    return Text(one_line(name), style=STYLES.get(status, ""))


def _task_and_wait(overview: RunOverview) -> Text:
    task = Text(one_line(overview.task, 400))
    return Text("\n").join([task, _wait(overview)]) if overview.waits_for else task


def _wait(overview: RunOverview) -> Text:
    is_for_person = overview.summary.status.startswith("waiting")
    return Text(f"└ {one_line(overview.waits_for, 400)}", style="yellow" if is_for_person else "dim")
