"""The ports of memory, as protocols."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from loom.domain.core.tasks import Task
from loom.domain.memory.layers import Forgotten, Hit, Memory, MemoryStats, Query, View
from loom.domain.memory.scopes import NodePath, ScopedEntry, ScopedWrite


class EmbedderUnavailable(Exception):
    """The embedder does not respond now. Callers search by words only, or do the work later."""


class TextRefused(EmbedderUnavailable):
    """The embedder responds but rejects one of these texts. It may accept the others."""


class DistillerUnavailable(Exception):
    """The distiller does not respond now. The start of the text is used instead."""


class Embedder(Protocol):
    """Turns texts into vectors of one model. Vectors of different models are never compared."""

    @property
    def model(self) -> str:
        """The name of the model. Another name means other vectors."""
        ...

    @property
    def dimension(self) -> int:
        """Length of its vectors."""
        ...

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[list[float]]:
        """One vector for each text. Use `query` for questions, which some models treat differently.

        Raises EmbedderUnavailable, or TextRefused if one of the texts is the reason.
        """
        ...


class Distiller(Protocol):
    """Extracts one to three facts from a long text."""

    async def facts(self, text: str) -> Sequence[str]:
        """The facts, most important first. Raises DistillerUnavailable."""
        ...


class MemoryStore(Protocol):
    """Everything that runs have said and done, as far as it is stored. All methods raise StoreUnavailable."""

    async def remember(self, tasks: Sequence[Task]) -> int:
        """Store tasks of any runs, and return how many were new. A task that is already stored has no effect."""
        ...

    async def missing(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """The tasks that `remember` would store: neither known nor of a deleted session."""
        ...

    async def recall(self, query: Query) -> tuple[Hit, ...]:
        """The best matches for the question, by words and by meaning; by words only without an embedder."""
        ...

    async def recent(self, view: View) -> tuple[Hit, ...]:
        """The newest memories first."""
        ...

    async def important(self, view: View) -> tuple[Hit, ...]:
        """The most important memories first; of equally important ones, the newest."""
        ...

    async def by_action(self, view: View, action: str) -> tuple[Hit, ...]:
        """The newest memories of one action."""
        ...

    async def by_node(self, view: View, node: str) -> tuple[Hit, ...]:
        """The newest memories of one node."""
        ...

    async def by_id(self, memory_id: int, session_id: str | None = None) -> Memory | None:
        """One memory, even if superseded, with its task if that is stored; None if the session may not see it."""
        ...

    def export(self, session_id: str) -> AsyncIterator[Memory]:
        """Everything stored of a session, including superseded memories, oldest first."""
        ...

    async def forget(self, session_id: str) -> Forgotten:
        """Delete everything of a session for good. Its existing tasks are never stored again.

        This includes the artifacts of its runs, and the effects of those that have ended.
        """
        ...

    async def stats(self, session_id: str | None = None) -> MemoryStats:
        """How much is stored, of one session or of all."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """A memory that is due for processing."""

    id: int
    content: str


class MemoryUpkeepStore(Protocol):
    """Keeps the layers within their limits. Every method can be repeated and run concurrently."""

    async def due_for_summary(self, limit: int) -> tuple[Due, ...]:
        """Important tasks that leave L2, or whose run has ended, and that have no summary yet."""
        ...

    async def summarise(self, memory_id: int, facts: Sequence[str]) -> bool:
        """Store the facts of a memory in L3, all at once. Return False if this was already done."""
        ...

    async def expire(self) -> int:
        """Delete whole tasks beyond their limits, important ones only after their summary. Return how many."""
        ...

    async def archive(self) -> int:
        """Move summaries beyond their limits from L3 to L4. Return how many."""
        ...

    async def due_for_vector(self, limit: int, *, other_models: bool = False) -> tuple[Due, ...]:
        """Memories that should have a vector and have none, or one of another model."""
        ...

    async def keep_vectors(self, vectors: Sequence[tuple[int, Sequence[float]]]) -> int:
        """Store vectors of the store's model. A newer memory supersedes an older one that says the same."""
        ...


class ScopedMemory(Protocol):
    """Memory that runs of one tree write for themselves and each other. All methods raise StoreUnavailable."""

    async def write(self, write: ScopedWrite) -> ScopedEntry:
        """Store a version. `conflicts_with` names a version that its writer did not know. Raises ReadOnlyScopeError."""
        ...

    async def read(self, entry_id: str, reader: NodePath) -> ScopedEntry | None:
        """The newest version of the nearest entry with that id, and the scope in which the reader sees it."""
        ...

    async def entries(self, reader: NodePath) -> tuple[ScopedEntry, ...]:
        """The newest version of every entry that the reader can see, nearest scope first."""
        ...

    async def versions(self, entry_id: str, reader: NodePath) -> tuple[ScopedEntry, ...]:
        """Every version of the entry that `read` gives, oldest first."""
        ...
