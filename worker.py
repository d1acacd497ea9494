"""The composition root: settings become adapters, adapters become activities, activities become a worker.

Everything Loom brings to a Temporal worker is one plugin, so that it fits beside a team's own workflows:
`Worker(client, task_queue="loom", plugins=[LoomPlugin(...)])`.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import structlog
from temporalio.client import Client
from temporalio.plugin import SimplePlugin
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.worker import Worker, WorkerConfig

from activities.adapters.absent_stream import AbsentStream
from activities.adapters.bubblewrap import find_sandbox
from activities.adapters.postgres_payloads import PostgresPayloads
from activities.adapters.prices import GenaiPrices
from activities.adapters.providers import ConfiguredProviders
from activities.adapters.redis_link import RedisLink
from activities.adapters.redis_stream import RedisStream
from activities.adapters.shell_parser import BashParser
from activities.adapters.transcripts import CachedTranscripts
from activities.llm import LanguageModel
from activities.planning import CallPlanner
from activities.ports import EventStream, Prices, Providers, ToolBox, TranscriptStore
from activities.prepare import Preparation
from activities.progress import Progress
from activities.toolbox.builtin import built_in_tools
from activities.tools import ToolRunner
from deploy.logs import configure_logs
from deploy.search_attributes import register_missing
from loom_domain.agents import AgentSpec
from loom_settings import Settings, load_settings
from workflows.agent_run import AgentRun
from workflows.converter import data_converter
from workflows.runner import WORKFLOW_RUNNER

_log = structlog.get_logger("loom.worker")

STICKY_TIMEOUT: Final = timedelta(seconds=1)
"""How long a run waits for the worker that knows it before any other takes over."""
HEARTBEAT_THROTTLE: Final = timedelta(milliseconds=400)
"""A cancellation reaches an activity with its next heartbeat: this bounds how long an abort takes."""
EAGER_TOOLS: Final = 10
"""Activities of one workflow task that this worker may start itself, without a round trip."""
GRACE: Final = timedelta(seconds=8)
"""Time for running activities to end when the worker is asked to stop."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What activities are built from: one implementation for each port."""

    agents: Mapping[str, AgentSpec]
    workspace: Path
    providers: Providers
    prices: Prices
    tools: ToolBox
    transcripts: TranscriptStore
    stream: EventStream
    refuse_changed_tools: bool = False

    def activities(self, search_attributes: Callable[[], Any]) -> list[Callable[..., Any]]:
        """Every activity of Loom."""
        model = LanguageModel(
            providers=self.providers,
            tools=self.tools,
            transcripts=self.transcripts,
            stream=self.stream,
            prices=self.prices,
            refuse_changed_tools=self.refuse_changed_tools,
        )
        preparation = Preparation(
            agents=self.agents,
            default_workspace=self.workspace,
            providers=self.providers,
            tools=self.tools,
            transcripts=self.transcripts,
            stream=self.stream,
            search_attributes=search_attributes,
        )
        runner = ToolRunner(tools=self.tools, transcripts=self.transcripts, stream=self.stream)
        planner = CallPlanner(tools=self.tools, stream=self.stream)
        progress = Progress(self.stream)
        return [
            preparation.prepare_run,
            model.call_model,
            runner.run_tool,
            planner.plan_calls,
            progress.publish,
        ]


class LoomPlugin(SimplePlugin):
    """Loom for any Temporal worker: workflow, activities, and the settings that make aborts and crashes fast."""

    def __init__(self, parts: Parts, client: Client, settings: Settings) -> None:
        known: list[frozenset[str]] = []

        async def search_attributes() -> frozenset[str]:
            if not known:
                known.append(await register_missing(client))
            return known[0]

        super().__init__(
            "loom",
            workflows=[AgentRun],
            activities=parts.activities(search_attributes),
            workflow_runner=WORKFLOW_RUNNER,
        )
        self._settings = settings

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """See base class; adds what decides how fast a run recovers and stops."""
        config = super().configure_worker(config)
        config["sticky_queue_schedule_to_start_timeout"] = STICKY_TIMEOUT
        config["max_heartbeat_throttle_interval"] = HEARTBEAT_THROTTLE
        config["default_heartbeat_throttle_interval"] = HEARTBEAT_THROTTLE
        config["max_eager_activity_reservations_per_workflow_task"] = EAGER_TOOLS
        config["max_cached_workflows"] = self._settings.max_cached_workflows
        config["max_concurrent_activities"] = self._settings.max_concurrent_activities
        config["graceful_shutdown_timeout"] = GRACE
        return config


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
    )


