"""Events between the runs of a tree."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from loom.domain.core.requests import RunError, RunResult
from loom.domain.permissions.judge import Level
from loom.domain.tree.budget import BudgetRequest, Spend
from loom.domain.tree.tree import ChildReport


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildrenBegan:
    """Children are about to be started; `names` has the last part of each run id, by the id of its call."""

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
    """A child has sent a report."""

    report: ChildReport


@dataclass(frozen=True, kw_only=True, slots=True)
class AncestryChanged:
    """The rules of the runs above have changed."""

    above: tuple[Level, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetRequested:
    """A child asks for a larger share."""

    request: BudgetRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetGranted:
    """The parent has answered the budget request of that number; granting nothing refuses it."""

    number: int
    granted: Spend


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeSignalSent:
    """The first queued signal to another run of the tree was sent."""


TreeEvent: TypeAlias = (
    ChildrenBegan
    | ChildStarted
    | ChildEnded
    | ChildReported
    | AncestryChanged
    | BudgetRequested
    | BudgetGranted
    | TreeSignalSent
)
