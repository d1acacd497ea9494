"""The classes that an app registers in place of Loom's own, or beside them. They don't have to import Loom."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from loom.activities.bus import Transport
from loom.activities.knowledge.ports import KnowledgeStore
from loom.activities.memory.ports import Embedder, MemoryStore
from loom.activities.ports import ContextCompressor, ContextSource
from loom.domain.core.errors import BadRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Extensions:
    """One implementation for each port that an app can replace, and its context sources."""

    embedder: Embedder | None = None
    memory_store: MemoryStore | None = None
    knowledge_store: KnowledgeStore | None = None
    compressor: ContextCompressor | None = None
    transport: Transport | None = None
    context_sources: Mapping[str, ContextSource] = field(default_factory=dict)

    def with_one(self, name: str, given: object) -> "Extensions":
        """Return these extensions with another one. Raises BadRequest if the port is taken, or if the object doesn't
        have all its methods.
        """
        if getattr(self, name) is not None:
            raise BadRequest(f"two {told(name)}s are registered: remove one", field=name)
        return replace(self, **{name: checked(told(name), given, _PORTS[name])})

    def with_source(self, name: str, source: object) -> "Extensions":
        """Return these extensions with another context source. Raises BadRequest if its name is taken or invalid."""
        if not name.isidentifier():
            raise BadRequest(
                f"{name!r} is not a valid name for a context source: use a single word", field="context_source"
            )
        if name in self.context_sources:
            raise BadRequest(f"two context sources are called {name!r}: rename one", field="context_source")
        made: ContextSource = checked(f"context source {name!r}", source, ContextSource)
        return replace(self, context_sources={**self.context_sources, name: made})

    def with_all(self, others: "Extensions") -> "Extensions":
        """Return both combined. Raises BadRequest if both replace the same port."""
        both = self
        for name in _PORTS:
            if (given := getattr(others, name)) is not None:
                both = both.with_one(name, given)
        for name, source in others.context_sources.items():
            both = both.with_source(name, source)
        return both

    @property
    def names(self) -> tuple[str, ...]:
        """The ports that have been replaced, and the context sources, for display."""
        replaced = (told(each.name) for each in fields(self) if each.name in _PORTS and getattr(self, each.name))
        return (*replaced, *(f"context source {name}" for name in self.context_sources))


_PORTS: Final[Mapping[str, type]] = {
    "embedder": Embedder,
    "memory_store": MemoryStore,
    "knowledge_store": KnowledgeStore,
    "compressor": ContextCompressor,
    "transport": Transport,
}


def told(name: str) -> str:
    """Return the port's name in words."""
    return name.replace("_", " ")


def checked(what: str, given: Any, port: type) -> Any:
    """Return an instance of a user's class. Raises BadRequest if it lacks a method or an attribute of the port."""
    if isinstance(given, type):
        raise BadRequest(f"the {what} is the class {given.__name__}: register an instance of it", field="extension")
    members = {name: value for name, value in vars(port).items() if not name.startswith("_")}
    for name, member in members.items():
        wanted = "attribute" if isinstance(member, property) else "method"
        found = getattr(given, name, None)
        if found is None or (wanted == "method" and not callable(found)):
            raise BadRequest(
                f"the {what} {type(given).__name__} has no {wanted} `{name}`: a {port.__name__} has"
                f" {', '.join(f'`{each}`' for each in members)}",
                field="extension",
            )
    return given
