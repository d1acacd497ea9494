"""Dependency injection: values that an app provides by type, for the parameters of tools, hooks and task handlers.

    @app.provide
    async def pool() -> AsyncIterator[Pool]:
        async with create_pool(URL) as pool:
            yield pool

    @app.tool(effect="read")
    async def price(article: str, pool: Pool) -> str: ...

When a worker starts, it calls each factory once, in the order of registration. When the worker stops, it closes the
resources that the factories opened, in reverse order. If a parameter's type is provided, the parameter receives the
worker's value. Such a parameter isn't a tool argument, and it is never shown to the model.
"""

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Container,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import Any, Final, get_args, get_origin, get_type_hints

import structlog

from loom.activities.ports import ToolContext
from loom.domain.core.errors import BadRequest, LoomError

_log = structlog.get_logger("loom.dependencies")

FIELD: Final = "provide"
_YIELDING: Final = (
    *(AsyncIterator, AsyncIterable, AsyncGenerator, AbstractAsyncContextManager),
    *(Iterator, Iterable, Generator, AbstractContextManager),
)
"""Return types whose first type argument is the type of the provided value. The value is closed when the worker stops.
"""
_TOO_COMMON: Final = (None, type(None), Any, object, str, bytes, int, float, bool, list, tuple, dict, set, Path)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dependency:
    """A factory of an app, and the type of its value."""

    kind: Any
    factory: Callable[..., Any]
    origin: str
    """Location where the factory was defined, for display."""
    needs: Mapping[str, Any]
    """The type of each of the factory's parameters without a default. Other dependencies provide these values."""
    is_closed: bool
    """Whether the factory yields its value or returns it inside a context manager."""


