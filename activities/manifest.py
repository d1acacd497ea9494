"""Compare a worker's definitions with the definitions that are pinned to a run. Report each difference once, or reject
the run.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal

import structlog

from loom.activities.ports import ToolSet, TranscriptStore
from loom.activities.publish import StreamWriter
from loom.domain.agents.definitions import AgentDefinition
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import ManifestChangedError
from loom.domain.core.messages import canonical, short_digest
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.core.tool_names import DELEGATE
from loom.domain.run.stream_events import manifest_changed
from loom.domain.skills.catalog import is_of_the_run

_PARTS: Final[Mapping[str, Sequence[str]]] = {
    "prompt": ("system_prompt",),
    "model": ("model", "fallbacks", "temperature", "max_output_tokens", "context_window"),
    "model options": ("model_options",),
    "permissions": ("permissions", "mode"),
    "skills": ("config",),
    "hooks": ("hooks",),
}
"""Tools are compared individually, including their schemas. Loom's own rules are pinned and never compared."""

_TOOL, _HOOK, _NODE, _AGENT = "code of tool ", "code of hook ", "code of node ", "sub-agent "
_OWN = (_TOOL, _HOOK, _NODE, _AGENT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A difference between a worker's definitions and the definitions that are pinned to a run."""

    kind: Literal["part", "tool", "own"]
    """Kind of the difference. If an agent field or a tool schema differs, the run keeps the pinned version. If a
    definition that exists only on the worker differs, the run uses the worker's version from now on.
    """
    name: str

    def told(self, agent: str) -> str:
        """Return a description of the difference."""
        match self.kind:
            case "part":
                return f"{self.name} of agent {agent}"
            case "tool":
                return f"tool {self.name}"
            case "own":
                return self.name

    def is_about(self, name: str) -> bool:
        """Whether the difference concerns the tool or hook with that name."""
        return self.kind != "part" and self.name in (name, f"{_TOOL}{name}", f"{_HOOK}{name}")


def manifest_of(spec: AgentSpec) -> Mapping[str, str]:
    """Return a digest of each part of a worker's agent definition, before a request is merged into it."""
    return {
        part: short_digest(canonical({name: repr(getattr(spec, name)) for name in names}))
        for part, names in _PARTS.items()
    }


def agent_digest(definition: AgentDefinition, parts: Mapping[str, str]) -> str:
    """Return a digest of an agent that a worker would start as a sub-agent, including the worker's additions."""
    return short_digest(canonical(parts) + repr(replace(definition, origin="")))


def own_parts(
    *,
    tools: Mapping[str, str],
    hooks: Mapping[str, str],
    agents: Mapping[str, str],
    nodes: Mapping[str, str] = MappingProxyType({}),
) -> Mapping[str, str]:
    """Return digests of the definitions that exist only on the worker, by name: the code of its tools, hooks and nodes,
    and its agents.
    """
    return {
        **{f"{_TOOL}{name}": digest for name, digest in tools.items()},
        **{f"{_HOOK}{name}": digest for name, digest in hooks.items()},
        **{f"{_NODE}{name}": digest for name, digest in nodes.items()},
        **{f"{_AGENT}{name}": digest for name, digest in agents.items()},
    }


def met_by(
    own: Mapping[str, str], *, tools: Collection[str], hooks: Collection[str], agents: Collection[str]
) -> Mapping[str, str]:
    """Return the entries of `own` that a run with these tools, hooks and sub-agents uses."""
    names = {
        *(f"{_TOOL}{name}" for name in tools),
        *(f"{_HOOK}{name}" for name in hooks),
        *(f"{_AGENT}{name}" for name in agents),
    }
    return {name: digest for name, digest in own.items() if name in names}


def changes(
    pinned: Mapping[str, str], agent: Mapping[str, str] | None, own: Mapping[str, str], tools: Collection[str] = ()
) -> tuple[Change, ...]:
    """Return the differences between the `pinned` definitions and a worker's `agent` and `own` definitions.

    `agent` is None if the worker has no such agent. `tools` names the tools that differ. If a run was started before
    manifests existed, only its tools can differ.
    """
    parts = [name for name in pinned if not name.startswith(_OWN)]
    others = [name for name in pinned if name.startswith(_OWN)]
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


_log = structlog.get_logger("loom.manifest")

MOST_SAID = 1000
"""Maximum number of reported differences that a worker remembers."""


class Manifests:
    """Pins a worker's definitions to runs, and checks whether different definitions were pinned to a run."""

    def __init__(
        self,
        *,
        agents: Mapping[str, Mapping[str, str]],
        own: Mapping[str, str],
        tools: ToolSet,
        transcripts: TranscriptStore,
        refuse: bool,
    ) -> None:
        """`agents` contains the fields of each agent. `own` contains the definitions that exist only on the worker
        (`own_parts`).
        """
        self._agents = agents
        self._own = own
        self._tools = tools
        self._transcripts = transcripts
        self._refuse = refuse
        self._said: deque[tuple[str, Change]] = deque(maxlen=MOST_SAID)

    def of(self, name: str, tools: Collection[str], hooks: Collection[str]) -> Mapping[str, str]:
        """Return the manifest to pin to a run of an agent with these tools and hooks."""
        others = [other for other in self._agents if other != name] if DELEGATE in tools else ()
        return {**self._agents[name], **met_by(self._own, tools=tools, hooks=hooks, agents=others)}

    def of_crew(self, agents: Collection[str], hooks: Collection[str]) -> Mapping[str, str]:
        """Return the manifest to pin to a crew's run. The run contains the crew's definition, and the worker has
        the definitions of the members' agents.
        """
        return met_by(self._own, tools=(), hooks=hooks, agents=agents)

    def of_node(self, name: str, hooks: Collection[str]) -> Mapping[str, str]:
        """Return the manifest to pin to a run of a node of code."""
        code = {key: digest for key, digest in self._own.items() if key == f"{_NODE}{name}"}
        return {**code, **met_by(self._own, tools=(), hooks=hooks, agents=())}

    async def check_only(self, name: str, spec_digest: str, run_id: str, writer: StreamWriter) -> None:
        """Check only the tool or hook that is about to run, because this worker may not have the agent's other
        definitions.

        If this worker doesn't recognize the digest of the run's spec, the run is checked at its next model call.
        """
        spec = await self._transcripts.load_spec(spec_digest) if spec_digest else None
        if spec is not None:
            tools = [tool for tool in spec.tools if tool.name == name]
            about = tuple(change for change in self._changes(spec, tools) if change.is_about(name))
            self._told_or_refused(about, spec, run_id, writer)

    def check(self, spec: AgentSpec, run_id: str, writer: StreamWriter) -> None:
        """Report the differences between this worker and the run. Raises ManifestChangedError if the worker is
        configured to reject such runs.
        """
        self._told_or_refused(self._changes(spec, spec.tools), spec, run_id, writer)

    def _changes(self, spec: AgentSpec, tools: Iterable[ToolSpec]) -> tuple[Change, ...]:
        return changes(spec.manifest, self._agents.get(spec.name), self._own, self._other_tools(tools))

    def _other_tools(self, tools: Iterable[ToolSpec]) -> tuple[str, ...]:
        return tuple(
            tool.name
            for tool in tools
            if (tool.name not in self._tools or self._tools[tool.name].spec != tool) and not is_of_the_run(tool)
        )

    def _told_or_refused(self, changed: Sequence[Change], spec: AgentSpec, run_id: str, writer: StreamWriter) -> None:
        if changed and self._refuse:
            raise ManifestChangedError(
                "this worker differs from the worker that the run was started with:"
                f" {', '.join(change.told(spec.name) for change in changed)}. Serve the run with the"
                " version that started it, or set LOOM_ON_CHANGED_MANIFEST=keep",
                tools=_names(changed, "tool"),
                parts=[*_names(changed, "part"), *_names(changed, "own")],
            )
        if fresh := [change for change in changed if (run_id, change) not in self._said]:
            self._said.extend((run_id, change) for change in fresh)
            parts, tools, new = (_names(fresh, kind) for kind in ("part", "tool", "own"))
            changed_event = manifest_changed(parts=parts, tools=tools, new=new)
            _log.warning("manifest_changed", manifest=spec.digest, **changed_event.parameters)
            writer.emit(changed_event)


def _names(changed: Sequence[Change], kind: str) -> list[str]:
    return [change.name for change in changed if change.kind == kind]
