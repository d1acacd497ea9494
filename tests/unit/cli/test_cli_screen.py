"""What people see of a run, and what the command line takes: rendering, asks and their answers, option values."""

import asyncio
import io
import itertools
import json
import os
import pty
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

import pytest
from rich.console import Console
from typer.testing import CliRunner

from loom.cli.arguments import absolute, read_object, read_permissions
from loom.cli.commands import steering
from loom.cli.commands.run import CODES, unattended
from loom.cli.commands.status import print_status
from loom.cli.main import build_app
from loom.cli.output import counted, one_line, plain, print_json, seconds, tokens, visible
from loom.cli.watch import panels
from loom.cli.watch.approval_prompt import Prompter
from loom.cli.watch.file_changes import change_lines
from loom.cli.watch.follower import Follower, approve_all
from loom.cli.watch.json_display import JsonEvents, ResultOnly
from loom.cli.watch.keyboard import Keyboard, edited
from loom.cli.watch.pending_approvals import (
    Decision,
    Pending,
    PendingQuestion,
    PendingTracker,
    read_questions,
)
from loom.cli.watch.screen import Screen
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest, RefusedError, RunNotFoundError, UnreachableError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunError, RunResult, RunStatus
from loom.domain.core.tasks import Action, Task
from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.judge import Mode, judge
from loom.domain.permissions.subjects import Subject
from loom.exit_codes import code_of
from loom.file_changes import change_of
from loom.pending_approvals import PendingApproval, read_approval
from loom.testing.waiting import PATIENCE, eventually
from loom.watching import Polled, Streamed, Watched

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
BASH = PendingApproval(
    call_id="c1",
    tool="bash",
    arguments={"command": "rm -rf build"},
    reason="the rule bash says ask",
    rule="bash",
    risk="may destroy work (guard)",
    digest="d1",
    for_run=("bash(rm:*)",),
)
PENDING: dict[str, Any] = {
    "call_id": "c1",
    "tool": "bash",
    "arguments": {"command": "rm -rf build"},
    "reason": "the rule bash says ask",
    "rule": "bash",
    "risk": "may destroy work (guard)",
    "digest": "d1",
    "for_run": ["bash(rm:*)"],
}
DONE = RunResult(
    status=RunStatus.COMPLETED,
    output="all is well",
    structured_output=None,
    completed_explicitly=True,
    turns=2,
    usage={"total_tokens": 12_345},
    cost=0.0123,
    quality_metrics=None,
    tool_calls=1,
    artifacts=(),
    error=None,
)


def task(action: Action, *, status: str = "completed", result: JsonObject | None = None, **said: Any) -> Task:
    return Task(
        task_id="t",
        run_id="r",
        root_run_id="r",
        session_id="r",
        action=action,
        created_at=BEGIN,
        status=status,
        parameters=said,
        result=result,
    )


def screen(*, live: bool = False, answerable: bool = False, replies: bool = False) -> tuple[Screen, io.StringIO]:
    out = io.StringIO()
    console = Console(
        file=out,
        width=100,
        height=30,
        force_terminal=live,
        color_system=None,
        markup=False,
        highlight=False,
        emoji=False,
    )
    now = BEGIN + timedelta(seconds=7)
    shown = Screen(console, "r", live=live, answerable=answerable, replies=replies, now=lambda: now)
    return shown, out


def tell(shown: Screen, *tasks: Task) -> None:
    for offset, one in enumerate(tasks, 1):
        shown.event(offset, one)


def picture(shown: Screen) -> str:
    """The moving part as text."""
    console = Console(file=io.StringIO(), width=100, record=True, color_system=None)
    console.print(shown.render())
    return console.export_text()


SAID: dict[str, Any] = {"from": 0, "to": 1}
TURN = task(Action.TURN, **SAID)
RATINGS = {"confidence": 0.9, "coverage": 1.0, "novelty": 0.25}
CALLED = task(Action.MODEL_CALL, model="demo", input_tokens=100, output_tokens=10, cost=0.002, ms=1500)
RUNNING = task(Action.TOOL_CALL, status="running", call_id="c1", tool="bash", summary="bash: pytest -q", arguments={})
RAN = task(
    Action.TOOL_RESULT,
    status="success",
    call_id="c1",
    tool="bash",
    result={"content": "a\nb\nc\nd\ne", "length": 9, "metadata": {"execution_time": 2.5}},
)


def test_plain_lines_tell_a_run_from_start_to_end() -> None:
    shown, out = screen()
    tell(
        shown,
        task(Action.START, status="running", task="look around", agent="default", model="demo", workspace="/w"),
        TURN,
        task(Action.THINKING, content="I loo"),
        task(Action.THINKING, content="k.\nThen I act."),
        CALLED,
        RUNNING,
        RAN,
        task(Action.MESSAGE, text="hurry up", by="ada"),
        task(Action.PAUSED, by="ada"),
        task(Action.RESUMED, by="ada"),
        task(Action.COMPLETE),
    )
    shown.ended(DONE)
    assert out.getvalue().splitlines() == [
        "▶ r · agent default · model demo",
        "  /w",
        "look around",
        "── turn 1 ──",
        "I look.",
        "Then I act.",
        "  demo · 100 in · 10 out · $0.0020 · 1.5 s",
        "→ bash: pytest -q",
        "✓ bash: pytest -q  2.5 s",
        "  │ a",
        "  │ b",
        "  │ c",
        "  │ … 2 more lines",
        "✉ ada: hurry up",
        "‖ paused by ada; `loom resume r` resumes it",
        "▶ resumed by ada",
        "✓ completed · r · 2 turns · 1 tool call · 12.3k tokens · $0.0123 · 0 ms",
        "all is well",
    ]


