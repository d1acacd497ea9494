"""Describe a worker's agents, crews, skills and tools for people."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from loom.activities.ports import Tool
from loom.app.registry import Registry
from loom.composition.build import default_agent
from loom.composition.settings import Settings
from loom.composition.tool_registry import hidden_tools, skills_from
from loom.domain.agents.definitions import AgentDefinition, spec_of, tools_of
from loom.domain.agents.inheritance import DEFAULT_AGENT
from loom.domain.agents.spec import AgentSpec
from loom.domain.agents.worker_catalog import WorkerCatalog
from loom.domain.core.messages import JsonObject
from loom.domain.core.tool_calls import Verdict
from loom.domain.crews.crew import Crew
from loom.domain.permissions.judge import BUILT_IN
from loom.domain.skills.catalog import FoundSkills


def catalog_of(registry: Registry, settings: Settings, tools: Iterable[Tool]) -> WorkerCatalog:
    """Return what a worker with this registry and these tools has."""
    return WorkerCatalog(
        agents=agent_summaries(registry, settings),
        crews=crew_summaries(registry.crews.values()),
        skills=skills_view(skills_from(settings, registry).found(settings.workspace or Path.cwd())),
        tools=tuple(tool_facts(tool, registry.origins) for tool in tools),
    )


def agents_of(registry: Registry) -> dict[str, AgentDefinition]:
    """Return all agents by name, including the default agent."""
    return {DEFAULT_AGENT: AgentDefinition(name=DEFAULT_AGENT), **registry.agents}


def agent_spec(settings: Settings, registry: Registry, agent: AgentDefinition) -> AgentSpec:
    """Return the agent's spec as in a run, but without MCP tools, because no MCP servers are connected yet."""
    hidden = hidden_tools(settings)
    tools = tools_of(agent, (tool.spec for name, tool in registry.tools.items() if name not in hidden))
    return replace(spec_of(agent, default_agent(settings)), tools=tools)


def agent_summaries(registry: Registry, settings: Settings) -> tuple[JsonObject, ...]:
    """Return the agents as `loom agents list --json` shows them."""
    return tuple(
        {
            "name": agent.name,
            "description": agent.description,
            "model": agent.model or settings.model if agent.node is None else None,
            "node": agent.node is not None,
            "extends": agent.extends or None,
            "tools": None if agent.tools is None else len(agent_spec(settings, registry, agent).tools),
            "origin": agent.origin or "built-in",
        }
        for _, agent in sorted(agents_of(registry).items())
    )


def crew_summaries(crews: Iterable[Crew]) -> tuple[JsonObject, ...]:
    """Return the crews as `loom crew list --json` shows them."""
    return tuple(
        {
            "name": crew.name,
            "description": crew.description,
            "mode": crew.mode.value,
            "members": [member.name for member in crew.members],
            "origin": crew.origin,
        }
        for crew in crews
    )


def skills_view(found: FoundSkills) -> JsonObject:
    """Return the skills as `loom skills list --json` shows them."""
    brief = ("name", "description", "source", "root")
    problems = [
        (each.is_warning, {"path": each.path, "source": each.source, "why": each.why}) for each in found.problems
    ]
    return {
        "skills": [{key: getattr(skill, key) for key in brief} for skill in found.skills],
        "hidden": [{key: getattr(skill, key) for key in brief} for skill in found.hidden],
        "skipped": [view for is_warning, view in problems if not is_warning],
        "warnings": [view for is_warning, view in problems if is_warning],
    }


def tool_facts(tool: Tool, origins: Mapping[str, str]) -> JsonObject:
    """Return a tool as `loom tools show --json` shows it."""
    spec = tool.spec
    return {
        "name": spec.name,
        "description": spec.description,
        "effect": spec.effect.value,
        "permission": (spec.declared or BUILT_IN.get(spec.name, Verdict.DENY)).value,
        "scope": spec.scope.value,
        "origin": origins.get(spec.name, "built-in"),
        "parameters": spec.parameters,
        "parallel": spec.parallel,
        "timeout": spec.timeout,
        "queue": spec.queue,
        "ephemeral": spec.ephemeral,
        "missing": tool.is_available(),
    }
