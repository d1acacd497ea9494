"""What Loom remembers of its runs: four layers, the entries in them, and the questions they answer.

    L1  every recent Task, whole                    50 newest, 1 hour     a row that is whole
    L2  important Tasks, whole                      50, 24 hours          a row that is whole and important
    L3  summaries of what was important             500, 7 days           a row of at most 200 characters
    L4  the same, found by meaning, for ever                              such a row with a vector, or one that left L3

Limits count per node and session. A row has one layer, in which it was put, and is seen in those that it fits as well:
an important Task of the last hour in L1 and L2, a summary that has its vector in L3 and L4.
"""

from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from loom.domain.core.tasks import Task


class Layer(StrEnum):
    """Where a memory stands."""

    L1 = "L1"
    L2 = "L2"
    L3 = "L3"
    L4 = "L4"


LEAST_SUMMARY: Final = 20
"""Characters below which a summary says nothing."""
WHOLE: Final = frozenset({Layer.L1, Layer.L2})
"""The layers that keep Tasks as they were."""


class MemoryScope(StrEnum):
    """Who sees a memory, nearest first: the order in which they are read."""

    LOCAL = "local"
    SHARED = "shared"
    INHERITED = "inherited"
    GLOBAL = "global"


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySettings:
    """How much of what is kept for how long, per node and session."""

    recent: int = 50
    recent_for: timedelta = timedelta(hours=1)
    important: int = 50
    important_for: timedelta = timedelta(hours=24)
    important_over: float = 0.6
    """A Task of more than this importance is important."""
    summaries: int = 500
    summaries_for: timedelta = timedelta(days=7)
    summary_length: int = 200
    """Characters of a summary or a fact."""
    trivial_below: int = 50
    """Characters; what is shorter is neither distilled nor given a vector."""
    distill_over: int = 100
    """Tokens; what is longer is distilled by the model, where there is one for it."""
    batch: int = 10
    """Texts that are embedded at once."""
    same_from: float = 0.98
    """Cosine from which two summaries of a session say the same."""
    recall_recent: int = 10
    """Entries of L1 that a run is reminded of when a person has spoken."""
    recall_important: int = 10
    """The same of L2."""
    recall_summaries: int = 5
    """The same of L3 and L4."""
    recall_tokens: int = 4_000
    """Of all of these together."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense; raises ValueError that names the setting."""
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
    """One row: a whole Task, or what is left of one."""

    id: int
    layer: Layer
    content: str
    session_id: str
    run_id: str
    task_id: str
    """The Task that it is, or comes from."""
    turn: int
    """The turn of that Task, 0: outside of turns."""
    ordinal: int
    """Which of its run's Tasks that was, counted as they were stored."""
    node: str
    action: str
    importance: float
    created_at: datetime
    status: str = "completed"
    scope: MemoryScope = MemoryScope.LOCAL
    parent_task_id: str | None = None
    root_run_id: str = ""
    model: str | None = None
    """The embedding model of its vector; None: it has none."""
    valid_to: datetime | None = None
    superseded_by: int | None = None
    """The row that says it better or later; this one is then kept, and not found any more."""
    task: Task | None = None
    """The whole Task, in L1 and L2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What of the memory is looked at; everything that is left empty excludes nothing."""

    session_id: str | None
    """None: all sessions, for the people who run Loom. A session sees its own memories and global ones."""
    layers: Set[Layer] = frozenset()
    actions: Set[str] = frozenset()
    nodes: Set[str] = frozenset()
    scopes: Set[MemoryScope] = frozenset()
    without_run: str | None = None
    """Leaves out what this run itself did."""
    task_id: str | None = None
    """Only what is, or comes from, this Task."""
    children_of: str | None = None
    """Only Tasks of the runs that this run has started itself."""
    below: str | None = None
    """Only Tasks of runs that have this run at their root."""
    only_roots: bool = False
    """Leaves out what sub-agents did."""
    min_importance: float = 0.0
    since: datetime | None = None
    limit: int = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """A search by meaning and by words at once."""

    text: str
    view: View
    threshold: float = 0.0
    """Least cosine similarity of what is found by meaning alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A memory that was found."""

    memory: Memory
    layer: Layer
    """The layer it was found in: the memory's own, or one it is seen in as well."""
    score: float
    """1: first in each way of looking that found anything; comparable within one answer only."""
    similarity: float | None = None
    """Cosine to the question; None: not found by meaning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryStats:
    """How much is remembered."""

    sessions: int = 0
    tasks: int = 0
    """Tasks taken in since the beginning, also those of which nothing is left."""
    layers: Mapping[str, int] = field(default_factory=dict)
    """Memories by the layer they were put in."""
    superseded: int = 0
    vectors: Mapping[str, int] = field(default_factory=dict)
    """Vectors by their model."""
    waiting: int = 0
    """Memories that are still to get a vector."""
    notes: int = 0
    """Versions of what agents wrote for themselves and each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forgotten:
    """What was deleted of a session."""

    memories: int = 0
    notes: int = 0
    """Versions of what its agents wrote for themselves and each other."""
    artifacts: int = 0
    """Long outputs, whole."""
    effects: int = 0
    """Results of calls that act on the outside."""
    effects_left: int = 0
    """The same of runs that may still go on: without them they would act again."""
    runs: tuple[str, ...] = ()
    """Whose they were."""


def seen_in(stored: Layer, asked: Set[Layer]) -> Layer:
    """The layer to name for a memory that a question about these layers has found."""
    if not asked or stored in asked:
        return stored
    return Layer.L1 if stored is Layer.L2 else Layer.L4


def hit_view(hit: Hit) -> dict[str, Any]:
    """A hit in the words of the public contract."""
    found = memory_view(hit.memory)
    return {**found, "layer": hit.layer, "score": round(hit.score, 4), "similarity": hit.similarity}


def memory_view(memory: Memory, *, whole: bool = False) -> dict[str, Any]:
    """A memory in the words of the public contract; the Task as it was only on demand."""
    view = {name: getattr(memory, name) for name in Memory.__slots__ if name != "task"}
    return {**view, "task": None if memory.task is None else asdict(memory.task)} if whole else view
