"""Nothing that a model, a tool, a file or another person writes reaches the terminal as anything but text."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some
from rich.console import RenderableType

from loom.cli.commands import inbox, show
from loom.cli.output import SafeConsole, print_json, print_notice
from loom.cli.report_screen import print_report
from loom.cli.run_list import run_table, run_tree
from loom.cli.watch import panels
from loom.cli.watch.file_changes import change_lines
from loom.cli.watch.screen import Screen
from loom.domain.core.messages import ToolCall
from loom.domain.core.requests import RunError
from loom.domain.core.tasks import Action, Task
from loom.domain.history.past_turns import CallNotRun, PastTurn
from loom.domain.history.run_report import run_report
from loom.inbox import PendingAnswer, PendingCall, SilentRun
from loom.pending_approvals import read_approval
from loom.run_overviews import RunOverview
from loom.visibility import RunSummary
from tests.unit.cli.test_cli_screen import BEGIN, DONE, PENDING, task

SEQUENCES: Final = (
    "\x1b[2J", "\x1b[31;1m", "\x1b]0;title\x07", "\x1b]8;;http://evil.example\x1b\\", "\x1bP1$r\x1b\\", "\x9b2J",
    "\x1b[?1049h", "\r", "\x08", "\x7f", "\x00", "\x0b", "\x85", "\u202e", "\u2066", "\u200f", "\u061c", "\u2028",
    "[bold red]", "[/]", "[link=http://evil.example]", "\ud800", "**", "`", "<b>", "\n", "\t", "# ", "> ", "|", "- ",
)  # fmt: skip
HOSTILE: Final = some.lists(some.sampled_from(SEQUENCES) | some.text(max_size=8), max_size=8).map("".join)
STEERS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What must not arrive: all control characters but line ends and tabs, and what reorders text."""
NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)


def printed(*shown: RenderableType) -> str:
    """What a terminal without colors gets, so that every sequence in it comes from the texts."""
    out = io.StringIO()
    console = SafeConsole(file=out, width=80, force_terminal=True, color_system=None, markup=False, highlight=False)
    for each in shown:
        console.print(each)
    return out.getvalue()


def watched(evil: str) -> str:
    """A run from its start to its end, and its sub-agent, as `loom run` and `loom watch` show them."""
    out = io.StringIO()
    console = SafeConsole(file=out, width=80, force_terminal=True, color_system=None, markup=False, highlight=False)
    screen = Screen(console, "r", live=True, now=lambda: BEGIN)
    told: list[Task] = [
        task(Action.START, task=evil, agent=evil, model=evil, workspace=evil),
        task(Action.TURN, to=1, phase=evil),
        task(Action.THINKING, content=evil),
        task(Action.MODEL_CALL, model=evil, input_tokens=1, output_tokens=1, cost=0.1, ms=1),
        task(Action.EXECUTE, call_id="c0", agent=evil, description=evil, child_run_id=f"r/{evil}"),
        replace(task(Action.THINKING, content=evil), run_id=f"r/{evil}"),
        replace(task(Action.MODEL_CALL, model=evil), run_id=f"r/{evil}"),
        task(Action.TOOL_CALL, call_id="c1", tool=evil, summary=evil, arguments={evil: evil}),
        task(Action.TOOL_PROGRESS, call_id="c1", content=evil),
        task(Action.APPROVAL_REQUESTED, call_id="c2", tool=evil, arguments={evil: evil}),
    ]
    for offset, each in enumerate(told):
        screen.event(offset, each)
    console.print(screen.render())
    ended = [
        task(Action.TOOL_RESULT, status="error", call_id="c1", tool=evil, result={"content": evil}),
        task(Action.APPROVAL_DECIDED, call_id="c2", tool=evil, approved=False, by=evil, reason=evil),
        task(Action.MESSAGE, text=evil, by=evil),
        task(Action.PARKED, waiting_on=evil, error=evil, message=evil, until=evil, way_out=evil),
        task(Action.BUDGET, text=evil, other=evil),
        task(Action.COMPLETE),
    ]
    for offset, each in enumerate(ended):
        screen.event(offset, each)
    screen.say(evil)
    screen.ended(replace(DONE, output=evil, error=RunError(type=evil, message=evil)))
    return out.getvalue()


