"""Loom's memory of its runs: four layers, their entries, and queries.

    L1  every recent task, in full                  50 newest, 1 hour     a whole row
    L2  important tasks, in full                    50, 24 hours          a whole, important row
    L3  summaries of important tasks                500, 7 days           a row of at most 1,000 characters
    L4  permanent summaries, found by meaning                             an L3 row with a vector, or an expired L3 row

Limits apply per node and session. Each row is stored in one layer, but queries also find it in every other layer whose
criteria it meets. For example, an important task from the last hour is found in L1 and L2, and a summary with a vector
is found in L3 and L4.
"""

from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from loom.domain.core.tasks import Task
from loom.domain.core.tenants import EVERYBODY, Owner, OwnerFilter


class Layer(StrEnum):
    """A memory's layer."""

    L1 = "L1"
    L2 = "L2"
    L3 = "L3"
    L4 = "L4"


LEAST_SUMMARY: Final = 20
"""The minimum number of characters for a useful summary."""
WHOLE: Final = frozenset({Layer.L1, Layer.L2})
"""The layers that contain whole tasks."""


class MemoryScope(StrEnum):
    """The scope in which a memory is visible. The scopes are ordered from nearest to farthest and are read in this
    order.
    """

    LOCAL = "local"
    SHARED = "shared"
    INHERITED = "inherited"
    GLOBAL = "global"


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySettings:
    """How many memories each layer stores and for how long, per node and session."""

    recent: int = 50
    recent_for: timedelta = timedelta(hours=1)
    important: int = 50
    important_for: timedelta = timedelta(hours=24)
    important_over: float = 0.6
    """A task counts as important if its importance exceeds this value."""
    summaries: int = 500
    summaries_for: timedelta = timedelta(days=7)
    summary_length: int = 1_000
    """The maximum number of characters in a summary. A distilled fact has at most 200."""
    trivial_below: int = 10
    """The minimum length of a text to be embedded, in columns: a Chinese, Japanese or Korean character has two."""
    distill_over: int = 100
    """If a model is available, it distills texts that exceed this number of tokens."""
    batch: int = 10
    """The number of texts that are embedded in one batch."""
    same_from: float = 0.98
    """The minimum cosine similarity for two summaries in a session to count as duplicates."""
    recall_recent: int = 10
    """The maximum number of L1 entries that are recalled when a person has written."""
    recall_important: int = 10
    """The maximum number of L2 entries that are recalled."""
    recall_summaries: int = 5
    """The maximum number of L3 and L4 entries that are recalled."""
    recall_tokens: int = 4_000
    """The maximum total number of tokens in all recalled entries."""
    recall_notes_tokens: int = 1_000
    """The part of `recall_tokens` for the notes that a sub-agent inherits. At most a quarter is used."""
    recall_person_tokens: int = 1_000
    """The part of `recall_tokens` for facts about the run's user and tenant. At most a quarter is used."""
    person_facts: int = 200
    """The maximum number of facts about one person. The oldest are deleted first."""

    def __post_init__(self) -> None:
        """Raise ValueError if a value is invalid. The message names the setting."""
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

    @property
    def notes_tokens(self) -> int:
        """The maximum number of tokens in the notes that a sub-agent inherits."""
        return min(self.recall_notes_tokens, self.recall_tokens // 4)

    @property
    def person_tokens(self) -> int:
        """The maximum number of tokens in the facts about a person."""
        return min(self.recall_person_tokens, self.recall_tokens // 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """One row, which contains either a whole task or a summary of a task."""

    id: int
    """The row's number in the database, which `loom memory show` takes."""
    layer: Layer
    """The layer in which the row is stored."""
    content: str
    """The text that models read and queries search."""
    session_id: str
    """The session of the task's run."""
    run_id: str
    """The run of the task."""
    task_id: str
    """The task that the row contains or is derived from."""
    turn: int
    """The task's turn, or 0 outside of turns."""
    ordinal: int
    """The task's number in its run, in storage order."""
    node: str
    """The agent that published the task."""
    action: str
    """The task's action. A summary has the action of its task."""
    importance: float
    """The importance of the task, from 0 to 1."""
    created_at: datetime
    """When the task happened, in UTC."""
    status: str = "completed"
    """The task's status, such as `completed` or `failed`."""
    scope: MemoryScope = MemoryScope.LOCAL
    """Who sees the memory, besides its own agent."""
    parent_task_id: str | None = None
    """The task that this one belongs to. None if there is none."""
    root_run_id: str = ""
    """The root of the tree that the run belongs to. Empty if it isn't known."""
    model: str | None = None
    """The model that computed the vector, or None if there is no vector."""
    valid_to: datetime | None = None
    """When a newer row replaced this one. None if none has."""
    superseded_by: int | None = None
    """The newer row that replaces this row. A replaced row is kept, but queries no longer find it."""
    tenant: str = ""
    """The tenant that the task's run works for. Empty if it names none, or if an earlier release has stored the row."""
    user_id: str = ""
    """The person that the task's run works for."""
    task: Task | None = None
    """The whole Task, if the row is in L1 or L2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A filter for memories. A field that is empty doesn't restrict the results."""

    session_id: str | None
    """The session to search. None means all sessions and is meant for operators. A query for one session finds that
    session's memories and global memories.
    """
    owner: Owner | None
    """Whose memories to search. Equal sessions of different owners are different sessions, and global memories are
    global within a tenant. None means everybody's memories and is meant for operators.
    """
    of: OwnerFilter = EVERYBODY
    """Include only memories of these owners' runs. For operators."""
    layers: Set[Layer] = frozenset()
    actions: Set[str] = frozenset()
    nodes: Set[str] = frozenset()
    scopes: Set[MemoryScope] = frozenset()
    without_run: str | None = None
    """Exclude this run's own memories."""
    task_id: str | None = None
    """Include only this task and memories derived from it."""
    children_of: str | None = None
    """Include only tasks of this run's child runs."""
    below: str | None = None
    """Include only tasks of runs that have this run as their root."""
    only_roots: bool = False
    """Exclude memories of sub-agents."""
    min_importance: float = 0.0
    since: datetime | None = None
    until: datetime | None = None
    """Include only memories from before this time."""
    limit: int = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """A search by meaning and by words."""

    text: str
    view: View
    threshold: float = 0.0
    """The minimum cosine similarity of results that are found by meaning alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """A memory that a query found."""

    memory: Memory
    """The memory itself."""
    layer: Layer
    """The layer in which the memory was found: its own layer, or another layer whose criteria it meets."""
    score: float
    """The score, from 0 to 1. It combines the share of the question's words that the memory contains with the nearness
    of its meaning. Scores are comparable only within one result.
    """
    similarity: float | None = None
    """The cosine similarity to the question, or None if the memory wasn't found by meaning."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryStats:
    """The amount of data in memory."""

    sessions: int = 0
    """The number of sessions with tasks that have ever been stored."""
    tasks: int = 0
    """The number of tasks that have ever been stored, including tasks that have since been deleted."""
    layers: Mapping[str, int] = field(default_factory=dict)
    """The number of memories in each layer. Each memory is counted only in the layer that it is stored in."""
    superseded: int = 0
    """The number of memories that a newer one has replaced."""
    vectors: Mapping[str, int] = field(default_factory=dict)
    """The number of vectors for each embedding model."""
    waiting: int = 0
    """The number of memories that still need a vector."""
    notes: int = 0
    """The number of versions of notes that agents wrote for themselves and each other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forgotten:
    """The numbers of entries that were deleted for a session or a person."""

    memories: int = 0
    """The number of memories, in all layers."""
    notes: int = 0
    """The number of versions of notes that the agents wrote for themselves and each other."""
    person_facts: int = 0
    """The number of facts that people said about themselves in the session."""
    artifacts: int = 0
    """The number of long outputs."""
    effects: int = 0
    """The number of recorded results of calls with side effects."""
    effects_left: int = 0
    """The number of recorded results that were kept because they belong to runs that may still be in progress. Without
    these results, the runs would repeat the calls.
    """
    runs: tuple[str, ...] = ()
    """The runs that left them."""
    unnamed: bool = False
    """Whether there are memories of an earlier release, which doesn't record whose runs left them."""


def seen_in(stored: Layer, asked: Set[Layer]) -> Layer:
    """Return the layer to report for a memory that a query has found. `asked` contains the layers that the query
    searched.
    """
    if not asked or stored in asked:
        return stored
    return Layer.L1 if stored is Layer.L2 else Layer.L4


def hit_view(hit: Hit) -> dict[str, Any]:
    """Return a hit under the public contract's keys."""
    found = memory_view(hit.memory)
    return {**found, "layer": hit.layer, "score": round(hit.score, 4), "similarity": hit.similarity}


def memory_view(memory: Memory, *, whole: bool = False) -> dict[str, Any]:
    """Return a memory under the public contract's keys. The whole task is included only on request."""
    view = {name: getattr(memory, name) for name in Memory.__slots__ if name != "task"}
    return {**view, "task": None if memory.task is None else asdict(memory.task)} if whole else view