def test_at_a_terminal_the_final_answer_is_shown_once() -> None:
    shown, out = screen(live=True)
    tell(shown, TURN, task(Action.THINKING, content=DONE.output), CALLED, task(Action.COMPLETE))
    shown.ended(DONE)
    assert out.getvalue().count(DONE.output) == 1
    assert "✓ completed · r" in out.getvalue()

    again, out = screen(live=True)
    tell(again, TURN, task(Action.THINKING, content="something else"), CALLED, task(Action.COMPLETE))
    again.ended(DONE)
    assert out.getvalue().count(DONE.output) == 1


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param(["all is ", "well"], id="one line"),
        pytest.param(["\n# Done\n", "\nall ", "is well\nand tested", "\n"], id="lines that come one by one"),
    ],
)
def test_plain_lines_show_the_final_answer_once(pieces: list[str]) -> None:
    answer = "".join(pieces)
    said = [task(Action.THINKING, content=piece) for piece in pieces]
    shown, out = screen()
    tell(shown, TURN, *said, CALLED, task(Action.COMPLETE))
    shown.ended(replace(DONE, output=answer))
    assert out.getvalue().count("all is well") == 1
    assert "✓ completed · r" in out.getvalue().splitlines()[-1]


def test_plain_lines_show_an_answer_again_if_its_text_was_withdrawn_or_cut() -> None:
    answer = "first\nsecond"
    for tasks in (
        (task(Action.THINKING, content=f"{answer}\n"), task(Action.SEGMENT_RESET, turn=1, attempt=2)),
        (task(Action.THINKING, content="first\nsec"),),
        (task(Action.THINKING, content=answer), CALLED, task(Action.TURN, to=2), task(Action.THINKING, content="x\n")),
    ):
        shown, out = screen()
        tell(shown, TURN, *tasks)
        shown.ended(replace(DONE, output=answer))
        assert out.getvalue().splitlines()[-2:] == answer.splitlines()


def test_plain_lines_show_progress_as_it_comes_and_not_again_with_the_result() -> None:
    shown, out = screen()
    tell(shown, RUNNING, task(Action.TOOL_PROGRESS, call_id="c1", tool="bash", content="1 passed\n"), RAN)
    assert out.getvalue().splitlines() == ["→ bash: pytest -q", "  │ 1 passed", "✓ bash: pytest -q  2.5 s"]


def test_a_sub_agent_is_told_with_the_head_of_its_task_and_the_time_that_it_took() -> None:
    shown, out = screen()
    given = task(Action.EXECUTE, call_id="c1", agent="scout", description="look", child_run_id="r/d1-1-9f2c")
    begun = task(Action.START, task="one\ntwo\nthree\nfour\nfive", agent="scout", model="demo", workspace="/w")
    answer = {"content": "fine", "length": 4, "metadata": {"execution_time": 0}}
    ended = task(Action.TOOL_RESULT, status="success", call_id="c1", child_run_id="r/d1-1-9f2c", result=answer)
    tell(shown, given, replace(begun, run_id="r/d1-1-9f2c"), replace(ended, created_at=BEGIN + timedelta(seconds=3)))
    assert out.getvalue().splitlines() == [
        "⤷ scout: look  (d1-1)",
        "  d1-1 │ ▶ r/d1-1-9f2c · agent scout · model demo",
        "  d1-1 │ one",
        "  d1-1 │ two",
        "  d1-1 │ three",
        "  d1-1 │ … 2 more lines",
        "✓ scout: look  3.0 s",
        "  │ fine",
    ]


def test_what_the_stream_says_in_words_is_told_in_these_words() -> None:
    shown, out = screen()
    tell(shown, task(Action.BUDGET, text="80 % of the tokens are spent"))
    assert out.getvalue() == "· budget: 80 % of the tokens are spent\n"


def test_a_failed_tool_shows_why() -> None:
    shown, out = screen()
    failed = task(Action.TOOL_RESULT, status="error", call_id="c1", tool="bash", result={"content": "exit code 1"})
    tell(shown, RUNNING, failed)
    assert out.getvalue().splitlines()[1:] == ["✗ bash: pytest -q", "  │ exit code 1"]


def test_a_call_that_starts_again_without_a_result_says_so() -> None:
    shown, out = screen()
    again = replace(RUNNING, parameters={**RUNNING.parameters, "attempt": 2})
    failed = task(Action.TOOL_RESULT, status="error", call_id="c1", tool="bash", result={"content": "exit code 1"})
    tell(shown, RUNNING, again, failed, again)
    assert [line for line in out.getvalue().splitlines() if line.startswith("→")] == [
        "→ bash: pytest -q",
        "→ bash: pytest -q (attempt 2: the one before gave no result)",
        "→ bash: pytest -q",
    ]


@pytest.mark.parametrize("width", [60, 90, 150])
def test_a_pipe_gets_the_whole_line_of_a_sub_agent_whatever_its_width(width: int) -> None:
    out = io.StringIO()
    shown = Screen(Console(file=out, width=width, color_system=None), "r", live=False)
    long = "a long line of words " * 20
    result = task(Action.TOOL_RESULT, call_id="c1", tool="bash", status="success", result={"content": long})
    tell(
        shown,
        *(
            replace(each, run_id="r/look-1-abcd")
            for each in (task(Action.THINKING, content=long), CALLED, RUNNING, result)
        ),
    )
    lines = out.getvalue().splitlines()
    assert f"  look-1 │ {long}".rstrip() in [line.rstrip() for line in lines]
    assert lines[-1].startswith("  look-1 │   │ a long line")
    assert lines[-1].endswith("…")


def test_the_moving_part_shows_text_tools_and_spending() -> None:
    shown, out = screen(live=True)
    tell(shown, TURN, CALLED, RUNNING, task(Action.TOOL_PROGRESS, call_id="c1", content="test_a\ntest_b\n"))
    tell(shown, task(Action.THINKING, content="half a sen"))
    status = {"status": "running", "turn": 1, "cost": 0.002, "usage": {"total_tokens": 50}}
    shown.status({**status, "budget": {"tokens": {"limit": 1000}, "turns": {"limit": 9}}})
    seen = picture(shown)
    assert "half a sen" in seen
    assert "bash: pytest -q  7.0 s  test_b" in seen
    assert "bash: pytest -q · turn 1/9 · 110/1000 tokens · $0.0020 · Ctrl-C detaches" in seen
    assert "half a sen" not in out.getvalue()


