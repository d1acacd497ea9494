"""Create a worker's parts from the settings, and open and close them."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar
from uuid import uuid4

from loom.activities.adapters.documents.readers import SeparateDocumentReader
from loom.activities.adapters.embedders.offline import OfflineEmbedder
from loom.activities.adapters.embedders.openai_embeddings import OpenAIEmbedder
from loom.activities.adapters.embedders.selection import chosen_embedder
from loom.activities.adapters.git.clones import RunClones
from loom.activities.adapters.in_process_permits import InProcessPermits
from loom.activities.adapters.mcp.servers import McpServers
from loom.activities.adapters.models.prices import GenaiPrices
from loom.activities.adapters.models.providers import ConfiguredProviders
from loom.activities.adapters.postgres.artifacts import PostgresArtifacts
from loom.activities.adapters.postgres.clones import PostgresClonePatches
from loom.activities.adapters.postgres.database import Database
from loom.activities.adapters.postgres.effects import PostgresAnswers, PostgresEffects, PostgresReplies
from loom.activities.adapters.postgres.knowledge import PostgresKnowledge
from loom.activities.adapters.postgres.parts import PostgresParts
from loom.activities.adapters.postgres.tenants import PostgresTenants
from loom.activities.adapters.postgres.used_starts import PostgresUsedStarts
from loom.activities.adapters.redaction.mask import WORDS, StreamingMask
from loom.activities.adapters.redis.bus import RedisBus
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.permits import RecentPermits, RedisPermits
from loom.activities.adapters.redis.stream import RedisStream
from loom.activities.adapters.redis.transcripts import CachedTranscripts
from loom.activities.adapters.sandbox.bubblewrap import find_sandbox
from loom.activities.adapters.snapshots.shadow_git import ShadowGit
from loom.activities.archives import Archives
from loom.activities.bus import Transport
from loom.activities.bus_stream import BusStream
from loom.activities.effects import Effects
from loom.activities.encryption import PLAIN, Cipher
from loom.activities.extensions import AppEmbedder
from loom.activities.leases import Leases
from loom.activities.memory.question_vector import IN_A_RUN
from loom.activities.metering import MeasuredPermits, MeasuredProviders, MeasuredStream, Meters
from loom.activities.model_permits import PermitRules, Permits
from loom.activities.parts_for_models import PartLoader
from loom.activities.ports import EventStream, Pasts, Providers
from loom.activities.publish import AbsentStream
from loom.activities.run_workspaces import RunWorkspaces
from loom.activities.start_gate import SigningKey, StartGate
from loom.activities.tenants.metered import MeteredProviders
from loom.activities.tenants.one_worker import OneWorkerTenants
from loom.activities.toolbox.built_in.made_tools import MadeTools
from loom.activities.toolbox.built_in.message_agent import Mailbox
from loom.activities.toolbox.built_in.python_sessions import PythonSessions
from loom.activities.toolbox.output_sanitizer import OutputSanitizer
from loom.activities.toolbox.tool_sets import JoinedToolSets, RunTools
from loom.activities.traces import SpanOutbox
from loom.activities.workspace_steps import WorkspaceSteps
from loom.app.extensions import Extensions
from loom.app.loom_app import LoomApp
from loom.composition.bus import transport_from
from loom.composition.encryption import Encryption, encryption_from
from loom.composition.extensions import extensions_from
from loom.composition.memory import memory_from
from loom.composition.notifications import notify_plan, receivers_from
from loom.composition.secret_mask import secret_mask, secret_of
from loom.composition.settings import Settings
from loom.composition.tool_registry import hidden_tools, registry_from, skill_tools, skills_from
from loom.composition.worker_files import FilesOfWorker
from loom.composition.worker_parts import WorkerParts
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.repositories import Repositories
from loom.domain.tree.lineage import TreeLimits

if TYPE_CHECKING:
    from loom.activities.approval_keys import ApprovalKeys


@asynccontextmanager
async def parts_from(
    settings: Settings, *, app: LoomApp | None = None, opens_dependencies: bool = True
) -> AsyncIterator[WorkerParts]:
    """Yield the parts for these settings. The parts stay open until the body of the `with` block ends.

    The parts have no mailbox, so agents can't send messages to each other.
    """
    parts = parts_for(settings, app=app)
    async with opened(parts, opens_dependencies=opens_dependencies):
        yield parts


@asynccontextmanager
async def opened(parts: WorkerParts, *, opens_dependencies: bool = True) -> AsyncIterator[None]:
    """Open the app's dependencies and connect to the MCP servers.

    All connections are closed when the body of the `with` block ends.

    Raises BadRequest if one of the app's factories fails.
    """
    async with parts.connections as stack:
        if opens_dependencies:
            await stack.enter_async_context(parts.registry.dependencies.opened())
        await stack.enter_async_context(parts.servers)
        yield


class _Closable(Protocol):
    async def aclose(self) -> None: ...


P = TypeVar("P", bound=_Closable | None)


def parts_for(
    settings: Settings,
    *,
    app: LoomApp | None = None,
    mailbox: Mailbox | None = None,
    pasts: Pasts | None = None,
    key: SigningKey | None = None,
    meters: Meters | None = None,
    encryption: Encryption | None = None,
) -> WorkerParts:
    """Return the production parts for these settings, without connecting them to any service.

    `app` overrides the app named in the settings. Without a mailbox, agents can't send messages to each other. Without
    `pasts`, they can't search their runs' histories. Without a key, no run counts as started by the owner. Without
    meters, nothing is measured. Without `encryption`, the parts have keys of their own, from the settings. Raises
    BadRequest if the app can't be loaded.
    """
    connections = AsyncExitStack()
    if encryption is None:
        encryption = _closed_with(connections, encryption_from(settings))
    cipher = encryption.cipher
    link = _closed_with(connections, _redis(settings, cipher))
    transcripts = CachedTranscripts(link)
    # A permit that Redis doesn't give in time must not cost a run its live events.
    permits_link = _closed_with(connections, _redis(settings))
    url = settings.database_url
    database = _closed_with(connections, Database(url, cipher=cipher) if url else None)
    attachments = PostgresParts(database) if database else None
    loader = PartLoader(attachments, SeparateDocumentReader())
    permits = _permits(settings, permits_link)
    providers = _providers(settings, permits if meters is None else MeasuredPermits(permits, meters), loader)
    _closed_with(connections, providers)
    _closed_with(connections, transcripts)
    artifacts = PostgresArtifacts(database) if database else None
    extensions = extensions_from(settings, app)
    transport = _closed_with(connections, transport_from(settings, extensions.transport, cipher))
    embedder = _closed_with(connections, embedder_from(settings, extensions))
    knowledge = extensions.knowledge_store
    if knowledge is None and database is not None:
        knowledge = PostgresKnowledge(database, embedder=embedder, question_within=IN_A_RUN)
    mask = secret_mask(settings)
    obeyed = FilesOfWorker(settings)
    sandbox, why_not = find_sandbox(
        settings.sandbox,
        settings.private_paths,
        settings.sandbox_limits,
        settings.sandbox_readable,
        settings.sandbox_environment,
        obeyed=obeyed,
    )
    made = MadeTools(sandbox=sandbox, missing=why_not)
    sessions = PythonSessions(sandbox, most=settings.python_sessions, idle=settings.python_idle) if sandbox else None
    _closed_with(connections, sessions)
    memory = memory_from(settings, database, embedder, providers, extensions.memory_store)
    registry = registry_from(
        settings,
        made,
        app=app,
        sessions=sessions,
        artifacts=artifacts,
        mailbox=mailbox,
        pasts=pasts,
        knowledge=knowledge,
        memory=memory,
    )
    obeyed.add(registry)
    providers.register(registry.providers)
    prices = GenaiPrices(
        openai_base_url=settings.openai_base_url,
        anthropic_base_url=settings.anthropic_base_url,
        unknown=settings.unknown_price,
        own=settings.prices,
    )
    counted = PostgresTenants(database) if database else OneWorkerTenants()
    # Only this process has the calls that a server keeps open, so their answers come on a queue of its own.
    own_queue = f"{settings.task_queue}-{uuid4().hex}"
    starts = PostgresUsedStarts(database) if database else None
    servers = McpServers(registry.mcp_servers, environment=os.environ, home=settings.home, own_queue=own_queue)
    called: Providers = providers
    if settings.tenants:
        called = MeteredProviders(called, limits=settings.tenants, accounts=counted, prices=prices)
    stream = _stream(link, transport)
    sanitizer = OutputSanitizer(mask, artifacts)
    clones = RunClones(settings.clones_folder, settings.home, sanitizer.clean)
    repositories = Repositories(clone=settings.repositories, push=settings.push_repositories)
    archives = Archives(attachments)
    workspaces = RunWorkspaces(
        clones=clones,
        repositories=repositories,
        archives=archives,
        patches=PostgresClonePatches(database) if database else None,
        redact=sanitizer.clean,
    )
    return WorkerParts(
        registry=registry,
        connections=connections,
        servers=servers,
        default=default_agent(settings),
        workspace=Path(settings.workspace or Path.cwd()),
        home=settings.home,
        bounds=settings.bounds,
        owner_bounds=settings.owner_bounds,
        providers=called if meters is None else MeasuredProviders(called, meters),
        prices=prices,
        tools=JoinedToolSets(registry.tools, servers.tools) if registry.mcp_servers else registry.tools,
        transcripts=transcripts,
        transport=transport,
        cipher=cipher,
        stream=stream if meters is None else MeasuredStream(stream, meters),
        artifacts=artifacts,
        attachments=attachments,
        embedder=embedder,
        extensions=extensions,
        sanitizer=sanitizer,
        masked=partial(StreamingMask, mask),
        masked_words=partial(StreamingMask, mask, ends=WORDS),
        own=RunTools(made=made, skills=skill_tools(settings, made)),
        skills=skills_from(settings, registry),
        memory=memory,
        knowledge=knowledge,
        withheld=hidden_tools(settings),
        effects=_effects(settings, database),
        model_calls=Leases(PostgresReplies(database)) if database else None,
        node_calls=Leases(PostgresAnswers(database)) if database else None,
        meters=meters,
        spans=SpanOutbox(meters) if settings.otlp_endpoint and settings.redis_url else None,
        notify=notify_plan(settings),
        receivers=receivers_from(settings),
        archives=archives,
        workspaces=workspaces,
        workspace_steps=WorkspaceSteps(
            workspaces=workspaces,
            clones=clones,
            repositories=repositories,
            archives=archives,
            artifacts=artifacts,
            push_ci_files=settings.push_ci_files == "on",
            redact=sanitizer.clean,
        ),
        gate=StartGate(
            key,
            requires_signature=settings.require_signed == "on",
            starts=starts,
        ),
        approval_keys=_approval_keys(settings),
        used_proofs=starts,
        obeyed=obeyed,
        definitions=obeyed.definitions,
        refuse_changed_tools=settings.on_changed_manifest == "refuse",
        quick_reads=settings.quick_reads,
        limits=TreeLimits(depth=settings.max_depth, children=settings.max_children),
        tenants=settings.tenants,
        tenant_queue=counted,
    )


def default_agent(settings: Settings) -> AgentSpec:
    """Return the spec of the built-in agent."""
    return AgentSpec(
        name="default",
        model=settings.model or "",
        fallbacks=settings.fallback_models,
        max_output_tokens=settings.max_output_tokens,
        temperature=settings.temperature,
        shown_tools=settings.shown_tools,
        shown_tool_tokens=settings.shown_tool_tokens,
        parallel_limit=settings.parallel_limit,
        approval_timeout=settings.approval_timeout,
        model_attempts=settings.model_attempts,
        first_retry_delay=settings.first_retry_delay,
        longest_retry_delay=settings.longest_retry_delay,
        tool_attempts=settings.tool_attempts,
        patience=settings.patience,
        max_turns=settings.max_turns,
        rotate_after_events=settings.rotate_after_events,
        context_window=settings.context_window,
        collapse_at=settings.collapse_at,
        warn_at=settings.warn_at,
        compress_at=settings.compress_at,
        compress_target=settings.compress_target,
        section_tokens=settings.section_tokens,
        keep_turns=settings.keep_turns,
        loop_window=settings.loop_window,
        evaluates=settings.evaluation == "on",
    )


def _approval_keys(settings: Settings) -> "ApprovalKeys | None":
    if settings.approval_keys is None:
        return None
    from loom.activities.adapters.signing.approval_key_files import read_approval_keys  # noqa: PLC0415 - rarely needed

    return read_approval_keys(settings.approval_keys)


def _redis(settings: Settings, cipher: Cipher = PLAIN) -> RedisConnection | None:
    if settings.redis_url is None:
        return None
    return RedisConnection(settings.redis_url, cipher=cipher, answer_within=settings.redis_timeout)


def _permits(settings: Settings, link: RedisConnection | None) -> Permits:
    rules = PermitRules(
        failures=settings.breaker_failures or 0,
        longest_open=settings.breaker_seconds,
        rpm=settings.rpm,
        tpm=settings.tpm,
    )
    alone = InProcessPermits(rules)
    return alone if link is None else RecentPermits(RedisPermits(link, rules, alone=alone), rules)


def _providers(settings: Settings, permits: Permits, parts: PartLoader) -> ConfiguredProviders:
    return ConfiguredProviders(
        permits,
        openai_api_key=secret_of(settings.openai_api_key),
        openai_base_url=settings.openai_base_url,
        anthropic_api_key=secret_of(settings.anthropic_api_key),
        anthropic_base_url=settings.anthropic_base_url,
        read_timeout=settings.model_timeout,
        parts=parts,
    )


def _closed_with(connections: AsyncExitStack, part: P) -> P:
    """Close the part, if there is one, when the connections are closed. Return the part."""
    if part is not None:
        connections.push_async_callback(part.aclose)
    return part


def _stream(link: RedisConnection | None, transport: Transport | None) -> EventStream:
    """Return the live stream. The same script puts its tasks on Redis's bus, but not on another one."""
    stream = AbsentStream() if link is None else RedisStream(link)
    return stream if transport is None or isinstance(transport, RedisBus) else BusStream(stream, transport)


def _effects(settings: Settings, database: Database | None) -> Effects:
    return Effects(
        ledger=PostgresEffects(database) if database else None,
        snapshots=ShadowGit(settings.home) if settings.snapshots != "off" else None,
        when_no_snapshot="refuse" if settings.snapshots == "required" else "warn",
    )


def embedder_from(
    settings: Settings, extensions: Extensions | None = None
) -> AppEmbedder | OfflineEmbedder | OpenAIEmbedder | None:
    """Return the embedder for memories and knowledge bases, or None if embedding is off. The caller must close it.

    With encryption, it is off unless the setting names an embedder, because a vector reveals what its text is about.
    The app's own embedder takes precedence, unless the setting names another one. Raises BadRequest if the embedder or
    the app can't be loaded.
    """
    if settings.embedder == "auto" and settings.encryption_keys is not None:
        return None
    own = (extensions or extensions_from(settings)).embedder if settings.embedder == "auto" else None
    if isinstance(own, AppEmbedder):
        return own
    key = secret_of(settings.openai_api_key) or ""
    return chosen_embedder(settings.embedder, api_key=key, base_url=settings.openai_base_url)
