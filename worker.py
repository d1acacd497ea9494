"""A worker: the parts that the settings make (`loom/composition/`), polled for by Temporal until it is told to stop.

Everything Loom brings to a Temporal worker is one plugin, so that it fits beside a team's own workflows:
`Worker(client, task_queue="loom", plugins=[LoomPlugin(...)])`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import structlog
from temporalio.client import Client
from temporalio.plugin import SimplePlugin
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.worker import Worker, WorkerConfig

from loom.activities.adapters.temporal.run_history import TemporalPasts
from loom.activities.adapters.temporal.run_signals import TemporalMailbox
from loom.activities.adapters.temporal.search_attributes import register_missing
from loom.composition.build import parts_from, secret_mask
from loom.composition.knowledge import taken_in
from loom.composition.load_settings import load_settings
from loom.composition.logs import configure_logs
from loom.composition.memory import kept
from loom.composition.settings import Settings
from loom.composition.task_handlers import handled
from loom.composition.temporal_connection import connected
from loom.composition.worker_parts import Parts
from loom.domain.core.errors import BadRequest, LoomError
from loom.exit_codes import code_of, leave
from loom.stack.ports import any_free
from loom.workflows.agent_run import AgentRun
from loom.workflows.crew_run import CrewRun
from loom.workflows.memory_upkeep import MemoryUpkeep
from loom.workflows.runner import WORKFLOW_RUNNER

_log = structlog.get_logger("loom.worker")

WORKFLOWS: Final[Sequence[type]] = (AgentRun, CrewRun, MemoryUpkeep)
"""Each has recorded histories, which today's code must be able to replay."""
STICKY_TIMEOUT: Final = timedelta(seconds=1)
"""How long a run waits for the worker that knows it before any other takes over."""
HEARTBEAT_THROTTLE: Final = timedelta(milliseconds=400)
"""A cancellation reaches an activity with its next heartbeat: this bounds how long an abort takes."""
EAGER_TOOLS: Final = 10
"""Activities of one workflow task that this worker may start itself, without a round trip."""
GRACE: Final = timedelta(seconds=8)
"""Time for running activities to end when the worker is asked to stop."""


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
            workflows=WORKFLOWS,
            activities=[*parts.activities(search_attributes, TemporalPasts(client)), *_upkeep(parts, client, settings)],
            workflow_runner=WORKFLOW_RUNNER,
            run_context=lambda: _beside(parts, settings, client),
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


def _upkeep(parts: Parts, client: Client, settings: Settings) -> Sequence[Callable[..., Any]]:
    if parts.memory is None:
        return ()
    return parts.memory.activities(client, settings.task_queue, parts.sanitizer)


@asynccontextmanager
async def _beside(parts: Parts, settings: Settings, client: Client) -> AsyncIterator[None]:
    """What runs as long as the worker does, off any run's path."""
    async with kept(parts.memory, settings, client), handled(parts.registry.handlers, settings), taken_in(parts):
        yield


@asynccontextmanager
async def worker(settings: Settings | None = None) -> AsyncIterator[Worker]:
    """A worker that polls until the body ends, then lets running activities end."""
    settings = settings or load_settings()
    async with (
        connected(settings, _runtime(settings)) as client,
        parts_from(settings, TemporalMailbox(client)) as parts,
    ):
        await register_missing(client)
        plugin = LoomPlugin(parts, client, settings)
        async with Worker(client, task_queue=settings.task_queue, plugins=[plugin]) as serving:
            yield serving


def main() -> None:
    """Run a worker from the environment until SIGTERM or SIGINT; raises BadRequest and UnreachableError."""
    settings = load_settings()
    configure_logs(settings.log_level, settings.log_format, secret_mask(settings).redact)
    asyncio.run(_main(settings))


async def _main(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with worker(settings):
        _log.info(
            "worker_ready",
            pid=os.getpid(),
            address=settings.temporal_address,
            task_queue=settings.task_queue,
            model=settings.model,
            live_stream=settings.redis_url is not None,
            payload_store=settings.database_url is not None,
            memory=settings.remembers,
        )
        await stop.wait()
        _log.info("worker_stopping", pid=os.getpid())


def _runtime(settings: Settings) -> Runtime | None:
    """With metrics at the port of the settings; one that nobody has set gives way when it is taken."""
    if settings.metrics_port is None:
        return None
    port = settings.metrics_port or any_free()
    try:
        runtime = _serving_metrics(port)
    except ValueError as error:
        if "metrics_port" in settings.model_fields_set:
            reason = str(error).rpartition(": ")[2]
            raise BadRequest(
                f"LOOM_METRICS_PORT: no metrics can be served at 127.0.0.1:{port} ({reason}): set another port, 0 for "
                "any free one, or off",
                field="LOOM_METRICS_PORT",
            ) from None
        port = any_free()
        runtime = _serving_metrics(port)
    _log.info("metrics_served", address=f"http://127.0.0.1:{port}/metrics")
    return runtime


def _serving_metrics(port: int) -> Runtime:
    metrics = PrometheusConfig(bind_address=f"127.0.0.1:{port}", durations_as_seconds=True)
    return Runtime(telemetry=TelemetryConfig(metrics=metrics))


if __name__ == "__main__":
    code = 0
    try:
        main()
    except LoomError as error:
        sys.stderr.write(f"loom worker: {error.message}\n")
        code = code_of(error)
    leave(code)
