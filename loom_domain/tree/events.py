"""What can happen between the runs of a tree (events, past tense)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from loom.domain.core.requests import RunError, RunResult
from loom.domain.permissions.judge import Level
from loom.domain.tree.budget import Spend, Want
from loom.domain.tree.tree import ChildReport


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildrenBegan:
    """Children are about to be started; `names` are the last parts of their run ids, by the call that wants them."""

    names: Mapping[str, str]
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildStarted:
    """The server has begun a child."""

    run_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildEnded:
    """A child has its result, or will never have one."""

    run_id: str
    result: RunResult | None = None
    error: RunError | None = None
    """Set when there is no result: the server ended it, or could not start it."""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildReported:
    """A child tells how it stands."""

    report: ChildReport


@dataclass(frozen=True, kw_only=True, slots=True)
class AncestryChanged:
    """Those above allow something else now."""

    above: tuple[Level, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetWanted:
    """A child asks for a larger share."""

    want: Want


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetAnswered:
    """The parent has answered the wish of that number; nothing granted is a no."""

    number: int
    granted: Spend


@dataclass(frozen=True, kw_only=True, slots=True)
class LetterSent:
    """The first letter to another run of the tree is gone."""


TreeEvent: TypeAlias = (
    ChildrenBegan
    | ChildStarted
    | ChildEnded
    | ChildReported
    | AncestryChanged
    | BudgetWanted
    | BudgetAnswered
    | LetterSent
)
