"""Describe a call's risk briefly for the person who decides on the call. The description is based on the tool and the
recorded judgment.
"""

from collections.abc import Mapping
from typing import Final

from loom.domain.core.tool_calls import Effect, PreparedCall
from loom.domain.core.tool_names import CREATE_TOOL, HANDED_ON, MCP, START_RUN
from loom.domain.permissions.judge import GUARD
from loom.domain.permissions.rules import Kind, kind_of

_BY_NAME: Final[Mapping[str, str]] = {
    **dict.fromkeys(HANDED_ON, "starts sub-agents, whose calls are judged separately"),
    CREATE_TOOL: "adds a tool, whose calls are judged separately",
    START_RUN: "lets the run begin",
    "git_commit": "adds a commit, which Git can take back",
}
_BY_EFFECT: Final[Mapping[Effect, str]] = {
    Effect.READ: "reads only",
    Effect.IDEMPOTENT: "changes something, safe to repeat",
    Effect.ONCE: "may change something for good, not safe to repeat",
}


_FILE_GUARD: Final = "changes a file that controls programs (guard)"
_WORK_GUARD: Final = "may destroy work (guard)"
_FILES: Final = "changes files in the workspace"
_SERVER: Final = "reaches an MCP server, "
_NETWORK: Final = "reaches the network, "
RISKS: Final = frozenset(
    {_FILE_GUARD, _WORK_GUARD, *_BY_NAME.values()}
    | {reached + changed for reached in ("", _SERVER, _NETWORK) for changed in (_FILES, *_BY_EFFECT.values())}
)
"""All texts that `risk_of` returns."""


def risk_of(tool: str, plan: PreparedCall) -> str:
    """Return the highest known risk of a call to this tool."""
    if plan.rule.startswith(f"{GUARD}write to "):
        return _FILE_GUARD
    if plan.rule.startswith(GUARD):
        return _WORK_GUARD
    return _BY_NAME.get(tool) or _reached(tool) + _changed(tool, plan.effect_of_tool)


def _reached(tool: str) -> str:
    if tool.startswith(MCP):
        return _SERVER
    return _NETWORK if kind_of(tool) is Kind.HOST else ""


def _changed(tool: str, effect: Effect) -> str:
    if kind_of(tool) is Kind.PATH and effect is not Effect.READ:
        return _FILES
    return _BY_EFFECT[effect]
