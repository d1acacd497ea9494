"""The ports of memory, as protocols."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from loom.domain.core.tasks import Task
from loom.domain.core.tenants import Owner
from loom.domain.memory.layers import Forgotten, Hit, Memory, MemoryStats, Query, View
from loom.domain.memory.people import ForgottenFacts, NewFact, PersonFact
from loom.domain.memory.scopes import NodePath, ScopedEntry, ScopedWrite


class EmbedderUnavailable(Exception):
    """Raised if the embedder isn't responding. Callers search by words only, or postpone the work."""


class TextRefused(EmbedderUnavailable):
    """Raised if the embedder is responding but rejects one of the texts. It may accept the other texts."""


class DistillerUnavailable(Exception):
    """Raised if the distiller isn't responding. Callers use the beginning of the text instead."""


class Embedder(Protocol):
    """Converts texts to vectors with one model. Vectors from different models are never compared."""

    @property
    def model(self) -> str:
        """The model's name. Models with different names have different vectors."""
        ...

    @property
    def dimension(self) -> int:
        """Length of the vectors."""
        ...

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[list[float]]:
        """Return one vector for each text. Use `query` for questions, because some models treat them differently.

        Raises EmbedderUnavailable if the embedder isn't responding, and TextRefused if it rejects one of the texts.
        """
        ...


class Distiller(Protocol):
    """Extracts one to three facts from a long text."""

    async def facts(self, text: str) -> Sequence[str]:
        """Return the facts, most important first. Raises DistillerUnavailable if the distiller isn't responding."""
        ...


class PersonDistiller(Protocol):
    """Finds out what texts say about the person who wrote them."""

    async def about_person(self, text: str) -> Sequence[str]:
        """Return lines as in `DISTILLED`. Raises DistillerUnavailable if the distiller isn't responding."""
        ...

    async def contradicted(self, new: str, older: Sequence[str]) -> Sequence[int]:
        """Return the indexes of the older facts that no longer hold because of the new one. Raises
        DistillerUnavailable if the distiller isn't responding.
        """
        ...


