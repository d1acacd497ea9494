"""Which calls and questions of a run wait for a person, kept true while the run is watched.

The run's `status` is the truth. An event on the stream is only a reason to look: it is written a moment before the run
itself knows of the ask, and it may be lost.
"""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, TypeAlias

from loom.domain.core.errors import UnreachableError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import ENDED, RunStatus

LOOK_EVERY: Final = 5.0
"""Seconds between looks when nothing hints at an ask."""
BELIEVE: Final = 3.0
"""Seconds that a hint is looked after; an ask that is not there by then was answered long ago."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """A call that waits for a person."""

    call_id: str
    tool: str
    arguments: JsonObject = field(default_factory=dict)
    reason: str = ""
    rule: str = ""
    risk: str = ""
    digest: str = ""
    for_run: tuple[str, ...] = ()
    """The allow rules that an approval for the rest of the run would add."""
    run_id: str = ""
    """The run whose call it is."""
    agent: str = ""
    depth: int = 0
    """0: the run's own; else a sub-agent's, so many levels down."""
    cut: bool = False
    """The arguments are not whole here."""

    @property
    def key(self) -> tuple[str, str]:
        """Names this very ask."""
        return (self.call_id, self.digest)

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.tool} ({self.call_id})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What an agent asks with `ask_user`; the next message to its run is the answer."""

    run_id: str
    turn: int = 0
    text: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Names this very question."""
        return (question_in(self.run_id), f"{self.turn} {self.text}")

    @property
    def name(self) -> str:
        """For people."""
        return "the question"

    @property
    def hint(self) -> str:
        """How to answer it."""
        return f'answer with `loom send {shlex.quote(self.run_id)} "your answer"`'


Waiting: TypeAlias = Ask | Question


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a person says to an ask."""

    approved: bool
    for_run: bool = False
    arguments: JsonObject | None = None
    reason: str = ""


def read_ask(given: Mapping[str, Any]) -> Ask:
    """An entry of `pending_approvals`, or the parameters of an approval event."""
    return Ask(
        call_id=str(given["call_id"]),
        tool=str(given.get("tool", "")),
        arguments=given.get("arguments") or {},
        reason=str(given.get("reason", "")),
        rule=str(given.get("rule", "")),
        risk=str(given.get("risk", "")),
        digest=str(given.get("digest", "")),
        for_run=tuple(given.get("for_run") or ()),
        run_id=str(given.get("run_id", "")),
        agent=str(given.get("agent", "")),
        depth=int(given.get("depth") or 0),
        cut=bool(given.get("cut")),
    )


def read_questions(status: JsonObject) -> Iterator[Question]:
    """The questions that a run and everything below it wait with, from the run's status."""
    if status.get("status") in ENDED:
        return
    if status.get("status") == RunStatus.WAITING_FOR_INPUT:
        text = str(status.get("waiting_on") or "").removeprefix("answer: ")
        yield Question(run_id=str(status.get("run_id", "")), turn=int(status.get("turn") or 0), text=text)
    for child in status.get("children") or ():
        yield from read_questions(child)


def question_in(run_id: str) -> str:
    """Names the question of a run, for hints."""
    return f"question in {run_id}"


class Asks:
    """The open asks and questions of one run, asks first, oldest first."""

    def __init__(
        self,
        look: Callable[[], Awaitable[JsonObject]],
        *,
        on_open: Callable[[Waiting], None] = lambda _: None,
        on_status: Callable[[JsonObject], None] = lambda _: None,
    ) -> None:
        """`look` asks the run for its status; `on_open` is told of each ask and each question once."""
        self._look = look
        self._on_open = on_open
        self._on_status = on_status
        self._open: dict[tuple[str, str], Waiting] = {}
        self._told: set[tuple[str, str]] = set()
        self._closed: set[tuple[str, str]] = set()
        self._hints: dict[str, float] = {}
        self._hinted = asyncio.Event()
        self._changed = asyncio.Event()

    def hint(self, name: str) -> None:
        """An event says that this call asks, or that there is something about this question."""
        self._hints[name] = monotonic() + BELIEVE
        self._hinted.set()

    def close(self, name: str, digest: str = "") -> None:
        """It was answered, here or elsewhere; a look that was under way does not open it again."""
        self._hints.pop(name, None)
        self._closed.add((name, digest))
        for key in [key for key in self._open if key[0] == name]:
            self._closed.add(key)
            del self._open[key]
        self._announce()

    def take(self, status: JsonObject) -> None:
        """Learn from an answer to `status`."""
        self._on_status(status)
        if status.get("stale"):
            return
        asks = [read_ask(given) for given in status.get("pending_approvals", ())]
        waiting: list[Waiting] = [*asks, *read_questions(status)]
        self._open = {each.key: each for each in waiting if each.key not in self._closed}
        for key, each in self._open.items():
            self._hints.pop(key[0], None)
            if key not in self._told:
                self._told.add(key)
                self._on_open(each)
        self._announce()

    async def first(self, *, questions: bool) -> Waiting:
        """Wait for an ask that nobody has answered yet, or also for a question."""
        while True:
            for each in self._open.values():
                if questions or isinstance(each, Ask):
                    return each
            await self._changed.wait()

    async def gone(self, waiting: Waiting) -> None:
        """Wait until it is answered or withdrawn."""
        while waiting.key in self._open:
            await self._changed.wait()

    async def keep_current(self) -> None:
        """Look again and again: at once after a hint, else now and then."""
        pause = 0.03
        while True:
            try:
                self.take(await self._look())
            except UnreachableError:
                pause = LOOK_EVERY  # who watches the stream says it
            self._hints = {call: end for call, end in self._hints.items() if end > monotonic()}
            if self._hints:
                await asyncio.sleep(pause)
                pause = min(pause * 2, 0.5)
                continue
            pause = 0.03
            self._hinted.clear()
            try:
                await asyncio.wait_for(self._hinted.wait(), LOOK_EVERY)
            except TimeoutError:
                continue

    def _announce(self) -> None:
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()