def test_the_text_of_an_attempt_that_broke_off_is_withdrawn() -> None:
    shown, out = screen(live=True)
    tell(shown, TURN, task(Action.THINKING, content="wrong words"))
    tell(shown, task(Action.SEGMENT_RESET, turn=1, attempt=2), TURN)
    assert "wrong words" not in picture(shown)
    tell(shown, task(Action.THINKING, content="right words"), CALLED)
    seen = out.getvalue()
    assert "wrong words" not in seen
    assert "— the model call was interrupted and starts again (attempt 2) —" in seen
    assert seen.count("turn 1 ") == 1
    assert "right words" in seen


def test_what_a_turn_is_for_and_how_an_answer_was_rated_is_shown() -> None:
    shown, out = screen()
    rated: dict[str, Any] = {
        "purpose": "evaluation",
        "quality_metrics": RATINGS,
        "cost": 0.001,
        "ms": 500,
        "model": "demo",
    }
    tell(shown, task(Action.TURN, to=1, phase="critique"), task(Action.MODEL_CALL, **rated), task(Action.COMPLETE))
    shown.ended(replace(DONE, quality_metrics=RATINGS))

    lines = out.getvalue().splitlines()
    assert lines[0] == "── turn 1 · critique ──"
    assert lines[2] == "  rated by the model itself: confidence 0.9, coverage 1.0, novelty 0.25"
    assert lines[-1] == "rated by the model itself: confidence 0.9, coverage 1.0, novelty 0.25"


def test_a_crews_step_says_who_works_and_why() -> None:
    shown, out = screen()
    jobs = [{"key": "routed", "member": "clerk", "attempt": 1}]
    step = task(Action.PLANNING, turn=1, text="To clerk (rules: the task says 'invoice')", jobs=jobs)
    tell(shown, TURN, step, task(Action.PLANNING, turn=2, text="It is paid."))
    assert out.getvalue().splitlines()[1:] == ["· To clerk (rules: the task says 'invoice')"]


def test_a_failed_model_call_is_shown_with_its_error() -> None:
    shown, out = screen()
    tell(
        shown,
        TURN,
        task(Action.MODEL_CALL, status="failed", error="LLMRateLimitError", message="slow down"),
        task(Action.SEGMENT_RESET, turn=1, attempt=2),
    )
    assert out.getvalue().splitlines()[1:] == [
        "✗ model: LLMRateLimitError: slow down",
        "— trying the model call again (attempt 2); ignore its earlier text in this turn —",
    ]


def test_decisions_name_the_call_they_were_about() -> None:
    shown, out = screen()
    asked = task(Action.APPROVAL_REQUESTED, status="pending", call_id="c1", tool="bash", arguments={"command": "ls"})
    tell(shown, asked, task(Action.APPROVAL_DECIDED, call_id="c1", tool="bash", approved=True, scope="run", by="ada"))
    denied = task(Action.APPROVAL_DECIDED, call_id="c2", tool="bash", approved=False, by="bob", reason="not today")
    tell(shown, denied)
    assert out.getvalue().splitlines() == [
        "✓ approved for the rest of the run by ada · bash: ls",
        "✗ denied by bob · bash · not today",
    ]


def test_an_ask_off_a_terminal_says_how_to_answer_it() -> None:
    shown, out = screen()
    shown.approval_opened(BASH)
    assert out.getvalue().splitlines() == [
        "? approve bash? (c1)",
        "  command: rm -rf build",
        "  (risk: may destroy work (guard))",
        "  (why: the rule bash says ask)",
        "  (rule: bash)",
        "  (for the run: bash(rm:*))",
        "  answer with `loom approve r c1`",
        "  or with `loom deny r c1 --reason …`",
    ]


def test_an_ask_at_a_terminal_is_a_panel_with_everything_in_it() -> None:
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(panels.approval(BASH, "r", boxed=True))
    seen = console.export_text()
    for part in (
        "approve bash? (c1)",
        "rm -rf build",
        "may destroy work (guard)",
        "the rule bash says ask",
        "bash(rm:*)",
        "loom approve r c1",
    ):
        assert part in seen


def test_a_failed_run_ends_with_its_error() -> None:
    shown, out = screen()
    error = RunError(type="LLMConfigurationError", message="no key")
    failed = {"status": RunStatus.FAILED, "output": "", "error": error, "cost": None}
    shown.ended(RunResult(**{**{f: getattr(DONE, f) for f in DONE.__slots__}, **failed}))
    assert "✗ failed · r · 2 turns · 1 tool call · 12.3k tokens · cost unknown" in out.getvalue()
    assert "LLMConfigurationError: no key" in out.getvalue()


def test_text_of_others_cannot_steer_the_terminal() -> None:
    evil = "\x1b[2J\x1b]0;title\x07ok\x1b[31m red\x9b1m\x08 [bold]markup[/] \u202egnp.exe"
    for live in (False, True):
        shown, out = screen(live=live)
        tell(
            shown,
            TURN,
            task(Action.THINKING, content=evil + "\n"),
            CALLED,
            task(Action.TOOL_CALL, call_id="c1", tool="bash", summary=evil),
            task(Action.TOOL_PROGRESS, call_id="c1", content=evil),
            task(Action.TOOL_RESULT, status="error", call_id="c1", tool="x", result={"content": evil}),
            task(Action.MESSAGE, text=evil, by=evil),
        )
        shown.approval_opened(
            PendingApproval(
                call_id=evil, tool=evil, arguments={evil: evil}, reason=evil, rule=evil, risk=evil, for_run=(evil,)
            )
        )
        shown.say(evil)
        odd = {c for c in out.getvalue() if c in "\x07\x08\x9b\u202e" or (c == "\x1b" and not live)}
        assert odd == set()
        assert "\x1b[2J" not in out.getvalue()
        assert "\x1b]0" not in out.getvalue()
        assert "[bold]markup[/]" in out.getvalue()


def test_what_is_to_be_approved_hides_nothing() -> None:
    assert visible("a\x1b[8mb\u202ec\u200bd\r") == "a\\x1b[8mb\\u202ec\\u200bd\\x0d"
    assert plain("a\x1b[8mb\r\nc\rd") == "ab\nc\nd"
    assert one_line("a\n b" + "c" * 200, 10) == "a bcccccc…"


