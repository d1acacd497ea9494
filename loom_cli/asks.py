"""Which calls of a run wait for a person, kept true while the run is watched.

The run's `status` is the truth. An event on the stream is only a reason to look: it is written a moment before the run
itself knows of the ask, and it may be lost.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from loom_domain.errors import UnreachableError
from loom_domain.messages import JsonObject

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


class Asks:
    """The open asks of one run, oldest first."""

    def __init__(
        self,
        look: Callable[[], Awaitable[JsonObject]],
        *,
        on_open: Callable[[Ask], None] = lambda _: None,
        on_status: Callable[[JsonObject], None] = lambda _: None,
    ) -> None:
        """`look` asks the run for its status; `on_open` is told of each ask once."""
        self._look = look
        self._on_open = on_open
        self._on_status = on_status
        self._open: dict[tuple[str, str], Ask] = {}
        self._told: set[tuple[str, str]] = set()
        self._closed: set[tuple[str, str]] = set()
        self._hints: dict[str, float] = {}
        self._hinted = asyncio.Event()
        self._changed = asyncio.Event()

    def hint(self, call_id: str) -> None:
        """An event says that this call asks."""
        self._hints[call_id] = monotonic() + BELIEVE
        self._hinted.set()

    def close(self, call_id: str, digest: str = "") -> None:
        """The call was decided, here or elsewhere; a look that was under way does not open it again."""
        self._hints.pop(call_id, None)
        self._closed.add((call_id, digest))
        for key in [key for key in self._open if key[0] == call_id]:
            self._closed.add(key)
            del self._open[key]
        self._announce()

    def take(self, status: JsonObject) -> None:
        """Learn from an answer to `status`."""
        self._on_status(status)
        if status.get("stale"):
            return
        asks = [read_ask(given) for given in status.get("pending_approvals", ())]
        self._open = {key: a for a in asks if (key := (a.call_id, a.digest)) not in self._closed}
        for key, ask in self._open.items():
            self._hints.pop(ask.call_id, None)
            if key not in self._told:
                self._told.add(key)
                self._on_open(ask)
        self._announce()

    async def first(self) -> Ask:
        """Wait for an ask that nobody has answered yet."""
        while not self._open:
            await self._changed.wait()
        return next(iter(self._open.values()))

    async def gone(self, ask: Ask) -> None:
        """Wait until this ask is answered or withdrawn."""
        while (ask.call_id, ask.digest) in self._open:
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
