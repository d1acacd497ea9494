"""Lineage: a child run's origin. The parent sends it when the child starts, and it is pinned into the child run."""

from dataclasses import dataclass, field
from datetime import datetime

from loom.domain.core.repositories import Checkout
from loom.domain.permissions.judge import Level
from loom.domain.tree.budget import Share


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeLimits:
    """The maximum size of a tree of runs. It is recorded when the root run is prepared."""

    depth: int = 3
    """The maximum number of sub-agent levels below the root."""
    children: int = 20
    """The maximum number of runs below the root, including runs that have ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """The information that a parent sends its child in addition to the task."""

    parent_run_id: str
    root_run_id: str
    depth: int
    """The child's level in the tree. A child of the root has depth 1."""
    limits: TreeLimits
    description: str = ""
    """A short label for the task."""
    named: bool = False
    """Whether the parent named the agent. If not, the child uses a copy of its parent's agent."""
    tools: tuple[str, ...] = ()
    """The tools that the parent assigned. If the parent assigned none, the child has its agent's tools or a sub-agent's
    default tools.
    """
    model: str = ""
    """The parent's model, used if the agent doesn't specify a model."""
    above: tuple[Level, ...] = ()
    """The rules of all ancestor runs, root first. A child never has more permissions than its ancestors."""
    share: Share = field(default_factory=Share)
    """The amounts that the child and its descendants can spend. The child can request more from its parent."""
    deadline: datetime | None = None
    """The run's deadline, at which its parent starts its own last answer."""
    branch: bool = False
    """Whether the run is a branch of the tree pattern or a descendant of one.

    Such a run uses the `react` pattern, regardless of its agent's definition.
    """
    has_work_to_lose: bool = False
    """Whether a model has answered in a run above. If so, the child waits for its provider from its first call on.
    """
    task_id: str = ""
    """The id of the stream task that assigned the work."""
    detached: bool = False
    """Whether the server leaves the run alone when its parent closes. The run then reports regularly, and ends if it
    can't reach its parent.
    """
    priority: int | None = None
    """The priority of the parent's agent, if the parent's request doesn't set one. The child's agent can override it.
    """
    root_execution: str = ""
    """Tells the root apart from other runs that use the same id."""
    steering_key: str = ""
    """The public key that requests to the child must be signed with, because only a signature made a run above it
    possible. If empty, the child's worker decides whether requests need a signature.
    """
    checkout: Checkout | None = None
    """The clone that the runs of the tree work in, if the root's request names a repository."""


def is_child(run_id: str, parent_run_id: str) -> bool:
    """Whether `run_id` consists of the parent's id, `/`, and one more part."""
    return run_id.rpartition("/")[0] == parent_run_id != ""
