"""What one seed does: the calls that a model asks for, and the moments at which its worker is killed."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from loom.testing.model_server import Script, ToolUse, calls, text

DATA: Final = "what there is to read"
ANSWER: Final = "all done"


class Kind(StrEnum):
    """Tools by what running them twice would do; the value is the tool's name."""

    ONCE = "bash"
    IDEMPOTENT = "credit"
    READ = "read_file"


class Moment(StrEnum):
    """What somebody outside sees of a call, shortly after which the worker is killed."""

    ASKED = "the model was asked"
    CALLED = "node.tool_call came"
    CLAIMED = "the claim is in the ledger"
    BEGUN = "the tool has begun"
    DONE = "the effect is there"
    ENDED = "the result is in the ledger"
    TOLD = "node.tool_result came"


_LONGEST: Final = {
    Moment.ASKED: 0.06,
    Moment.CALLED: 0.01,
    Moment.CLAIMED: 0.003,
    Moment.BEGUN: 0.2,
    Moment.DONE: 0.01,
    Moment.ENDED: 0.002,
    Moment.TOLD: 0.06,
}
"""Seconds between what is seen and the kill, at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """A tool call of the script; its tool marks that it begins, waits, has its effect, waits, and ends."""

    id: str
    kind: Kind
    turn: int
    before: float
    """Seconds from the beginning to the effect."""
    after: float
    """Seconds from the effect to the end."""

    @property
    def finished(self) -> str:
        """What the tool says when it has come to its end."""
        return DATA if self.kind is Kind.READ else f"finished {self.id}"

    @property
    def use(self) -> ToolUse:
        """The call as the model makes it."""
        match self.kind:
            case Kind.READ:
                return ToolUse(self.kind, {"path": "data.txt"}, self.id)
            case Kind.IDEMPOTENT:
                return ToolUse(self.kind, {"call": self.id, "before": self.before, "after": self.after}, self.id)
            case Kind.ONCE:
                begin = f"echo {self.id} >> begun.txt; sleep {self.before}"
                end = f"echo {self.id} >> lines.txt; sleep {self.after}; echo {self.finished}"
                return ToolUse(self.kind, {"command": f"{begin}; {end}"}, self.id)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """One kill -9 of the worker."""

    call: Call
    moment: Moment
    delay: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A seed, spelled out."""

    seed: int
    turns: tuple[tuple[Call, ...], ...]
    kills: tuple[Kill, ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls, in their order."""
        return tuple(call for turn in self.turns for call in turn)

    @property
    def script(self) -> Script:
        """The model: each turn's calls, then an answer; the same for the same turn, however often it is asked."""
        return lambda request: (
            calls(*(call.use for call in self.turns[request.turn])) if request.turn < len(self.turns) else text(ANSWER)
        )


def plan_of(seed: int) -> Plan:
    """Two or three turns of one to three calls; one or two kills, the first moments of neighbouring seeds differ."""
    random = Random(seed)
    turns = tuple(tuple(_calls(random, turn)) for turn in range(random.randint(2, 3)))
    targets = [call for turn in turns for call in turn if call.kind is not Kind.READ]
    moments = list(Moment)
    first = _kill(random, random.choice(targets), moments[seed % len(moments)])
    # A second one may well meet the retry of the call that the first one met.
    later = [call for call in targets if call.turn >= first.call.turn]
    second = [_kill(random, random.choice(later), random.choice(moments))] if random.random() < 0.5 else []
    return Plan(seed=seed, turns=turns, kills=(first, *second))


def _calls(random: Random, turn: int) -> Iterator[Call]:
    kinds = [random.choice([Kind.ONCE, Kind.IDEMPOTENT]), *random.choices(list(Kind), k=random.randint(0, 2))]
    random.shuffle(kinds)
    for number, kind in enumerate(kinds):
        after = random.choice([0.0, round(random.uniform(0, 0.1), 3)])
        before = round(random.uniform(0.01, 0.15), 3)
        yield Call(id=f"t{turn}{kind.name[0].lower()}{number}", kind=kind, turn=turn, before=before, after=after)


def _kill(random: Random, call: Call, moment: Moment) -> Kill:
    return Kill(call=call, moment=moment, delay=round(random.uniform(0, _LONGEST[moment]), 4))
