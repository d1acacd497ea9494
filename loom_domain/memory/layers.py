"""What Loom remembers about its runs: four layers, their entries, and queries.

    L1  every recent task, whole                    50 newest, 1 hour     a whole row
    L2  important tasks, whole                      50, 24 hours          a whole, important row
    L3  summaries of important tasks                500, 7 days           a row of at most 200 characters
    L4  the same, found by meaning, permanently                           such a row with a vector, or one that left L3

Limits apply per node and session. A row is stored in one layer and is also found in others that it fits: an important
task of the last hour in L1 and L2, a summary with a vector in L3 and L4.
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
"""Characters below which a summary is useless."""
WHOLE: Final = frozenset({Layer.L1, Layer.L2})
"""The layers that contain whole tasks."""


class MemoryScope(StrEnum):
    """Who can see a memory, nearest first, in the order in which they are read."""

    LOCAL = "local"
    SHARED = "shared"
    INHERITED = "inherited"
    GLOBAL = "global"


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySettings:
    """How much is stored of each layer for how long, per node and session."""

    recent: int = 50
    recent_for: timedelta = timedelta(hours=1)
    important: int = 50
    important_for: timedelta = timedelta(hours=24)
    important_over: float = 0.6
    """A task of more than this importance is important."""
    summaries: int = 500
    summaries_for: timedelta = timedelta(days=7)
    summary_length: int = 200
    """Maximum characters of a summary or a fact."""
    trivial_below: int = 50
    """Characters. A shorter text is neither distilled nor given a vector."""
    distill_over: int = 100
    """Tokens. A longer text is distilled by the model, if there is one."""
    batch: int = 10
    """Number of texts that are embedded at once."""
    same_from: float = 0.98
    """Cosine similarity from which two summaries of a session count as duplicates."""
    recall_recent: int = 10
    """Maximum entries of L1 that are recalled when a person has written."""
    recall_important: int = 10
    """The same for L2."""
    recall_summaries: int = 5
    """The same for L3 and L4."""
    recall_tokens: int = 4_000
    """Maximum tokens of all of these together."""

    def __post_init__(self) -> None:
        """Reject inconsistent values; raises ValueError, which names the setting."""
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
    """One row: a whole task, or what remains of one."""

    id: int
    layer: Layer
    content: str
    session_id: str
    run_id: str
    task_id: str
    """The task that it is, or comes from."""
    turn: int
    """The turn of that task; 0: outside of turns."""
    ordinal: int
    """The task's number in its run, in order of storage."""
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
    """The newer row that replaces this one, which then stays but is no longer found."""
    task: Task | None = None
    """The whole Task, if the row is in L1 or L2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A filter for memories. An empty field excludes nothing."""

    session_id: str | None
    """None: all sessions, for operators. A session sees its own memories and global ones."""
    layers: Set[Layer] = frozenset()
    actions: Set[str] = frozenset()
    nodes: Set[str] = frozenset()
    scopes: Set[MemoryScope] = frozenset()
    without_run: str | None = None
    """Exclude what this run itself did."""
    task_id: str | None = None
    """Only this task, or what comes from it."""
    children_of: str | None = None
    """Only tasks of the runs that this run has started."""
    below: str | None = None
    """Only tasks of runs with this run as their root."""
    only_roots: bool = False
    """Exclude what sub-agents did."""
    min_importance: float = 0.0
    since: datetime | None = None
    limit: int = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """A search by meaning and by words."""

    text: str
    view: View
    threshold: float = 0.0
    """Minimum cosine similarity of results that are found by meaning alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A memory that was found."""

    memory: Memory
    layer: Layer
    """The layer in which it was found: the memory's own, or another one that it fits."""
    score: float
    """1: first in every search that found anything. Only comparable within one result."""
    similarity: float | None = None
    """Cosine similarity to the question; None: not found by meaning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryStats:
    """How much is stored."""

    sessions: int = 0
    tasks: int = 0
    """Number of tasks stored so far, including those of which nothing is left."""
    layers: Mapping[str, int] = field(default_factory=dict)
    """Memories by the layer in which they are stored."""
    superseded: int = 0
    vectors: Mapping[str, int] = field(default_factory=dict)
    """Vectors by embedding model."""
    waiting: int = 0
    """Number of memories that still need a vector."""
    notes: int = 0
    """Versions of notes that agents wrote for themselves and each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forgotten:
    """Numbers of deleted entries of a session."""

    memories: int = 0
    notes: int = 0
    """Versions of notes that its agents wrote for themselves and each other."""
    artifacts: int = 0
    """Long outputs."""
    effects: int = 0
    """Results of calls with effects."""
    effects_left: int = 0
    """The same of runs that may still be going on: without them, they would repeat the calls."""
    runs: tuple[str, ...] = ()
    """The session's runs."""


def seen_in(stored: Layer, asked: Set[Layer]) -> Layer:
    """The layer to name for a memory that a query of these layers has found."""
    if not asked or stored in asked:
        return stored
    return Layer.L1 if stored is Layer.L2 else Layer.L4


def hit_view(hit: Hit) -> dict[str, Any]:
    """A hit with the keys of the public contract."""
    found = memory_view(hit.memory)
    return {**found, "layer": hit.layer, "score": round(hit.score, 4), "similarity": hit.similarity}


def memory_view(memory: Memory, *, whole: bool = False) -> dict[str, Any]:
    """A memory with the keys of the public contract; the whole task only on request."""
    view = {name: getattr(memory, name) for name in Memory.__slots__ if name != "task"}
    return {**view, "task": None if memory.task is None else asdict(memory.task)} if whole else view
