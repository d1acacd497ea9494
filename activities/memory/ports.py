"""What memory needs from the world, as protocols."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from loom.domain.core.tasks import Task
from loom.domain.memory.layers import Forgotten, Hit, Memory, MemoryStats, Query, View
from loom.domain.memory.scopes import NodePath, ScopedEntry, ScopedWrite


class EmbedderUnavailable(Exception):
    """The embedder does not answer now; what needs it goes by words alone, or is done later."""


class TextRefused(EmbedderUnavailable):
    """The embedder answers, but does not take one of these texts; it may take the others."""


class DistillerUnavailable(Exception):
    """The distiller does not answer now; the text's beginning is taken instead."""


class Embedder(Protocol):
    """Turns texts into vectors of one model; vectors of different models are never compared."""

    @property
    def model(self) -> str:
        """Names the model; another name means other vectors."""
        ...

    @property
    def dimension(self) -> int:
        """Length of its vectors."""
        ...

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[list[float]]:
        """One vector a text; `query` for questions, which some models treat apart.

        Raises EmbedderUnavailable; TextRefused when it is due to one of the texts.
        """
        ...


class Distiller(Protocol):
    """Says in one to three facts what a long text says."""

    async def facts(self, text: str) -> Sequence[str]:
        """The facts, most important first. Raises DistillerUnavailable."""
        ...


class MemoryStore(Protocol):
    """Everything that runs have said and done, as far as it is kept. All methods raise StoreUnavailable."""

    async def remember(self, tasks: Sequence[Task]) -> int:
        """Take in Tasks of any runs; returns how many were new. A Task that was taken in before changes nothing."""
        ...

    async def missing(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """Those of the Tasks that `remember` would take in: neither known nor of a session that was forgotten."""
        ...

    async def recall(self, query: Query) -> tuple[Hit, ...]:
        """What answers the question best, by words and by meaning; by words alone while the embedder is away."""
        ...

    async def recent(self, view: View) -> tuple[Hit, ...]:
        """The newest first."""
        ...

    async def important(self, view: View) -> tuple[Hit, ...]:
        """The most important first, and of equal ones the newest."""
        ...

    async def by_action(self, view: View, action: str) -> tuple[Hit, ...]:
        """The newest of one action."""
        ...

    async def by_node(self, view: View, node: str) -> tuple[Hit, ...]:
        """The newest of one node."""
        ...

    async def by_id(self, memory_id: int, session_id: str | None = None) -> Memory | None:
        """One memory, also a superseded one, with its Task when that is kept; None when the session may not see it."""
        ...

    def export(self, session_id: str) -> AsyncIterator[Memory]:
        """Everything kept of a session, superseded memories too, oldest first."""
        ...

    async def forget(self, session_id: str) -> Forgotten:
        """Delete everything of a session for good; its Tasks of until now are never taken in again.

        With it goes what its runs left: their artifacts, and the effects of those that have ended.
        """
        ...

    async def stats(self, session_id: str | None = None) -> MemoryStats:
        """How much is kept, of one session or of all."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """A memory that something is to be done with."""

    id: int
    content: str


class MemoryUpkeepStore(Protocol):
    """What keeps the layers within their limits. Every method may be repeated, and run beside itself."""

    async def due_for_summary(self, limit: int) -> tuple[Due, ...]:
        """Important Tasks that leave L2, or whose run has ended, and of which there is no summary yet."""
        ...

    async def summarise(self, memory_id: int, facts: Sequence[str]) -> bool:
        """Put the facts of a memory into L3, all at once; False when somebody else has done so."""
        ...

    async def expire(self) -> int:
        """Drop whole Tasks that are beyond their limits, important ones only after their summary; returns how many."""
        ...

    async def archive(self) -> int:
        """Move summaries beyond their limits from L3 to L4; returns how many."""
        ...

    async def due_for_vector(self, limit: int, *, other_models: bool = False) -> tuple[Due, ...]:
        """Memories without a vector, or with one of another model, that are worth one."""
        ...

    async def keep_vectors(self, vectors: Sequence[tuple[int, Sequence[float]]]) -> int:
        """Keep vectors of the store's model; what says the same as a newer memory is superseded by it."""
        ...


class ScopedMemory(Protocol):
    """Memory that nodes of one tree write for themselves and each other. All methods raise StoreUnavailable."""

    async def write(self, write: ScopedWrite) -> ScopedEntry:
        """Keep a version; says in `conflicts_with` what it superseded unseen. Raises ReadOnlyScopeError."""
        ...

    async def read(self, entry_id: str, reader: NodePath) -> ScopedEntry | None:
        """The newest version of the nearest entry of that id, with the scope that the reader has it in."""
        ...

    async def entries(self, reader: NodePath) -> tuple[ScopedEntry, ...]:
        """The newest version of every entry that the reader sees, nearest scope first."""
        ...

    async def versions(self, entry_id: str, reader: NodePath) -> tuple[ScopedEntry, ...]:
        """Every version of the entry that `read` gives, oldest first."""
        ...
