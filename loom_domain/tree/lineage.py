"""Where a run comes from that another one has started: told at its start, and pinned."""

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
    """Runs below the root, those that have ended included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lineage:
    """What a parent tells its child beside the task."""

    parent_run_id: str
    root_run_id: str
    depth: int
    """1 for a child of the root."""
    limits: TreeLimits
    description: str = ""
    """The task in a few words."""
    named: bool = False
    """The child was asked for by its agent's name; else it is derived from its parent."""
    tools: tuple[str, ...] = ()
    """The tools that it was given; none: as its agent has them, or the few that every sub-agent has."""
    model: str = ""
    """The parent's model, for an agent that names none."""
    above: tuple[Level, ...] = ()
    """What those above allow, root first: it never may more than they do."""
    share: Share = field(default_factory=Share)
    """What it may spend with everything below it; for more it asks its parent."""
    deadline: datetime | None = None
    """When the run's time is over: by then its parent begins its own last answer."""
    branch: bool = False
    """It is a branch of a tree, or below one: it reasons as `react`, whatever its agent says."""
    task_id: str = ""
    """The task on the stream by which the work was handed over."""


def is_child(run_id: str, parent_run_id: str) -> bool:
    """Whether a run bears the name of the other one's child: its id, `/`, and one part more."""
    return run_id.rpartition("/")[0] == parent_run_id != ""
