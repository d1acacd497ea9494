"""Activity `prepare_run`: the agent resolved and pinned, and everything checked that would stop the run later."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import structlog
from temporalio import activity

from activities.failures import to_application_error
from activities.ports import EventStream, Providers, ToolBox, TranscriptStore
from activities.stream_writer import stream_writer
from loom_domain.agent_definitions import AgentDefinition, spec_of, tools_of
from loom_domain.agents import AgentSpec
from loom_domain.dead_rules import dead_rules
from loom_domain.errors import BadRequest, LLMConfigurationError, LoomError
from loom_domain.permissions import Mode
from loom_domain.requests import RunRequest
from loom_domain.subjects import Place
from loom_domain.tasks import Action
from loom_domain.work import Prepared, PrepareRequest

_log = structlog.get_logger("loom.run")

NO_MODEL = (
    "no model is configured. Set LOOM_MODEL (or name one in the request) to `openai:NAME` with OPENAI_API_KEY or"
    " OPENAI_BASE_URL, to `anthropic:NAME` with ANTHROPIC_API_KEY, or to `demo`, a rule-based stand-in without a key"
)


class Preparation:
    """Turns a request into a pinned agent."""

    def __init__(
        self,
        *,
        agents: Mapping[str, AgentDefinition],
        default: AgentSpec,
        servers: Collection[str],
        default_workspace: Path,
        providers: Providers,
        tools: ToolBox,
        transcripts: TranscriptStore,
        stream: EventStream,
        redact: Callable[[str], str],
        search_attributes: Callable[[], Awaitable[frozenset[str]]],
        ledger: bool,
    ) -> None:
        self._agents = agents
        self._default = default
        self._servers = servers
        self._default_workspace = default_workspace
        self._providers = providers
        self._tools = tools
        self._transcripts = transcripts
        self._stream = stream
        self._redact = redact
        self._search_attributes = search_attributes
        self._ledger = ledger

    @activity.defn(name="prepare_run")
    async def prepare_run(self, request: PrepareRequest) -> Prepared:
        """Resolve the request; raises BadRequest and LLMConfigurationError as application failures."""
        try:
            spec = self._resolve(request.request)
        except LoomError as error:
            raise to_application_error(error, self._redact) from None
        await self._transcripts.save_spec(spec)
        async with stream_writer(self._stream, request.origin, 0) as writer:
            writer.emit(
                Action.START,
                key="start",
                status="running",
                task=request.request.task,
                agent=spec.name,
                model=spec.model,
                workspace=spec.workspace,
                tools=[tool.name for tool in spec.tools],
                max_turns=request.request.max_turns or spec.max_turns,
                metadata=dict(request.request.metadata),
            )
        _log.info("run_prepared", run_id=request.origin.run_id, agent=spec.name, model=spec.model, manifest=spec.digest)
        known = tuple(sorted(await self._search_attributes()))
        return Prepared(spec=spec, search_attributes=known, ledger=self._ledger)

    def _resolve(self, request: RunRequest) -> AgentSpec:
        definition = self._agents.get(request.agent)
        if definition is None:
            close = get_close_matches(request.agent, self._agents, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(self._agents))}"
            raise BadRequest(f"unknown agent {request.agent!r}; {hint}", field="agent")
        agent = spec_of(definition, self._default)
        model = request.model or agent.model
        if not model:
            raise LLMConfigurationError(NO_MODEL)
        fallbacks = tuple(name for name in agent.fallbacks if name != model)
        for name in (model, *fallbacks):
            self._providers.resolve(name)
        spec = replace(
            agent.with_permissions(request.permissions),
            model=model,
            fallbacks=fallbacks,
            tools=tools_of(definition, (tool.spec for tool in self._tools.values())),
            workspace=str(self._workspace(request.workspace)),
            mode=Mode(request.mode) if request.mode else agent.mode,
            require_done_tool=_given(request.require_done_tool, agent.require_done_tool),
        )
        self._refuse_dead_rules(spec)
        return spec

    def _refuse_dead_rules(self, spec: AgentSpec) -> None:
        """A rule that can never match protects nobody; whoever wrote it believes that it does."""
        place = Place(workspace=spec.workspace, home=str(Path.home()))
        every = [tool.spec for tool in self._tools.values()]
        if dead := dead_rules(spec.permissions, every, servers=self._servers, place=place):
            raise BadRequest("; ".join(dead), field="permissions")

    def _workspace(self, named: str | None) -> Path:
        try:
            path = (Path(named).expanduser() if named else self._default_workspace).resolve()
            is_folder = path.is_dir()
        except (OSError, RuntimeError, ValueError) as error:
            raise BadRequest(f"workspace {named!r} cannot be used: {error}", field="workspace") from None
        if named and not Path(named).expanduser().is_absolute():
            raise BadRequest(f"workspace {named!r} must be an absolute path on the worker", field="workspace")
        if not is_folder:
            raise BadRequest(f"workspace {str(path)!r} is not a folder on the worker; create it", field="workspace")
        return path


def _given(asked: bool | None, default: bool) -> bool:
    return default if asked is None else asked
