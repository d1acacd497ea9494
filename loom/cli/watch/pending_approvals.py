"""Track the calls and questions that are waiting for a person in a watched run.

The run's `status` is the source of truth. An event on the stream only triggers a poll of the status, because the event
may be lost, and because it is published shortly before the status shows the pending approval.

The status may also be ahead of the stream. A pending approval or question is therefore shown only after its event, so
that it follows the turn that it belongs to, or after `EVENT_LATE` seconds.
"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Final, TypeAlias

from loom.cli.output import one_line
from loom.domain.core.errors import UnreachableError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import ENDED, RunStatus
from loom.pending_approvals import PendingApproval, read_approval

POLL_INTERVAL: Final = 5.0
"""Seconds between polls if no event indicates a new approval or question."""
HINT_LIFETIME: Final = 3.0
"""Seconds to poll after a hint. If an approval hasn't appeared by then, it has already been answered."""

EVENT_LATE: Final = 1.0
"""Seconds to wait for the event of an approval or question that the status shows. After that, its event is lost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingQuestion:
    """A question that an agent asks with `ask_user`; the next message to its run answers it."""

    run_id: str
    turn: int = 0
    text: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The unique key of this question."""
        return (question_in(self.run_id), f"{self.turn} {self.text}")

    @property
    def name(self) -> str:
        """The name of this question in messages."""
        return "the question"

    @property
    def hint(self) -> str:
        """The instructions for answering this question."""
        return f'answer with `loom send {shlex.quote(self.run_id)} "your answer"`'

    @property
    def notice(self) -> str:
        """The question and the instructions. The event that contains the whole question may arrive later."""
        return f'waiting for an answer to "{one_line(self.text, 400)}"; {self.hint}'


Pending: TypeAlias = PendingApproval | PendingQuestion


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A person's decision about a pending approval."""

    approved: bool
    for_run: bool = False
    arguments: JsonObject | None = None
    reason: str = ""


def read_questions(status: JsonObject) -> Iterator[PendingQuestion]:
    """Read the open questions of a run and its sub-agents from the run's status."""
    if status.get("status") in ENDED:
        return
    if status.get("status") == RunStatus.WAITING_FOR_INPUT:
        text = str(status.get("waiting_on") or "").removeprefix("answer: ")
        yield PendingQuestion(run_id=str(status.get("run_id", "")), turn=int(status.get("turn") or 0), text=text)
    for child in status.get("children") or ():
        yield from read_questions(child)


def question_in(run_id: str) -> str:
    """Return the name that hints use for a run's question."""
    return f"question in {run_id}"


class PendingTracker:
    """Tracks one run's pending approvals and questions.

    Approvals come before questions. Within each kind, the oldest entry comes first.
    """

    def __init__(
        self,
        poll: Callable[[], Awaitable[JsonObject]],
        *,
        on_open: Callable[[Pending], None] = lambda _: None,
        on_status: Callable[[JsonObject], None] = lambda _: None,
    ) -> None:
        """`poll` queries the run's status. `on_open` is called once for each approval and question."""
        self._poll = poll
        self._on_open = on_open
        self._on_status = on_status
        self._open: dict[tuple[str, str], Pending] = {}
        self._announced: set[tuple[str, str]] = set()
        self._closed: set[tuple[str, str]] = set()
        self._hints: dict[str, float] = {}
        self._told: set[tuple[str, str]] = set()
        self._seen: dict[tuple[str, str], float] = {}
        self._hinted = asyncio.Event()
        self._changed = asyncio.Event()

    def hint(self, name: str, detail: str = "") -> None:
        """Poll soon, because an event that has been shown referred to this call or question. If it asked, `detail` is
        the rest of the key.
        """
        self._told.add((name, detail))
        self._hints[name] = monotonic() + HINT_LIFETIME
        self._hinted.set()

    def close(self, name: str, digest: str = "") -> None:
        """Mark an approval or question as answered, so that a poll that is already in progress doesn't reopen it."""
        self._hints.pop(name, None)
        self._closed.add((name, digest))
        for key in [key for key in self._open if key[0] == name]:
            self._closed.add(key)
            del self._open[key]
        self._notify()

    def take(self, status: JsonObject, *, has_stream: bool = True) -> None:
        """Update the tracker from the run's status. Without a stream, it doesn't wait for any event."""
        self._on_status(status)
        if status.get("stale"):
            return
        asks = [read_approval(given) for given in status.get("pending_approvals", ())]
        waiting: list[Pending] = [*asks, *read_questions(status)]
        shown = [each for each in waiting if not has_stream or self._is_due(each)]
        self._open = {each.key: each for each in shown if each.key not in self._closed}
        for key, each in self._open.items():
            self._hints.pop(key[0], None)
            if key not in self._announced:
                self._announced.add(key)
                self._on_open(each)
        self._notify()

    def _is_due(self, waiting: Pending) -> bool:
        """Whether the event of this approval or question has been shown, or is lost. If not, poll again soon."""
        if waiting.key in self._told or waiting.key in self._announced:
            return True
        now = monotonic()
        if now - self._seen.setdefault(waiting.key, now) >= EVENT_LATE:
            return True
        self._hints.setdefault(waiting.key[0], now + HINT_LIFETIME)
        return False

    async def first(self, *, questions: bool) -> Pending:
        """Wait for a pending approval and return it. With `questions`, also accept a pending question."""
        while True:
            for each in self._open.values():
                if questions or isinstance(each, PendingApproval):
                    return each
            await self._changed.wait()

    async def gone(self, waiting: Pending) -> None:
        """Wait until an approval or question is answered or withdrawn."""
        while waiting.key in self._open:
            await self._changed.wait()

    async def keep_current(self) -> None:
        """Until this task is cancelled, poll immediately after each hint and otherwise at intervals."""
        pause = 0.03
        while True:
            try:
                self.take(await self._poll())
            except UnreachableError:
                pause = POLL_INTERVAL  # the task that watches the stream reports this error
            self._hints = {call: end for call, end in self._hints.items() if end > monotonic()}
            if self._hints:
                await asyncio.sleep(pause)
                pause = min(pause * 2, 0.5)
                continue
            pause = 0.03
            self._hinted.clear()
            try:
                await asyncio.wait_for(self._hinted.wait(), POLL_INTERVAL)
            except TimeoutError:
                continue

    def _notify(self) -> None:
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()