def test_the_absence_of_the_stream_is_said_once() -> None:
    shown, out = screen()
    shown.stream_lost({"status": "running", "turn": 1, "waiting_on": "model"}, "Redis is away")
    shown.stream_lost({"status": "running", "turn": 1, "waiting_on": "model"}, "Redis is away")
    shown.stream_lost({"status": "completed", "turn": 2}, "Redis is away")
    tell(shown, TURN)
    assert out.getvalue().splitlines() == [
        "— the live stream is unavailable (Redis is away); showing the status —",
        "turn 1 · running · waiting on model",
        "turn 2 · completed",
        "— the live stream is available again —",
        "── turn 1 ──",
    ]


def test_numbers_are_written_for_people() -> None:
    assert [seconds(s) for s in (0.0123, 1.25, 61, 7260, 604_799)] == ["12 ms", "1.2 s", "1m 01s", "2h 01m", "7 days"]
    assert [tokens(n) for n in (9999, 12_345, 2_500_000)] == ["9999", "12.3k", "2.50M"]


def test_json_is_one_line_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "ü\n\ud800", "at": BEGIN, "result": DONE})
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert json.loads(line)["text"] == "ü\n?"
    assert json.loads(line)["result"]["status"] == "completed"


# Pending approvals.


class Fake:
    """A run that asks once and ends when it is answered."""

    def __init__(self, *, seen: bool = True, refuse: bool = False) -> None:
        self.answers: list[tuple[str, dict[str, Any]]] = []
        self.pending: list[dict[str, Any]] = []
        self.ended = asyncio.Event()
        self.seen = seen
        self.refuse = refuse

    async def status(self, _: str) -> JsonObject:
        return {"status": "completed" if self.ended.is_set() else "running", "pending_approvals": list(self.pending)}

    async def has_ended(self, _: str) -> bool:
        return self.ended.is_set()

    async def watch(self, _: str, *, after: int = 0) -> AsyncIterator[Watched]:
        if self.seen:
            asked = task(Action.APPROVAL_REQUESTED, status="pending", **PENDING)
            yield Streamed(offset=after + 1, task=asked)
            await asyncio.sleep(0.1)  # the run learns of its ask later than the stream
            self.pending = [PENDING]
        else:
            self.pending = [PENDING]
            yield Polled(status=await self.status("r"), why="Redis is away")
        await self.ended.wait()
        yield Streamed(offset=after + 2, task=task(Action.COMPLETE))

    async def events(self, _: str, *, after: int = 0, follow: bool = False) -> AsyncIterator[Streamed]:
        del follow
        yield Streamed(offset=after + 1, task=task(Action.COMPLETE))

    async def result(self, _: str) -> RunResult:
        return DONE

    async def approve(self, _: str, call_id: str, **given: Any) -> JsonObject:
        return self._take("approve", call_id, given)

    async def deny(self, _: str, call_id: str, **given: Any) -> JsonObject:
        return self._take("deny", call_id, given)

    def _take(self, name: str, call_id: str, given: dict[str, Any]) -> JsonObject:
        if not self.pending:
            raise RefusedError(f"call {call_id!r} is not waiting for approval")
        self.answers.append((name, {"call_id": call_id, **given}))
        self.pending = []
        self.ended.set()
        if self.refuse:
            raise RefusedError("too late")
        return {"accepted": True}


def following(run: Fake, shown: Screen, approver: Any = None) -> Follower:
    return Follower(cast(LoomClient, run), "r", shown, approver, "ada")


@pytest.mark.parametrize("seen", [True, False], ids=["from its event", "from the status"])
async def test_yes_approves_an_ask_once_it_is_open(*, seen: bool) -> None:
    run = Fake(seen=seen)
    shown, _ = screen(answerable=True)
    assert await following(run, shown, approve_all).follow(just_started=True) == DONE
    approved = {"call_id": "c1", "scope": "once", "arguments": None, "digest": "d1", "by": "ada"}
    assert run.answers == [("approve", approved)]


async def test_an_ask_that_was_open_before_is_offered() -> None:
    run = Fake(seen=False)
    run.pending = [PENDING]
    shown, _ = screen(answerable=True)
    asked: list[PendingApproval] = []

    async def deny(ask: PendingApproval) -> Decision:
        asked.append(ask)
        return Decision(approved=False, reason="no")

    await following(run, shown, deny).follow()
    assert asked == [BASH]
    assert run.answers == [("deny", {"call_id": "c1", "reason": "no", "by": "ada"})]


async def test_an_answer_that_comes_too_late_is_said_and_forgotten() -> None:
    shown, out = screen(answerable=True)
    assert await following(Fake(refuse=True), shown, approve_all).follow(just_started=True) == DONE
    assert "— not accepted: too late —" in out.getvalue()


async def test_a_question_is_taken_back_when_somebody_else_answers() -> None:
    run = Fake()
    shown, out = screen(answerable=True)

    async def never(_: PendingApproval) -> Decision:
        asyncio.get_running_loop().call_later(0.05, elsewhere)
        await asyncio.Event().wait()
        raise AssertionError

    follower = following(run, shown, never)

    def elsewhere() -> None:
        follower._pending.close("c1", "d1")
        asyncio.get_running_loop().call_later(0.05, run.ended.set)

    assert await follower.follow(just_started=True) == DONE
    assert "— bash (c1) was answered elsewhere —" in out.getvalue()


async def test_an_ended_run_is_shown_without_waiting() -> None:
    run = Fake()
    run.ended.set()
    shown, _ = screen()
    assert await following(run, shown).follow() == DONE


async def test_a_decided_ask_is_not_opened_again_by_a_late_look() -> None:
    opened: list[Pending] = []

    async def look() -> JsonObject:
        return {}

    asks = PendingTracker(look, on_open=opened.append)
    asks.hint("c1", "d1")
    asks.take({"pending_approvals": [PENDING]})
    asks.take({"pending_approvals": [PENDING]})
    assert opened == [read_approval(PENDING)]
    asks.close("c1")
    asks.take({"pending_approvals": [PENDING]})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asks.first(questions=True), 0.05)


