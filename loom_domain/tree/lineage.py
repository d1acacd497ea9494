"""Lineage: where a child run comes from. Its parent sends it at the start, and it is pinned into the run."""

from dataclasses import dataclass, field
from datetime import datetime

from loom.domain.permissions.judge import Level
from loom.domain.tree.budget import Share


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeLimits:
    """How far a tree of runs may grow; recorded when its root is prepared."""

    depth: int = 3
    """Levels of sub-agents below the root."""
    children: int = 20
    """Runs below the root, including those that have ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """What a parent sends its child beside the task."""

    parent_run_id: str
    root_run_id: str
    depth: int
    """1 for a child of the root."""
    limits: TreeLimits
    description: str = ""
    """The task in a few words."""
    named: bool = False
    """The parent named the agent; otherwise the child is a copy of its parent's agent."""
    tools: tuple[str, ...] = ()
    """The tools that it was given; without any, those of its agent or the default ones of a sub-agent."""
    model: str = ""
    """The parent's model, for an agent that names none."""
    above: tuple[Level, ...] = ()
    """The rules of the runs above, root first: a child never has more rights than the runs above it."""
    share: Share = field(default_factory=Share)
    """What it may spend with everything below it; it can request more from its parent."""
    deadline: datetime | None = None
    """When the run's time is over: its parent then begins its own last answer."""
    branch: bool = False
    """It is a branch of the tree pattern, or below one: it uses the pattern `react`, whatever its agent defines."""
    task_id: str = ""
    """The id of the stream task by which the work was handed over."""


def is_child(run_id: str, parent_run_id: str) -> bool:
    """Whether `run_id` is the parent's id, `/`, and one more part."""
    return run_id.rpartition("/")[0] == parent_run_id != ""
