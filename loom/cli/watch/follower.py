"""Follow a run to its end: its events, its pending approvals and questions, and its result.

A `Display` presents the run as a live screen, plain lines, JSON lines or only its result. Following a run doesn't
affect the run itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol, TypeAlias

from loom.activities.ports import StreamUnavailable
from loom.cli.arguments import user_name
from loom.cli.watch.form_fields import form_fields
from loom.cli.watch.pending_approvals import (
    EVENT_LATE,
    Decision,
    Pending,
    PendingQuestion,
    PendingTracker,
)
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest, RefusedError, UnreachableError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult
from loom.domain.core.tasks import Action, Task
from loom.pending_approvals import PendingApproval
from loom.watching import Polled, Streamed, Watched, closing

QUIET: Final = 0.2
"""All past events count as shown after this many seconds without an event."""
CATCH_UP: Final = 3.0
"""Pending approvals are shown after this many seconds, even if events keep arriving."""
PATIENCE: Final = 60.0
"""Seconds to wait for a server that has stopped responding."""

Approver: TypeAlias = Callable[[PendingApproval], Coroutine[Any, Any, Decision]]
"""Decides on a pending approval. The follower cancels it if somebody else decides first."""
Replier: TypeAlias = Callable[[PendingQuestion], Coroutine[Any, Any, str]]
"""Answers a question. The follower cancels it if somebody else answers first."""
Send: TypeAlias = Callable[[], Awaitable[JsonObject]]
"""Sends a decision or an answer to the run and returns the receipt."""


class Display(Protocol):
    """Shows a followed run."""

    def event(self, offset: int, task: Task) -> None:
        """Show one event."""

    def stream_lost(self, status: JsonObject, why: str) -> None:
        """Show the status while the live stream is unavailable."""

    def status(self, status: JsonObject) -> None:
        """Update the display from the run's status, which is polled periodically."""

    def approval_opened(self, ask: PendingApproval) -> None:
        """Show a call that is waiting for approval."""

    def question_opened(self, question: PendingQuestion) -> None:
        """Show how to answer a question. The question itself is displayed when its event arrives."""

    def say(self, text: str) -> None:
        """Show a message from the command itself."""


