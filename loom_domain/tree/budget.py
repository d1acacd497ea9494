"""Budgets in a tree of runs: amounts, and the shares of them that a run lends its children.

    root's share ── lends ──▶ child's share ── lends ──▶ …        gives back what is left when the child ends

What a run has lent counts as spent until the child has ended. So spent + lent never exceeds a share, at any moment and
in any order of events, and each run only has to keep its own account.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

DIMENSIONS: Final = ("tokens", "micros", "tool_calls", "turns", "children")
WRAP_UP_TOKENS: Final = 1024
"""The longest last answer of a run, in tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spend:
    """An amount in each dimension of a budget."""

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
        """The amounts that are not zero, by dimension."""
        return {name: getattr(self, name) for name in DIMENSIONS if getattr(self, name)}


Limit: TypeAlias = int | None
"""None means no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What a run and everything below it may spend."""

    tokens: Limit = None
    micros: Limit = None
    tool_calls: Limit = None
    turns: Limit = None
    children: Limit = None

    def plus(self, more: Spend) -> "Share":
        """The share with more in it."""
        return self._each(lambda limit, amount: limit + amount, more)

    def minus(self, spent: Spend) -> "Share":
        """What is left; negative where more was spent."""
        return self._each(lambda limit, amount: limit - amount, spent)

    def shortfall(self, need: Spend) -> Spend:
        """What is missing to cover the need."""
        short = {name: need_ - limit for name, need_, limit in self._pairs(need) if limit is not None and need_ > limit}
        return Spend(**short)

    def within(self, wanted: Spend) -> Spend:
        """The wanted amounts, as far as the share covers them."""
        there = [(n, amount, amount if limit is None else limit) for n, amount, limit in self._pairs(wanted)]
        return Spend(**{name: max(0, min(amount, most)) for name, amount, most in there})

    def part(self, parts: int) -> "Share":
        """One of `parts` equal parts, rounded down, and never negative."""
        return self._each(lambda limit, _: max(0, limit) // parts, Spend())

    @property
    def lent(self) -> Spend:
        """The amounts that a run with this share may still spend; dimensions without a limit count as zero."""
        return Spend(**{name: limit or 0 for name, _, limit in self._pairs(Spend())})

    def _pairs(self, amounts: Spend) -> list[tuple[str, int, Limit]]:
        return [(name, getattr(amounts, name), getattr(self, name)) for name in DIMENSIONS]

    def _each(self, change: Callable[[int, int], int], amounts: Spend) -> "Share":
        changed = {n: change(limit, amount) for n, amount, limit in self._pairs(amounts) if limit is not None}
        return Share(**changed)


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetRequest:
    """A run's request for a larger share."""

    run_id: str
    """The run that asks and gets the answer."""
    number: int
    """Numbers the run's requests, so that an answer belongs to one of them."""
    need: Spend
    """What the run lacks for its next step."""


def grant(left: Share, reserve: Spend, need: Spend, sharers: int) -> Spend | None:
    """What to grant a child that lacks `need`, or None when too little is left.

    `reserve` stays with the parent. The child gets what it lacks, and more while plenty is left: an equal part for each
    run that may still ask, so that few requests are needed.
    """
    pot = left.minus(reserve)
    if pot.shortfall(need):
        return None
    plenty = pot.part(sharers + 1)
    wanted = {name: max(amount, getattr(plenty, name) or 0) for name, amount in need.named.items()}
    return pot.within(Spend(**wanted))


def more_than(share: Share) -> Spend:
    """The least amount of tokens and money that exceeds the share."""
    return Spend(
        tokens=0 if share.tokens is None else max(0, share.tokens) + 1,
        micros=0 if share.micros is None else max(0, share.micros) + 1,
    )
