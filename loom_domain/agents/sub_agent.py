"""Derive a child run's agent, which never has more rights than its parent and ancestor runs."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from loom.domain.agents.definitions import AgentDefinition
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import BadRequest
from loom.domain.core.tool_calls import ToolSpec, Verdict
from loom.domain.core.tool_names import DONE, QUERIES_MEMORY, SEARCH_TOOLS
from loom.domain.permissions.judge import Mode
from loom.domain.tree.lineage import Lineage

NOTES: Final = ("read_memory", "write_memory", "search_memory", "query_collective_memory", "query_sibling_insights")
"""The memory tools that a sub-agent has by default, for what the runs of its tree and session share."""
FILES: Final = ("read_file", "glob", "grep")
TOOLS: Final = (*FILES, *NOTES)
"""A sub-agent's default tools."""
READS_MEMORY: Final = (*QUERIES_MEMORY, "search_knowledge")
"""The tools that read memory and knowledge bases. They are allowed wherever a sub-agent has them."""
MAX_TURNS: Final = 10
"""A sub-agent's default maximum number of turns."""
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
    "search_history": "allow",
    "share_artifact": "allow",
    "message_agent": "allow",
    **dict.fromkeys((*NOTES, *READS_MEMORY), "allow"),
    "default": "deny",
}
"""A sub-agent's default rules."""


def sub_agent(spec: AgentSpec, definition: AgentDefinition, lineage: Lineage) -> AgentSpec:
    """Return the child's version of `spec`. The spec was resolved from `definition` in the same way as for an
    independent run.

    Raises BadRequest if the call names a tool that the agent doesn't have.
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
    """Return a plan's crew with the rights of the run that created the plan. The crew doesn't add its own rules."""
    maker = lineage.above[-1]
    return replace(spec, permissions=maker.rules, mode=maker.mode)


def default_child_tools(tools: Iterable[ToolSpec]) -> tuple[str, ...]:
    """Return the default tools of a child that is a copy of its parent. These are the tools in TOOLS that the parent
    also has.
    """
    return tuple(tool.name for tool in tools if tool.name in TOOLS) or (DONE,)


def _rules(given: Iterable[str]) -> Mapping[str, str]:
    """Return the rules for an agent that doesn't define any. The agent may use its explicitly listed tools, unless its
    parent or an ancestor run may not use them.
    """
    return {**dict.fromkeys(given, Verdict.ALLOW.value), **SUB_AGENT}


def _mode(spec: AgentSpec, lineage: Lineage) -> Mode:
    """Return the agent's own mode. If the agent has the default mode, return its parent's mode, even if the parent
    bypasses its rules.
    """
    if spec.mode is not Mode.DEFAULT or not lineage.above:
        return spec.mode
    return lineage.above[-1].mode


def _tools(spec: AgentSpec, lineage: Lineage) -> tuple[ToolSpec, ...]:
    if not lineage.tools and lineage.named:
        return spec.tools
    names = {SEARCH_TOOLS, *(tool.name for tool in spec.tools)}  # a run has `search_tools` only if it needs the tool
    if unknown := [name for name in lineage.tools if name not in names]:
        raise BadRequest(
            f"agent {spec.name!r} does not have {', '.join(unknown)}; it has {', '.join(sorted(names))}", field="tools"
        )
    chosen = (*(lineage.tools or TOOLS), DONE)
    return tuple(tool for tool in spec.tools if tool.name in chosen)