class MemoryStore(Protocol):
    """Stores the messages and actions of runs. All methods raise StoreUnavailable if the store isn't responding."""

    async def remember(self, tasks: Sequence[Task]) -> int:
        """Store tasks from any runs, and return the number of new tasks. Storing an existing task again has
        no effect.
        """
        ...

    async def missing(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """Return the tasks that `remember` would store. Tasks that are already stored or belong to a deleted session
        aren't returned.
        """
        ...

    async def recall(self, query: Query) -> tuple[Hit, ...]:
        """Return the best matches for the question, by words and by meaning. Without an embedder, search by
        words only.
        """
        ...

    async def recent(self, view: View) -> tuple[Hit, ...]:
        """Return memories, newest first."""
        ...

    async def important(self, view: View) -> tuple[Hit, ...]:
        """Return memories, most important first. Equally important memories are sorted from newest to oldest."""
        ...

    async def by_action(self, view: View, action: str) -> tuple[Hit, ...]:
        """Return the newest memories of one action."""
        ...

    async def by_node(self, view: View, node: str) -> tuple[Hit, ...]:
        """Return the newest memories of one node."""
        ...

    async def by_id(self, memory_id: int) -> Memory | None:
        """Return one memory, whosever it is and even if it is superseded. Include its task if the task is stored. This
        method is for operators.
        """
        ...

    def export(self, session_id: str) -> AsyncIterator[Memory]:
        """Yield all stored memories of the sessions with this name, whosever they are, including superseded ones,
        oldest first. This method is for operators.
        """
        ...

    async def forget(self, session_id: str) -> Forgotten:
        """Permanently delete all data of the sessions with this name, whosever they are. Their existing tasks are never
        stored again. This method is for operators.

        This includes the artifacts of the session's runs, and the effects of runs that have ended.
        """
        ...

    async def stats(self, session_id: str | None = None) -> MemoryStats:
        """Return the amount of stored data, for one session or for all sessions."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """A memory that is due for processing."""

    id: int
    content: str
    task: Task | None = None
    """The whole task, if the memory is in L1 or L2."""
    vector: Sequence[float] | None = None
    """The vector, if the store has one of the same text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """A fact about a person, and the older facts of the same owner that it may replace."""

    new: PersonFact
    older: tuple[PersonFact, ...]


class VectorStore(Protocol):
    """Stores texts that a search by meaning finds by the vectors of one model."""

    async def due_for_vector(self, limit: int, *, other_models: bool = False) -> tuple[Due, ...]:
        """Return texts that should have a vector but have none. With `other_models`, return texts that have a vector
        from another model instead.
        """
        ...

    async def keep_vectors(self, vectors: Sequence[tuple[int, Sequence[float]]]) -> int:
        """Store vectors from the store's model. A newer memory supersedes an older one with the same meaning."""
        ...


class MemoryUpkeepStore(VectorStore, Protocol):
    """Keeps the memory layers within their limits. Every method is idempotent and safe to call concurrently."""

    async def due_for_summary(self, limit: int) -> tuple[Due, ...]:
        """Return important tasks that need a summary now, because they are leaving L2 or their run has ended."""
        ...

    async def summarise(self, memory_id: int, facts: Sequence[str]) -> bool:
        """Store a memory's facts in L3, in one transaction. Return False if the facts were already stored."""
        ...

    async def expire(self) -> int:
        """Delete full tasks that exceed their limits. Important tasks are deleted only after they are summarized.
        Return the number of deleted tasks.
        """
        ...

    async def archive(self) -> int:
        """Move summaries that exceed their limits from L3 to L4. Return the number of moved summaries."""
        ...


class PersonFactStore(VectorStore, Protocol):
    """Stores facts about people. A caller reads and changes only the facts of the owners that it names. All methods
    raise StoreUnavailable if the store isn't responding.
    """

    async def learn(self, facts: Sequence[NewFact]) -> int:
        """Store facts, and return how many are new or newer than before. Learning a fact again has no effect. Facts
        that were said before they or their session were forgotten aren't stored.
        """
        ...

    async def about(self, owners: Sequence[Owner], *, without_run: str = "") -> tuple[PersonFact, ...]:
        """Return the owners' valid facts, newest first, except those that were learned in one run."""
        ...

    async def similarities(self, owners: Sequence[Owner], question: str) -> Mapping[int, float] | None:
        """Return the cosine similarity to the question for each of the owners' facts that has a vector, or None if the
        question has no vector.
        """
        ...

    async def listed(self, owner: Owner, *, with_replaced: bool = False) -> tuple[PersonFact, ...]:
        """Return all facts of one owner, newest first, including replaced ones if `with_replaced`."""
        ...

    async def edit(self, owner: Owner, fact_id: int, content: str) -> bool:
        """Replace the content of a fact, which then counts as added by a person. Return False if the owner has no such
        fact.
        """
        ...

    async def forget(self, owner: Owner, fact_id: int | None = None) -> ForgottenFacts:
        """Permanently delete one fact and those that it replaced, or all facts of an owner and what the owner's runs
        have left in memory. What was said until now never comes back.
        """
        ...

    async def due_for_comparison(self, limit: int) -> tuple[Compared, ...]:
        """Return facts that haven't been compared with older ones yet."""
        ...

    async def supersede(self, by: PersonFact, older: Collection[int]) -> None:
        """Record that a fact has been compared, and that it replaces these facts of the same owner."""
        ...


class ScopedMemory(Protocol):
    """Memory for the runs in one tree. Each run writes entries for itself and for the other runs. All methods raise
    StoreUnavailable if the store isn't responding.
    """

    async def write(self, write: ScopedWrite) -> ScopedEntry:
        """Store a version and return it. Its `conflicts_with` names a version that the writer hadn't read. Raises
        ReadOnlyScopeError if the writer may only read the scope.
        """
        ...

    async def read(self, entry_id: str, reader: NodePath, owner: Owner) -> ScopedEntry | None:
        """Return the newest version of the nearest entry with that id, with its scope as seen by the reader. `owner` is
        whom the reader works for.
        """
        ...

    async def entries(self, reader: NodePath, owner: Owner) -> tuple[ScopedEntry, ...]:
        """Return the newest version of every entry that the reader can see, nearest scope first."""
        ...

    async def versions(self, entry_id: str, reader: NodePath, owner: Owner) -> tuple[ScopedEntry, ...]:
        """Return every version of the entry that `read` returns, oldest first."""
        ...
