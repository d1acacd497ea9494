"""From settings to the parts of a worker: one implementation for each port, and the activities made of them."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from activities.adapters.absent_stream import AbsentStream
from activities.adapters.embedders.choosing import chosen_embedder
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
from activities.adapters.snapshots.shadow_git import ShadowGit
from activities.adapters.transcripts import CachedTranscripts
from activities.adapters.web.html_reader import SeparateHtmlReader
from activities.adapters.web.web import PinnedFetcher
from activities.compress import Compressor
from activities.effects import Effects
from activities.knowledge.ports import KnowledgeStore
from activities.llm import LanguageModel
from activities.planning import CallPlanner, Planner
from activities.ports import (
    ArtifactStore,
    EventStream,
    Prices,
    Providers,
    StreamRedactor,
    ToolBox,
    TranscriptStore,
)
from activities.prepare import Preparation
from activities.progress import Progress
from activities.toolbox.builtin import built_in_tools
from activities.toolbox.http_fetch import http_fetch_tool
from activities.toolbox.hygiene import Hygiene
from activities.toolbox.joined import JoinedBoxes
from activities.toolbox.knowledge import knowledge_tools
from activities.toolbox.made_tools import MadeTools
from activities.tools import ToolRunner
from loom_domain.agent_definitions import AgentDefinition
from loom_domain.agents import AgentSpec
from loom_domain.mcp import read_servers
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
    hygiene: Hygiene
    effects: Effects
    made: MadeTools
    masked: Callable[[], StreamRedactor]
    refuse_changed_tools: bool = False

    @property
    def planner(self) -> Planner:
        """What says of calls whether they may run."""
        return Planner(tools=self.tools, made=self.made, hooks=self.registry.hooks)

    def activities(self, search_attributes: Callable[[], Any]) -> list[Callable[..., Any]]:
        """Every activity of Loom."""
        model = LanguageModel(
            providers=self.providers,
            tools=self.tools,
            planner=self.planner,
            transcripts=self.transcripts,
            stream=self.stream,
            redact=self.hygiene.clean,
            prices=self.prices,
            refuse_changed_tools=self.refuse_changed_tools,
        )
        preparation = Preparation(
            agents={"default": AgentDefinition(name="default"), **self.registry.agents},
            default=self.default,
            servers=[server.name for server in self.registry.mcp_servers],
            default_workspace=self.workspace,
            providers=self.providers,
            tools=self.tools,
            transcripts=self.transcripts,
            stream=self.stream,
            redact=self.hygiene.clean,
            search_attributes=search_attributes,
            ledger=self.effects.has_ledger,
        )
        runner = ToolRunner(
            tools=self.tools,
            transcripts=self.transcripts,
            stream=self.stream,
            hygiene=self.hygiene,
            effects=self.effects,
            made=self.made,
            masked=self.masked,
        )
        compressor = Compressor(
            providers=self.providers,
            transcripts=self.transcripts,
            stream=self.stream,
            redact=self.hygiene.clean,
            prices=self.prices,
        )
        progress = Progress(self.stream)
        return [
            preparation.prepare_run,
            model.call_model,
            runner.run_tool,
            CallPlanner(planner=self.planner, stream=self.stream).plan_calls,
            compressor.compress_context,
            progress.publish,
        ]


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
    )


@asynccontextmanager
async def parts_from(settings: Settings) -> AsyncIterator[Parts]:
    """The real parts for these settings; closes what it opened."""
    async with AsyncExitStack() as stack:
        providers = ConfiguredProviders(
            openai_api_key=secret_of(settings.openai_api_key),
            openai_base_url=settings.openai_base_url,
            anthropic_api_key=secret_of(settings.anthropic_api_key),
            anthropic_base_url=settings.anthropic_base_url,
        )
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
        embedder = chosen_embedder(
            settings.embedder,
            api_key=secret_of(settings.openai_api_key) or "",
            base_url=settings.openai_base_url,
        )
        if embedder is not None:
            stack.push_async_callback(embedder.aclose)
        knowledge = PostgresKnowledge(database, embedder=embedder) if database else None
        mask = secret_mask(settings)
        sandbox, why_not = find_sandbox(settings.sandbox, [settings.home], settings.sandbox_limits)
        made = MadeTools(sandbox=sandbox, missing=why_not, timeout=settings.tool_timeout)
        registry = registry_from(settings, made, artifacts=artifacts, knowledge=knowledge)
        servers = McpServers(registry.mcp_servers, environment=os.environ, home=settings.home)
        await stack.enter_async_context(servers)
        yield Parts(
            registry=registry,
            default=default_agent(settings),
            workspace=Path(settings.workspace or Path.cwd()),
            providers=providers,
            prices=GenaiPrices(
                openai_base_url=settings.openai_base_url, anthropic_base_url=settings.anthropic_base_url
            ),
            tools=JoinedBoxes(registry.tools, servers.tools),
            transcripts=transcripts,
            stream=AbsentStream() if link is None else RedisStream(link),
            hygiene=Hygiene(mask, artifacts),
            masked=lambda: StreamingMask(mask),
            made=made,
            effects=Effects(
                ledger=PostgresEffects(database) if database else None,
                snapshots=ShadowGit(settings.home) if settings.snapshots != "off" else None,
                when_no_snapshot="refuse" if settings.snapshots == "required" else "warn",
            ),
            refuse_changed_tools=settings.on_changed_manifest == "refuse",
        )


def registry_from(
    settings: Settings,
    made: MadeTools,
    *,
    artifacts: ArtifactStore | None = None,
    knowledge: KnowledgeStore | None = None,
) -> Registry:
    """The built-in tools with what the app and the enabled packages bring; raises BadRequest for what clashes."""
    fetcher = PinnedFetcher(allowed_private=settings.fetch_allow)
    built_in = built_in_tools(
        sandbox=made.sandbox,
        no_sandbox=made.missing,
        shell_parser=BashParser(),
        tool_timeout=settings.tool_timeout,
        artifacts=artifacts,
        others=(
            http_fetch_tool(fetcher, SeparateHtmlReader(), settings.tool_timeout),
            *knowledge_tools(knowledge),
            *([made.maker()] if settings.dynamic_tools == "on" else []),
        ),
    )
    return collect(
        built_in=built_in,
        app=settings.app,
        packages=settings.packages,
        tool_timeout=settings.tool_timeout,
        servers=read_servers(settings.mcp),
    )


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
