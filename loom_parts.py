"""From settings to the parts of a worker: one implementation for each port, and the activities made of them."""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from activities.adapters.absent_stream import AbsentStream
from activities.adapters.embedders.choosing import chosen_embedder
from activities.adapters.embedders.offline import OfflineEmbedder
from activities.adapters.embedders.openai_embeddings import OpenAIEmbedder
from activities.adapters.mcp.mcp_servers import McpServers
from activities.adapters.models.prices import GenaiPrices
from activities.adapters.models.providers import ConfiguredProviders
from activities.adapters.postgres import Database
from activities.adapters.postgres_artifacts import PostgresArtifacts
from activities.adapters.postgres_effects import PostgresEffects
from activities.adapters.postgres_knowledge import PostgresKnowledge
from activities.adapters.redacting.known_secrets import secrets_of
from activities.adapters.redacting.redacting_stream import StreamingMask
from activities.adapters.redacting.redaction import SecretMask
from activities.adapters.redis_link import RedisLink
from activities.adapters.redis_stream import RedisStream
from activities.adapters.sandbox.bubblewrap import find_sandbox
from activities.adapters.shell.shell_parser import BashParser
from activities.adapters.skills.folders import SkillFolders
from activities.adapters.snapshots.shadow_git import ShadowGit
from activities.adapters.transcripts import CachedTranscripts
from activities.adapters.web.html_reader import SeparateHtmlReader
from activities.adapters.web.web import PinnedFetcher
from activities.compress import Compressor
from activities.context_sources import ContextSource, Knowledge, SessionMemory
from activities.crew_book import Crews
from activities.crews import Conductor
from activities.effects import Effects
from activities.evaluate import Evaluator
from activities.forking import Forks
from activities.knowledge.ports import KnowledgeStore
from activities.lifecycle import HookRunner
from activities.llm import LanguageModel
from activities.memory.ports import Embedder
from activities.planning import CallPlanner, Planner
from activities.ports import (
    ArtifactStore,
    EventStream,
    Pasts,
    Prices,
    Providers,
    StreamRedactor,
    ToolBox,
    TranscriptStore,
)
from activities.prepare import Preparation
from activities.progress import Progress
from activities.skills import RunSkills, SkillLibrary
from activities.toolbox.builtin import built_in_tools
from activities.toolbox.delegation import delegation_tool
from activities.toolbox.http_fetch import http_fetch_tool
from activities.toolbox.hygiene import Hygiene
from activities.toolbox.joined import JoinedBoxes, OwnTools
from activities.toolbox.knowledge import knowledge_tools
from activities.toolbox.made_tools import MadeTools
from activities.toolbox.memory import memory_tools
from activities.toolbox.messages import Mailbox
from activities.toolbox.plan import plan_tool
from activities.toolbox.scoped_memory import scoped_memory_tools
from activities.toolbox.skills import SkillTools
from activities.tools import ToolRunner
from loom_domain.agent_definitions import AgentDefinition, spec_of
from loom_domain.agents import AgentSpec
from loom_domain.extending import DEFAULT_AGENT
from loom_domain.hooks import steps_of
from loom_domain.lineage import TreeLimits
from loom_domain.manifest import manifest_of
from loom_domain.mcp import read_servers
from loom_domain.tool_calls import DELEGATE
from loom_memory import Remembering, memory_from
from loom_registry import agent_files, crew_files
from loom_registry.crew_form import read_crew
from loom_registry.registry import Registry, collect
from loom_settings import Settings


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What activities are built from: one implementation for each port."""

    registry: Registry
    default: AgentSpec
    """What an agent has where its definition says nothing."""
    workspace: Path
    providers: Providers
    prices: Prices
    tools: ToolBox
    transcripts: TranscriptStore
    stream: EventStream
    artifacts: ArtifactStore | None
    embedder: Embedder | None
    hygiene: Hygiene
    effects: Effects
    own: OwnTools
    skills: SkillLibrary
    memory: Remembering | None
    """What runs leave behind; None: nothing."""
    knowledge: KnowledgeStore | None
    masked: Callable[[], StreamRedactor]
    refuse_changed_tools: bool = False
    limits: TreeLimits = field(default_factory=TreeLimits)
    """How far trees of runs may grow."""

    @property
    def planner(self) -> Planner:
        """What says of calls whether they may run."""
        return Planner(
            tools=self.tools,
            own=self.own,
            hygiene=self.hygiene,
            registered=self.registry.hooks_for,
            agents=sorted(self.registry.agents),
        )

    @property
    def run_skills(self) -> RunSkills:
        """What gives runs their skills."""
        return RunSkills(library=self.skills, tools=self.own.skills)

    def _manifest(self, agent: AgentDefinition) -> Mapping[str, str]:
        hooks = steps_of(self.registry.hooks, agent.name, agent.hooks)
        return manifest_of(replace(spec_of(agent, self.default), hooks=hooks))

    def activities(self, search_attributes: Callable[[], Any], pasts: Pasts) -> list[Callable[..., Any]]:
        """Every activity of Loom."""
        agents = {DEFAULT_AGENT: AgentDefinition(name=DEFAULT_AGENT), **self.registry.agents}
        manifests = {name: self._manifest(agent) for name, agent in agents.items()}
        model = LanguageModel(
            providers=self.providers,
            tools=self.tools,
            planner=self.planner,
            transcripts=self.transcripts,
            stream=self.stream,
            redact=self.hygiene.clean,
            prices=self.prices,
            manifests=manifests,
            refuse_changed_tools=self.refuse_changed_tools,
            sources=self._sources(),
        )
        preparation = Preparation(
            agents=agents,
            manifests=manifests,
            hooks=self.registry.hooks,
            default=self.default,
            servers=[server.name for server in self.registry.mcp_servers],
            default_workspace=self.workspace,
            providers=self.providers,
            prices=self.prices,
            tools=self.tools,
            skills=self.run_skills,
            transcripts=self.transcripts,
            stream=self.stream,
            redact=self.hygiene.clean,
            search_attributes=search_attributes,
            ledger=self.effects.has_ledger,
            limits=self.limits,
            crews=Crews(self.registry.crews, read_crew),
            forks=Forks(pasts=pasts, transcripts=self.transcripts, artifacts=self.artifacts),
        )
        runner = ToolRunner(
            tools=self.tools,
            transcripts=self.transcripts,
            stream=self.stream,
            hygiene=self.hygiene,
            effects=self.effects,
            own=self.own,
            masked=self.masked,
            registered=self.registry.hooks_for,
        )
        compressor = Compressor(
            providers=self.providers,
            transcripts=self.transcripts,
            stream=self.stream,
            redact=self.hygiene.clean,
            prices=self.prices,
        )
        evaluator = Evaluator(
            providers=self.providers,
            transcripts=self.transcripts,
            stream=self.stream,
            redact=self.hygiene.clean,
            prices=self.prices,
        )
        progress = Progress(self.stream)
        conductor = Conductor(
            transcripts=self.transcripts,
            stream=self.stream,
            artifacts=self.artifacts,
            embedder=self.embedder,
            planner=self.planner,
            redact=self.hygiene.clean,
        )
        hooks = HookRunner(registered=self.registry.hooks, stream=self.stream, redact=self.hygiene.clean)
        return [
            preparation.prepare_run,
            hooks.run_hook,
            model.call_model,
            conductor.conduct_crew,
            runner.run_tool,
            CallPlanner(planner=self.planner, stream=self.stream).plan_calls,
            compressor.compress_context,
            evaluator.evaluate_answer,
            progress.publish,
        ]

    def _sources(self) -> list[ContextSource]:
        """What conversations are reminded of when people speak."""
        sources: list[ContextSource] = []
        if self.memory is not None:
            sources.append(SessionMemory(self.memory.store, self.memory.limits))
        if self.knowledge is not None:
            sources.append(Knowledge(self.knowledge))
        return sources


def default_agent(settings: Settings) -> AgentSpec:
    """The agent that is there without any configuration."""
    return AgentSpec(
        name="default",
        model=settings.model or "",
        fallbacks=settings.fallback_models,
        max_output_tokens=settings.max_output_tokens,
        temperature=settings.temperature,
        parallel_limit=settings.parallel_limit,
        approval_timeout=settings.approval_timeout,
        max_turns=settings.max_turns,
        rotate_after_events=settings.rotate_after_events,
        context_window=settings.context_window,
        collapse_at=settings.collapse_at,
        warn_at=settings.warn_at,
        compress_at=settings.compress_at,
        compress_target=settings.compress_target,
        section_tokens=settings.section_tokens,
        loop_window=settings.loop_window,
        evaluates=settings.evaluation == "on",
    )


@asynccontextmanager
async def parts_from(settings: Settings, mailbox: Mailbox | None = None) -> AsyncIterator[Parts]:
    """The real parts for these settings; closes what it opened. Without a mailbox agents cannot write to each other."""
    async with AsyncExitStack() as stack:
        providers = _providers(settings)
        stack.push_async_callback(providers.aclose)
        link = RedisLink(settings.redis_url) if settings.redis_url else None
        transcripts = CachedTranscripts(link)
        if link is not None:
            stack.push_async_callback(link.aclose)
        stack.push_async_callback(transcripts.aclose)
        database = Database(settings.database_url) if settings.database_url else None
        if database is not None:
            stack.push_async_callback(database.aclose)
        artifacts = PostgresArtifacts(database) if database else None
        embedder = embedder_from(settings)
        if embedder is not None:
            stack.push_async_callback(embedder.aclose)
        knowledge = PostgresKnowledge(database, embedder=embedder) if database else None
        mask = secret_mask(settings)
        sandbox, why_not = find_sandbox(settings.sandbox, [settings.home], settings.sandbox_limits)
        made = MadeTools(sandbox=sandbox, missing=why_not)
        memory = memory_from(settings, database, embedder, providers)
        registry = registry_from(
            settings, made, artifacts=artifacts, mailbox=mailbox, knowledge=knowledge, memory=memory
        )
        servers = McpServers(registry.mcp_servers, environment=os.environ, home=settings.home)
        await stack.enter_async_context(servers)
        yield Parts(
            registry=registry,
            default=default_agent(settings),
            workspace=Path(settings.workspace or Path.cwd()),
            providers=providers,
            prices=GenaiPrices(
                openai_base_url=settings.openai_base_url,
                anthropic_base_url=settings.anthropic_base_url,
                unknown=settings.unknown_price,
            ),
            tools=JoinedBoxes(registry.tools, servers.tools),
            transcripts=transcripts,
            stream=AbsentStream() if link is None else RedisStream(link),
            artifacts=artifacts,
            embedder=embedder,
            hygiene=Hygiene(mask, artifacts),
            masked=lambda: StreamingMask(mask),
            own=OwnTools(made=made, skills=skill_tools(settings, made)),
            skills=skills_from(settings, registry),
            memory=memory,
            knowledge=knowledge,
            effects=_effects(settings, database),
            refuse_changed_tools=settings.on_changed_manifest == "refuse",
            limits=TreeLimits(depth=settings.max_depth, children=settings.max_children),
        )


def _providers(settings: Settings) -> ConfiguredProviders:
    return ConfiguredProviders(
        openai_api_key=secret_of(settings.openai_api_key),
        openai_base_url=settings.openai_base_url,
        anthropic_api_key=secret_of(settings.anthropic_api_key),
        anthropic_base_url=settings.anthropic_base_url,
    )


def _effects(settings: Settings, database: Database | None) -> Effects:
    return Effects(
        ledger=PostgresEffects(database) if database else None,
        snapshots=ShadowGit(settings.home) if settings.snapshots != "off" else None,
        when_no_snapshot="refuse" if settings.snapshots == "required" else "warn",
    )


def embedder_from(settings: Settings) -> OfflineEmbedder | OpenAIEmbedder | None:
    """What makes vectors for knowledge, or None; whoever asks for it closes it."""
    key = secret_of(settings.openai_api_key) or ""
    return chosen_embedder(settings.embedder, api_key=key, base_url=settings.openai_base_url)


def registry_from(
    settings: Settings,
    made: MadeTools,
    *,
    artifacts: ArtifactStore | None = None,
    mailbox: Mailbox | None = None,
    knowledge: KnowledgeStore | None = None,
    memory: Remembering | None = None,
    files: Sequence[Path] = (),
) -> Registry:
    """The built-in tools with what the app and the enabled packages bring; raises BadRequest for what clashes."""
    fetcher = PinnedFetcher(allowed_private=settings.fetch_allow)
    built_in = built_in_tools(
        sandbox=made.sandbox,
        no_sandbox=made.missing,
        shell_parser=BashParser(),
        tool_timeout=settings.tool_timeout,
        artifacts=artifacts,
        mailbox=mailbox,
        others=(
            http_fetch_tool(fetcher, SeparateHtmlReader(), settings.tool_timeout),
            delegation_tool({}),
            plan_tool(),
            *knowledge_tools(knowledge),
            *(memory_tools(memory.store) if memory else ()),
            *(scoped_memory_tools(memory.scoped) if memory else ()),
            *skill_tools(settings, made).tools(),
            *([made.maker()] if settings.dynamic_tools == "on" else []),
        ),
    )
    registry = collect(
        built_in=built_in,
        app=settings.app,
        packages=settings.packages,
        tool_timeout=settings.tool_timeout,
        servers=read_servers(settings.mcp),
        agents=(settings.home / agent_files.FOLDER, *settings.agents),
        crews=(settings.home / crew_files.FOLDER, *settings.crews),
        files=files,
    )
    # Only now it is known whom work can be given to.
    return replace(registry, tools={**registry.tools, DELEGATE: delegation_tool(registry.agents)})


def skill_tools(settings: Settings, made: MadeTools) -> SkillTools:
    """What makes the tools of runs with skills, whose scripts run where made tools do."""
    return SkillTools(sandbox=made.sandbox, missing=made.missing, timeout=settings.tool_timeout)


def skills_from(settings: Settings, registry: Registry) -> SkillFolders:
    """Where this worker's runs find skills."""
    return SkillFolders(home=settings.skills_home, trusted=settings.trusted_folders, others=registry.skills)


def secret_mask(settings: Settings) -> SecretMask:
    """What takes this worker's own secrets, and whatever looks like one, out of text."""
    own = {name: value for name, value in settings if isinstance(value, SecretStr | str)}
    told = {
        f"setting_{name}": secret_of(value) if isinstance(value, SecretStr) else value for name, value in own.items()
    }
    return SecretMask(secrets_of({**{name: value for name, value in told.items() if value}, **os.environ}))


def secret_of(value: SecretStr | None) -> str | None:
    """The text of a setting that is a secret."""
    return None if value is None else value.get_secret_value()
