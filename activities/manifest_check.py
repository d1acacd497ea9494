"""What this worker has, held against what a run was started with: said once a change, or refused; never silent."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import structlog

from loom.activities.ports import ToolBox, TranscriptStore
from loom.activities.stream_writer import StreamWriter
from loom.domain.agents.manifest import Change, changes, met_by
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import ManifestChangedError
from loom.domain.core.tasks import Action
from loom.domain.core.tool_names import DELEGATE
from loom.domain.skills.catalog import is_of_the_run

_log = structlog.get_logger("loom.manifest")

MOST_SAID = 1000
"""Changes that a worker remembers to have told runs of."""


class Manifests:
    """Pins what this worker has into runs, and looks whether runs were pinned to something else."""

    def __init__(
        self,
        *,
        agents: Mapping[str, Mapping[str, str]],
        own: Mapping[str, str],
        tools: ToolBox,
        transcripts: TranscriptStore,
        refuse: bool,
    ) -> None:
        """`agents` are the parts of each agent, `own` is what runs meet as the worker has it (`own_parts`)."""
        self._agents = agents
        self._own = own
        self._tools = tools
        self._transcripts = transcripts
        self._refuse = refuse
        self._said: deque[tuple[str, Change]] = deque(maxlen=MOST_SAID)

    def of(self, name: str, tools: Collection[str], hooks: Collection[str]) -> Mapping[str, str]:
        """What a run of an agent with these tools and hooks is pinned to."""
        others = [other for other in self._agents if other != name] if DELEGATE in tools else ()
        return {**self._agents[name], **met_by(self._own, tools=tools, hooks=hooks, agents=others)}

    def of_crew(self, agents: Collection[str], hooks: Collection[str]) -> Mapping[str, str]:
        """The same for a crew: its definition is in the run, its members' agents are the worker's."""
        return met_by(self._own, tools=(), hooks=hooks, agents=agents)

    async def check_only(self, name: str, spec_digest: str, run_id: str, writer: StreamWriter) -> None:
        """Check the one tool or hook that is about to run: its worker may have nothing else of the agent.

        A run whose spec this worker does not know by its digest is checked at its next model call.
        """
        spec = await self._transcripts.load_spec(spec_digest) if spec_digest else None
        if spec is not None:
            about = tuple(change for change in self._changes(spec) if change.is_about(name))
            self._told_or_refused(about, spec, run_id, writer)

    def check(self, spec: AgentSpec, run_id: str, writer: StreamWriter) -> None:
        """Say what this worker has otherwise; raises ManifestChangedError where it is to refuse such runs."""
        self._told_or_refused(self._changes(spec), spec, run_id, writer)

    def _changes(self, spec: AgentSpec) -> tuple[Change, ...]:
        return changes(spec.manifest, self._agents.get(spec.name), self._own, self._other_tools(spec))

    def _other_tools(self, spec: AgentSpec) -> tuple[str, ...]:
        return tuple(
            tool.name
            for tool in spec.tools
            if not is_of_the_run(tool) and (tool.name not in self._tools or self._tools[tool.name].spec != tool)
        )

    def _told_or_refused(self, changed: Sequence[Change], spec: AgentSpec, run_id: str, writer: StreamWriter) -> None:
        if changed and self._refuse:
            raise ManifestChangedError(
                "this worker has other things than the run was started with:"
                f" {', '.join(change.told(spec.name) for change in changed)}. Serve it with the"
                " version that started it, or set LOOM_ON_CHANGED_MANIFEST=keep",
                tools=_names(changed, "tool"),
                parts=[*_names(changed, "part"), *_names(changed, "own")],
            )
        if fresh := [change for change in changed if (run_id, change) not in self._said]:
            self._said.extend((run_id, change) for change in fresh)
            said: dict[str, Any] = {"parts": _names(fresh, "part"), "tools": _names(fresh, "tool")}
            if new := _names(fresh, "own"):
                said["new"] = new
            _log.warning("manifest_changed", kept="pinned", manifest=spec.digest, **said)
            writer.emit(Action.MANIFEST, key="manifest", kept="pinned", **said)


def _names(changed: Sequence[Change], kind: str) -> list[str]:
    return [change.name for change in changed if change.kind == kind]
