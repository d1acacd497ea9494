"""The `prepare_run` activity: resolve and pin the agent, and check for every problem that could stop the run later."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import structlog
from temporalio import activity

from loom.activities.archives import Archives
from loom.activities.crew_lookup import Crews, refuse_form, refuse_ignored, unknown_members
from loom.activities.failures import to_application_error
from loom.activities.forks import Forks
from loom.activities.manifest import Manifests
from loom.activities.output_schema import OutputSchema
from loom.activities.part_storing import PartKeeper
from loom.activities.ports import EventStream, Prices, Providers, ToolSet, TranscriptStore
from loom.activities.publish import heartbeating, stream_writer
from loom.activities.run_workspaces import RunWorkspaces
from loom.activities.skills import Equipped, RunSkills
from loom.activities.start_gate import StartGate
from loom.activities.tenants.gate import TenantGate
from loom.activities.toolbox.function_tool import FunctionTool
from loom.activities.toolbox.mcp_tool import McpTool
from loom.domain.agents.branches_pattern import branches_of, led_by, refuse_without_room
from loom.domain.agents.definitions import AgentDefinition, spec_of, tools_of, with_collaboration_tools
from loom.domain.agents.hooks import Registered, hook_names_for, steps_of
from loom.domain.agents.request_options import KEY, RunOptions, read_options
from loom.domain.agents.spec import AgentSpec, autonomy_rules, contradiction, shared
from loom.domain.agents.sub_agent import TOOLS, sub_agent, with_rights_of_parent
from loom.domain.agents.worker_report import unknown_agent
from loom.domain.core.errors import BadRequest, LLMConfigurationError, LoomError, UnreachableError
from loom.domain.core.messages import JsonObject, Usage
from loom.domain.core.notifications import NotifyPlan
from loom.domain.core.repositories import FORK, ArchiveWorkspace, Repository, Workspace
from loom.domain.core.requests import RunRequest
from loom.domain.core.tasks import Origin
from loom.domain.core.tokens import tokens_of
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.core.tool_names import CREATE_PLAN, DELEGATE, SEARCH_TOOLS
from loom.domain.permissions.bounds import Bounds
from loom.domain.permissions.dead_rules import dead_rules, offered
from loom.domain.permissions.judge import Mode
from loom.domain.permissions.subjects import Place
from loom.domain.run.activity_payloads import Prepared, PrepareRequest
from loom.domain.run.stream_events import run_started
from loom.domain.skills.catalog import COMPILED, LOAD_SKILL, SKILL_TOOLS, FoundSkills
from loom.domain.tools.tool_search import RARELY_USED, on_demand
from loom.domain.tree.lineage import Lineage, TreeLimits

_log = structlog.get_logger("loom.run")

NO_MODEL = (
    "no model is configured. Name one in the request, or set LOOM_MODEL where the worker starts (`loom down`, then"
    " `loom up`): `openai:NAME` with OPENAI_API_KEY or OPENAI_BASE_URL, `anthropic:NAME` with ANTHROPIC_API_KEY, or"
    " `demo`, a rule-based stand-in that needs no key"
)

T = TypeVar("T")

MOST_TOLD = 20
"""Maximum number of skipped skills that a run's first event lists."""


