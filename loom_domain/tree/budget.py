"""Budgets in a tree of runs: amounts, and the shares that a run lends to its children.

    root's share ── lends ──▶ child's share ── lends ──▶ …        gives back what is left when the child ends

An amount that a run has lent counts as spent until the child ends. As a result, spent + lent never exceeds a share,
regardless of the order of events, and each run only needs to keep its own account.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

DIMENSIONS: Final = ("tokens", "micros", "tool_calls", "turns", "children")
WRAP_UP_TOKENS: Final = 1024
"""The maximum length of a run's last answer, in tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spend:
    """Amounts that were spent or are to be spent, one for each dimension of a budget."""

    tokens: int = 0
    micros: int = 0
    """Millionths of a US dollar."""
    tool_calls: int = 0
    turns: int = 0
    children: int = 0
    """The number of runs started."""

    def __add__(self, other: "Spend") -> "Spend":
        return Spend(**{name: getattr(self, name) + getattr(other, name) for name in DIMENSIONS})

    def __bool__(self) -> bool:
        return any(getattr(self, name) > 0 for name in DIMENSIONS)

    @property
    def named(self) -> dict[str, int]:
        """Return the nonzero amounts by dimension."""
        return {name: getattr(self, name) for name in DIMENSIONS if getattr(self, name)}


Limit: TypeAlias = int | None
"""None means no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """The amounts that a run and its descendants can spend."""

    tokens: Limit = None
    micros: Limit = None
    tool_calls: Limit = None
    turns: Limit = None
    children: Limit = None

    def plus(self, more: Spend) -> "Share":
        """Return the share increased by `more`."""
        return self._each(lambda limit, amount: limit + amount, more)

    def minus(self, spent: Spend) -> "Share":
        """Return the share after subtracting `spent`. If spending in a dimension exceeds the share, that
        dimension becomes negative.
        """
        return self._each(lambda limit, amount: limit - amount, spent)

    def shortfall(self, need: Spend) -> Spend:
        """Return the amounts by which the share falls short of `need`."""
        short = {name: need_ - limit for name, need_, limit in self._pairs(need) if limit is not None and need_ > limit}
        return Spend(**short)

    def within(self, wanted: Spend) -> Spend:
        """Return the wanted amounts, capped by the share."""
        there = [(n, amount, amount if limit is None else limit) for n, amount, limit in self._pairs(wanted)]
        return Spend(**{name: max(0, min(amount, most)) for name, amount, most in there})

    def part(self, parts: int) -> "Share":
        """Return one of `parts` equal parts, rounded down. Amounts are never negative."""
        return self._each(lambda limit, _: max(0, limit) // parts, Spend())

    @property
    def lent(self) -> Spend:
        """The limits of this share as amounts that a parent lends. Dimensions without a limit count as zero."""
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
    """The id of the run that makes the request and receives the answer."""
    number: int
    """The request's number within the run. The answer to the request has the same number."""
    need: Spend
    """The additional amounts that the run needs for its next step."""


def grant(left: Share, reserve: Spend, need: Spend, sharers: int) -> Spend | None:
    """Return the amount to grant to a child that needs `need` more, or None if too little is left.

    The parent keeps `reserve`. If enough is left, the child receives more than it needs: an equal part of what is left,
    as if every run that might still request budget received one. The surplus keeps the number of requests low.
    """
    pot = left.minus(reserve)
    if pot.shortfall(need):
        return None
    plenty = pot.part(sharers + 1)
    wanted = {name: max(amount, getattr(plenty, name) or 0) for name, amount in need.named.items()}
    return pot.within(Spend(**wanted))


def more_than(share: Share) -> Spend:
    """Return the smallest amounts of tokens and money that exceed the share."""
    return Spend(
        tokens=0 if share.tokens is None else max(0, share.tokens) + 1,
        micros=0 if share.micros is None else max(0, share.micros) + 1,
    )