class Follower:
    """Follows one run."""

    def __init__(
        self,
        loom: LoomClient,
        run_id: str,
        display: Display,
        approver: Approver | None = None,
        by: str = "",
        *,
        replier: Replier | None = None,
    ) -> None:
        """Create a follower.

        Without an `approver`, it shows pending approvals but doesn't answer them. Without a `replier`, the same applies
        to questions. `by` signs the answers.
        """
        self._loom = loom
        self._run_id = run_id
        self._display = display
        self._approver = approver
        self._replier = replier
        self._by = by or user_name()
        self._last_event = monotonic()
        self._turns: dict[str, int] = {}
        """The turn of each run that was shown last."""
        self._pending = PendingTracker(lambda: loom.status(run_id), on_open=self._opened, on_status=display.status)

    async def follow(self, after: int = 0, *, just_started: bool = False) -> RunResult:
        """Show the events after offset `after` until the run ends, and return its result."""
        # A run that has reached its final status may not have published its last event yet.
        if not just_started and await self._loom.has_ended(self._run_id):
            await self._show_past_events(after)
            return await self._loom.result(self._run_id)
        helpers = [asyncio.create_task(self._poll_pending(caught_up=just_started))]
        if self._approver is not None:
            helpers.append(asyncio.create_task(self._answer_all(self._approver)))
        watching = asyncio.create_task(self._watch(after))
        try:
            done, _ = await asyncio.wait({watching, *helpers}, return_when=asyncio.FIRST_COMPLETED)
            return (await watching) if watching in done else await _raise_from(done)
        finally:
            for task in (watching, *helpers):
                task.cancel()
            await asyncio.gather(watching, *helpers, return_exceptions=True)

    async def _poll_pending(self, *, caught_up: bool) -> None:
        """Start polling for approvals once the past events are shown, so that pending approvals appear after them."""
        begun = monotonic()
        while not caught_up:
            await asyncio.sleep(QUIET)
            now = monotonic()
            caught_up = now - self._last_event >= QUIET or now - begun > CATCH_UP
        await self._pending.keep_current()

    async def _watch(self, after: int) -> RunResult:
        """Show events until the run ends, and reconnect if the server stops responding."""
        away_since: float | None = None
        while True:
            try:
                async with closing(self._loom.watch(self._run_id, after=after)) as events:
                    async for watched in events:
                        away_since = None
                        after = watched.offset if isinstance(watched, Streamed) else after
                        self._show(watched)
                return await self._loom.result(self._run_id)
            except UnreachableError as error:
                if away_since is None:
                    self._display.say(f"{error.message}; waiting for it. The run is not affected")
                    away_since = monotonic()
                if monotonic() - away_since > PATIENCE:
                    raise
                await asyncio.sleep(1)

    async def _show_past_events(self, after: int) -> None:
        try:
            async with closing(self._loom.events(self._run_id, after=after)) as events:
                async for watched in events:
                    self._display.event(watched.offset, watched.task)
        except StreamUnavailable as error:
            self._display.say(f"the live stream is unavailable ({error}); showing only the result")

    def _show(self, watched: Watched) -> None:
        match watched:
            case Polled(status=status, why=why):
                self._display.stream_lost(status, why)
                self._pending.take(status, has_stream=False)
            case Streamed(offset=offset, task=task):
                self._last_event = monotonic()
                self._display.event(offset, task)
                self._note_pending(task)

    def _note_pending(self, task: Task) -> None:
        # In the watched run, the id of a sub-agent's call is a path of the intermediate runs followed by the call.
        below = f"{task.run_id.removeprefix(f'{self._run_id}/')}/" if task.run_id != self._run_id else ""
        call_id = f"{below}{task.parameters.get('call_id', '')}"
        if task.action is Action.TURN:
            self._turns[task.run_id] = int(task.parameters.get("to", 0))
        elif task.action is Action.APPROVAL_REQUESTED:
            self._pending.hint(call_id, str(task.parameters.get("digest", "")))
        elif task.action is Action.APPROVAL_DECIDED:
            self._pending.close(call_id, str(task.parameters.get("digest", "")))
        elif task.action is Action.MESSAGE:  # a question or its answer
            turn, text = self._turns.get(task.run_id, 0), str(task.parameters.get("text", ""))
            asks = "call_id" in task.parameters
            self._pending.hint(*PendingQuestion(run_id=task.run_id, turn=turn, text=text if asks else "").key)

    def _opened(self, waiting: Pending) -> None:
        if isinstance(waiting, PendingQuestion):
            self._display.question_opened(waiting)
        else:
            self._display.approval_opened(waiting)

    async def _answer_all(self, approver: Approver) -> None:
        while True:
            waiting = await self._pending.first(questions=self._replier is not None)
            answering = asyncio.create_task(self._answer(waiting, approver))
            gone = asyncio.create_task(self._pending.gone(waiting))
            try:
                await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
                if answering.done():
                    await self._send(waiting, answering.result())
                else:
                    self._display.say(f"{waiting.name} was answered elsewhere")
            finally:
                for task in (answering, gone):
                    task.cancel()
                # Unlike `suppress`, this lets a cancellation of this task itself through.
                await asyncio.gather(answering, gone, return_exceptions=True)

    async def _answer(self, waiting: Pending, approver: Approver) -> Send:
        """Wait for the person's answer and return a function that sends it."""
        if isinstance(waiting, PendingQuestion):
            text = "" if self._replier is None else await self._replier(waiting)
            return partial(self._loom.send, waiting.run_id, text, by=self._by)
        answer = await approver(waiting)
        if not answer.approved:
            return partial(self._loom.deny, self._run_id, waiting.call_id, reason=answer.reason, by=self._by)
        return partial(
            self._loom.approve,
            self._run_id,
            waiting.call_id,
            scope="run" if answer.for_run else "once",
            arguments=answer.arguments,
            digest=waiting.digest or None,
            by=self._by,
        )

    async def _send(self, waiting: Pending, send: Send) -> None:
        """Send the answer. A late answer has no effect."""
        try:
            receipt = await send()
        except (RefusedError, BadRequest) as error:
            self._display.say(f"not accepted: {error.message}")
        except UnreachableError as error:
            self._display.say(error.message)
            await asyncio.sleep(1)
            return  # it is still pending, so the person is asked again
        else:
            if isinstance(waiting, PendingApproval):
                if receipt.get("queued"):  # messages are always queued
                    self._display.say("no worker is responding; the run will act on the decision once a worker is back")
                else:
                    await self._shown_as_decided(waiting)
        self._pending.close(*waiting.key)

    async def _shown_as_decided(self, ask: PendingApproval) -> None:
        """Wait for the line that tells the decision, so that it comes before the next pending call."""
        with suppress(TimeoutError):
            async with asyncio.timeout(EVENT_LATE):
                await self._pending.gone(ask)


async def approve_all(ask: PendingApproval) -> Decision:
    """Approve every call, for `--yes`. A form gets its default values, and is declined if they aren't enough."""
    if ask.schema is None:
        return Decision(approved=True)
    fields = form_fields(ask.schema)
    if missing := [field.name for field in fields if field.is_required and not field.prefilled]:
        return Decision(approved=False, reason=f"nobody can fill in {', '.join(missing)}")
    return Decision(approved=True, arguments={f.name: f.read(f.prefilled) for f in fields if f.prefilled})


async def _raise_from(done: set[asyncio.Task[Any]]) -> RunResult:
    """Raise a helper task's error. Unless it is cancelled, a helper task ends only with an error."""
    for task in done:
        await task
    raise AssertionError("a helper of the watch ended without an error")
