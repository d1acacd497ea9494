"""What Loom remembers of its runs: four layers, their entries, and queries for them.

    L1  every recent Task, whole                    50 newest, 1 hour     a row that is whole
    L2  important Tasks, whole                      50, 24 hours          a row that is whole and important
    L3  summaries of what was important             500, 7 days           a row of at most 200 characters
    L4  the same, found by meaning, kept forever                          such a row with a vector, or one that left L3

Limits apply per node and session. A row is stored in one layer and appears in every layer that it fits: an important
Task of the last hour in L1 and L2, a summary with a vector in L3 and L4.
"""

from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from loom.domain.core.tasks import Task


class Layer(StrEnum):
    """The layer of a memory."""

    L1 = "L1"
    L2 = "L2"
    L3 = "L3"
    L4 = "L4"


LEAST_SUMMARY: Final = 20
"""Characters; a shorter summary is useless."""
WHOLE: Final = frozenset({Layer.L1, Layer.L2})
"""The layers that keep whole Tasks."""


class MemoryScope(StrEnum):
    """Who can read a memory, in the order in which scopes are read."""

    LOCAL = "local"
    SHARED = "shared"
    INHERITED = "inherited"
    GLOBAL = "global"


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySettings:
    """Limits and thresholds of the layers, per node and session."""

    recent: int = 50
    recent_for: timedelta = timedelta(hours=1)
    important: int = 50
    important_for: timedelta = timedelta(hours=24)
    important_over: float = 0.6
    """A Task above this importance enters L2."""
    summaries: int = 500
    summaries_for: timedelta = timedelta(days=7)
    summary_length: int = 200
    """Longest summary or fact, in characters."""
    trivial_below: int = 50
    """Characters; shorter text is neither distilled nor embedded."""
    distill_over: int = 100
    """Tokens; longer text is distilled, if a model is configured for it."""
    batch: int = 10
    """Texts that are embedded in one batch."""
    same_from: float = 0.98
    """Cosine similarity from which two summaries of a session count as duplicates."""
    recall_recent: int = 10
    """Entries of L1 that a run recalls after a person's message."""
    recall_important: int = 10
    """Entries of L2 that a run recalls."""
    recall_summaries: int = 5
    """Entries of L3 and L4 that a run recalls."""
    recall_tokens: int = 4_000
    """Tokens of all recalled entries together."""

    def __post_init__(self) -> None:
        """Validate the settings. Raises ValueError, which names the setting."""
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            least: Any = timedelta(0) if isinstance(value, timedelta) else 0
            if value < least:
                raise ValueError(f"{name} must not be negative")
        for name in ("important_over", "same_from"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name} must be between 0 and 1")
        if self.summary_length < LEAST_SUMMARY or self.batch < 1:
            raise ValueError(f"summary_length must be at least {LEAST_SUMMARY}, and batch at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """One row: a whole Task, or a summary of one."""

    id: int
    layer: Layer
    content: str
    session_id: str
    run_id: str
    task_id: str
    """The Task that it contains or summarizes."""
    turn: int
    """The turn of that Task; 0 if it is outside of turns."""
    ordinal: int
    """The position of that Task within its run, in the order of storage."""
    node: str
    action: str
    importance: float
    created_at: datetime
    status: str = "completed"
    scope: MemoryScope = MemoryScope.LOCAL
    parent_task_id: str | None = None
    root_run_id: str = ""
    model: str | None = None
    """The embedding model of its vector; None without a vector."""
    valid_to: datetime | None = None
    superseded_by: int | None = None
    """The row that replaces this one, which is kept but not found any more."""
    task: Task | None = None
    """The whole Task, if the row is in L1 or L2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """Filters for memories. An empty filter excludes nothing."""

    session_id: str | None
    """A session sees its own memories and global ones. None: all sessions, for operators."""
    layers: Set[Layer] = frozenset()
    actions: Set[str] = frozenset()
    nodes: Set[str] = frozenset()
    scopes: Set[MemoryScope] = frozenset()
    without_run: str | None = None
    """Excludes Tasks of this run itself."""
    task_id: str | None = None
    """Only this Task and its summaries."""
    children_of: str | None = None
    """Only Tasks of this run's direct children."""
    below: str | None = None
    """Only Tasks of runs in the tree of this root run."""
    only_roots: bool = False
    """Excludes Tasks of sub-agents."""
    min_importance: float = 0.0
    since: datetime | None = None
    limit: int = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """A search by meaning and by words."""

    text: str
    view: View
    threshold: float = 0.0
    """Least cosine similarity of memories that only match by meaning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A memory that was found."""

    memory: Memory
    layer: Layer
    """The layer it was found in: the one it is stored in, or another that it fits."""
    score: float
    """1 if it ranks first by words and by meaning. Comparable only within one result."""
    similarity: float | None = None
    """Cosine similarity to the question; None: not found by meaning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryStats:
    """Numbers of stored memories."""

    sessions: int = 0
    tasks: int = 0
    """All Tasks ever stored, including those of which nothing is left."""
    layers: Mapping[str, int] = field(default_factory=dict)
    """Memories by the layer they are stored in."""
    superseded: int = 0
    vectors: Mapping[str, int] = field(default_factory=dict)
    """Vectors by embedding model."""
    waiting: int = 0
    """Memories that wait for a vector."""
    notes: int = 0
    """Versions of what agents wrote for themselves and each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forgotten:
    """Numbers of deleted entries of a session."""

    memories: int = 0
    notes: int = 0
    """Versions of what its agents wrote for themselves and each other."""
    artifacts: int = 0
    """Stored artifacts: long outputs of tools."""
    effects: int = 0
    """Recorded results of tool calls with side effects."""
    effects_left: int = 0
    """Such results that were kept, since their runs may still be active and would repeat the calls."""
    runs: tuple[str, ...] = ()
    """The runs that they belonged to."""


def seen_in(stored: Layer, asked: Set[Layer]) -> Layer:
    """The layer to report for a memory that a query for these layers has found."""
    if not asked or stored in asked:
        return stored
    return Layer.L1 if stored is Layer.L2 else Layer.L4


def hit_view(hit: Hit) -> dict[str, Any]:
    """A hit in the form of the public contract."""
    found = memory_view(hit.memory)
    return {**found, "layer": hit.layer, "score": round(hit.score, 4), "similarity": hit.similarity}


def memory_view(memory: Memory, *, whole: bool = False) -> dict[str, Any]:
    """A memory in the form of the public contract; with the whole Task only on request."""
    view = {name: getattr(memory, name) for name in Memory.__slots__ if name != "task"}
    return {**view, "task": None if memory.task is None else asdict(memory.task)} if whole else view