# Questions.


ASKS_COLOUR: dict[str, Any] = {
    "run_id": "r",
    "status": "waiting_for_input",
    "turn": 1,
    "waiting_on": "answer: Red or blue?",
    "pending_approvals": [],
}
COLOUR = PendingQuestion(run_id="r", turn=1, text="Red or blue?")


class Curious(Fake):
    """A run that asks a question and ends when it is answered."""

    asks = True

    async def status(self, _: str) -> JsonObject:
        ended = "completed" if self.ended.is_set() else "running"
        return ASKS_COLOUR if self.asks and ended == "running" else {**ASKS_COLOUR, "status": ended}

    async def watch(self, _: str, *, after: int = 0) -> AsyncIterator[Watched]:
        began = replace(task(Action.TURN), parameters={"from": 0, "to": 1})
        asked = task(Action.MESSAGE, text="Red or blue?", by="agent", call_id="q1")
        yield Streamed(offset=after + 1, task=began)
        yield Streamed(offset=after + 2, task=asked)
        await self.ended.wait()
        yield Streamed(offset=after + 3, task=task(Action.COMPLETE))

    async def send(self, run_id: str, text: str, *, by: str = "") -> JsonObject:
        self.answers.append(("send", {"run_id": run_id, "text": text, "by": by}))
        self.ended.set()
        return {"accepted": True, "queued": True}


async def test_a_question_is_answered_in_place() -> None:
    run = Curious()
    shown, out = screen(answerable=True, replies=True)

    async def blue(question: PendingQuestion) -> str:
        assert question == COLOUR
        return "blue"

    follower = Follower(cast(LoomClient, run), "r", shown, approve_all, "ada", replier=blue)
    assert await follower.follow(just_started=True) == DONE
    assert run.answers == [("send", {"run_id": "r", "text": "blue", "by": "ada"})]
    assert out.getvalue().splitlines() == ["── turn 1 ──", "✉ agent: Red or blue?"]


async def test_who_says_yes_to_all_is_told_how_to_answer_a_question() -> None:
    run = Curious()
    shown, out = screen(answerable=True)
    following_it = asyncio.create_task(following(run, shown, approve_all).follow())
    await _said("loom send", out)
    run.ended.set()
    assert await following_it == DONE
    notice = '— waiting for an answer to "Red or blue?"; answer with `loom send r "your answer"` —'
    assert out.getvalue().splitlines() == ["── turn 1 ──", "✉ agent: Red or blue?", notice]
    assert run.answers == []


async def test_a_question_that_is_answered_elsewhere_is_taken_back() -> None:
    run = Curious()
    shown, out = screen(replies=True)
    asked = asyncio.Event()

    async def never(_: PendingQuestion) -> str:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    follower = Follower(cast(LoomClient, run), "r", shown, approve_all, "ada", replier=never)
    following_it = asyncio.create_task(follower.follow(just_started=True))
    await asked.wait()
    run.asks = False
    follower._show(Streamed(offset=2, task=task(Action.MESSAGE, text="blue", by="bob")))
    await _said("— the question was answered elsewhere —", out)
    run.ended.set()
    assert await following_it == DONE


async def _said(words: str, out: io.StringIO) -> None:
    async def looked() -> bool:
        return words in out.getvalue()

    await eventually(looked)


def asks_in(turn: int) -> dict[str, Any]:
    return {**PENDING, "digest": str(turn)}


def turn(number: int) -> Task:
    return replace(task(Action.TURN), parameters={"from": number - 1, "to": number})


def asked(turn: int) -> Task:
    return task(Action.APPROVAL_REQUESTED, status="pending", **asks_in(turn))


def question(turn: int) -> Task:
    return task(Action.MESSAGE, text="Red or blue?", by="agent", call_id=f"q{turn}")


IN_TWO_TURNS: Final[Mapping[str, tuple[Sequence[Task], Sequence[JsonObject]]]] = {
    "asks": (
        [turn(1), asked(1), task(Action.APPROVAL_DECIDED, **asks_in(1), approved=True), turn(2), asked(2)],
        [{"pending_approvals": [asks_in(1)]}, {"pending_approvals": []}, {"pending_approvals": [asks_in(2)]}],
    ),
    "questions": (
        [turn(1), question(1), task(Action.MESSAGE, text="red", by="ann"), turn(2), question(2)],
        [ASKS_COLOUR, {**ASKS_COLOUR, "status": "running"}, {**ASKS_COLOUR, "turn": 2}],
    ),
}
"""What the stream tells of a run that asks the same in two turns, and what its status says meanwhile."""


class Order(ResultOnly):
    """Remembers in which order turns and panels come."""

    def __init__(self) -> None:
        super().__init__("r")
        self.seen: list[tuple[int, str]] = []

    def event(self, offset: int, task: Task) -> None:
        del offset
        if task.action is Action.TURN:
            self.seen.append((task.parameters["to"], "turn"))

    def approval_opened(self, ask: PendingApproval) -> None:
        self.seen.append((int(ask.digest), "panel"))

    def question_opened(self, question: PendingQuestion) -> None:
        self.seen.append((question.turn, "panel"))


@pytest.mark.parametrize("kind", IN_TWO_TURNS)
async def test_in_whatever_order_stream_and_status_come_a_panel_comes_after_its_turn(kind: str) -> None:
    events, statuses = IN_TWO_TURNS[kind]
    steps = len(events) + len(statuses)
    for polls in itertools.combinations(range(steps), len(statuses)):
        order = Order()
        follower = Follower(cast(LoomClient, Fake()), "r", order)
        told, looks = iter(events), iter(statuses)
        for step in range(steps):
            if step in polls:
                follower._pending.take(next(looks))
            else:
                follower._show(Streamed(offset=step, task=next(told)))
        follower._pending.take(statuses[-1])

        assert order.seen.count((2, "panel")) == 1, polls
        for number, panel in enumerate(order.seen):
            assert panel[1] == "turn" or (panel[0], "turn") in order.seen[:number], (polls, order.seen)