class Dependencies:
    """The dependencies that a worker provides, with their values while it runs."""

    def __init__(self, dependencies: Sequence[Dependency] = ()) -> None:
        """Check the factories. Raises BadRequest if a type is provided twice, or if a factory needs a type that isn't
        provided before that factory.
        """
        self._each: dict[Any, Dependency] = {}
        self._values: dict[Any, Any] = {}
        for one in dependencies:
            refuse_second(self._each.get(one.kind), one)
            for parameter, kind in one.needs.items():
                if kind not in self._each:
                    raise BadRequest(
                        f"{one.origin}: parameter `{parameter}` has the type {named(kind)}, which nothing before it"
                        " provides: call `app.provide` for that type first, or give the parameter a default",
                        field=FIELD,
                    )
            self._each[one.kind] = one

    def __contains__(self, kind: object) -> bool:
        """Whether a value of this type is provided."""
        return kind in self._each

    def __bool__(self) -> bool:
        return bool(self._each)

    def values_for(self, needs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value for each of these parameters. Raises LoomError if the dependencies aren't open."""
        if closed := [kind for kind in needs.values() if kind not in self._values]:
            raise LoomError(f"{named(closed[0])} is not open: only a running worker provides it")
        return {parameter: self._values[kind] for parameter, kind in needs.items()}

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Call the factories in order, and close their values in reverse order. Raises a BadRequest that names the
        factory if one fails.
        """
        async with AsyncExitStack() as stack:
            stack.callback(self._values.clear)
            for one in self._each.values():
                try:
                    self._values[one.kind] = await _opened(one, self.values_for(one.needs), stack)
                except (Exception, SystemExit) as error:
                    why = f"{type(error).__name__}: {error}".removesuffix(": ")
                    raise BadRequest(
                        f"{named(one.kind)} cannot be provided because {one.origin} failed: {why}", field=FIELD
                    ) from error
            yield


class WithDependencies(partial[Any]):
    """A user's function that is called with positional values and receives its other values from the dependencies.

    It is a `partial` so that code digests and the check for async functions see the user's function.
    """

    target: Callable[..., Any]
    """The function, including arguments that the user has bound. `func` lacks them: nested partials are merged."""
    needs: Mapping[str, Any]
    dependencies: Dependencies

    def __call__(self, /, *given: Any) -> Any:
        """Call the function. Injected parameters are passed by type, and the others in order."""
        injected = self.dependencies.values_for(self.needs)
        left = iter(given)
        arguments: list[Any] = []
        for name in _positional(self.target):
            if name in injected:
                arguments.append(injected.pop(name))
                continue
            try:
                arguments.append(next(left))
            except StopIteration:  # this parameter has a default, so pass the following ones by name
                break
        return self.target(*arguments, *left, **injected)


def dependency_of(factory: Any, origin: str) -> Dependency:
    """Return a factory as a dependency. Raises BadRequest if its type or parameters can't be read."""
    if not callable(factory):
        raise BadRequest(f"{origin}: `app.provide` takes a function, a generator or a class", field=FIELD)
    hints = _types_of(factory, origin)
    returned = factory if isinstance(factory, type) else hints.get("return")
    yields = inspect.isgeneratorfunction(factory) or inspect.isasyncgenfunction(factory)
    is_closed = not isinstance(factory, type) and get_origin(returned) in _YIELDING and bool(get_args(returned))
    kind = plain(get_args(returned)[0] if is_closed else returned)
    if (get_origin(kind) or kind) in (*_TOO_COMMON, *_YIELDING, ToolContext) or (yields and not is_closed):
        raise BadRequest(
            f"{origin}: its return annotation must name a type of your own, such as `-> Pool` or"
            " `-> AsyncIterator[Pool]`: parameters of that type get its value",
            field=FIELD,
        )
    parameters = inspect.signature(factory).parameters.values()
    needs = {p.name: plain(hints.get(p.name)) for p in parameters if _is_required(p)}
    return Dependency(kind=kind, factory=factory, origin=origin, needs=needs, is_closed=is_closed)


def with_dependencies(
    function: Callable[..., Any], dependencies: Dependencies, what: str, given: int
) -> Callable[..., Any]:
    """Return a function that fills in the parameters whose types are provided. `given` is the number of other values in
    each call.

    Raises BadRequest if the function would be called without a required parameter.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return function  # the signature can't be read, so nothing is injected
    try:
        hints = _types_of(function, what)
    except BadRequest:
        if len([p for p in parameters if _is_required(p)]) > given:
            raise
        return function  # it needs no more than what it is called with
    needs = {p.name: plain(hints[p.name]) for p in parameters if is_provided(hints.get(p.name), dependencies)}
    others = [p for p in parameters if p.name not in needs]
    beyond = [p for p in others if p.kind is Parameter.KEYWORD_ONLY] + [p for p in others if _by_position(p)][given:]
    if missing := next((p for p in beyond if _is_required(p) and p.name in hints), None):
        raise BadRequest(
            f"{what}: parameter `{missing.name}` has the type {named(hints[missing.name])}, which nothing provides:"
            " register a factory for it with `app.provide`",
            field=FIELD,
        )
    if not needs:
        return function
    filled = WithDependencies(function)
    filled.target, filled.needs, filled.dependencies = function, needs, dependencies
    return filled


def refuse_second(first: Dependency | None, second: Dependency) -> None:
    """Raise BadRequest if another dependency already provides the type."""
    if first is not None:
        raise BadRequest(
            f"{named(second.kind)} is provided twice: by {first.origin} and by {second.origin}: remove one", field=FIELD
        )


def is_injected(function: Callable[..., Any] | None) -> bool:
    """Whether the function receives any values from the dependencies."""
    return isinstance(function, WithDependencies)


def is_provided(kind: Any, provided: Container[Any]) -> bool:
    """Whether a parameter of this type is injected."""
    try:
        return plain(kind) in provided
    except TypeError:  # an annotation that can't be hashed doesn't name a type
        return False


def plain(kind: Any) -> Any:
    """Return the type without its `Annotated` metadata."""
    return kind.__origin__ if hasattr(kind, "__metadata__") else kind


def named(kind: Any) -> str:
    """Return a type's name for use in a message."""
    return kind.__qualname__ if isinstance(kind, type) and not get_args(kind) else str(kind)


def _types_of(function: Any, origin: str) -> Mapping[str, Any]:
    inner = function
    while isinstance(inner, partial):
        inner = inner.func
    if isinstance(inner, type):
        inner = inspect.getattr_static(inner, "__init__")
    elif not inspect.isroutine(inner):
        inner = type(inner).__call__
    try:
        return get_type_hints(inner, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise BadRequest(
            f"{origin}: its types cannot be read ({error}): import them at the top level of the module, not only for"
            " type checkers",
            field=FIELD,
        ) from None


async def _opened(one: Dependency, values: Mapping[str, Any], stack: AsyncExitStack) -> Any:
    """Open a dependency and return its value. The stack closes the value."""
    if inspect.isasyncgenfunction(one.factory):
        made: Any = asynccontextmanager(one.factory)(**values)
    elif inspect.isgeneratorfunction(one.factory):
        made = contextmanager(one.factory)(**values)
    else:
        made = one.factory(**values)
        made = await made if inspect.isawaitable(made) else made
    if not one.is_closed:
        return made
    entered = made.__aenter__() if hasattr(made, "__aenter__") else made.__enter__()
    value = await entered if inspect.isawaitable(entered) and hasattr(made, "__aenter__") else entered
    stack.push_async_callback(_closed, one, made)
    return value


async def _closed(one: Dependency, manager: Any) -> None:
    """Close the value. If closing this value fails, the other values are still closed."""
    try:
        if hasattr(manager, "__aexit__"):
            await manager.__aexit__(None, None, None)
        else:
            manager.__exit__(None, None, None)
    except Exception:  # noqa: BLE001 - a user's code may raise any exception
        _log.exception("dependency_not_closed", type=named(one.kind), origin=one.origin)


def _positional(function: Callable[..., Any]) -> list[str]:
    return [p.name for p in inspect.signature(function).parameters.values() if _by_position(p)]


def _by_position(parameter: Parameter) -> bool:
    return parameter.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def _is_required(parameter: Parameter) -> bool:
    variable = parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return parameter.default is Parameter.empty and not variable