@dataclass(eq=False, kw_only=True, slots=True)
class Preparation:
    """Turns a request into a pinned agent."""

    agents: Mapping[str, AgentDefinition]
    hooks: Sequence[Registered]
    manifests: Manifests
    default: AgentSpec
    servers: Collection[str]
    default_workspace: Path
    bounds: Bounds
    owner_bounds: Bounds
    """The bounds of runs that the owner of the worker's key has signed."""
    providers: Providers
    prices: Prices
    tools: ToolSet
    withheld: Collection[str]
    """Rules and agents may refer to these tools, but no run has them."""
    skills: RunSkills
    crews: Crews
    transcripts: TranscriptStore
    stream: EventStream
    redact: Callable[[str], str]
    search_attributes: Callable[[], Awaitable[frozenset[str]]]
    ledger: bool
    quick_reads: bool
    limits: TreeLimits
    forks: Forks
    parts: PartKeeper
    gate: StartGate
    tenants: TenantGate
    notify: NotifyPlan | None
    archives: Archives
    workspaces: RunWorkspaces
    proofs: bool = False
    """Whether the workers run calls only with proven approvals."""

    @activity.defn(name="prepare_run")
    async def prepare_run(self, request: PrepareRequest) -> Prepared:
        """Resolve the request. Raises an application failure of the type BadRequest if the request is invalid, or
        LLMConfigurationError if its model can't be used.
        """
        async with heartbeating():
            try:
                return await self._prepared(request)
            except UnreachableError:
                raise  # Temporal retries the activity
            except LoomError as error:
                raise to_application_error(error, self.redact) from None

    async def _prepared(self, request: PrepareRequest) -> Prepared:
        asked, lineage = request.request, request.lineage
        # A run is prepared in its first execution, whose id ends in 48 random bits.
        origin = replace(request.origin, execution=(activity.info().workflow_run_id or "").rpartition("-")[2])
        signed = (request.start is not None or self.gate.requires_signature) and self.gate.is_signed_by_owner(
            request.start
        )
        bounds = self.owner_bounds if signed else self.bounds
        point = await self.forks.point(asked.forked_from, asked) if asked.forked_from else None
        clone = self._clone(asked, lineage, origin)
        bounds = bounds.with_clone(clone)
        placed = replace(asked, workspace=clone) if clone else asked
        resolved = (
            await self._resolve(placed, lineage, bounds)
            if point is None
            else self._resolve_fork(placed, point.spec, bounds)
        )
        spec = shared(resolved.spec)
        bounds.refuse_mode(spec.mode)
        if not asked.mode:  # a signature is for the request, not for the files that it leads to
            of_parent = lineage.above[-1].mode if lineage and lineage.above else Mode.READ_ONLY
            self.bounds.refuse_unrequested_mode(spec.mode, of_parent=of_parent)
        above = lineage.steering_key if lineage else ""
        widened = bool(above) or (signed and self.bounds.with_clone(clone).refuses(spec.workspace, spec.mode))
        if asked.parts and point is not None:
            raise BadRequest("a fork has the parts of the other run: leave out `parts`", field="parts")
        if isinstance(asked.workspace, Repository) and any(part.path for part in asked.parts):
            raise BadRequest(
                "parts: the files of a repository or an archive can't be attached to the task, because they aren't"
                " there yet: name them in the task, or send their content as `data`",
                field="parts",
            )
        await self._refuse_unknown_price(spec, request)
        if asked.forked_from is not None and point is not None:
            await self.forks.begin(origin, asked.forked_from, point.earlier)
        parts = await self.parts.attached(asked.parts, spec, origin) if asked.parts else ()
        archive = await self._archive(asked.workspace, origin)
        await self.transcripts.save_spec(spec)
        steering_key = above or self.gate.steering_key(widened=widened)
        if signed and steering_key and request.start is not None:
            await self.gate.use(request.start, activity.info().workflow_run_id or "")
        async with stream_writer(self.stream, origin, 0) as writer:
            writer.emit(run_started(asked, spec, lineage, skipped_skills=_skipped(resolved)))
        _log.info("run_prepared", **request.origin.log_ids, agent=spec.name, model=spec.model, manifest=spec.digest)
        return Prepared(
            spec=spec,
            search_attributes=tuple(sorted(await self.search_attributes())),
            ledger=self.ledger,
            quick_reads=self.quick_reads,
            limits=lineage.limits if lineage else self.limits,
            earlier=point.earlier if point else None,
            signed=signed,
            signed_at=request.start.signature.at if signed and request.start is not None else 0,
            steering_key=steering_key,
            widened=widened,
            approvals_are_named=True,
            execution=origin.execution,
            parts=parts,
            notify=self.notify,
            proofs=self.proofs,
            archive=archive,
            # Last, because a run that is refused must not take another run's place.
            admission=await self.tenants.admission(request.origin) if asked.tenant else "",
        )

    def _resolve_fork(self, request: RunRequest, pinned: AgentSpec, bounds: Bounds) -> Equipped:
        """Return the original run's agent as of the forked turn, with the changes from this request."""
        model = request.model or pinned.model
        fallbacks = tuple(name for name in pinned.fallbacks if name != model)
        for name in (model, *fallbacks):
            self.providers.resolve(name)
        spec = replace(
            pinned.with_permissions(request.permissions),
            model=model,
            fallbacks=fallbacks,
            workspace=str(self._workspace(request.workspace or pinned.workspace, bounds)),
            mode=Mode(request.mode) if request.mode else pinned.mode,
            model_options=request.model_options.or_else(pinned.model_options),
            patience=_given(request.patience, pinned.patience),
            require_done_tool=_given(request.require_done_tool, pinned.require_done_tool),
        )
        if request.permissions:
            self._refuse_dead_rules(spec)
        self._refuse_options(spec)
        return Equipped(spec=spec)

    async def _resolve(self, request: RunRequest, lineage: Lineage | None, bounds: Bounds) -> Equipped:
        if request.crew is not None:
            return Equipped(spec=self._resolve_crew(request, request.crew, lineage, bounds))
        definition = self._named(request.agent)
        if definition.node is not None:
            return Equipped(spec=self._resolve_node(request, definition, lineage, bounds))
        agent = spec_of(definition, self.default)
        wanted = read_options(request.metadata) if KEY in request.metadata else RunOptions()
        # The parent judges a sub-agent's answer, unless the request asks for a rating. A branch's answer is scored
        # together with the other branches' answers.
        is_branch = lineage is not None and lineage.branch
        evaluates = agent.evaluates if lineage is None else bool(definition.evaluates) and not is_branch
        model = request.model or definition.model or (lineage.model if lineage else "") or agent.model
        if not model:
            raise LLMConfigurationError(NO_MODEL)
        fallbacks = tuple(name for name in agent.fallbacks if name != model)
        for name in (model, *fallbacks):
            self.providers.resolve(name)
        every = [tool.spec for name, tool in self.tools.items() if name not in self.withheld]
        spec = replace(
            agent.with_permissions(request.permissions),
            model=model,
            fallbacks=fallbacks,
            tools=with_collaboration_tools(tools_of(definition, every), every, definition, lineage),
            workspace=str(self._workspace(request.workspace, bounds)),
            mode=Mode(request.mode) if request.mode else agent.mode,
            model_options=request.model_options.or_else(agent.model_options),
            patience=_given(request.patience, agent.patience),
            require_done_tool=_given(request.require_done_tool, agent.require_done_tool),
            hooks=steps_of(self.hooks, definition.name, definition.hooks) if self.hooks else (),
            evaluates=_given(wanted.evaluate, evaluates),
            priority=_given(agent.priority, lineage.priority if lineage else None),
            pattern="react" if is_branch else wanted.pattern or agent.pattern,
            rounds=wanted.rounds or agent.rounds,
            output_schema=agent.output_schema if request.output_schema is None else request.output_schema,
        )
        if lineage is not None:
            spec = sub_agent(spec, definition, lineage)
        spec = self._within_depth(spec, lineage)
        self._refuse_dead_rules(spec)
        self._refuse_options(spec)
        if spec.tool_timeouts:
            self._refuse_long_timeouts(spec)
        if spec.output_schema is not None:
            OutputSchema(spec.output_schema)
        equipped = await self._equipped(spec, request)
        equipped = replace(equipped, spec=self._with_tools_on_demand(equipped.spec, definition, lineage))
        shown = offered(equipped.spec.tools, spec.permissions) if spec.permissions else equipped.spec.tools
        hooks = hook_names_for(self.hooks, definition.name, definition.hooks) if self.hooks else ()
        manifest = self.manifests.of(definition.name, [tool.name for tool in equipped.spec.tools], hooks)
        own = [tool.name for tool in shown if tool.name not in equipped.spec.on_demand]
        rules = "\n\n".join((autonomy_rules(own), *self._server_instructions(shown)))
        spec = replace(equipped.spec, rules=rules, manifest=manifest)
        return replace(equipped, spec=self._branching(spec, definition, request, lineage))

    def _server_instructions(self, shown: Sequence[ToolSpec]) -> Sequence[str]:
        """Return the instructions of the MCP servers whose tools the agent has."""
        tools = (self.tools.get(each.name) for each in shown)
        told = (tool.instructions for tool in tools if isinstance(tool, McpTool) and tool.instructions)
        return list(dict.fromkeys(told))

    def _named(self, agent: str) -> AgentDefinition:
        if (definition := self.agents.get(agent)) is None:
            raise unknown_agent(agent, self.agents)
        return definition

    async def _equipped(self, spec: AgentSpec, request: RunRequest) -> Equipped:
        """Return the agent with the run's skills. If the run has no skills, only remove the skill tools."""
        wants = bool(spec.config.enabled_skills or request.skills)
        may_load = any(tool.name == LOAD_SKILL for tool in spec.tools)
        found = await self.skills.library.find(Path(spec.workspace)) if wants or may_load else FoundSkills()
        if wants or found.skills or found.problems:
            return await self.skills.equipped(spec, request, found)
        tools = (tool for tool in spec.tools if tool.name not in SKILL_TOOLS and not tool.name.startswith(COMPILED))
        return Equipped(spec=replace(spec, tools=tuple(tools)))

    def _with_tools_on_demand(self, spec: AgentSpec, definition: AgentDefinition, lineage: Lineage | None) -> AgentSpec:
        """Let the model search for rarely used tools, and for further ones if there are many. An agent that can't
        search is shown all its tools.
        """
        tools = tuple(tool for tool in spec.tools if tool.name != SEARCH_TOOLS)
        spec = replace(spec, tools=tools)
        is_small = len(tools) <= spec.shown_tools and tokens_of(tools) <= spec.shown_tool_tokens
        if is_small and not any(tool.name in RARELY_USED for tool in tools):
            return spec
        search = self.tools.get(SEARCH_TOOLS)
        is_disabled = SEARCH_TOOLS in definition.config.disabled_tools
        if search is None or is_disabled or not offered([search.spec], spec.permissions):
            return spec
        given = (lineage.tools or TOOLS) if lineage else ()
        away = on_demand(
            offered(tools, spec.permissions),
            {*(definition.tools or ()), *definition.config.extra_tools, *given},
            built_in={name for name, tool in self.tools.items() if isinstance(tool, FunctionTool)},
            most=spec.shown_tools,
            most_tokens=spec.shown_tool_tokens,
        )
        return replace(spec.with_tool(search.spec), on_demand=away) if away else spec

    def _within_depth(self, spec: AgentSpec, lineage: Lineage | None) -> AgentSpec:
        """Remove the tools that start child runs if the run is at the maximum depth."""
        levels = self.limits.depth if lineage is None else lineage.limits.depth - lineage.depth
        # A plan's steps run two levels deeper. At the maximum depth, a sub-agent keeps the delegation tool, and its
        # model reads in the result why it can't delegate.
        never = {CREATE_PLAN} if levels < 2 else set()
        if lineage is None and levels == 0:
            never.add(DELEGATE)
        return replace(spec, tools=tuple(tool for tool in spec.tools if tool.name not in never))

    def _branching(
        self, spec: AgentSpec, definition: AgentDefinition, request: RunRequest, lineage: Lineage | None
    ) -> AgentSpec:
        """Convert an agent with the `tree` pattern into an agent that runs its own branches. Return other agents
        unchanged.
        """
        if spec.pattern == "tree" and request.chat:
            raise BadRequest("an agent with the pattern `tree` can't chat: use `react` or `reflect`", field="chat")
        if spec.pattern != "tree":
            return spec
        wanted = read_options(request.metadata)
        rounds = None if definition.pattern == "reflect" else definition.rounds  # these rounds have another meaning
        # If a sub-agent has fewer tools than its agent definition, so do its branches. Skills add their own tools.
        own = [tool.name for tool in spec.tools if not tool.name.startswith(COMPILED)]
        given = own if lineage and (lineage.tools or not lineage.named) else []
        crew = branches_of(
            spec.name,
            branches=wanted.branches or definition.branches,
            rounds=wanted.rounds or rounds,
            tools=given,
        )
        if (error := unknown_members(crew, self.agents, self.tools.keys())) is not None:
            raise error
        asked = replace(request, budget=request.budget.or_else(spec.budget))
        limits, depth = (lineage.limits, lineage.depth) if lineage else (self.limits, 0)
        refuse_without_room(crew, asked, limits, depth=depth)
        return led_by(crew, spec, self.tools[DELEGATE].spec)

    def _resolve_crew(
        self, request: RunRequest, asked: str | JsonObject, lineage: Lineage | None, bounds: Bounds
    ) -> AgentSpec:
        """Return a crew as an agent that decides its own turns. Its only tool assigns work to the crew's members."""
        crew = self.crews.found(asked)
        refuse_ignored(request)
        if request.output_schema is not None:
            refuse_form(crew)
            OutputSchema(request.output_schema)
        if (error := unknown_members(crew, self.agents, self.tools.keys())) is not None:
            raise error
        model = request.model or self.default.model
        if model:
            self.providers.resolve(model)
        spec = replace(
            self.default.with_permissions(crew.permissions).with_permissions(request.permissions),
            name=crew.name,
            model=model,
            fallbacks=(),
            tools=(self.tools[DELEGATE].spec,),
            workspace=str(self._workspace(request.workspace, bounds)),
            mode=Mode(request.mode) if request.mode else self.default.mode,
            patience=_given(request.patience, self.default.patience),
            require_done_tool=False,
            hooks=steps_of(self.hooks, crew.name, ()),
            manifest=self.manifests.of_crew(crew.agents, hook_names_for(self.hooks, crew.name, ())),
            pattern="react",
            evaluates=False,
            priority=lineage.priority if lineage else None,
            output_schema=request.output_schema,
            crew=crew,
        )
        self._refuse_dead_rules(spec)
        return spec if lineage is None else with_rights_of_parent(spec, lineage)

    def _resolve_node(
        self, request: RunRequest, definition: AgentDefinition, lineage: Lineage | None, bounds: Bounds
    ) -> AgentSpec:
        """Return a node of code as an agent without a model and without tools."""
        refuse_ignored(request, "models, not to nodes of code: leave it out")
        if lineage is not None and lineage.tools:
            raise BadRequest(
                f"{definition.name!r} is a node of code, which has no tools: leave them out", field="tools"
            )
        if request.model is not None:
            raise BadRequest(f"{definition.name!r} is a node of code, which has no model: leave it out", field="model")
        if request.output_schema is not None:
            OutputSchema(request.output_schema)
        spec = replace(
            self.default.with_permissions(request.permissions),
            name=definition.name,
            node=definition.node,
            model="",
            fallbacks=(),
            tools=(),
            system_prompt="",
            knowledge=(),
            workspace=str(self._workspace(request.workspace, bounds)),
            patience=0.0,  # no provider can keep it waiting
            require_done_tool=False,
            hooks=steps_of(self.hooks, definition.name, ()),
            manifest=self.manifests.of_node(definition.name, hook_names_for(self.hooks, definition.name, ())),
            pattern="react",
            evaluates=False,
            priority=lineage.priority if lineage else None,
            output_schema=request.output_schema,
        )
        return spec if lineage is None else with_rights_of_parent(spec, lineage)

    def _refuse_dead_rules(self, spec: AgentSpec) -> None:
        """Reject rules that can never match. Such a rule has no effect, although its author relies on it."""
        if not spec.permissions:
            return
        place = Place(workspace=spec.workspace, home=str(Path.home()))
        every = [tool.spec for tool in self.tools.values()]
        if dead := dead_rules(spec.permissions, every, servers=self.servers, place=place):
            raise BadRequest("; ".join(dead), field="permissions")

    def _refuse_options(self, spec: AgentSpec) -> None:
        """Reject options that one of the agent's models doesn't have, or that contradict other settings."""
        for name in (spec.model, *spec.fallbacks):
            self.providers.check_options(name, spec.model_options)
        if problem := contradiction(spec):
            raise BadRequest(problem, field="model_options")

    def _refuse_long_timeouts(self, spec: AgentSpec) -> None:
        """Reject a timeout of a single tool that exceeds the tool's own limit, so that it would have no effect."""
        for tool in spec.tools:
            longest = getattr(self.tools.get(tool.name), "longest", None)
            seconds = spec.timeout_of(tool.name)
            if longest is None or seconds is None or seconds == spec.tool_timeout or seconds <= longest:
                continue
            raise BadRequest(
                f"agent {spec.name!r}: the timeout of {tool.name} is {seconds:g} s, but the tool itself ends after"
                f" {longest:g} s: set at most {longest:g} in tool_timeouts, or raise the tool's own limit",
                field="tool_timeouts",
            )

    async def _refuse_unknown_price(self, spec: AgentSpec, request: PrepareRequest) -> None:
        """Reject a dollar budget that can't be enforced because the model's price is unknown."""
        share = request.lineage.share.micros if request.lineage else None
        tenant = request.request.tenant
        is_limited = share is not None or request.request.budget.or_else(spec.budget).cost_usd is not None
        calls_no_model = request.request.crew is not None or spec.node is not None
        if calls_no_model or not (is_limited or (tenant and self.tenants.limits_dollars(tenant))):
            return  # each member's model is checked against the member's share of the crew's budget
        for name in (spec.model, *spec.fallbacks):
            if await self.prices.cost_micros(name, Usage(input_tokens=1000, output_tokens=1000)) is None:
                raise BadRequest(
                    f"the price of {name} is unknown, so a budget in dollars cannot be enforced: set a budget in tokens"
                    " or LOOM_UNKNOWN_PRICE: `assume` (the price of an expensive model) or `free` (no cost)",
                    field="budget.cost_usd",
                )

    def _clone(self, request: RunRequest, lineage: Lineage | None, origin: Origin) -> str:
        """Return the path of the clone that the run works in. Empty if it works in another folder."""
        if lineage is not None and lineage.checkout is not None:
            self.workspaces.refuse_checkout(origin, lineage.checkout)
            if request.workspace != lineage.checkout.folder:
                raise BadRequest("workspace: a sub-agent works in the clone of its root run", field="workspace")
            return lineage.checkout.folder
        if not isinstance(request.workspace, Repository):
            return ""
        if lineage is not None:
            raise BadRequest(
                "workspace: a sub-agent can't have a repository or an archive of its own", field="workspace"
            )
        return self.workspaces.folder_for(request.workspace, origin)

    async def _archive(self, workspace: Workspace | None, origin: Origin) -> str:
        """Store the archive that the run works on, and return its digest. Empty if it works on something else."""
        if not isinstance(workspace, ArchiveWorkspace):
            return ""
        return await self.archives.stored(workspace.archive, origin)

    def _workspace(self, named: Workspace | None, bounds: Bounds) -> Path:
        """Return the real path of the workspace. Nothing in it is read before it is known to be within the bounds."""
        if isinstance(named, Repository):
            raise BadRequest(f"workspace: {FORK}", field="workspace")
        if named and named == bounds.clone:
            return Path(named)  # it is made later, or on the worker that needs it
        try:
            path = (Path(named).expanduser() if named else self.default_workspace).resolve()
            is_folder = path.is_dir()
        except (OSError, RuntimeError, ValueError) as error:
            raise BadRequest(f"workspace {named!r} cannot be used: {error}", field="workspace") from None
        if named and not Path(named).expanduser().is_absolute():
            raise BadRequest(f"workspace {named!r} must be an absolute path on the worker", field="workspace")
        bounds.refuse_workspace(str(path))
        self.workspaces.refuse_folder(path)
        if not is_folder:
            raise BadRequest(f"workspace {str(path)!r} is not a folder on the worker; create it", field="workspace")
        return path


def _skipped(resolved: Equipped) -> list[str]:
    return [f"{problem.path}: {problem.why}" for problem in resolved.skipped[:MOST_TOLD]]


def _given(asked: T | None, default: T) -> T:
    return default if asked is None else asked
