"""The `inbox` command, which lists the approvals and questions of all runs, and reads answers at a terminal."""

import asyncio
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

import typer
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from loom.cli.arguments import Json, new_app, user_name
from loom.cli.connection import with_client
from loom.cli.output import age, console, counted, one_line, plain, print_json, print_notice, seconds
from loom.cli.run_list import LONGEST_ID
from loom.cli.watch import panels
from loom.cli.watch.approval_prompt import Prompter
from loom.cli.watch.keyboard import Keyboard, at_terminal
from loom.cli.watch.pending_approvals import Decision
from loom.cli.watch.screen import live_area
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest, LoomError, RefusedError, UnreachableError
from loom.domain.core.messages import JsonObject, ToolCall
from loom.domain.core.requests import ENDED
from loom.domain.core.tool_calls import describe
from loom.inbox import PendingAnswer, PendingCall, SilentRun, Waiting, change_in, waiting_view

SKIP, QUIT = "s", "q"
MORE: Final[Mapping[str, str]] = {SKIP: "skip", QUIT: "quit"}
_NO_WORKER: Final = "its worker does not respond: start a worker to see what the run asks"
CHECK_INTERVAL: Final = 2.0
"""Seconds between two checks whether somebody else has answered."""

app = new_app()


@app.command()
def inbox(
    *,
    tenant: Annotated[str | None, typer.Option(help="List only runs of this tenant.")] = None,
    agent: Annotated[str | None, typer.Option(help="List only calls and questions of this agent.")] = None,
    as_json: Json = False,
) -> None:
    """List and answer the approvals and questions of all runs.

    The oldest is first. At a terminal, you answer one entry after the other. A call of a sub-agent is listed once, at
    the root of its tree. Runs whose worker doesn't respond are listed as stale.
    """
    answers = at_terminal() and not as_json

    async def listed(loom: LoomClient) -> tuple[Waiting, ...]:
        found = await loom.pending(tenant=tenant, agent=agent)
        if agent and not found:
            print_notice(f"nothing waits in runs of the agent {agent!r}; `loom agents list` shows the agents' names")
        if answers and any(not isinstance(each, SilentRun) for each in found):
            await _answer_all(loom, found)
            return ()
        return found

    found = with_client(listed)
    now = datetime.now(UTC)
    if as_json:
        print_json([waiting_view(each, now) for each in found])
    elif not answers or found:
        _print(found, now)
    else:
        typer.echo("nothing else is waiting for you")


def _print(found: Sequence[Waiting], now: datetime) -> None:
    out = console()
    if not found:
        out.print("nothing is waiting for a person")
    for place, waiting in enumerate(found):
        if place:
            out.print()
        for line in _lines(waiting, now, boxed=out.is_terminal):
            out.print(line, soft_wrap=not out.is_terminal)


def _lines(waiting: Waiting, now: datetime, *, boxed: bool) -> Iterator[RenderableType]:
    yield _heading(waiting, now)
    match waiting:
        case PendingCall():
            yield panels.approval(waiting, waiting.run_id, boxed=boxed, change=change_in(waiting))
        case PendingAnswer():
            yield _question(waiting)
            yield Text(f'  answer with `loom send {shlex.quote(waiting.run_id)} "your answer"`', style="yellow")
        case SilentRun():
            yield _silence(waiting)


def _question(waiting: PendingAnswer) -> Text:
    return Text(f"? {plain(waiting.question)}", style="yellow")


def _silence(waiting: SilentRun) -> Text:
    why = f"its status can't be read ({one_line(waiting.error)})" if waiting.error else _NO_WORKER
    return Text(f"  {why}", style="red")


