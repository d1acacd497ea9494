"""Prompts at a terminal: which keys count, what an editor may do, and what stays on the screen meanwhile."""

import asyncio
import io
import os
import pty
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyte
import pytest
from rich.console import Console, RenderableType
from rich.text import Text
from typer.main import get_command

from loom.cli.commands import chat
from loom.cli.commands.inbox import InboxScreen
from loom.cli.commands.run import app as run_app
from loom.cli.watch.approval_prompt import Prompter
from loom.cli.watch.keyboard import Keyboard
from loom.cli.watch.pending_approvals import Decision
from loom.cli.watch.screen import Screen
from loom.domain.core.messages import JsonObject
from loom.domain.core.tasks import Action
from loom.pending_approvals import PendingApproval
from loom.testing.waiting import PATIENCE, eventually
from loom.watching import Streamed, Watched
from tests.unit.cli.test_cli_screen import BASH, FILE, PENDING, Fake, following, picture, pressed, screen, task


async def test_a_key_that_is_pressed_while_a_call_appears_does_not_answer_it() -> None:
    shown, out = screen(answerable=True)
    master, slave = pty.openpty()
    keyboard = Keyboard(slave, pause=0.1)

    async def is_asked() -> bool:
        return "[y] once" in picture(shown)

    async def is_seen() -> bool:
        return "rm -rf build" in out.getvalue()

    with keyboard.opened():
        deciding = asyncio.ensure_future(Prompter(shown, keyboard, "r").answer(BASH))
        await eventually(is_seen)
        os.write(master, b"y")
        await eventually(is_asked)
        await asyncio.sleep(0)
        assert not deciding.done()
        os.write(master, b"r")
        assert await asyncio.wait_for(deciding, PATIENCE) == Decision(approved=True, for_run=True)
    os.close(master)
    os.close(slave)


@pytest.mark.parametrize(
    ("editor", "said"),
    [
        ("false", "false ended with code 1; nothing was changed"),
        ("rm", "rm left no file to read: No such file or directory"),
        ("/no/editor", "cannot start /no/editor: [Errno 2]"),
        ("vi 'x", "cannot start vi 'x: No closing quotation"),
        ("true", "nothing was changed"),
    ],
)
async def test_an_editor_that_changes_nothing_or_fails_says_so_and_asks_again(
    editor: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDITOR", editor)
    monkeypatch.setenv("VISUAL", "")
    shown, out = screen(answerable=True)
    assert await pressed("e|y", lambda keyboard: Prompter(shown, keyboard, "r").answer(FILE)) == Decision(approved=True)
    assert said in out.getvalue()


async def test_an_empty_editor_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDITOR", "")
    monkeypatch.setenv("VISUAL", "")
    shown, _ = screen(answerable=True)
    keys = 'e|\x15{"command": "ls"}|\n'
    answer = await pressed(keys, lambda keyboard: Prompter(shown, keyboard, "r").answer(BASH))
    assert answer == Decision(approved=True, arguments={"command": "ls"})


class Drawn(Protocol):
    """A screen with a live area."""

    def show(self, shown: RenderableType) -> None: ...
    def prompt(self, shown: RenderableType | None) -> None: ...
    def stopped(self) -> AbstractContextManager[None]: ...


async def test_what_is_printed_stays_when_another_program_has_used_the_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, width=40, height=10, force_terminal=True)

    def lent(shown: Drawn) -> None:
        shown.show(Text("before"))
        shown.prompt(Text("two\nlines?"))
        with shown.stopped():
            shown.show(Text("meanwhile"))
        shown.show(Text("after"))

    watching = Screen(console, "r", live=True)
    async with watching.moving():
        lent(watching)
    inbox = InboxScreen(console)
    with inbox.drawing():
        lent(inbox)

    emulated = pyte.Screen(40, 10)
    emulated.set_mode(pyte.modes.LNM)
    pyte.Stream(emulated).feed(out.getvalue())
    lines = [line.strip() for line in emulated.display if line.strip()]
    assert lines == ["before", "meanwhile", "after"] * 2


class AsksTwice(Fake):
    """A run with two calls that wait. The stream tells each decision a little after the run has taken it."""

    def __init__(self) -> None:
        super().__init__()
        self.pending = [PENDING, {**PENDING, "call_id": "c2", "digest": "d2"}]
        self.decided: asyncio.Queue[str] = asyncio.Queue()

    async def watch(self, _: str, *, after: int = 0) -> AsyncIterator[Watched]:
        for ask in list(self.pending):
            yield Streamed(offset=1, task=task(Action.APPROVAL_REQUESTED, status="pending", **ask))
        for offset in (2, 3):
            call_id = await self.decided.get()
            await asyncio.sleep(0.05)
            yield Streamed(offset=offset, task=task(Action.APPROVAL_DECIDED, call_id=call_id, approved=True, by="ada"))
        yield Streamed(offset=4, task=task(Action.COMPLETE))

    async def approve(self, _: str, call_id: str, **given: Any) -> JsonObject:
        self.pending = [ask for ask in self.pending if ask["call_id"] != call_id]
        self.decided.put_nowait(call_id)
        return {"accepted": True}


async def test_a_decision_is_told_before_the_next_call_is_asked() -> None:
    shown, out = screen(answerable=True)
    told: list[int] = []

    async def approves(_ask: PendingApproval) -> Decision:
        told.append(out.getvalue().count("✓ approved by ada"))
        return Decision(approved=True)

    await following(AsksTwice(), shown, approves).follow(just_started=True)
    assert told == [0, 1]


def test_a_line_of_output_that_is_wider_than_the_terminal_keeps_its_bar() -> None:
    shown, out = screen(live=True)
    shown.event(1, task(Action.TOOL_CALL, status="running", call_id="c1", tool="bash", summary="ls", arguments={}))
    returned = {"content": "進" * 90}
    shown.event(2, task(Action.TOOL_RESULT, status="success", result=returned, call_id="c1", tool="bash"))
    lines = [line for line in out.getvalue().splitlines() if "進" in line]
    assert len(lines) == 2
    assert all(line.startswith("  │ ") for line in lines)


def test_a_chat_has_the_options_of_a_run() -> None:
    def options(app: Any) -> set[str]:
        command = get_command(app)
        command = getattr(command, "commands", {}).get("run", command)
        return {name for parameter in command.params for name in parameter.opts if name.startswith("--")}

    assert options(run_app) - options(chat.app) == {
        "--require-done",
        "--id",
        "--detach",
        "--yes",
        "--estimate",
        "--push",
    }


def test_help_in_a_chat_names_its_commands_and_is_no_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("/help\nhello\n/exit\nlate\n"))
    talk = chat._Talk("my plans", {"tenant": "acme"}, "queue", as_json=False, in_place=False)
    assert list(talk._lines()) == ["hello"]
    told = capsys.readouterr().err
    lines = [line.strip() for line in told.splitlines()]
    assert [line.split()[0].strip(",") for line in lines[1:3]] == ["/help", "/exit"]
    assert "loom chat --session 'my plans' --tenant acme" in lines
    assert "loom abort 'chat-acme%3A%3Amy plans'" in lines
