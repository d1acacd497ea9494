"""The options of a tool at its registration, validated, and the resulting spec."""

import re
from collections.abc import Callable
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from loom.activities.toolbox.function_tool import tool_spec
from loom.domain.core.errors import BadRequest
from loom.domain.core.tool_calls import Effect, Scope, ToolSpec, Verdict
from loom.domain.core.tool_names import CREATE_TOOL, MADE, MCP
from loom.domain.permissions.rules import DEFAULT

NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
LAST_USES: Final = 3
"""Results of an ephemeral tool that stay in the context by default."""


class ToolOptions(TypedDict, total=False):
    """The options of a tool besides its function."""

    __pydantic_config__ = ConfigDict(extra="forbid", arbitrary_types_allowed=True)  # type: ignore[misc]

    name: str
    """Default: the function's."""
    description: str
    """Default: the docstring's."""
    effect: Literal["read", "idempotent", "once"]
    """What happens if it runs twice; default once."""
    timeout: Annotated[float, Field(gt=0, le=7 * 86_400, allow_inf_nan=False)]
    """Seconds for one call; default LOOM_TOOL_TIMEOUT."""
    parallel: bool
    """Whether it may run in parallel with other calls; default: true for `read`."""
    ephemeral: bool | Annotated[int, Field(ge=0)]
    """Keep only its last results in the context: True for 3, or a number."""
    queue: Annotated[str, Field(min_length=1)]
    """Task queue of the workers that run it; default: the run's own."""
    permission: Literal["allow", "ask", "deny"]
    """The verdict if no rule names it; default: allow for reading, ask for anything else."""
    available: Callable[[], object]
    """Called before each call. Returns True or None, else False or what is missing."""
    scope: Literal["sandboxed", "system", "context"]
    """sandboxed, the default: its paths are confined to the workspace."""


_OPTIONS: Final = TypeAdapter(ToolOptions)


def check_name(name: str, origin: str) -> None:
    """Reject a name that providers, rules or the MCP prefix do not allow."""
    if NAME.fullmatch(name) is None:
        raise BadRequest(
            f"{origin}: {name!r} cannot be a tool's name: give one with `name=` of letters, digits and _, at most 64,"
            " that does not begin with a digit",
            field="tool",
        )
    if name in (DEFAULT, CREATE_TOOL) or name.startswith((MCP, MADE)):
        raise BadRequest(
            f"{origin}: {name!r} is reserved (`default` is the rule for all other tools, `mcp__…` are the tools of MCP"
            " servers, `create_tool` and `made__…` those that agents make): give another one with `name=`",
            field="tool",
        )


def checked(options: ToolOptions, origin: str) -> ToolOptions:
    """Validate the options; raises BadRequest, which names the wrong one."""
    try:
        return _OPTIONS.validate_python(options)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        option = ".".join(str(step) for step in first["loc"][:1])
        known = ", ".join(ToolOptions.__annotations__)
        hint = f" (the options are {known})" if first["type"] == "extra_forbidden" else ""
        raise BadRequest(f"{origin}: option `{option}`: {first['msg']}{hint}", field="tool") from None


def spec_for(name: str, description: str, arguments: type[BaseModel], options: ToolOptions, origin: str) -> ToolSpec:
    """The spec that model and run see."""
    effect = Effect(options.get("effect", "once"))
    reads = effect is Effect.READ
    if options.get("parallel") and not reads:
        raise BadRequest(
            f'{origin}: only a tool that reads may run beside others: say effect="read", or leave `parallel` out',
            field="tool",
        )
    ephemeral = options.get("ephemeral", 0)
    return tool_spec(
        name,
        description,
        arguments,
        effect=effect,
        timeout=options.get("timeout", 120.0),
        scope=Scope(options.get("scope", "sandboxed")),
        declared=Verdict(options.get("permission", "allow" if reads else "ask")),
        ephemeral=LAST_USES if ephemeral is True else int(ephemeral),
        queue=options.get("queue"),
        parallel=options.get("parallel"),
    )