def test_questions_of_sub_agents_are_answered_at_their_runs() -> None:
    child = {**ASKS_COLOUR, "run_id": "r/d1-1-9f2c", "turn": 3}
    assert list(read_questions({**ASKS_COLOUR, "status": "running", "children": [child]})) == [
        PendingQuestion(run_id="r/d1-1-9f2c", turn=3, text="Red or blue?")
    ]
    assert list(read_questions({"status": "aborted", "children": [child]})) == []


def test_a_status_says_how_to_answer_a_question(capsys: pytest.CaptureFixture[str]) -> None:
    print_status({**ASKS_COLOUR, "agent": "default", "model": "demo"})
    assert capsys.readouterr().out.splitlines()[2:] == [
        "waiting on answer: Red or blue?",
        '  answer with `loom send r "your answer"`',
    ]


# Keys.


class WatchedKeyboard(Keyboard):
    """Tells whether somebody waits for a key, and how many keys have been taken."""

    waits = False
    taken = 0

    async def _next(self) -> str:
        self.waits = True
        key = await super()._next()
        self.waits = False
        self.taken += 1
        return key


async def pressed(keys: str, work: Callable[[Keyboard], Any]) -> Any:
    """What becomes of `work` when these keys are pressed, each when the one before it has been taken."""
    master, slave = pty.openpty()
    try:
        keyboard = WatchedKeyboard(slave, pause=0)
        with keyboard.opened():
            doing = asyncio.ensure_future(work(keyboard))
            taken = -1

            async def is_awaited() -> bool:
                return doing.done() or (keyboard.waits and keyboard.taken > taken)

            for key in keys.split("|"):
                await eventually(is_awaited)
                taken = keyboard.taken
                os.write(master, key.encode())
            return await asyncio.wait_for(doing, PATIENCE)
    finally:
        os.close(master)
        with suppress(OSError):
            os.close(slave)


