"""Validate the options given when a tool is registered, and build the tool's spec from them."""

import re
from collections.abc import Callable
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from loom.activities.json_schemas import BrokenSchema
from loom.activities.toolbox.function_tool import schema_of
from loom.activities.toolbox.tool_schemas import ToolSchema, tool_schema
from loom.domain.core.errors import BadRequest
from loom.domain.core.tool_calls import Effect, Scope, ToolSpec, Verdict
from loom.domain.core.tool_names import CALL_TOOL, CREATE_TOOL, MADE, MCP
from loom.domain.core.value_problems import problem_of_value
from loom.domain.permissions.rules import DEFAULT

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
LAST_USES: Final = 3
"""Default number of an ephemeral tool's results that stay in the context."""


class ToolOptions(TypedDict, total=False):
    """Options for a tool, in addition to its function."""

    __pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)  # type: ignore[misc]

    name: str
    """Default: the function's name."""
    description: str
    """Default: the description in the docstring."""
    effect: Literal["read", "idempotent", "once"]
    """The effect of running the tool twice. Default: `once`."""
    timeout: Annotated[float, Field(gt=0, le=7 * 86_400, allow_inf_nan=False)]
    """Timeout of one call in seconds. Default: LOOM_TOOL_TIMEOUT."""
    parallel: bool
    """Whether the tool may run in parallel with other calls. Default: true for `read`."""
    quick: bool
    """Whether a call usually takes a few milliseconds, so it may run in the activity that called the model. Only for
    `read`.
    """
    ephemeral: bool | Annotated[int, Field(ge=0)]
    """Keep only the tool's last results in the context: True for 3, or a number."""
    queue: Annotated[str, Field(min_length=1)]
    """Task queue of the workers that run the tool. Default: the run's own queue."""
    permission: Literal["allow", "ask", "deny"]
    """The verdict if no rule names the tool. Default: allow for read-only tools, ask for all others."""
    available: Callable[[], object]
    """Called before each call. It returns True or None if the tool is available, and otherwise False or the missing
    requirement.
    """
    scope: Literal["sandboxed", "system", "context"]
    """With `sandboxed`, the default, the tool's paths are confined to the workspace."""


_OPTIONS: Final = TypeAdapter(ToolOptions)


def check_name(name: str, origin: str) -> None:
    """Reject a name that providers, rules or the MCP prefix don't allow."""
    if NAME.fullmatch(name) is None:
        raise BadRequest(
            f"{origin}: {name!r} cannot be a tool's name: set one with `name=`. It has at most 64 letters, digits"
            " and underscores, and does not begin with a digit",
            field="tool",
        )
    if name in (DEFAULT, CREATE_TOOL, CALL_TOOL) or name.startswith((MCP, MADE)):
        raise BadRequest(
            f"{origin}: {name!r} is reserved (`default` is the rule for all other tools, `mcp__…` are the tools of MCP"
            " servers, `create_tool` and `made__…` are for tools that agents create, `call_tool` is for calls of found"
            " tools): set another name with `name=`",
            field="tool",
        )


def checked(options: ToolOptions, origin: str) -> ToolOptions:
    """Validate the options. Raises a BadRequest that names the invalid option."""
    try:
        return _OPTIONS.validate_python(options)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = ".".join(str(step) for step in first["loc"][:1])
        known = ", ".join(ToolOptions.__annotations__)
        hint = f" (the options are {known})" if first["type"] == "extra_forbidden" else ""
        raise BadRequest(f"{origin}: option `{option}` {problem_of_value(first)}{hint}", field="tool") from None


def schema_for(arguments: type[BaseModel], origin: str) -> ToolSchema:
    """Return the schema of the arguments: whole, because its author decides what the model reads."""
    try:
        return tool_schema(schema_of(arguments))
    except BrokenSchema as error:
        raise BadRequest(f"{origin}: no provider would accept its arguments: {error}", field="tool") from None


def spec_for(name: str, description: str, schema: ToolSchema, options: ToolOptions, origin: str) -> ToolSpec:
    """Return the spec for the model and the run."""
    effect = Effect(options.get("effect", "once"))
    reads = effect is Effect.READ
    if options.get("parallel") and not reads:
        raise BadRequest(
            f'{origin}: only a tool that reads may run in parallel: set effect="read", or leave out `parallel`',
            field="tool",
        )
    if options.get("quick") and (not reads or "queue" in options or options.get("parallel") is False):
        raise BadRequest(
            f"{origin}: only a tool that reads, in parallel and on the run's own queue, may be quick: set"
            ' effect="read", and leave out `queue` and `parallel`, or leave out `quick`',
            field="tool",
        )
    ephemeral = options.get("ephemeral", 0)
    return ToolSpec(
        name=name,
        description=description,
        parameters=schema.shown,
        effect=effect,
        parallel=options.get("parallel", reads),
        timeout=options.get("timeout", 120.0),
        queue=options.get("queue"),
        scope=Scope(options.get("scope", "sandboxed")),
        declared=Verdict(options.get("permission", "allow" if reads else "ask")),
        ephemeral=LAST_USES if ephemeral is True else int(ephemeral),
    )
