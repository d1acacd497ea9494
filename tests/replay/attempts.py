"""What attempts at calls do while another attempt is alive, after one has ended, and after one was lost.

No history tells it: the workflow sees only the result. Each line of `outcomes` is an attempt at a call with the record
that an earlier attempt has left, and how often the tool ran.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from loom.activities.effects import Effects
from loom.activities.leases import LOOK, RENEWAL
from loom.activities.ports import Claim
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import Effect, Scope, ToolResult
from loom.domain.machine.activity_requests import idempotency_key
from loom.domain.run.activity_payloads import ToolRequest

ASKED: Final = ToolRequest(
    origin=Origin(run_id="run", execution="e"),
    turn=1,
    attempt=2,
    call_id="c",
    tool="pay",
    arguments={"to": "ann"},
    execution="e",
    begun=True,
)
RESULT: Final = ToolResult(content="paid before")
OUTCOMES: Final[Mapping[str, tuple[str, int]]] = {
    "a call that has ended": ("paid before", 0),
    "a call that runs once and was lost": ("lost", 0),
    "a call that may be repeated and was lost": ("paid", 1),
    "a call that nobody has begun": ("paid", 1),
    "a call that a later attempt has taken over": ("aborted", 0),
    "a read that has ended": ("paid before", 0),
    "a read that was lost": ("paid", 1),
    "a call that another attempt still makes": ("paid before", 0),
    "a long call": ("renewed 1, kept 1", 1),
}


@dataclass
class _Ledger:
    """A ledger in memory. `held` is what an earlier attempt has left, by key."""

    held: dict[str, ToolResult | int] = field(default_factory=dict)
    alive: list[str] = field(default_factory=list)
    renewed: int = 0

    async def reserve(self, key: str, run_id: str, attempt: int) -> ToolResult | int | None:
        before = self.held.get(key)
        if not isinstance(before, ToolResult):
            self.held[key] = max(attempt, before or 0)
        return before

    async def find(self, *keys: str) -> str | None:
        return next((key for key in keys if key in self.held), None)

    async def stood_still(self, key: str) -> float:
        return 0.0

    async def renew(self, claims: Sequence[Claim]) -> Sequence[str]:
        self.renewed += 1
        return [claim.key for claim in claims]

    async def finish(self, key: str, attempt: int, result: ToolResult) -> None:
        self.held[key] = result

    async def is_alive(self, *keys: str) -> bool:
        if not self.alive or self.alive[0] not in keys:
            return False
        self.held[self.alive.pop()] = RESULT
        return True


async def outcomes() -> Mapping[str, tuple[str, int]]:
    """Return what becomes of each attempt, and how often its tool has run."""
    key, once, read = idempotency_key(ASKED), Effect.ONCE, Effect.READ
    still_made = _Ledger(held={key: 1}, alive=[key])
    found = {
        "a call that has ended": await _attempted(_Ledger(held={key: RESULT}), once),
        "a call that runs once and was lost": await _attempted(_Ledger(held={key: 1}), once),
        "a call that may be repeated and was lost": await _attempted(_Ledger(held={key: 1}), Effect.IDEMPOTENT),
        "a call that nobody has begun": await _attempted(_Ledger(), once),
        "a call that a later attempt has taken over": await _attempted(_Ledger(held={key: 3}), Effect.IDEMPOTENT),
        "a read that has ended": await _attempted(_Ledger(held={key: RESULT}), read),
        "a read that was lost": await _attempted(_Ledger(held={key: 1}), read),
        "a call that another attempt still makes": await _attempted(still_made, once),
    }
    ledger = _Ledger()
    _, ran = await _attempted(ledger, once, seconds=RENEWAL * 1.5)
    kept = sum(isinstance(each, ToolResult) for each in ledger.held.values())
    return {**found, "a long call": (f"renewed {ledger.renewed}, kept {kept}", ran)}


async def _attempted(ledger: Any, effect: Effect, seconds: float = 0.0) -> tuple[str, int]:
    ran = 0

    async def execute(_key: str) -> ToolResult:
        nonlocal ran
        ran += 1
        await asyncio.sleep(seconds)
        return ToolResult(content="paid")

    effects, request = Effects(ledger=ledger), replace(ASKED, effect=effect)
    async with asyncio.timeout(10 * LOOK + 4 * RENEWAL):
        await effects.earlier_ended(request)
        result = await effects.carried_out(request, Scope.CONTEXT, execute, lambda _: None)
    return str(result.error_type or result.content), ran