@pytest.mark.parametrize(
    ("keys", "answer"),
    [
        ("y", Decision(approved=True)),
        ("x|Y\n", Decision(approved=True)),
        ("r", Decision(approved=True, for_run=True)),
        ("n|too risky|\n", Decision(approved=False, reason="too risky")),
        ("n\n|no\n", Decision(approved=False, reason="no")),
        ("n|oops|\x1b|y", Decision(approved=True)),
        ("e|\x15{\"command\": \"ls\"}|\n", Decision(approved=True, arguments={"command": "ls"})),
        ("e|\x15[1]|\n|\x15{}|\n", Decision(approved=True, arguments={})),
    ],
)  # fmt: skip
async def test_keys_answer_an_ask(keys: str, answer: Decision, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.delenv("VISUAL", raising=False)
    shown, out = screen(answerable=True)
    assert await pressed(keys, lambda keyboard: Prompter(shown, keyboard, "r").answer(BASH)) == answer
    assert "rm -rf build" in out.getvalue()


async def test_what_no_rule_can_allow_for_the_run_is_not_offered_for_it() -> None:
    shown, _ = screen(answerable=True)
    ask = replace(BASH, for_run=())
    answer = await pressed("r|y", lambda keyboard: Prompter(shown, keyboard, "r").answer(ask))
    assert answer == Decision(approved=True)


FORM = read_approval(
    {
        **PENDING,
        "tool": "mcp__hotel__book",
        "question": "Which room in Rome?",
        "schema": {
            "type": "object",
            "properties": {
                "room": {"type": "string", "enum": ["quiet", "bright"], "description": "The room"},
                "nights": {"type": "integer", "default": 1, "minimum": 1, "maximum": 9},
                "breakfast": {"type": "boolean"},
                "mail": {"type": "string", "format": "email"},
                "extras": {"type": "array", "items": {"anyOf": [{"const": "sea", "title": "Sea view"}]}},
            },
            "required": ["room"],
        },
    }
)


@pytest.mark.parametrize(
    ("keys", "arguments"),
    [
        ("y|quiet\n|\n|\n|\n|\n", {"room": "quiet", "nights": 1}),
        ("y|\n|bright\n|\x152\n|yes\n|a@b.de\n|Sea view\n",
         {"room": "bright", "nights": 2, "breakfast": True, "mail": "a@b.de", "extras": ["sea"]}),
        ("y|loud\n|\x15quiet\n|\x1510\n|\x15three\n|\x153\n|maybe\n|\x15no\n|nobody\n|\x15\n|moon\n|\x15\n",
         {"room": "quiet", "nights": 3, "breakfast": False}),
        ("y|quiet\n|\x1b|y|bright\n|\x15\n|\n|\n|\n", {"room": "bright"}),
    ],
)  # fmt: skip
async def test_the_form_of_a_server_is_filled_in_field_by_field(keys: str, arguments: JsonObject) -> None:
    shown, out = screen(answerable=True)
    answer = await pressed(keys, lambda keyboard: Prompter(shown, keyboard, "r").answer(FORM))
    assert answer == Decision(approved=True, arguments=arguments)
    assert "Which room in Rome?" in out.getvalue()
    assert "The room; quiet, bright" in out.getvalue()
    if "loud" in keys:
        said = ("can't be 'loud'", "at most 9", "a whole number", "yes or no", "an email address", "can't be 'moon'")
        assert not [words for words in said if words not in out.getvalue()]


async def test_with_yes_a_form_gets_its_defaults_and_is_declined_if_they_are_not_enough() -> None:
    declined = await approve_all(FORM)
    assert declined == Decision(approved=False, reason="nobody can fill in room")
    schema = {"properties": {"nights": {"type": "integer", "default": 2}, "breakfast": {"type": "boolean"}}}
    assert await approve_all(replace(FORM, schema=schema)) == Decision(approved=True, arguments={"nights": 2})


async def test_a_form_is_declined_and_an_address_is_opened() -> None:
    shown, out = screen(answerable=True)
    declined = await pressed("r|n|no time|\n", lambda keyboard: Prompter(shown, keyboard, "r").answer(FORM))
    assert declined == Decision(approved=False, reason="no time")
    ask = read_approval({**PENDING, "question": "Sign in.", "url": "https://login.example.com/x"})
    assert await pressed("e|y", lambda keyboard: Prompter(shown, keyboard, "r").answer(ask)) == Decision(approved=True)
    assert "https://login.example.com/x" in out.getvalue()


@pytest.mark.parametrize("keys", ["blue|\n", "\n|  |\n|blue\n", "re|\x1b|blue|\n"])
async def test_keys_answer_a_question_once_something_is_said(keys: str) -> None:
    shown, _ = screen(replies=True)
    assert await pressed(keys, lambda keyboard: Prompter(shown, keyboard, "r").reply(COLOUR)) == "blue"


async def test_arguments_are_edited_in_the_editor_of_the_person(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i s/build/dist/ "$1"\n', encoding="utf-8")
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    shown, _ = screen(answerable=True)
    answer = await pressed("e", lambda keyboard: Prompter(shown, keyboard, "r").answer(BASH))
    assert answer == Decision(approved=True, arguments={"command": "rm -rf dist"})


FILE = replace(BASH, tool="write_file", arguments={"path": "n.md", "content": "# Notes\n\n- new\n"}, for_run=())


def test_a_change_is_a_diff_that_shows_each_character_and_the_missing_end_of_the_last_line(tmp_path: Path) -> None:
    (tmp_path / "n.md").write_bytes(b"# Notes\n\n- old\r\n")
    assert change_of("write_file", FILE.arguments, str(tmp_path)) == (
        "--- a/n.md\n+++ b/n.md\n@@ -1,3 +1,3 @@\n # Notes\n \n-- old\r\n+- new"
    )
    edit = {"path": "n.md", "old_string": "old\n", "new_string": "new"}
    change = change_of("edit_file", edit, str(tmp_path)) or ""
    assert change.endswith("-- old\r\n+- new\n\\ No newline at end of file")
    assert "-- old\\x0d" in [line.plain for line in change_lines(change)]
    assert change_of("write_file", {"path": "../n.md", "content": ""}, str(tmp_path)) is None
    assert change_of("write_file", {"path": "new.md", "content": "a\n"}, str(tmp_path)) == (
        "--- /dev/null\n+++ b/new.md\n@@ -0,0 +1 @@\n+a"
    )


async def test_a_call_that_writes_a_file_is_asked_with_its_diff_and_long_ones_are_paged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pager = tmp_path / "pager"
    pager.write_text(f'#!/bin/sh\ncat >"{tmp_path}/paged"\n', encoding="utf-8")
    pager.chmod(0o755)
    monkeypatch.setenv("PAGER", str(pager))
    (tmp_path / "n.md").write_text("# Notes\n\n- old\n")
    long = replace(FILE, arguments={**FILE.arguments, "content": "line\n" * 100})

    async def workspace_of(_run_id: str) -> str:
        return str(tmp_path)

    async def told(ask: PendingApproval, keys: str) -> str:
        shown, out = screen(answerable=True)
        decided = await pressed(keys, lambda keyboard: Prompter(shown, keyboard, "r", workspace_of).answer(ask))
        assert decided == Decision(approved=True)
        return out.getvalue()

    short = await told(FILE, "p|y")
    assert "- old" in short
    assert "+- new" in short
    assert "content" not in short
    assert not (tmp_path / "paged").exists()
    assert "more lines of the diff" in await told(long, "p|y")
    assert (tmp_path / "paged").read_text().count("+line") == 100


async def test_an_editor_opens_the_text_of_a_file_and_nothing_is_approved_if_nothing_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\ncase "$1" in *.md) sed -i s/new/newer/ "$1";; esac\n', encoding="utf-8")
    editor.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    shown, out = screen(answerable=True)

    answer = await pressed("e", lambda keyboard: Prompter(shown, keyboard, "r").answer(FILE))
    assert answer == Decision(approved=True, arguments={"path": "n.md", "content": "# Notes\n\n- newer\n"})
    assert await pressed("e|y", lambda keyboard: Prompter(shown, keyboard, "r").answer(BASH)) == Decision(approved=True)
    assert "nothing was changed" in out.getvalue()


def test_answers_are_rendered_at_a_terminal_and_printed_as_they_are_elsewhere() -> None:
    said = "# Title\n\n**bold** <b>html</b>\nnext line [x](http://example.com)"
    for live, seen in (
        (True, ["Title", "", "bold <b>html</b>", "next line x (http://example.com)"]),
        (False, said.split("\n")),
    ):
        shown, out = screen(live=live)
        tell(shown, task(Action.THINKING, content=said), CALLED)
        assert [line.rstrip() for line in out.getvalue().splitlines()[: len(seen)]] == seen


def test_at_a_terminal_sub_agents_are_a_tree_without_what_repeats() -> None:
    shown, out = screen(live=True)
    given = task(Action.EXECUTE, call_id="c1", agent="scout", description="look", child_run_id="r/d1-1-9f2c")
    told = "look around\n\nYou are a sub-agent."
    below: list[Task] = [
        task(Action.START, task=told, agent="scout", model="demo", workspace="/w"),
        TURN,
        task(Action.THINKING, content="all is fine"),
        CALLED,
    ]
    answer = {"content": '{"result": "all is fine"}', "length": 11, "metadata": {"execution_time": 0}}
    ended = task(Action.TOOL_RESULT, status="success", call_id="c1", child_run_id="r/d1-1-9f2c", result=answer)
    further = replace(
        given, run_id="r/d1-1-9f2c", parameters={**given.parameters, "child_run_id": "r/d1-1-9f2c/d2-1-7a"}
    )
    returned = replace(
        ended, run_id="r/d1-1-9f2c", parameters={**ended.parameters, "child_run_id": "r/d1-1-9f2c/d2-1-7a"}
    )
    tell(
        shown,
        given,
        *(replace(each, run_id="r/d1-1-9f2c") for each in below),
        further,
        *(replace(each, run_id="r/d1-1-9f2c/d2-1-7a") for each in below),
        returned,
        ended,
    )
    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        "⤷ scout: look  (d1-1)",
        "  ┌ d1-1",
        "  │ look around",
        "  │ all is fine",
        "  │ ⤷ scout: look  (d2-1)",
        "  │ ┌ d1-1/d2-1",
        "  │ │ look around",
        "  │ │ all is fine",
        "  ┌ d1-1",
        "  │ ✓ scout: look  0 ms",
        "✓ scout: look  0 ms",
    ]


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_line_at_the_bottom_fits_the_terminal(columns: int) -> None:
    shown, _ = screen(live=True)
    shown._console.width = columns
    summary = "bash: " + "a very long command " * 9
    busy = replace(RUNNING, parameters={**RUNNING.parameters, "summary": summary})
    tell(shown, task(Action.START, max_turns=50, task="x"), TURN, CALLED, busy)
    bar = shown._bar()
    assert bar.cell_len <= max(columns, 60)
    assert " · turn 1/50 · 110 tokens · $0.0020 · 7.0 s" in bar.plain