def listed(evil: str) -> str:
    """A row of `loom list` and a branch of `loom list --tree`."""
    known: dict[str, Any] = {"status": evil, "agent": evil, "model": evil, "waiting_on": evil, "tenant": evil}
    summary = RunSummary(run_id=evil, started_at=BEGIN, closed_at=None, cost=0.1, **known)
    overview = RunOverview(summary=summary, task=evil, turns=1, cost=0.1, waits_for=evil)
    return printed(run_table([overview], NOW, 80), run_table([overview], NOW, 120), run_tree([overview], NOW))


def asked(evil: str) -> str:
    """An entry of `loom inbox` of each kind, with the diff of a file."""
    call = {**PENDING, "call_id": evil, "tool": evil, "arguments": {evil: evil}, "reason": evil, "risk": evil}
    whose: dict[str, Any] = {"run_id": evil, "agent": evil, "tenant": evil, "since": BEGIN}
    waiting = (
        PendingCall(call_id=evil, made_by=evil, tool=evil, arguments={evil: evil}, reason=evil, risk=evil, **whose),
        PendingAnswer(question=evil, **whose),
        SilentRun(waiting_on=evil, **whose),
    )
    lines = [line for each in waiting for line in inbox._lines(each, NOW, boxed=True)]
    ask = read_approval(call)
    change = f"--- a/{evil}\n+++ b/{evil}\n+{evil}"
    panel = panels.approval(ask, evil, boxed=True, change=change)
    return printed(
        inbox._overview(waiting, NOW), *lines, panel, panels.approval_in_full(ask, change), *change_lines(change)
    )


def told_by_turn(evil: str) -> str:
    """A turn of `loom show`."""
    call = CallNotRun(call=ToolCall(id=evil, name=evil, arguments={evil: evil}), content=evil, is_error=True)
    return printed(*show.turn_lines(PastTurn(number=1, not_run=(call,)), {}))


def reported(evil: str) -> str:
    """A report."""
    tasks = (
        task(Action.START, task=evil, agent=evil, model=evil, workspace=evil),
        task(Action.TURN, to=1),
        task(Action.MODEL_CALL, turn=1, model=evil, input_tokens=1, output_tokens=1, cost=0.1, ms=1),
        task(Action.TOOL_RESULT, turn=1, status="error", call_id="c1", tool=evil, result={"content": evil}),
        task(Action.ERROR, status="failed", error={"type": evil, "message": evil}),
    )
    out = io.StringIO()
    console = SafeConsole(file=out, width=80, force_terminal=True, color_system=None, markup=False, highlight=False)
    print_report(run_report(tasks, run_id=evil, now=NOW), console)
    return out.getvalue()


@pytest.mark.parametrize("shown", [watched, listed, asked, told_by_turn, reported])
@settings(max_examples=40)
@given(evil=HOSTILE)
@example(evil="".join(SEQUENCES))
def test_no_text_steers_the_terminal(shown: Callable[[str], str], evil: str) -> None:
    assert STEERS.search(shown(evil)) is None


@given(evil=HOSTILE)
def test_notices_and_json_hold_no_control_characters(evil: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        out = io.StringIO()
        patch.setattr("sys.stderr", out)
        patch.setattr("sys.stdout", out)
        print_notice(evil)
        print_json({evil: evil})
    assert STEERS.search(out.getvalue()) is None


def test_markup_and_links_are_shown_as_they_are() -> None:
    seen = watched("[bold]markup[/] <b>html</b> [here](http://evil.example)")

    assert "[bold]markup[/]" in seen
    assert "<b>html</b>" in seen
    assert "here (http://evil.example)" in seen
