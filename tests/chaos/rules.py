"""What must hold after kills, at whatever moment: no effect twice, nothing said that is not so, every call answered."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tests.chaos.plans import ANSWER, Call, Kind, Plan

UNKNOWN: Final = "outcome is unknown"


class Stage(StrEnum):
    """How far a call had come when its worker died, by what was left behind."""

    BEFORE = "before the claim"
    CLAIMED = "claimed, not begun"
    BEGUN = "begun, no effect yet"
    DONE = "effect, no result kept"
    ENDED = "result kept, not in history"
    TOLD = "in history"


_IN_DOUBT: Final = (Stage.CLAIMED, Stage.BEGUN, Stage.DONE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What can be seen of a call from outside."""

    claimed: bool = False
    begun: int = 0
    effects: int = 0
    ended: bool = False
    told: bool = False

    @property
    def stage(self) -> Stage:
        """The furthest that these facts show."""
        reached = {
            Stage.TOLD: self.told,
            Stage.ENDED: self.ended,
            Stage.DONE: self.effects > 0,
            Stage.BEGUN: self.begun > 0,
            Stage.CLAIMED: self.claimed,
        }
        return next((stage for stage, holds in reached.items() if holds), Stage.BEFORE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of a seed."""

    status: str
    output: str
    results: Mapping[str, Sequence[str]]
    """What the model was told of each call in its last conversation."""
    effects: Mapping[str, int]
    keys: Mapping[str, int]
    """Different idempotency keys that each idempotent call was run under."""
    kills: Sequence[Mapping[str, Stage]]
    """How far each call had come, one entry per kill."""
    lost: Mapping[str, int]
    """Attempts at each call that Temporal gave up, since their worker was silent."""

    def is_in_doubt(self, call: Call) -> bool:
        """A worker died between the claim and the keeping of the result."""
        return any(stages[call.id] in _IN_DOUBT for stages in self.kills)

    def was_lost_alive(self, call: Call) -> bool:
        """Temporal gave up an attempt that nobody killed: its worker was too slow to say that it lives."""
        return self.lost[call.id] > sum(stages[call.id] is not Stage.TOLD for stages in self.kills)


def violations(plan: Plan, outcome: Outcome) -> list[str]:
    """Everything that is not as it must be, for people."""
    wrong = [] if (outcome.status, outcome.output) == ("completed", ANSWER) else [f"the run ended {outcome.status}"]
    return wrong + [f"{call.id} ({call.kind}): {what}" for call in plan.calls for what in _of_call(call, outcome)]


def _of_call(call: Call, outcome: Outcome) -> Iterator[str]:
    told = outcome.results.get(call.id, ())
    if len(told) != 1:
        yield f"has {len(told)} results"
        return
    succeeded, unknown = call.finished in told[0], UNKNOWN in told[0]
    if succeeded == unknown:
        yield f"is told as neither success nor unknown: {told[0]!r}"
    if unknown and call.kind is not Kind.ONCE:
        yield "is told as unknown, and could have been run again"
    if call.kind is not Kind.READ:
        yield from _of_effect(call, outcome, unknown=unknown)


def _of_effect(call: Call, outcome: Outcome, *, unknown: bool) -> Iterator[str]:
    times = outcome.effects[call.id]
    if times > 1:
        yield f"took effect {times} times"
    if times == 0 and not unknown:
        yield "is told as a success and took no effect"
    if call.kind is Kind.IDEMPOTENT and outcome.keys[call.id] != 1:
        yield f"was run under {outcome.keys[call.id]} keys"
    if call.kind is Kind.ONCE and unknown and not (outcome.is_in_doubt(call) or outcome.was_lost_alive(call)):
        yield "is told as unknown, and the ledger knows"
    if call.kind is Kind.ONCE and not unknown and outcome.is_in_doubt(call):
        yield "was in doubt and was run again"
