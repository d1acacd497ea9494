"""Following a run to its end: its events, its asks and their answers, its result.

What is seen goes to a `Face`: the screen, plain lines, JSON lines, or nothing. The run does not depend on any of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final, Protocol, TypeAlias

from loom.activities.ports import StreamUnavailable
from loom.cli.arguments import user_name
from loom.cli.watch.pending_approvals import Answer, Ask, Asks, Question, Waiting, question_in
from loom.client import LoomClient, Polled, Streamed, Watched, closing
from loom.domain.core.errors import BadRequest, RefusedError, UnreachableError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult
from loom.domain.core.tasks import Action, Task

QUIET: Final = 0.2
"""Seconds without an event after which what has happened so far counts as shown."""
CATCH_UP: Final = 3.0
"""Seconds after which asks are shown even if events still pour in."""
PATIENCE: Final = 60.0
"""Seconds for which a server that has answered before may be away."""

Answerer: TypeAlias = Callable[[Ask], Coroutine[Any, Any, Answer]]
"""Says what becomes of an ask; cancelled when somebody else has said it."""
Replier: TypeAlias = Callable[[Question], Coroutine[Any, Any, str]]
"""The same for a question."""
Send: TypeAlias = Callable[[], Awaitable[JsonObject]]
"""Sends an answer to the run and returns the receipt."""


class Face(Protocol):
    """Where a followed run is shown."""

    def event(self, offset: int, task: Task) -> None:
        """Show one event."""

    def away(self, status: JsonObject, why: str) -> None:
        """Show the status, since the live stream is away."""

    def status(self, status: JsonObject) -> None:
        """Take in what the run says of itself now and then."""

    def asked(self, ask: Ask) -> None:
        """Show a call that waits for a person."""

    def questioned(self, question: Question) -> None:
        """Show how to answer a question that waits for a person; the event shows what is asked."""

    def say(self, text: str) -> None:
        """Show a remark of the command itself."""


class Follower:
    """Follows one run."""

    def __init__(
        self,
        loom: LoomClient,
        run_id: str,
        face: Face,
        answerer: Answerer | None = None,
        by: str = "",
        *,
        replier: Replier | None = None,
    ) -> None:
        """Without an `answerer` asks are only shown, without a `replier` questions; `by` signs the answers."""
        self._loom = loom
        self._run_id = run_id
        self._face = face
        self._answerer = answerer
        self._replier = replier
        self._by = by or user_name()
        self._last_event = monotonic()
        self._asks = Asks(lambda: loom.status(run_id), on_open=self._opened, on_status=face.status)

    async def follow(self, after: int = 0, *, just_started: bool = False) -> RunResult:
        """Show the events beyond offset `after`, until the run has ended, and return its result."""
        # A run whose status says that it is over may still have its last event to tell.
        if not just_started and await self._loom.has_ended(self._run_id):
            await self._replay(after)
            return await self._loom.result(self._run_id)
        helpers = [asyncio.create_task(self._keep_asks(caught_up=just_started))]
        if self._answerer is not None:
            helpers.append(asyncio.create_task(self._answer_all(self._answerer)))
        watching = asyncio.create_task(self._watch(after))
        try:
            done, _ = await asyncio.wait({watching, *helpers}, return_when=asyncio.FIRST_COMPLETED)
            return (await watching) if watching in done else await _broken(done)
        finally:
            for task in (watching, *helpers):
                task.cancel()
            await asyncio.gather(watching, *helpers, return_exceptions=True)

    async def _keep_asks(self, *, caught_up: bool) -> None:
        """Asks are shown below what has led to them."""
        begun = monotonic()
        while not caught_up:
            await asyncio.sleep(QUIET)
            now = monotonic()
            caught_up = now - self._last_event >= QUIET or now - begun > CATCH_UP
        await self._asks.keep_current()

    async def _watch(self, after: int) -> RunResult:
        """Watch, and wait for a server that goes away in between."""
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
                    self._face.say(f"{error.message}; waiting for it, the run is safe")
                    away_since = monotonic()
                if monotonic() - away_since > PATIENCE:
                    raise
                await asyncio.sleep(1)

    async def _replay(self, after: int) -> None:

        try:
            async with closing(self._loom.events(self._run_id, after=after)) as events:
                async for watched in events:
                    self._face.event(watched.offset, watched.task)
        except StreamUnavailable as error:
            self._face.say(f"the live stream is away ({error}); only the result is left to show")

    def _show(self, watched: Watched) -> None:
        match watched:
            case Polled(status=status, why=why):
                self._face.away(status, why)
                self._asks.take(status)
            case Streamed(offset=offset, task=task):
                self._last_event = monotonic()
                self._heed(task)
                self._face.event(offset, task)

    def _heed(self, task: Task) -> None:
        # As the run itself names it: the runs between, then the call.
        below = f"{task.run_id.removeprefix(f'{self._run_id}/')}/" if task.run_id != self._run_id else ""
        call_id = f"{below}{task.parameters.get('call_id', '')}"
        if task.action is Action.APPROVAL_REQUESTED:
            self._asks.hint(call_id)
        elif task.action is Action.APPROVAL_DECIDED:
            self._asks.close(call_id, str(task.parameters.get("digest", "")))
        elif task.action is Action.MESSAGE:  # a question, or the answer to one
            self._asks.hint(question_in(task.run_id))

    def _opened(self, waiting: Waiting) -> None:
        if isinstance(waiting, Question):
            self._face.questioned(waiting)
        else:
            self._face.asked(waiting)

    async def _answer_all(self, answerer: Answerer) -> None:
        while True:
            waiting = await self._asks.first(questions=self._replier is not None)
            answering = asyncio.create_task(self._answer(waiting, answerer))
            gone = asyncio.create_task(self._asks.gone(waiting))
            try:
                await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
                if answering.done():
                    await self._give(waiting, answering.result())
                else:
                    self._face.say(f"{waiting.name} was answered elsewhere")
            finally:
                for task in (answering, gone):
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task

    async def _answer(self, waiting: Waiting, answerer: Answerer) -> Send:
        """Wait for the answer, and return how to send it."""
        if isinstance(waiting, Question):
            text = "" if self._replier is None else await self._replier(waiting)
            return partial(self._loom.send, waiting.run_id, text, by=self._by)
        answer = await answerer(waiting)
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

    async def _give(self, waiting: Waiting, send: Send) -> None:
        """Give the answer; one that comes too late changes nothing."""
        try:
            receipt = await send()
        except (RefusedError, BadRequest) as error:
            self._face.say(f"not taken: {error.message}")
        except UnreachableError as error:
            self._face.say(error.message)
            await asyncio.sleep(1)
            return  # it still waits: it is asked again
        else:
            if receipt.get("queued") and isinstance(waiting, Ask):  # what is sent is always left for the run
                self._face.say("no worker answers now; the answer is kept for the run")
        self._asks.close(*waiting.key)


async def approve_all(_: Ask) -> Answer:
    """The answerer behind `--yes`."""
    return Answer(approved=True)


async def _broken(done: set[asyncio.Task[Any]]) -> RunResult:
    """A helper never ends by itself: show why it did."""
    for task in done:
        await task
    raise AssertionError("a helper of the watch ended without an error")
