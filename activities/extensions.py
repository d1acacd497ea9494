"""Translate the errors of classes that an app registers into the errors that Loom's callers handle.

A user's class needs no import of Loom, so it raises its own exceptions. Here, each of them means that the embedder or
the store isn't available now.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from inspect import isasyncgenfunction, isawaitable
from typing import Any, Final, TypeVar, cast

from loom.activities.memory.ports import Embedder, EmbedderUnavailable
from loom.activities.ports import StoreUnavailable

T = TypeVar("T")

_OWN_ERRORS: Final = (EmbedderUnavailable, StoreUnavailable)


class AppEmbedder:
    """An app's own embedder."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    @property
    def model(self) -> str:
        """See the port."""
        return self._embedder.model

    @property
    def dimension(self) -> int:
        """See the port."""
        return self._embedder.dimension

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> list[list[float]]:
        """See the port. Vectors of a wrong number or length count as a failure."""
        with _raising(EmbedderUnavailable, self._embedder):
            vectors = [list(vector) for vector in await self._embedder.embed(texts, query=query)]
        if len(vectors) != len(texts) or any(len(vector) != self.dimension for vector in vectors):
            raise EmbedderUnavailable(
                f"{type(self._embedder).__name__}.embed must return {len(texts)} vectors of {self.dimension} numbers"
            )
        return vectors

    async def aclose(self) -> None:
        """Close the embedder, if it has a method `aclose`."""
        if (close := getattr(self._embedder, "aclose", None)) is not None:
            await close()


def app_store(store: T) -> T:
    """Return the app's own store. Its methods raise StoreUnavailable in place of the store's exceptions."""
    return cast("T", _AppStore(store))


class _AppStore:
    def __init__(self, store: object) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return _iterating(method, self._store) if isasyncgenfunction(method) else _calling(method, self._store)


def _calling(method: Callable[..., Any], store: object) -> Callable[..., Any]:
    @wraps(method)
    async def call(*given: Any, **named: Any) -> Any:
        with _raising(StoreUnavailable, store):
            came = method(*given, **named)
            return await came if isawaitable(came) else came

    return call


def _iterating(method: Callable[..., Any], store: object) -> Callable[..., AsyncIterator[Any]]:
    @wraps(method)
    async def iterate(*given: Any, **named: Any) -> AsyncIterator[Any]:
        with _raising(StoreUnavailable, store):
            async for each in method(*given, **named):
                yield each

    return iterate


@contextmanager
def _raising(kind: type[Exception], thing: object) -> Iterator[None]:
    try:
        yield
    except _OWN_ERRORS:
        raise
    except Exception as error:
        raise kind(f"{type(thing).__name__} failed with {type(error).__name__}: {error}") from error
