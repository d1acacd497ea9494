"""The real command at a terminal: what a person sees on 80 columns, and what keys do."""

import asyncio
import re
import signal
import termios
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import pytest

from loom.testing.harness import Harness
from loom.testing.model_server import ToolUse, calls, script, text
from tests.acceptance.conftest import Working
from tests.acceptance.test_command_line import LOOM, command_line, new_id
from tests.terminal import Terminal, terminal
from tests.trees import by_task, delegate
from tests.unit.cli.test_hostile_text import SEQUENCES, STEERS

T = TypeVar("T")

WRITE: Final = ToolUse("write_file", {"path": "notes.md", "content": "# Notes\n\n- new\n"}, "w1")
OWN_STYLING: Final = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[0-9]*[AK]|\x1b\[1?G|\r")
"""What rich writes: colors, hiding the cursor, and moving it up or to the first column of lines that it erases."""


@dataclass(frozen=True)
class Desk:
    """A person at a terminal beside a worker in this process."""

    loom: Harness

    async def sees(
        self,
        *words: str,
        look: Callable[[Terminal], T],
        columns: int = 80,
        rows: int = 40,
        program: tuple[str, ...] = (LOOM,),
        **env: str,
    ) -> T:
        """Run a command at a terminal, and return what `look` sees there. The worker goes on meanwhile."""
        settings = {**command_line(self.loom).env, **env}

        def at_terminal() -> T:
            with terminal([*program, *words], settings, columns=columns, rows=rows) as shown:
                return look(shown)

        return await asyncio.to_thread(at_terminal)


def to_the_end(shown: Terminal) -> str:
    """The text on the screen once the command has ended well."""
    assert shown.ended() == 0, shown.text
    return shown.text


async def test_a_run_at_a_terminal_asks_with_a_diff_and_shows_its_answer_once(
    working: Working, workspace: Path
) -> None:
    loom, _ = await working(script([calls(WRITE), text("It is **done**.")]))
    (workspace / "notes.md").write_text("# Notes\n\n- old\n")

    def look(shown: Terminal) -> str:
        shown.until("[y] once")
        assert all(line in shown.text for line in ("│ -- old", "│ +- new", "│  # Notes"))
        shown.until(lambda: shown.text.rpartition("\n")[2].startswith("approval: write_file: notes.md · turn 1/50 · "))
        shown.press("y")
        return to_the_end(shown)

    seen = await Desk(loom).sees("run", "note it", "--workspace", str(workspace), look=look)

    assert seen.count("It is done.") == 1
    assert "content" not in seen
    assert (workspace / "notes.md").read_text() == "# Notes\n\n- new\n"


async def test_an_editor_gets_the_text_of_the_file_and_what_it_saves_is_written(
    working: Working, workspace: Path, tmp_path: Path
) -> None:
    loom, _ = await working(script([calls(WRITE), text("done")]))
    editor = tmp_path / "editor"
    is_text = 'test "$(head -n 1 "$1")" = "# Notes"'
    editor.write_text(f'#!/bin/sh\n{is_text} && case "$1" in *.md) echo "- mine" >>"$1";; esac\n')
    editor.chmod(0o755)

    def look(shown: Terminal) -> str:
        shown.until("[y] once")
        shown.press("e")
        return to_the_end(shown)

    await Desk(loom).sees("run", "note it", "--workspace", str(workspace), look=look, EDITOR=str(editor))

    assert (workspace / "notes.md").read_text() == "# Notes\n\n- new\n- mine\n"


async def test_a_dumb_terminal_gets_plain_lines_that_name_the_commands(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([calls(WRITE), text("done")]))
    (workspace / "notes.md").write_text("# Notes\n\n- old\n")
    run_id = new_id()

    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    def look(shown: Terminal) -> bytes:
        shown.until(f"loom approve {run_id} w1")
        loop.call_soon_threadsafe(told.set)
        assert all(f"\n  {line}\n" in shown.text for line in ("-- old", "+- new", "path: notes.md"))
        assert "content" not in shown.text
        shown.ended()
        return bytes(shown.received)

    words = ("run", "note it", "--id", run_id, "--workspace", str(workspace))
    seeing = asyncio.create_task(Desk(loom).sees(*words, look=look, TERM="dumb"))
    await told.wait()
    await loom.client.approve(run_id, "w1")

    assert b"\x1b" not in await seeing


async def test_lists_fit_the_terminal_and_trees_show_sub_agents(working: Working) -> None:
    replies = {
        "audit the code": [calls(delegate("look at the parser", "read it", "c1")), text("two findings")],
        "read it": [text("fine")],
    }
    loom, _ = await working(by_task(replies))
    run_id = await loom.start("audit the code " + "and everything else " * 20)
    await loom.client.result(run_id)
    desk = Desk(loom)

    narrow = await desk.sees("list", "--limit", "1", look=to_the_end)
    wide = await desk.sees("list", "--limit", "1", look=to_the_end, columns=120)
    tree = await desk.sees("list", "--tree", run_id[:-1], look=to_the_end)

    assert len(narrow.splitlines()) == len(wide.splitlines()) == 2
    assert narrow.splitlines()[1].startswith(f"@1 {run_id} completed")
    assert "audit the code" in narrow
    assert ("agent" in narrow, "agent" in wide) == (False, True)
    assert [line[:4] for line in tree.splitlines()] == ["✓ te", "audi", "└── ", "    "]
    assert tree.splitlines()[-1].strip() == "look at the parser"
    (child,) = await loom.below(run_id)
    assert tree.splitlines()[2].startswith(f"└── ✓ {child} · ")


async def test_runs_are_watched_until_a_key_ends_the_command_and_go_on(working: Working, workspace: Path) -> None:
    loom, _ = await working(script([calls(WRITE), text("done")]))
    run_id = await loom.start("note it")
    await loom.asked(run_id)

    def look(shown: Terminal) -> int:
        shown.until("approval: write_file: notes.md")
        shown.press("\x03")
        return shown.ended()

    assert await Desk(loom).sees("watch", look=look) == 0

    def looks_between(shown: Terminal) -> tuple[bool, ...]:
        has_keys = []

        def until(seen: str | Callable[[], bool]) -> None:
            shown.until(seen)
            has_keys.append(not termios.tcgetattr(shown.fd)[3] & termios.ECHO)

        shown.until("$")
        shown.press(f"{LOOM} watch {run_id}\n")
        until("[y] once")
        shown.press("\x1a")
        until("Stopped")
        assert not shown.screen.cursor.hidden
        shown.press("fg\n")
        until(lambda: shown.screen.cursor.hidden)
        shown.press("\x1c")
        until(lambda: shown.text.endswith("$"))
        assert not shown.screen.cursor.hidden
        shown.press("exit $?\n")
        shown.ended()
        return (*has_keys, shown.code == 128 + signal.SIGQUIT)

    shell = await Desk(loom).sees(program=("sh", "-i"), look=looks_between, PS1="$")
    assert shell == (True, False, True, False, True)
    await loom.client.approve(run_id, "w1")
    assert (await loom.client.result(run_id)).output == "done"


async def test_long_output_goes_through_the_pager_unless_it_is_refused(working: Working, tmp_path: Path) -> None:
    loom, _ = await working(script([text("\n".join("a line" for _ in range(3)))]))
    run_id = await loom.start()
    await loom.client.result(run_id)
    paged = tmp_path / "paged"
    desk = Desk(loom)

    in_pager = await desk.sees("report", run_id, look=to_the_end, rows=8, PAGER=f"tee {paged}")
    paged_text = paged.read_text()
    paged.unlink()
    at_once = await desk.sees("report", run_id, "--no-pager", look=to_the_end, rows=8, PAGER=f"tee {paged}")

    assert run_id in paged_text
    assert in_pager == at_once
    assert not paged.exists()


@pytest.mark.parametrize("evil", ["".join(SEQUENCES).replace("\ud800", "")])
async def test_texts_of_others_do_not_steer_the_terminal(working: Working, workspace: Path, evil: str) -> None:
    write = ToolUse("write_file", {"path": "notes.md", "content": f"{evil}\n{evil}"}, "w1")
    loom, _ = await working(script([calls(ToolUse("grep", {"pattern": evil}, "g1"), write, text=evil), text(evil)]))
    (workspace / "notes.md").write_text(evil)
    run_id = await loom.start(evil)
    await loom.asked(run_id)
    desk = Desk(loom)

    def skipping(shown: Terminal) -> bytes:
        shown.until("[q] quit")
        shown.press("q")
        return whole(shown)

    def approving(shown: Terminal) -> bytes:
        shown.until("[y] once")
        shown.press("y")
        return whole(shown)

    def whole(shown: Terminal) -> bytes:
        shown.ended()
        return bytes(shown.received)

    received = [await desk.sees("inbox", look=skipping, rows=60)]
    received.append(await desk.sees("watch", run_id, look=approving, rows=60))
    printing = (("list", "--no-pager"), ("show", run_id, "--no-pager"), ("report", run_id, "--no-pager"))
    received += await asyncio.gather(*(desk.sees(*words, look=whole) for words in printing))

    for each in received:
        assert "notes.md" in each.decode() or run_id in each.decode()
        assert STEERS.search(OWN_STYLING.sub("", each.decode())) is None
