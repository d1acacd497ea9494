"""Validate hooks and interceptors when they are registered."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, overload

from typing_extensions import TypedDict, Unpack

from loom.domain.agents.hook_steps import DEFAULT_HOOK_TIMEOUT, Moment
from loom.domain.agents.hooks import RUN, TOOL, Hook, Interceptor, Registered
from loom.domain.core.errors import BadRequest

H = TypeVar("H", bound=Callable[..., Any])
I = TypeVar("I")  # noqa: E741 - an interceptor of any class

LONGEST = 3600.0


class HookOptions(TypedDict, total=False):
    """Options for a hook."""

    name: str
    """The hook's name. Defaults to the function's name."""
    agents: Sequence[str]
    """The agents that the hook runs for, in addition to agents whose definition names it. Defaults to all agents."""
    timeout: float
    """The timeout in seconds. Defaults to 10."""


class InterceptorOptions(HookOptions, total=False):
    """Options for an interceptor."""

    around: Sequence[Literal["run", "tool"]]
    """Whether the interceptor wraps runs, tool calls, or both. Defaults to both."""


class HookDecorator:
    """A decorator such as `@app.on_start` or `@app.on_start(agents=["clerk"])`. It returns the function unchanged."""

    def __init__(
        self, keep: Callable[[Registered], None], moment: Moment, tools: tuple[str, ...] | None = None
    ) -> None:
        self._keep = keep
        self._moment = moment
        self._tools = tools

    @overload
    def __call__(self, function: H, /) -> H: ...
    @overload
    def __call__(self, /, **options: Unpack[HookOptions]) -> Callable[[H], H]: ...

    def __call__(self, function: Any = None, /, **options: Unpack[HookOptions]) -> Any:
        """Register the decorated function."""
        if function is None:
            return lambda decorated: self._registered(decorated, options)
        return self._registered(function, options)

    def _registered(self, function: H, options: HookOptions) -> H:
        if not callable(function):
            raise BadRequest(f"write @app.{self._moment} above a function, not {function!r}", field="hook")
        name = _name(function, options)
        agents, timeout = _checked(name, options)
        self._keep(
            Hook(moment=self._moment, name=name, function=function, agents=agents, tools=self._tools, timeout=timeout)
        )
        return function


def interceptor_of(thing: object, options: InterceptorOptions) -> Interceptor:
    """Validate an interceptor: an object, or a class whose constructor needs no arguments.

    An interceptor has a `before` method, an `after` method or both.
    """
    name = _name(thing, options)
    try:
        made = thing() if inspect.isclass(thing) else thing
    except TypeError as error:
        raise BadRequest(f"interceptor {name!r} cannot be made without arguments: {error}", field="hook") from None
    sides = {side: getattr(made, side, None) for side in ("before", "after")}
    if not any(callable(side) for side in sides.values()):
        raise BadRequest(f"interceptor {name!r} has neither a `before` method nor an `after` method", field="hook")
    around = tuple(options.get("around", (RUN, TOOL)))
    if isinstance(options.get("around"), str) or not around or not set(around) <= {RUN, TOOL}:
        raise BadRequest(f'interceptor {name!r}: `around` must be ["run"], ["tool"] or both', field="hook")
    agents, timeout = _checked(name, options)
    return Interceptor(
        name=name, before=sides["before"], after=sides["after"], around=around, agents=agents, timeout=timeout
    )


def _name(thing: Any, options: HookOptions | InterceptorOptions) -> str:
    inner = thing.func if isinstance(thing, partial) else thing
    name = options.get("name") or getattr(inner, "__name__", type(inner).__name__)
    if not isinstance(name, str) or not name.strip() or len(name) > 64 or not name.isprintable():
        raise BadRequest(f"{name!r} cannot be a hook's name: use 1 to 64 characters", field="hook")
    return name


def _checked(name: str, options: HookOptions | InterceptorOptions) -> tuple[tuple[str, ...] | None, float]:
    agents, timeout = options.get("agents"), options.get("timeout", DEFAULT_HOOK_TIMEOUT)
    if unknown := set(options) - set(InterceptorOptions.__annotations__) - set(HookOptions.__annotations__):
        raise BadRequest(f"hook {name!r}: there is no option {min(unknown)!r}", field="hook")
    if isinstance(agents, str):
        raise BadRequest(f"hook {name!r}: `agents` must be a list of names: [{agents!r}]", field="hook")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= LONGEST:
        raise BadRequest(f"hook {name!r}: `timeout` must be a number of seconds, at most {LONGEST:g}", field="hook")
    return None if agents is None else tuple(agents), float(timeout)
