"""Render a run's report as an HTML file with a timeline. It loads nothing, runs no script, and escapes its content."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from loom.cli.output import counted, plain, seconds, tokens
from loom.cli.report_screen import NAMES, costs, expenses, headline, nested
from loom.domain.core.repositories import repository_line
from loom.domain.history.run_report import WAITS, ReportSpan, RunReport, SubAgentReport

LONGEST_TASK: Final = 2000
MOST_BARS: Final = 2000
"""Maximum number of bars in a timeline. The longest spans are drawn."""

# The policy forbids everything but the style sheet, in case that an escape is ever missing.
_HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark"><title>{title}</title><style>
:root { --ink: #1c1f24; --dim: #5c6370; --paper: #ffffff; --line: #d9dde3; --model: #4263eb; --tool: #2b8a3e;
  --sub_agent: #1098ad; --compression: #9c36b5; --lost: #c92a2a; --wait: #e8930c; --other: #adb5bd; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --dim: #9aa1ac; --paper: #16181d; --line: #353a43;
  --model: #748ffc; --tool: #51cf66; --sub_agent: #3bc9db; --compression: #da77f2; --lost: #ff6b6b; --wait: #ffc078;
  --other: #5c6370; } }
* { box-sizing: border-box } body { margin: 0 auto; padding: 1rem; max-width: 70rem; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere }
h1 { font-size: 1.3rem; margin: 0 } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem } p { margin: .2rem 0 }
.dim { color: var(--dim) } .bad { color: var(--lost) } .task { white-space: pre-wrap;
  max-height: 12rem; overflow: auto }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .15rem .8rem .15rem 0; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line) }
th { color: var(--dim); font-weight: normal } .n { text-align: right }
.shares { display: flex; height: 1.4rem; border-radius: 4px; overflow: hidden } .shares i { min-width: 1px }
.key span { display: inline-block; margin-right: 1rem } .key i { display: inline-block; width: .7rem; height: .7rem;
  border-radius: 2px; margin-right: .3rem }
.row { display: flex; align-items: center; border-bottom: 1px solid var(--line); min-height: 1.5rem }
.row b { flex: 0 0 6rem; font-weight: normal; color: var(--dim); white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis } .row div { position: relative; flex: 1; height: 1.1rem }
.row i { position: absolute; top: 0; height: 100%; min-width: 2px; border-radius: 2px }
@media (max-width: 40rem) { body { padding: .6rem } .row b { flex-basis: 4rem; font-size: .8rem } }
.model { background: var(--model) } .tool { background: var(--tool) } .sub_agent { background: var(--sub_agent) }
.compression { background: var(--compression) } .lost { background: var(--lost) } .wait { background: var(--wait) }
.other { background: var(--other) }
</style></head><body>
"""


def html_report(report: RunReport) -> str:
    """Return the report as an HTML document."""
    head = _HEAD.replace("{title}", _text(f"Run {report.run_id}"))
    return "\n".join([head, *_body(report), "</body></html>\n"])


def _body(report: RunReport) -> Iterator[str]:
    yield f"<h1>{_text(report.run_id)} · {_text(report.status.replace('_', ' '))}</h1>"
    facts = " · ".join([*headline(report), *expenses(report)])
    yield f'<p class="dim">agent {_text(report.agent)} · {_text(facts)}</p>'
    began, ended = (at.isoformat(sep=" ", timespec="seconds") for at in (report.began, report.ended))
    yield f'<p class="dim">{_text(began)} to {_text(ended)}</p>'
    if report.workspace:
        yield f'<p class="task">{_text(repository_line(report.workspace))}</p>'
    if report.error:
        said = f"{report.error.get('type')}: {report.error.get('message')}"
        yield f'<p class="bad">{_text(said)}</p>'
    if report.task:
        rest = "…" if len(report.task) > LONGEST_TASK else ""
        yield f'<p class="task">{_text(report.task[:LONGEST_TASK])}{rest}</p>'
    yield from _advice(report)
    yield "<h2>Time</h2>"
    yield from _shares(report)
    yield "<h2>Timeline</h2>"
    yield from _timeline(report)
    yield from _tables(report)
    for _, child in nested(report):
        yield from _sub_agent(child)


def _advice(report: RunReport) -> Iterator[str]:
    if report.advice:
        yield "<h2>Advice</h2><ul>"
        yield from (f"<li>{'✓ ' if each.is_praise else ''}{_text(each.text)}</li>" for each in report.advice)
        yield "</ul>"


def _shares(report: RunReport) -> Iterator[str]:
    total = report.seconds or 1.0
    parts = sorted(report.time.items(), key=lambda each: -each[1])
    bars = (f'<i class="{_colour(kind)}" style="width:{spent / total:.4%}"></i>' for kind, spent in parts)
    yield f'<div class="shares">{"".join(bars)}</div>'
    keys = (
        f'<span><i class="{_colour(kind)}"></i>{NAMES[kind]} {seconds(spent)} ({spent / total:.0%})</span>'
        for kind, spent in parts
    )
    yield f'<p class="key dim">{"".join(keys)}</p>'


