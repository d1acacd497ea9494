"""The events between the runs in a tree."""

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
    """Children are about to be started. `names` maps each call id to the last part of the child's run id."""

    names: Mapping[str, str]
    detached: bool = False
    """Whether the children go on when this execution of their parent closes."""
    told: bool = True
    """Whether the stream is told of the calls for which no child begins."""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildStarted:
    """The server has started a child."""

    run_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildEnded:
    """A child has returned its result or can no longer return one."""

    run_id: str
    result: RunResult | None = None
    error: RunError | None = None
    """Set if there is no result because the server ended the child or could not start it."""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildReported:
    """A child has sent a report."""

    report: ChildReport


@dataclass(frozen=True, kw_only=True, slots=True)
class AncestryChanged:
    """The permission rules of a parent or ancestor run have changed."""

    above: tuple[Level, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetRequested:
    """A child has requested a larger share."""

    request: BudgetRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetGranted:
    """The parent has answered a budget request. `number` identifies the request. An empty grant is a refusal."""

    number: int
    granted: Spend


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeSignalSent:
    """The first queued signal to another run in the tree was sent."""


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
