"""What a run was prepared with, part by part, so that each worker that serves it can say what it has otherwise.

pinned, and what the run goes by to its end       prompt, model, permissions, skills, hooks; each tool's schema
the worker's own, which a run meets as it is      code of its tools and hooks; agents that it starts as sub-agents
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from loom.domain.agents.definitions import AgentDefinition
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.digests import canonical, short_digest

_PARTS: Final[Mapping[str, Sequence[str]]] = {
    "prompt": ("system_prompt",),
    "model": ("model", "fallbacks", "temperature", "max_output_tokens", "context_window"),
    "permissions": ("permissions", "mode"),
    "skills": ("config",),
    "hooks": ("hooks",),
}
"""Tools are compared one by one, schema and all; Loom's own rules are pinned whatever the worker has."""

_TOOL, _HOOK, _AGENT = "code of tool ", "code of hook ", "sub-agent "


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One thing that a worker has otherwise than a run was prepared with."""

    kind: Literal["part", "tool", "own"]
    """A part of the agent, or the schema of a tool: the run goes by what was pinned. The worker's own: it goes by
    that from now on."""
    name: str

    def told(self, agent: str) -> str:
        """The same in words."""
        match self.kind:
            case "part":
                return f"{self.name} of agent {agent}"
            case "tool":
                return f"tool {self.name}"
            case "own":
                return self.name

    def is_about(self, name: str) -> bool:
        """Whether it is the tool or the hook of that name."""
        return self.kind != "part" and self.name in (name, f"{_TOOL}{name}", f"{_HOOK}{name}")


def manifest_of(spec: AgentSpec) -> Mapping[str, str]:
    """A digest of each part of an agent as a worker defines it, before a request is laid over it."""
    return {
        part: short_digest(canonical({name: repr(getattr(spec, name)) for name in names}))
        for part, names in _PARTS.items()
    }


def agent_digest(definition: AgentDefinition, parts: Mapping[str, str]) -> str:
    """Names an agent as a worker would start it as a sub-agent: its definition, and what the worker adds to it."""
    return short_digest(canonical(parts) + repr(replace(definition, origin="")))


def own_parts(*, tools: Mapping[str, str], hooks: Mapping[str, str], agents: Mapping[str, str]) -> Mapping[str, str]:
    """What a worker has of its own, by name: digests of the code of its tools and hooks, and of its agents."""
    return {
        **{f"{_TOOL}{name}": digest for name, digest in tools.items()},
        **{f"{_HOOK}{name}": digest for name, digest in hooks.items()},
        **{f"{_AGENT}{name}": digest for name, digest in agents.items()},
    }


def met_by(
    own: Mapping[str, str], *, tools: Collection[str], hooks: Collection[str], agents: Collection[str]
) -> Mapping[str, str]:
    """The part of it that a run with these tools, hooks and sub-agents meets."""
    names = {
        *(f"{_TOOL}{name}" for name in tools),
        *(f"{_HOOK}{name}" for name in hooks),
        *(f"{_AGENT}{name}" for name in agents),
    }
    return {name: digest for name, digest in own.items() if name in names}


def changes(
    pinned: Mapping[str, str], agent: Mapping[str, str] | None, own: Mapping[str, str], tools: Collection[str] = ()
) -> tuple[Change, ...]:
    """What differs on a worker that has `agent` (None: no such agent), `own`, and these `tools` otherwise.

    A run from before there were manifests differs in nothing but its tools.
    """
    parts = [name for name in pinned if not name.startswith((_TOOL, _HOOK, _AGENT))]
    others = [name for name in pinned if name.startswith((_TOOL, _HOOK, _AGENT))]
    if parts and agent is None:
        parts, agent = ["agent"], {}
    return (
        *(Change(kind="part", name=name) for name in parts if (agent or {}).get(name) != pinned.get(name, "")),
        *(Change(kind="tool", name=name) for name in tools),
        *(
            Change(kind="own", name=name)
            for name in others
            if own.get(name) != pinned[name] and name.removeprefix(_TOOL) not in tools
        ),
    )
