"""The parts of a worker, with one implementation for each port, and the activities that use these parts."""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loom.activities.adapters.definition_files import DefinitionFiles
from loom.activities.adapters.mcp.servers import McpServers
from loom.activities.admit_moved_run import AdmitMovedRun
from loom.activities.archives import Archives
from loom.activities.bus import Transport
from loom.activities.call_model import LanguageModel
from loom.activities.child_runs import ChildRuns
from loom.activities.compress_context import Compressor
from loom.activities.conduct_crew import CrewConductor
from loom.activities.crew_lookup import Crews
from loom.activities.effects import Effects
from loom.activities.encryption import Cipher
from loom.activities.evaluate_answer import Evaluator
from loom.activities.file_access import FileAccess
from loom.activities.forks import Forks
from loom.activities.knowledge.ports import KnowledgeStore
from loom.activities.leases import Leases
from loom.activities.manifest import Manifests, agent_digest, manifest_of, own_parts
from loom.activities.memory.ports import Embedder
from loom.activities.metering import Meters
from loom.activities.notifications import Notifications, Notifier, Receiver
from loom.activities.part_storing import PartKeeper
from loom.activities.plan_calls import CallPreparer, CallReviewer
from loom.activities.ports import (
    ArtifactStore,
    ChildRunsOnServer,
    EventStream,
    PartStore,
    Pasts,
    Prices,
    Providers,
    StreamRedactor,
    ToolSet,
    TranscriptStore,
    UsedStarts,
    WorkspaceLookup,
)
from loom.activities.prepare_run import Preparation
from loom.activities.publish import Progress
from loom.activities.quick_reads import QuickReads
from loom.activities.recall import AppSource, InheritedNotes, Knowledge, PersonMemory, RecallSource, SessionMemory
from loom.activities.run_hook import HookRunner
from loom.activities.run_node import NodeRunner
from loom.activities.run_tool import ToolRunner
from loom.activities.run_workspaces import RunWorkspaces
from loom.activities.sample_model import Sampler
from loom.activities.skills import RunSkills, SkillLibrary
from loom.activities.start_gate import StartGate
from loom.activities.tenants.gate import TenantGate
from loom.activities.tenants.one_worker import OneWorkerTenants
from loom.activities.tenants.ports import TenantQueue, WaitingRuns
from loom.activities.toolbox.output_sanitizer import OutputSanitizer
from loom.activities.toolbox.tool_sets import RunTools
from loom.activities.traces import SpanOutbox, TracedSource
from loom.activities.workspace_steps import WorkspaceSteps
from loom.app.extensions import Extensions
from loom.app.forms.crew import read_crew
from loom.app.registry import Registry
from loom.composition.memory import WorkerMemory
from loom.domain.agents.definitions import AgentDefinition, spec_of
from loom.domain.agents.hooks import steps_of
from loom.domain.agents.inheritance import DEFAULT_AGENT
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import NodeFailedError
from loom.domain.core.notifications import Channel, NotifyPlan
from loom.domain.core.tenants import TenantLimits
from loom.domain.permissions.bounds import Bounds
from loom.domain.permissions.obeyed import WorkerFiles
from loom.domain.run.activity_payloads import ModelReply
from loom.domain.tree.lineage import TreeLimits

if TYPE_CHECKING:
    from loom.activities.approval_keys import ApprovalKeys
    from loom.activities.approval_proofs import OwnRules, ProofCheck


