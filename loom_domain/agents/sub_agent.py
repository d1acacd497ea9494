"""The agent of a child run. It never has more rights than the agents above it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from loom.domain.agents.definitions import AgentDefinition
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import BadRequest
from loom.domain.core.tool_calls import ToolSpec, Verdict
from loom.domain.core.tool_names import DONE
from loom.domain.permissions.judge import Mode
from loom.domain.tree.lineage import Lineage

TOOLS: Final = ("read_file", "glob", "grep")
"""The tools of a sub-agent, unless others are given."""
MAX_TURNS: Final = 10
"""The turn limit of a sub-agent whose definition sets none."""
SUB_AGENT: Final[Mapping[str, str]] = {
    "read_file": "allow",
    "glob": "allow",
    "grep": "allow",
    "write_file": "deny",
    "bash": "ask",
    "todo": "allow",
    "load_skill": "allow",
    "read_skill_resource": "allow",
    "run_skill_script": "ask",
    "skill__*": "ask",
    "delegate_task": "allow",
    "create_plan": "allow",
    "read_artifact": "allow",
    "share_artifact": "allow",
    "message_agent": "allow",
    "default": "deny",
}
"""The permission rules of a sub-agent that has none of its own."""


def sub_agent(spec: AgentSpec, definition: AgentDefinition, lineage: Lineage) -> AgentSpec:
    """Restrict `spec`, which was made from `definition` as for a root run, to what a child run may have.

    Raises BadRequest if the child was given a tool that the agent does not have.
    """
    has_rules = lineage.named and definition.permissions
    return replace(
        spec,
        tools=_tools(spec, lineage),
        permissions=spec.permissions if has_rules else _rules(lineage.tools or definition.tools or ()),
        mode=_mode(spec, lineage),
        max_turns=definition.max_turns or MAX_TURNS,
        above=lineage.above,
    )


def with_rights_of_parent(spec: AgentSpec, lineage: Lineage) -> AgentSpec:
    """The crew that carries out a plan: it has the same rights as the run that made the plan."""
    maker = lineage.above[-1]
    return replace(spec, permissions=maker.rules, mode=maker.mode)


def default_child_tools(tools: Iterable[ToolSpec]) -> tuple[str, ...]:
    """The tools of a child made from its parent, unless others are given: those of TOOLS that the parent has."""
    return tuple(tool.name for tool in tools if tool.name in TOOLS) or (DONE,)


def _rules(given: Iterable[str]) -> Mapping[str, str]:
    """The rules of an agent without its own: it may use what it was explicitly given, as far as its ancestors may."""
    return {**dict.fromkeys(given, Verdict.ALLOW.value), **SUB_AGENT}


def _mode(spec: AgentSpec, lineage: Lineage) -> Mode:
    """Its own mode, else its parent's: a run that bypasses its rules passes that on."""
    if spec.mode is not Mode.DEFAULT or not lineage.above:
        return spec.mode
    return lineage.above[-1].mode


def _tools(spec: AgentSpec, lineage: Lineage) -> tuple[ToolSpec, ...]:
    if not lineage.tools and lineage.named:
        return spec.tools
    names = {tool.name for tool in spec.tools}
    if unknown := [name for name in lineage.tools if name not in names]:
        raise BadRequest(
            f"agent {spec.name!r} does not have {', '.join(unknown)}; it has {', '.join(sorted(names))}", field="tools"
        )
    chosen = (*(lineage.tools or TOOLS), DONE)
    return tuple(tool for tool in spec.tools if tool.name in chosen)