def _timeline(report: RunReport) -> Iterator[str]:
    longest = sorted(report.spans, key=lambda span: -span.seconds)[:MOST_BARS]
    turns = sorted({span.turn for span in longest})
    for number in turns:
        spans = sorted((span for span in longest if span.turn == number), key=lambda span: span.began)
        for lane, name in _lanes(spans, f"turn {number}" if number else "start"):
            bars = "".join(_bar(span, report) for span in lane)
            yield f'<div class="row"><b>{_text(name)}</b><div>{bars}</div></div>'
    if len(report.spans) > MOST_BARS:
        yield f'<p class="dim">{counted(len(report.spans) - MOST_BARS, "shorter span")} not drawn</p>'


def _lanes(spans: Sequence[ReportSpan], name: str) -> Iterator[tuple[Sequence[ReportSpan], str]]:
    """Yield rows of spans that don't overlap. The first row has the name."""
    lanes: list[list[ReportSpan]] = []
    for span in spans:
        free = next((lane for lane in lanes if lane[-1].ended <= span.began), None)
        if free is None:
            lanes.append([span])
        else:
            free.append(span)
    yield from ((lane, name if place == 0 else "") for place, lane in enumerate(lanes))


def _bar(span: ReportSpan, report: RunReport) -> str:
    total = report.seconds or 1.0
    left, width = (span.began - report.began).total_seconds() / total, span.seconds / total
    facts = [NAMES[span.kind], span.label, seconds(span.seconds), span.status, f"by {span.by}" if span.by else ""]
    said = " · ".join(fact for fact in facts if fact) + (" (not ended)" if span.is_open else "")
    return f'<i class="{_colour(span.kind)}" style="left:{left:.4%};width:{width:.4%}" title="{_text(said)}"></i>'


def _tables(report: RunReport) -> Iterator[str]:
    if report.turns:
        rows = [
            (
                str(turn.number),
                seconds(turn.seconds),
                seconds(turn.time.get("model", 0.0)),
                seconds(turn.time.get("tool", 0.0) + turn.time.get("sub_agent", 0.0)),
                seconds(sum(turn.time.get(kind, 0.0) for kind in WAITS)),
                f"{turn.tool_calls}{f' ({turn.failed_tool_calls} failed)' if turn.failed_tool_calls else ''}",
                tokens(turn.spending.input_tokens),
                tokens(turn.spending.output_tokens),
                costs(turn.spending),
            )
            for turn in report.turns
        ]
        columns = ("turn", "took", "model", "tools", "waits", "calls", "tokens in", "out", "cost")
        yield from _table("Turns", columns, rows)
    tools = [(t.name, str(t.calls), str(t.failed), seconds(t.seconds), seconds(t.longest)) for t in report.tools]
    yield from _table("Tools", ("tool", "calls", "failed", "took", "longest"), tools)
    models = [
        (
            model.name,
            str(model.spending.model_calls),
            str(model.spending.failed),
            seconds(model.spending.seconds),
            seconds(model.longest),
            tokens(model.spending.input_tokens),
            tokens(model.spending.cached_tokens),
            tokens(model.spending.output_tokens),
            costs(model.spending),
        )
        for model in report.models
    ]
    columns = ("model", "calls", "failed", "took", "longest", "tokens in", "cached", "out", "cost")
    yield from _table("Models", columns, models)
    waits = [(NAMES[w.kind], str(w.count), seconds(w.seconds), seconds(w.longest)) for w in report.waits]
    yield from _table("Waits", ("for", "times", "took", "longest"), waits)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    filled = list(rows)
    if not filled:
        return
    yield f'<h2>{_text(title)}</h2><div class="scroll"><table><tr>'
    yield "".join(f"<th{_side(place)}>{_text(name)}</th>" for place, name in enumerate(columns)) + "</tr>"
    for row in filled:
        yield "<tr>" + "".join(f"<td{_side(place)}>{_text(cell)}</td>" for place, cell in enumerate(row)) + "</tr>"
    yield "</table></div>"


def _sub_agent(child: SubAgentReport) -> Iterator[str]:
    yield f"<h2>Sub-agent {_text(child.agent)}: {_text(child.description)}</h2>"
    facts = [child.run_id, child.status.replace("_", " "), seconds(child.seconds)]
    if child.report is None:
        yield f'<p class="dim">{_text(" · ".join([*facts, "its history is no longer available"]))}</p>'
        return
    yield f'<p class="dim">{_text(" · ".join([*facts[:2], *headline(child.report), *expenses(child.report)]))}</p>'
    yield from _shares(child.report)
    yield from _timeline(child.report)


def _colour(kind: str) -> str:
    return "wait" if kind in WAITS else kind


def _side(place: int) -> str:
    return ' class="n"' if place else ""


def _text(text: str) -> str:
    return escape(plain(text), quote=True)