@dataclass(frozen=True, kw_only=True)
class WorkerParts:
    """The components that activities are built from, with one implementation for each port."""

    registry: Registry
    connections: AsyncExitStack
    """The connections that these components have opened. Closing the stack closes all of them."""
    servers: McpServers
    default: AgentSpec
    """The default spec. An agent inherits these values unless its definition overrides them."""
    workspace: Path
    home: Path
    """The folder with Loom's own state."""
    bounds: Bounds
    """The workspaces and modes that the worker serves."""
    owner_bounds: Bounds
    """The same for runs that the owner of the worker's key has signed."""
    providers: Providers
    prices: Prices
    tools: ToolSet
    transcripts: TranscriptStore
    stream: EventStream
    transport: Transport | None
    cipher: Cipher
    """Encrypts what this worker keeps in Redis and Postgres."""
    """Delivers the tasks on the bus. None if the worker has no bus."""
    artifacts: ArtifactStore | None
    attachments: PartStore | None
    """Stores images, recordings and files. None if the worker has no database."""
    embedder: Embedder | None
    extensions: Extensions
    """The implementations of Loom's ports that the app registers."""
    sanitizer: OutputSanitizer
    effects: Effects
    model_calls: Leases[ModelReply] | None
    node_calls: Leases[ModelReply | NodeFailedError] | None
    """None if the worker has no database."""
    own: RunTools
    skills: SkillLibrary
    memory: WorkerMemory | None
    """The memory that runs read from, or None if memory is off."""
    knowledge: KnowledgeStore | None
    withheld: frozenset[str]
    """Tools that rules and agents may refer to, but that no run has."""
    masked: Callable[[], StreamRedactor]
    """Redacts a tool's partial output, and emits complete lines."""
    masked_words: Callable[[], StreamRedactor]
    """Redacts a model's text, and emits complete words."""
    gate: StartGate
    """Decides which runs may start."""
    archives: Archives
    """The archives that runs work on."""
    workspaces: RunWorkspaces
    """The clones of repositories that runs work in."""
    workspace_steps: WorkspaceSteps
    """Returns the changes to these repositories."""
    approval_keys: "ApprovalKeys | None" = None
    """The keys that approvals must be proven with. None if they need no proof."""
    used_proofs: UsedStarts | None = None
    """Records which proofs have been used. None if the worker has no database."""
    meters: Meters | None = None
    """Records what is measured. None if the worker has no metrics."""
    spans: SpanOutbox | None = None
    """The spans that the parts add to traces. None if the worker exports no traces."""
    notify: NotifyPlan | None = None
    """Whom runs tell what waits for people."""
    receivers: Mapping[Channel, Receiver] = field(default_factory=dict)
    """The receivers of these notifications."""
    obeyed: Callable[[str], WorkerFiles] | None = None
    """Returns the files that this worker reads as code or instructions, for a workspace."""
    definitions: DefinitionFiles | None = None
    """The worker's agent, crew and skill files."""
    refuse_changed_tools: bool = False
    quick_reads: bool = True
    """Whether the quick reads of new runs run in the activity that called the model."""
    limits: TreeLimits = field(default_factory=TreeLimits)
    """The limits on run trees."""
    tenants: Mapping[str, TenantLimits] = field(default_factory=dict)
    """The limits of tenants."""
    tenant_queue: TenantQueue = field(default_factory=OneWorkerTenants)

    @property
    def planner(self) -> CallPreparer:
        """Return the component that decides whether a call may run."""
        return CallPreparer(
            tools=self.tools,
            own=self.own,
            sanitizer=self.sanitizer,
            registered=self.registry.hooks_for if self.registry.hooks else None,
            agents=sorted(self.registry.agents),
            obeyed=self.obeyed,
            own_rules=self._own_rules.of if self.approval_keys else None,
            workspaces=self.workspaces,
        )

    @property
    def _own_rules(self) -> "OwnRules":
        from loom.activities.approval_proofs import OwnRules  # noqa: PLC0415 - most workers need no proofs

        return OwnRules(
            {name: spec_of(agent, self.default) for name, agent in self.registry.agents.items()}, self.default
        )

    @property
    def _proof_check(self) -> "ProofCheck | None":
        if self.approval_keys is None:
            return None
        from loom.activities.approval_proofs import ProofCheck  # noqa: PLC0415 - as above

        return ProofCheck(self.approval_keys, self._own_rules, used=self.used_proofs, obeyed=self.obeyed)

    @property
    def part_keeper(self) -> PartKeeper:
        """Return the component that stores images, recordings and files."""
        return PartKeeper(self.attachments, self.tools, self.sanitizer, self.planner)

    @property
    def run_skills(self) -> RunSkills:
        """Return the component that provides runs with their skills."""
        return RunSkills(library=self.skills, tools=self.own.skills)

    def _manifests(self, agents: Mapping[str, AgentDefinition]) -> Manifests:
        parts = {name: self._manifest(agent) for name, agent in agents.items()}
        return Manifests(
            agents=parts,
            own=own_parts(
                tools=self.registry.tool_code,
                hooks=self.registry.hook_code,
                nodes=self.registry.node_code,
                agents={name: agent_digest(agents[name], of) for name, of in parts.items()},
            ),
            tools=self.tools,
            transcripts=self.transcripts,
            refuse=self.refuse_changed_tools,
        )

    def _manifest(self, agent: AgentDefinition) -> Mapping[str, str]:
        hooks = steps_of(self.registry.hooks, agent.name, agent.hooks)
        return manifest_of(replace(spec_of(agent, self.default), hooks=hooks))

    def activities(
        self,
        search_attributes: Callable[[], Any],
        pasts: Pasts,
        waiting: WaitingRuns,
        children: ChildRunsOnServer,
        notifications: Notifications,
        *,
        lookup: WorkspaceLookup,
    ) -> list[Callable[..., Any]]:
        """Return all of Loom's activities."""
        agents = {DEFAULT_AGENT: AgentDefinition(name=DEFAULT_AGENT), **self.registry.agents}
        manifests = self._manifests(agents)
        tenants = TenantGate(limits=self.tenants, queue=self.tenant_queue, runs=waiting)
        preparation = Preparation(
            agents=agents,
            manifests=manifests,
            hooks=self.registry.hooks,
            default=self.default,
            servers=[server.name for server in self.registry.mcp_servers],
            default_workspace=self.workspace,
            bounds=self.bounds,
            owner_bounds=self.owner_bounds,
            providers=self.providers,
            prices=self.prices,
            tools=self.tools,
            withheld=self.withheld,
            skills=self.run_skills,
            transcripts=self.transcripts,
            stream=self.stream,
            redact=self.sanitizer.clean,
            search_attributes=search_attributes,
            ledger=self.effects.has_ledger,
            quick_reads=self.quick_reads and self.model_calls is not None,
            limits=self.limits,
            crews=Crews(self.registry.crews, read_crew),
            gate=self.gate,
            tenants=tenants,
            notify=self.notify,
            archives=self.archives,
            workspaces=self.workspaces,
            proofs=self.approval_keys is not None,
            parts=self.part_keeper,
            forks=Forks(pasts=pasts, transcripts=self.transcripts, artifacts=self.artifacts, parts=self.part_keeper),
        )
        hooks = HookRunner(
            registered=self.registry.hooks, stream=self.stream, redact=self.sanitizer.clean, manifests=manifests
        )
        child_runs = ChildRuns(children)
        notifier = Notifier(receivers=self.receivers, notifications=notifications, redact=self.sanitizer.clean)
        arrivals = AdmitMovedRun(
            gate=self.gate,
            bounds=self.bounds,
            owner_bounds=self.owner_bounds,
            ledger=self.effects.has_ledger,
            notify=self.notify,
            search_attributes=search_attributes,
            redact=self.sanitizer.clean,
            workspaces=self.workspaces,
        )
        files = FileAccess(
            lookup=lookup,
            workspaces=self.workspaces,
            gate=self.gate,
            bounds=self.bounds,
            owner_bounds=self.owner_bounds,
            planner=self.planner,
            tools=self.tools,
            obeyed=self.obeyed,
            own_rules=self._own_rules.of if self.approval_keys else None,
            contents=self.attachments,
            home=self.home,
            redact=self.sanitizer.clean,
        )
        reviewer = CallReviewer(planner=self.planner, stream=self.stream)
        return [
            preparation.prepare_run,
            self.workspace_steps.prepare_workspace,
            self.workspace_steps.store_change,
            self.workspace_steps.push_change,
            arrivals.admit_moved_run,
            files.access_files,
            tenants.await_admission,
            tenants.leave_tenant,
            hooks.run_hook,
            child_runs.await_child,
            child_runs.abort_orphans,
            *self._model_activities(manifests, runner := self._tool_runner(manifests)),
            runner.run_tool,
            runner.run_tool_in_clone,
            self.part_keeper.store_parts,
            reviewer.plan_calls,
            reviewer.plan_calls_in_clone,
            Progress(self.stream, self.notify).publish,
            notifier.notify,
            notifier.deliver_notification,
        ]

    def _model_activities(self, manifests: Manifests, runner: ToolRunner) -> list[Callable[..., Any]]:
        """Return the activities that write, compress or rate messages."""
        leases = self.model_calls
        model = LanguageModel(
            providers=self.providers,
            planner=self.planner,
            transcripts=self.transcripts,
            stream=self.stream,
            redact=self.sanitizer.clean,
            masked=self.masked_words,
            prices=self.prices,
            manifests=manifests,
            sources=self._sources(),
            app_sources=self._app_sources(),
            people=PersonMemory(self.memory.people, self.memory.limits) if self.memory is not None else None,
            leases=leases,
            quick_reads=QuickReads(runner, leases) if leases else None,
        )
        conductor = CrewConductor(
            transcripts=self.transcripts,
            stream=self.stream,
            artifacts=self.artifacts,
            embedder=self.embedder,
            planner=self.planner,
            redact=self.sanitizer.clean,
            manifests=manifests,
        )
        nodes = NodeRunner(
            nodes=self.registry.nodes,
            transcripts=self.transcripts,
            stream=self.stream,
            redact=self.sanitizer.clean,
            manifests=manifests,
            leases=self.node_calls,
        )
        compressor = Compressor(
            providers=self.providers,
            transcripts=self.transcripts,
            stream=self.stream,
            redact=self.sanitizer.clean,
            prices=self.prices,
            own=self.extensions.compressor,
        )
        evaluator = Evaluator(
            providers=self.providers,
            transcripts=self.transcripts,
            stream=self.stream,
            redact=self.sanitizer.clean,
            prices=self.prices,
        )
        sampler = Sampler(providers=self.providers, stream=self.stream, redact=self.sanitizer.clean, prices=self.prices)
        return [
            model.call_model,
            model.call_model_in_clone,
            conductor.conduct_crew,
            nodes.run_node,
            compressor.compress_context,
            evaluator.evaluate_answer,
            sampler.sample_model,
        ]

    def _tool_runner(self, manifests: Manifests) -> ToolRunner:
        return ToolRunner(
            tools=self.tools,
            transcripts=self.transcripts,
            stream=self.stream,
            sanitizer=self.sanitizer,
            effects=self.effects,
            own=self.own,
            masked=self.masked,
            registered=self.registry.hooks_for if self.registry.hooks else None,
            manifests=manifests,
            parts=self.part_keeper,
            workspaces=self.workspaces,
            definitions=self.definitions,
            proofs=self._proof_check,
        )

    def _app_sources(self) -> list[RecallSource]:
        """Return the app's own context sources."""
        named = self.extensions.context_sources.items()
        return [AppSource(name, source, self.sanitizer.clean) for name, source in named]

    def _sources(self) -> list[RecallSource]:
        """Return the sources that add content to a conversation when a person sends a message."""
        sources: list[RecallSource] = []
        if self.memory is not None:
            sources.append(InheritedNotes(self.memory.scoped, self.memory.limits))
            sources.append(SessionMemory(self.memory.store, self.memory.limits))
        if self.spans is not None:
            sources = [TracedSource(source, self.spans) for source in sources]
        return [*sources, Knowledge(self.knowledge)]