def test_a_line_is_edited_at_its_cursor() -> None:
    line, cursor = "", 0
    for key in ("a", "b", "d", "\x1b[D", "c", "\x05", " ", "e", "\x17", "\x01", "x", "\x7f", "\x1b[C", "\x02"):
        line, cursor = edited(line, cursor, key)
    assert (line, cursor) == ("abcd", 1)


# Option values and exit codes.


def test_permissions_come_from_json_and_from_files(tmp_path: Path) -> None:
    rules = {"bash": "ask", "bash(git diff:*)": "allow"}
    (tmp_path / "rules.json").write_text(json.dumps(rules), encoding="utf-8")
    (tmp_path / "rules.toml").write_text(
        '[permissions]\nbash = "ask"\n"bash(git diff:*)" = "allow"\n', encoding="utf-8"
    )
    assert read_permissions(json.dumps(rules)) == rules
    assert read_permissions(str(tmp_path / "rules.json")) == rules
    assert read_permissions(str(tmp_path / "rules.toml")) == rules


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "x", "--permissions", '{"bash"'),
        ("run", "x", "--permissions", '{"bash": "perhaps"}'),
        ("run", "x", "--permissions", '{"bash": 1}'),
        ("run", "x", "--permissions", "no-such-file"),
        ("run", "x", "--budget", "[]"),
        ("run", "x", "--budget", '{"coffee": 1}'),
        ("run", "x", "--metadata", "{"),
        ("run", "x", "--max-turns", "0"),
        ("run", "x", "--mode", "wild"),
        ("run", "x", "--yes", "--detach", "--mode", "read-only"),
        ("run", ""),
        ("run",),
        ("chat", " "),
        ("memory", "search", " "),
        ("list", "--status", "tired"),
        ("approve", "r", "--arguments", "[1]"),
        ("events", "r", "--from", "-1"),
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2_before_any_server_is_asked(arguments: tuple[str, ...]) -> None:
    ended = CliRunner().invoke(build_app(), list(arguments))
    error = ended.exception
    assert error is not None
    assert (error.code if isinstance(error, SystemExit) else code_of(error)) == 2
    assert isinstance(error, SystemExit) or str(error)


def test_errors_name_the_option() -> None:
    with pytest.raises(BadRequest, match="--budget: must be a JSON object, not an array"):
        read_object("[]", "--budget")


def test_exit_codes_follow_the_contract() -> None:
    assert {status: CODES[status] for status in CODES} == {
        RunStatus.COMPLETED: 0,
        RunStatus.FAILED: 1,
        RunStatus.ABORTED: 3,
        RunStatus.LIMIT_REACHED: 4,
        RunStatus.BUDGET_EXHAUSTED: 4,
    }
    refusals = (BadRequest("x"), RunNotFoundError("x"), RefusedError("x"))
    assert [code_of(error) for error in (*refusals, UnreachableError("x"))] == [2, 2, 2, 5]


def test_a_run_that_nobody_watches_is_told_yes_beforehand(capsys: pytest.CaptureFixture[str]) -> None:
    request = unattended({"permissions": {"bash(git push:*)": "ask", "http_fetch": "deny"}})
    assert request == {"mode": "bypass", "permissions": {"bash(git push:*)": "allow", "http_fetch": "deny"}}
    told = capsys.readouterr().err
    assert "bypass mode" in told
    assert told.endswith("person if a hook, a guard or one of the agent's own rules with a pattern asks\n")
    rules = {"bash": "ask", "bash(git push:*)": "ask"}  # of an agent, which the request does not replace
    assert [
        judge("bash", (Subject(text=command),), rules, mode=Mode(request["mode"])).verdict
        for command in ("ls", "git push")
    ] == [Verdict.ALLOW, Verdict.ASK]


def test_one_of_a_thing_is_not_several() -> None:
    assert [counted(number, "turn") for number in (0, 1, 2)] == ["0 turns", "1 turn", "2 turns"]
    assert [counted(number, "memory", "memories") for number in (0, 1, 2)] == ["0 memories", "1 memory", "2 memories"]


def test_a_workspace_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("here") == str(tmp_path / "here")


def test_events_for_programs_are_the_lines_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    JsonEvents("r").event(3, TURN)
    ResultOnly("r").approval_opened(BASH)
    seen = capsys.readouterr()
    assert json.loads(seen.out)["offset"] == 3
    assert json.loads(seen.out)["action"] == "node.turn"
    assert "waiting for approval of bash: rm -rf build; answer with `loom approve r c1`" in seen.err


def test_a_program_that_waits_for_a_result_is_told_of_questions_too(capsys: pytest.CaptureFixture[str]) -> None:
    ResultOnly("r", approves=True).question_opened(COLOUR)
    seen = capsys.readouterr()
    assert seen.err == 'waiting for an answer to "Red or blue?"; answer with `loom send r "your answer"`\n'
    assert seen.out == ""


@pytest.mark.parametrize(("receipt", "says"), [({}, "paused\n"), ({"queued": True}, "queued\n")])
def test_only_what_a_worker_has_accepted_is_said_to_be_done(
    receipt: JsonObject, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    steering._acknowledge({"accepted": True, "run_id": "run-1", **receipt}, "paused", as_json=False)
    said = capsys.readouterr()
    assert (said.out, "no worker is responding" in said.err) == (says, bool(receipt))