def _overview(found: Sequence[Waiting], now: datetime) -> Table:
    """Render one line per entry."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    table.add_column("", style="dim", no_wrap=True, justify="right")
    table.add_column("run", no_wrap=True, overflow="ellipsis", max_width=LONGEST_ID)
    table.add_column("age", no_wrap=True, justify="right")
    table.add_column("asks for", no_wrap=True, overflow="ellipsis", ratio=1)
    for place, waiting in enumerate(found, 1):
        passed = age((now - waiting.since).total_seconds())
        table.add_row(str(place), one_line(waiting.run_id, 400), passed, _asked_for(waiting))
    return table


def _asked_for(waiting: Waiting) -> Text:
    match waiting:
        case PendingCall(tool=tool, arguments=arguments, risk=risk):
            call = describe(ToolCall(id="", name=tool, arguments=arguments))
            return Text.assemble(one_line(call), (f"  {one_line(risk)}" if risk else "", "dim"))
        case PendingAnswer(question=question):
            return Text(f"an answer: {one_line(question, 400)}")
        case SilentRun():
            return Text("its status can't be read" if waiting.error else "its worker does not respond", style="red")


def _heading(waiting: Waiting, now: datetime) -> Text:
    facts = [one_line(waiting.agent)] if waiting.agent else []
    facts += [f"tenant {one_line(waiting.tenant)}"] if waiting.tenant else []
    facts.append(f"{seconds((now - waiting.since).total_seconds())} ago")
    if isinstance(waiting, PendingCall) and waiting.expires_at is not None:
        facts.append(f"denied in {seconds((waiting.expires_at - now).total_seconds())} unless you decide")
    if isinstance(waiting, SilentRun):
        facts.append(f"waits for {waiting.waiting_on} · stale")
    return Text.assemble((one_line(waiting.run_id), "bold"), (f" · {' · '.join(facts)}", "dim"))


class InboxScreen:
    """Shows one entry after the other, and a prompt below them. Implements `PromptScreen`."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._prompt: RenderableType = ""
        self._live: Live | None = None

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Draw the prompt while the body of the `with` block runs."""
        self._live = live_area(self._out, lambda: self._prompt)
        try:
            yield
        finally:
            self._live.stop()

    def show(self, shown: RenderableType) -> None:
        """See the protocol."""
        self._out.print(shown)

    def prompt(self, shown: RenderableType | None) -> None:
        """See the protocol."""
        self._prompt = "" if shown is None else shown
        if self._live is not None:
            self._live.refresh()

    def say(self, text: str) -> None:
        """See the protocol."""
        self._out.print(panels.remark(text))

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """See the protocol."""
        if self._live is not None:
            self._live.stop()
        try:
            yield
        finally:
            self._live = live_area(self._out, lambda: self._prompt)


async def _answer_all(loom: LoomClient, found: Sequence[Waiting]) -> None:
    out = console()
    screen, keyboard = InboxScreen(out), Keyboard(sys.stdin.fileno())
    if len(found) > 1:
        out.print(_overview(found, datetime.now(UTC)), "")
    with keyboard.opened(), screen.drawing():
        for place, waiting in enumerate(found, 1):
            screen.show(Text(f"{place} of {len(found)}", style="dim"))
            screen.show(_heading(waiting, datetime.now(UTC)))
            match waiting:
                case SilentRun():
                    screen.show(_silence(waiting))
                    continue
                case PendingAnswer():
                    screen.show(_question(waiting))
            if not await _answered(loom, waiting, screen, keyboard):
                left = len(found) - place
                if left:
                    screen.say(f"{counted(left, 'other entry', 'other entries')} not shown")
                return


async def _answered(
    loom: LoomClient, waiting: PendingCall | PendingAnswer, screen: InboxScreen, keyboard: Keyboard
) -> bool:
    """Prompt for one entry and send the answer. Return False if the person quits."""
    prompter = Prompter(screen, keyboard, waiting.run_id, loom.workspace_of)
    prompting = asyncio.create_task(_prompted(waiting, prompter))
    gone = asyncio.create_task(_gone(loom, waiting))
    try:
        await asyncio.wait({prompting, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not prompting.done():
            screen.say(gone.result())
            return True
        answer = prompting.result()
    finally:
        for task in (prompting, gone):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    if answer in (SKIP, QUIT):
        return answer == SKIP
    await _send(loom, waiting, answer, screen)
    return True


async def _prompted(waiting: PendingCall | PendingAnswer, prompter: Prompter) -> Decision | str:
    if isinstance(waiting, PendingCall):
        return await prompter.decision(waiting, MORE)
    return await prompter.text("answer (Enter sends, Esc skips): ") or SKIP


async def _gone(loom: LoomClient, waiting: PendingCall | PendingAnswer) -> str:
    """Wait until the entry no longer waits, and return why. While the run doesn't answer, it counts as waiting."""
    while True:
        await asyncio.sleep(CHECK_INTERVAL)
        try:
            status = await loom.status(waiting.run_id)
        except LoomError:
            continue
        if not status.get("stale") and not _waits(waiting, status):
            return _end(waiting, status, datetime.now(UTC))


def _waits(waiting: PendingCall | PendingAnswer, status: JsonObject) -> bool:
    if isinstance(waiting, PendingAnswer):
        return bool(status.get("question") == waiting.question)
    return (waiting.call_id, waiting.digest) in {
        (ask["call_id"], ask.get("digest", "")) for ask in status.get("pending_approvals", ())
    }


def _end(waiting: PendingCall | PendingAnswer, status: JsonObject, now: datetime) -> str:
    if status["status"] in ENDED:
        return f"the run has ended: {status['status']}"
    if isinstance(waiting, PendingCall) and waiting.expires_at is not None and waiting.expires_at <= now:
        return "denied, because nobody decided in time"
    return "answered elsewhere"


async def _send(
    loom: LoomClient, waiting: PendingCall | PendingAnswer, answer: Decision | str, screen: InboxScreen
) -> None:
    try:
        receipt = await _sent(loom, waiting, answer)
    except (RefusedError, BadRequest) as error:
        screen.say(f"not accepted: {error.message}")
    except UnreachableError as error:
        screen.say(f"not sent: {error.message}")
    else:
        # Messages are always queued.
        is_late = receipt.get("queued") and isinstance(waiting, PendingCall)
        screen.say("sent; the run acts on it once a worker is back" if is_late else "sent")


async def _sent(loom: LoomClient, waiting: PendingCall | PendingAnswer, answer: Decision | str) -> JsonObject:
    by = user_name()
    match waiting, answer:
        case PendingCall(run_id=run_id, call_id=call_id), Decision(approved=False, reason=reason):
            return await loom.deny(run_id, call_id, reason=reason, by=by)
        case PendingCall(run_id=run_id, call_id=call_id, digest=digest), Decision(arguments=arguments, for_run=for_run):
            scope: Literal["once", "run"] = "run" if for_run else "once"
            return await loom.approve(run_id, call_id, scope=scope, arguments=arguments, digest=digest or None, by=by)
        case _:
            return await loom.send(waiting.run_id, str(answer), by=by)
