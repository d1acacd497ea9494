"""Follow a run and display it as a live screen at a terminal, as plain lines in a pipe, or as JSON for programs."""

import sys
from contextlib import nullcontext

from rich.text import Text

from loom.cli.connection import web_ui
from loom.cli.output import console
from loom.cli.watch.approval_prompt import Prompter
from loom.cli.watch.follower import Follower, approve_all
from loom.cli.watch.json_display import JsonEvents, ResultOnly
from loom.cli.watch.keyboard import Keyboard, at_terminal
from loom.cli.watch.screen import Screen
from loom.client import LoomClient
from loom.domain.core.requests import RunResult


async def watch_run(
    loom: LoomClient,
    run_id: str,
    *,
    after: int = 0,
    just_started: bool = False,
    by: str | None = None,
    as_json: bool = False,
    events: bool = True,
) -> RunResult:
    """Follow a run to its end and return its result. If `by` is set, approve every pending call under that name."""
    if as_json:
        display = (JsonEvents if events else ResultOnly)(run_id, approves=by is not None)
        follower = Follower(loom, run_id, display, approve_all if by else None, by or "")
        return await follower.follow(after, just_started=just_started)
    out = console()
    in_place = at_terminal() and by is None
    screen = Screen(out, run_id, live=out.is_terminal, answerable=in_place or by is not None, replies=in_place)
    keyboard = Keyboard(sys.stdin.fileno()) if at_terminal() else None
    prompter = Prompter(screen, keyboard, run_id, loom.workspace_of) if keyboard and in_place else None
    approver = prompter.answer if prompter else None
    replier = prompter.reply if prompter else None
    if ui := web_ui(run_id):
        screen.show(Text(f"  {ui}", style="dim"))
    with keyboard.opened() if keyboard else nullcontext():
        async with screen.moving():
            follower = Follower(loom, run_id, screen, approve_all if by else approver, by or "", replier=replier)
            ended = await follower.follow(after, just_started=just_started)
    screen.ended(ended)
    return ended