@asynccontextmanager
async def parts_from(settings: Settings) -> AsyncIterator[Parts]:
    """The real parts for these settings; closes what it opened."""
    sandbox, why_not = find_sandbox(settings.sandbox, [settings.home])
    providers = ConfiguredProviders(
        openai_api_key=_secret(settings.openai_api_key),
        openai_base_url=settings.openai_base_url,
        anthropic_api_key=_secret(settings.anthropic_api_key),
        anthropic_base_url=settings.anthropic_base_url,
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(providers.aclose)
        link = RedisLink(settings.redis_url) if settings.redis_url else None
        transcripts = CachedTranscripts(link)
        if link is not None:
            stack.push_async_callback(link.aclose)
        stack.push_async_callback(transcripts.aclose)
        yield Parts(
            agents={"default": default_agent(settings)},
            workspace=Path(settings.workspace or Path.cwd()),
            providers=providers,
            prices=GenaiPrices(
                openai_base_url=settings.openai_base_url, anthropic_base_url=settings.anthropic_base_url
            ),
            tools=built_in_tools(
                sandbox=sandbox, no_sandbox=why_not, shell_parser=BashParser(), tool_timeout=settings.tool_timeout
            ),
            transcripts=transcripts,
            refuse_changed_tools=settings.on_changed_manifest == "refuse",
            stream=AbsentStream() if link is None else RedisStream(link),
        )


@asynccontextmanager
async def connected(settings: Settings, runtime: Runtime | None = None) -> AsyncIterator[Client]:
    """A client of the configured server with Loom's converter; closes the payload store."""
    storage = PostgresPayloads(settings.database_url) if settings.database_url else None
    try:
        yield await Client.connect(
            settings.temporal_address,
            namespace=settings.temporal_namespace,
            api_key=_secret(settings.temporal_api_key),
            tls=settings.temporal_tls,
            data_converter=data_converter(storage),
            runtime=runtime,
        )
    finally:
        if storage is not None:
            await storage.aclose()


@asynccontextmanager
async def working(settings: Settings) -> AsyncIterator[Client]:
    """A worker that polls until the body ends, then lets running activities end."""
    async with connected(settings, _runtime(settings)) as client, parts_from(settings) as parts:
        await register_missing(client)
        plugin = LoomPlugin(parts, client, settings)
        async with Worker(client, task_queue=settings.task_queue, plugins=[plugin]):
            yield client


def main() -> None:
    """Run a worker from the environment until SIGTERM or SIGINT."""
    settings = load_settings()
    configure_logs(settings.log_level, settings.log_format)
    asyncio.run(_main(settings))


async def _main(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with working(settings):
        _log.info(
            "worker_ready",
            pid=os.getpid(),
            address=settings.temporal_address,
            task_queue=settings.task_queue,
            model=settings.model,
            live_stream=settings.redis_url is not None,
            payload_store=settings.database_url is not None,
        )
        await stop.wait()
        _log.info("worker_stopping", pid=os.getpid())


def _runtime(settings: Settings) -> Runtime | None:
    if settings.metrics_port is None:
        return None
    metrics = PrometheusConfig(bind_address=f"127.0.0.1:{settings.metrics_port}", durations_as_seconds=True)
    return Runtime(telemetry=TelemetryConfig(metrics=metrics))


def _secret(value: Any) -> str | None:
    return None if value is None else str(value.get_secret_value())


if __name__ == "__main__":
    main()
