"""Validate nodes of code when they are registered."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from loom.activities.toolbox.code_digest import code_digest
from loom.domain.agents.code_node import (
    DEFAULT_ATTEMPTS,
    DEFAULT_TIMEOUT,
    LONGEST_TIMEOUT,
    MOST_ATTEMPTS,
    CodeNode,
    NodeFunction,
)
from loom.domain.agents.definitions import AgentDefinition
from loom.domain.core.errors import BadRequest
from loom.domain.core.tool_calls import Effect


class NodeOptions(TypedDict, total=False):
    """Options for a node of code, in addition to its function."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w.-]+$")]
    """Default: the function's name."""
    description: str
    """What the node is good at. Default: the first paragraph of the docstring."""
    effect: Literal["read", "idempotent", "once"]
    """The effect of running the function twice. Default: `once`."""
    timeout: Annotated[float, Field(gt=0, le=LONGEST_TIMEOUT, allow_inf_nan=False)]
    """The timeout of one attempt in seconds. Default: 120."""
    attempts: Annotated[int, Field(ge=1, le=MOST_ATTEMPTS)]
    """The number of attempts if the function fails. Default: 3, and always 1 for `once`."""


_OPTIONS: Final = TypeAdapter(NodeOptions)


def node_of(function: Callable[..., Any], options: NodeOptions, origin: str) -> tuple[AgentDefinition, NodeFunction]:
    """Return the agent whose work the function does, and the function. Raises BadRequest if an option is invalid."""
    if not callable(function):
        raise BadRequest(f"write @app.node above a function, not {function!r}", field="node")
    inner: Any = function.func if isinstance(function, partial) else function
    try:
        given = _OPTIONS.validate_python({"name": getattr(inner, "__name__", type(inner).__name__), **options})
    except ValidationError as error:
        first = error.errors()[0]
        raise BadRequest(
            f"{origin}: the option {'.'.join(map(str, first['loc']))} of the node: {first['msg']}", field="node"
        ) from None
    name = given["name"]
    description = given.get("description") or (inspect.getdoc(inner) or "").partition("\n\n")[0]
    node = CodeNode(
        effect=Effect(given.get("effect", Effect.ONCE)),
        timeout=given.get("timeout", DEFAULT_TIMEOUT),
        attempts=given.get("attempts", DEFAULT_ATTEMPTS),
    )
    definition = AgentDefinition(name=name, description=description, tools=(), node=node, origin=origin)
    return definition, NodeFunction(name=name, function=function, code=code_digest(function))
