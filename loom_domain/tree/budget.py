"""What may be spent and what has been: amounts, and shares of them that runs of one tree pass on.

    root's share ── lends ──▶ child's share ── lends ──▶ …        gives back what is left when the child ends

What a run has lent is spent for the run itself until the child has ended. So of any share, at any moment, in any order
of events: spent + lent never exceeds it, and nobody has to know more than their own account.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

DIMENSIONS: Final = ("tokens", "micros", "tool_calls", "turns", "children")
WRAP_UP_TOKENS: Final = 1024
"""What the last answer of a run may be long at most."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spend:
    """An amount of everything that counts."""

    tokens: int = 0
    micros: int = 0
    """Millionths of a US dollar."""
    tool_calls: int = 0
    turns: int = 0
    children: int = 0
    """Runs started."""

    def __add__(self, other: "Spend") -> "Spend":
        return Spend(**{name: getattr(self, name) + getattr(other, name) for name in DIMENSIONS})

    def __bool__(self) -> bool:
        return any(getattr(self, name) > 0 for name in DIMENSIONS)

    @property
    def named(self) -> dict[str, int]:
        """The amounts that are not nothing."""
        return {name: getattr(self, name) for name in DIMENSIONS if getattr(self, name)}


Limit: TypeAlias = int | None
"""None is without limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What a run with everything below it may spend in all."""

    tokens: Limit = None
    micros: Limit = None
    tool_calls: Limit = None
    turns: Limit = None
    children: Limit = None

    def plus(self, more: Spend) -> "Share":
        """The share with more in it."""
        return self._each(lambda limit, amount: limit + amount, more)

    def minus(self, spent: Spend) -> "Share":
        """What is left; less than nothing where more was spent."""
        return self._each(lambda limit, amount: limit - amount, spent)

    def shortfall(self, need: Spend) -> Spend:
        """What would have to be added to cover the need."""
        short = {name: need_ - limit for name, need_, limit in self._pairs(need) if limit is not None and need_ > limit}
        return Spend(**short)

    def within(self, wanted: Spend) -> Spend:
        """As much of what is wanted as there is."""
        there = [(n, amount, amount if limit is None else limit) for n, amount, limit in self._pairs(wanted)]
        return Spend(**{name: max(0, min(amount, most)) for name, amount, most in there})

    def part(self, parts: int) -> "Share":
        """One of so many equal parts, rounded down; nothing of what there is nothing of."""
        return self._each(lambda limit, _: max(0, limit) // parts, Spend())

    @property
    def lent(self) -> Spend:
        """The amounts that are held back for whoever has this share; of what is without limit there is no account."""
        return Spend(**{name: limit or 0 for name, _, limit in self._pairs(Spend())})

    def _pairs(self, amounts: Spend) -> list[tuple[str, int, Limit]]:
        return [(name, getattr(amounts, name), getattr(self, name)) for name in DIMENSIONS]

    def _each(self, change: Callable[[int, int], int], amounts: Spend) -> "Share":
        changed = {n: change(limit, amount) for n, amount, limit in self._pairs(amounts) if limit is not None}
        return Share(**changed)


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetRequest:
    """A run's wish for a larger share."""

    run_id: str
    """Who wants it; answers go there."""
    number: int
    """Counts the run's wishes, so that an answer is to one of them."""
    need: Spend
    """What it lacks for its next step."""


def grant(left: Share, kept: Spend, need: Spend, sharers: int) -> Spend | None:
    """What to give a child that lacks `need`, or None when that is not there.

    `kept` stays for the giver itself. A child gets what it lacks, and more while there is plenty: an equal part for
    each of those who may still want something, so that few wishes serve many steps.
    """
    pot = left.minus(kept)
    if pot.shortfall(need):
        return None
    plenty = pot.part(sharers + 1)
    wanted = {name: max(amount, getattr(plenty, name) or 0) for name, amount in need.named.items()}
    return pot.within(Spend(**wanted))


def more_than(share: Share) -> Spend:
    """The least that the share does not cover, of what money and tokens it limits."""
    return Spend(
        tokens=0 if share.tokens is None else max(0, share.tokens) + 1,
        micros=0 if share.micros is None else max(0, share.micros) + 1,
    )
