"""Run a Loom worker, which polls Temporal for Loom's workflows and activities until it is stopped.

Loom extends a Temporal worker through a single plugin, so a worker can also run your own workflows:
`Worker(client, task_queue="loom", plugins=[LoomPlugin(...)])`.
"""

import gc

if __name__ == "__main__":  # the imports create 145,000 objects, but hardly any garbage
    gc.disable()

import asyncio
import ctypes
import inspect
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import structlog
from temporalio.client import Client
from temporalio.common import MetricMeter, VersioningBehavior, WorkerDeploymentVersion
from temporalio.converter import DataConverter
from temporalio.plugin import SimplePlugin
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.worker import PollerBehaviorSimpleMaximum, Worker, WorkerConfig, WorkerDeploymentConfig, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from loom.activities.adapters.postgres.payloads import PostgresPayloads
from loom.activities.adapters.signing.client import SigningClient
from loom.activities.adapters.signing.key_file import KeyFile
from loom.activities.adapters.temporal.child_runs import TemporalChildRuns
from loom.activities.adapters.temporal.notifications import TemporalNotifications
from loom.activities.adapters.temporal.run_history import TemporalPasts
from loom.activities.adapters.temporal.run_signals import TemporalMailbox
from loom.activities.adapters.temporal.runs import UNQUOTABLE
from loom.activities.adapters.temporal.search_attributes import register_missing
from loom.activities.adapters.temporal.waiting_runs import TemporalWaitingRuns
from loom.activities.adapters.temporal.workspace_lookup import TemporalWorkspaceLookup
from loom.activities.bus import Bus
from loom.activities.metering import BUCKETS, Meters
from loom.activities.run_tool import ToolRunner
from loom.activities.task_handlers import subscribed
from loom.app.loom_app import LoomApp
from loom.client import LoomClient
from loom.composition.audit import AuditedHistories, audit_running
from loom.composition.audited_runs import AuditedRuns
from loom.composition.build import opened, parts_for
from loom.composition.encryption import encryption_from
from loom.composition.failing_runs import failing_runs_told
from loom.composition.gauges import gauges_running
from loom.composition.knowledge import knowledge_ingestion
from loom.composition.load_settings import load_settings, read_settings
from loom.composition.logs import configure_logs
from loom.composition.memory import memory_running
from loom.composition.preloading import preload
from loom.composition.secret_mask import secret_mask
from loom.composition.settings import Settings
from loom.composition.task_handlers import task_handlers_running
from loom.composition.temporal_connection import connected
from loom.composition.traces import traces_running
from loom.composition.worker_files import tell_changed_files
from loom.composition.worker_parts import WorkerParts
from loom.composition.worker_report import worker_reporting
from loom.domain.agents.inheritance import DEFAULT_AGENT
from loom.domain.core.errors import BadRequest, LoomError
from loom.domain.core.tasks import Action
from loom.exit_codes import code_of, leave
from loom.stack import spare
from loom.stack.ports import any_free
from loom.task_requests import MOST_RUNS, TaskRequests
from loom.workflows.agent_run import AgentRun
from loom.workflows.cached_waits import CachedWaits
from loom.workflows.event_order import InHistoryOrder
from loom.workflows.inline_queries import InlineQueries
from loom.workflows.measured_runs import MeasuredRuns
from loom.workflows.payload_converter import SparsePayloadConverter, converter_for
from loom.workflows.runner import WORKFLOW_RUNNER, WORKFLOWS, build_adapters
from loom.workflows.signing import SignedRequests

_log = structlog.get_logger("loom.worker")

STICKY_TIMEOUT: Final = timedelta(seconds=1)
"""How long a run waits for the worker that has cached it before another worker takes over."""
WORKFLOW_POLLERS: Final = PollerBehaviorSimpleMaximum(20)
"""Workflow Tasks of a busy worker wait here and not on the server. There, they would wait for longer than
`STICKY_TIMEOUT`, and the run would have to be restored from its history.
"""
HEARTBEAT_THROTTLE: Final = timedelta(milliseconds=400)
"""An activity learns about a cancellation on its next heartbeat, so this interval limits how long an abort takes."""
EAGER_TOOLS: Final = 10
"""Maximum number of eager activities per Workflow Task. Eager activities start without a server round trip."""
GRACE: Final = timedelta(seconds=8)
"""Time that running activities have to finish when the worker shuts down."""
_OPEN_FILES: Final = 65_536


class LoomPlugin(SimplePlugin):
    """Add Loom to your own Temporal client or worker: `Client.connect(…, plugins=[LoomPlugin(settings, app=app)])`.

    On a client, the plugin installs Loom's payload converter, so that the client can start runs and read their results.
    The client's codec doesn't change; if it has none, and the settings name encryption keys, Loom's codec encrypts. The
    client also signs its requests if it finds the signing key. On a worker, the plugin adds Loom's workflows and
    activities to your own. It also sets worker options for fast aborts and recovery, unless you set those options
    yourself. A worker inherits its client's plugins, so pass the plugin to only one of them, preferably the client.

    If you omit `settings`, `load_settings()` reads them from the environment. `app` overrides the app named in the
    settings.

    Creating a worker raises BadRequest if the app can't be served, or if the client's payload converter doesn't support
    Loom's values.
    """

    def __init__(self, settings: Settings | None = None, *, app: LoomApp | None = None) -> None:
        super().__init__(
            "loom",
            data_converter=self._converter,
            workflows=_without_loom(WORKFLOWS),
            workflow_runner=_runner,
        )
        self._settings = settings or load_settings()
        self._app = app
        self._key = KeyFile(self._settings.key_path)
        self._signing = SigningClient(self._key.read, SparsePayloadConverter())
        self.interceptors = [self._signing, SignedRequests(self._key.read)]
        url = self._settings.database_url
        self._payloads = PostgresPayloads(url) if url else None
        self.encryption = encryption_from(self._settings)
        self.interceptors += self.encryption.interceptors
        self._served: list[_Served] = []

    async def aclose(self) -> None:
        """Close the connection to the large-payload store. A worker with this plugin does this when it stops."""
        if self._payloads is not None:
            await self._payloads.aclose()
        await self.encryption.aclose()

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """See base class."""
        if AgentRun in config.get("workflows", ()):
            return config  # the client also has the plugin
        _refuse_unquotable(config["task_queue"])
        self._create_key()
        config["client"] = client = self._with_loom(config["client"])
        own = bool(config.get("workflows")) or config.get("workflow_runner") != _SDK_DEFAULTS["workflow_runner"]
        config = super().configure_worker(config)
        if not own:
            config["workflow_runner"] = WORKFLOW_RUNNER
            if _deployment(self._settings) is None and not any(config.get(name) for name in _VERSIONED):
                config["build_id"] = f"loom-{version('loom-agents')}"  # the SDK would hash every imported module
        for name, value in self._worker_options(has_tuner=config.get("tuner") is not None).items():
            if config.get(name) == _SDK_DEFAULTS[name]:
                config[name] = value  # type: ignore[literal-required]
        waits = CachedWaits(self._settings.max_cached_waits)
        is_versioned = config.get("deployment_config") is not None
        served = _Served(parts=self.parts_for(client), client=client, waits=waits, is_versioned=is_versioned)
        if served.parts.meters is not None:
            config["interceptors"] = [*config.get("interceptors", ()), MeasuredRuns(served.parts.meters)]
        served.activities = served.own_activities(config["task_queue"])
        config["interceptors"] = [*config.get("interceptors", ()), waits, InlineQueries()]
        if self._settings.audits:
            served.audited = AuditedHistories()
            config["interceptors"] = [*config["interceptors"], AuditedRuns(served.audited.note)]
        build_adapters(served.activities)
        config["activities"] = [*config.get("activities", ()), *served.activities]
        self._served.append(served)
        return config

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:  # noqa: A002 - SDK's
        """See base class. All resources that the activities need stay open while the worker is polling."""
        served = self._served_by(worker)
        if served is None:
            await next(worker)
            return
        async with AsyncExitStack() as stack:
            try:
                if not served.is_open:
                    await stack.enter_async_context(self._opened(served))
                identity = worker.config(active_config=True).get("identity") or served.client.identity
                await stack.enter_async_context(_beside(served, self._settings, worker.task_queue, identity))
                served.waits.evict_with(worker._bridge_worker.request_workflow_eviction)  # noqa: SLF001
            except BaseException:
                # The worker hasn't started polling, so no other code marks it as shut down. Without this line,
                # `async with Worker(…)` would wait forever.
                worker._shutdown_complete_event.set()  # noqa: SLF001
                raise
            await next(worker)

    @asynccontextmanager
    async def opened(self, worker: Worker) -> AsyncIterator[None]:
        """Open the resources of a worker that hasn't started yet.

        If you don't call this method, the worker opens them when it starts. Raises BadRequest if one of the app's
        dependencies can't be opened.
        """
        served = self._served_by(worker)
        if served is None:
            yield
            return
        async with self._opened(served):
            yield

    def parts_for(self, client: Client) -> WorkerParts:
        """Create the parts of one worker."""
        return parts_for(
            self._settings,
            app=self._app,
            mailbox=TemporalMailbox(client),
            pasts=TemporalPasts(client),
            key=self._key.read(),
            meters=_meters(client),
            encryption=self.encryption,
        )

    def _served_by(self, worker: Worker) -> "_Served | None":
        activities = worker.config(active_config=True)["activities"]
        return next((each for each in self._served if each.activities[0] in activities), None)

    @asynccontextmanager
    async def _opened(self, served: "_Served") -> AsyncIterator[None]:
        async with opened(served.parts):
            served.is_open = True
            try:
                await served.search_attributes()
                yield
            finally:
                served.is_open = False
                self._served.remove(served)
                if not self._served:  # workers of one client share the store
                    await self.aclose()

    def _worker_options(self, *, has_tuner: bool) -> Mapping[str, Any]:
        """Return the worker options that Loom sets unless the caller sets them."""
        slots = {} if has_tuner else {"max_concurrent_activities": self._settings.max_concurrent_activities}
        return {
            **slots,
            "deployment_config": _deployment(self._settings),
            "sticky_queue_schedule_to_start_timeout": STICKY_TIMEOUT,
            "workflow_task_poller_behavior": WORKFLOW_POLLERS,
            "max_heartbeat_throttle_interval": HEARTBEAT_THROTTLE,
            "default_heartbeat_throttle_interval": HEARTBEAT_THROTTLE,
            "max_eager_activity_reservations_per_workflow_task": EAGER_TOOLS,
            "max_cached_workflows": self._settings.max_cached_workflows,
            "graceful_shutdown_timeout": GRACE,
        }

    def _converter(self, given: DataConverter | None) -> DataConverter:
        encryption = self.encryption
        given = given or DataConverter.default
        return converter_for(given, self._payloads, encryption.codec, encrypts=encryption.cipher.is_on)

    def _create_key(self) -> None:
        """Create the key that the owner signs requests with, unless it exists.

        Raises BadRequest if the worker needs a key and has none, or if runs could read the key in their workspace.
        """
        path = self._settings.key_path.resolve()
        self._refuse_in_workspace(path, "LOOM_SIGNING_KEY")
        if (file := self._settings.encryption_keys) is not None:
            self._refuse_in_workspace(file.resolve(), "LOOM_ENCRYPTION_KEYS")
        if (file := self._settings.approval_keys) is not None:
            self._refuse_in_workspace(file.resolve(), "LOOM_APPROVAL_KEYS")
        if (file := self._settings.approval_key) is not None:
            self._refuse_in_workspace(file.resolve(), "LOOM_APPROVAL_KEY")
            if self._settings.approval_keys is not None and os.access(file, os.R_OK):
                why = "whoever takes over this worker can prove approvals; give it to `loom serve` alone"
                _log.warning("approval_key_on_worker", path=str(file), why=why)
        try:
            self._key.created()
        except OSError as error:
            if self._settings.require_signed == "on":
                raise BadRequest(
                    f"LOOM_REQUIRE_SIGNED=on needs a key, and {path} can't be created ({error.strerror}): set"
                    " LOOM_SIGNING_KEY to the file of one",
                    field="LOOM_SIGNING_KEY",
                ) from None
            _log.warning("no_signing_key", path=str(path), why=error.strerror)

    def _refuse_in_workspace(self, path: Path, setting: str) -> None:
        root = next((root for root in self._settings.roots if path.is_relative_to(root.resolve())), None)
        if root is not None and not path.is_relative_to(self._settings.home.resolve()):
            raise BadRequest(
                f"runs could read the key {path}, because it is in {root}, in which their workspaces are: move it, and"
                f" set {setting} to its path",
                field=setting,
            )

    def _with_loom(self, client: Client) -> Client:
        """Return the client if it uses Loom's payload converter and signs requests, or else a copy that does."""
        config = client.config(active_config=True)
        converter = self._converter(config["data_converter"])
        signs = any(isinstance(each, SigningClient) for each in config["interceptors"])
        if signs and converter is config["data_converter"]:
            return client
        config["data_converter"], config["plugins"] = converter, []
        if not signs:
            config["interceptors"] = [*config["interceptors"], self._signing, *self.encryption.interceptors]
        return Client(**config)


@dataclass(eq=False)
class _Served:
    """A worker that uses this plugin."""

    parts: WorkerParts
    client: Client
    waits: CachedWaits
    activities: Sequence[Callable[..., Any]] = ()
    is_versioned: bool = False
    is_open: bool = False
    audited: AuditedHistories | None = None
    """None if the audit log is off."""
    known: frozenset[str] | None = None
    """The search attributes that exist on the server, or None before they are registered."""

    def own_activities(self, task_queue: str) -> Sequence[Callable[..., Any]]:
        """Return Loom's activities."""
        parts, client = self.parts, self.client
        memory = parts.memory.activities(client, task_queue, parts.sanitizer) if parts.memory is not None else ()
        pasts, waiting = TemporalPasts(client), TemporalWaitingRuns(client)
        children = TemporalChildRuns(client, task_queue)
        notifications = TemporalNotifications(client, task_queue, versioned=self.is_versioned)
        lookup = TemporalWorkspaceLookup(client)
        own = parts.activities(self.search_attributes, pasts, waiting, children, notifications, lookup=lookup)
        return [*own, *memory]

    async def search_attributes(self) -> frozenset[str]:
        """Return the search attributes that exist on the server. The first call registers any missing ones."""
        if self.known is None:
            self.known = await register_missing(self.client)
        return self.known


_SDK_DEFAULTS: Final = {name: p.default for name, p in inspect.signature(Worker.__init__).parameters.items()}
_VERSIONED: Final = ("build_id", "deployment_config", "use_worker_versioning")
_PASSED_THROUGH: Final = (
    "loom",
    "pydantic",
    "pydantic_core",
    "typing_extensions",
    "typing_inspection",
    "annotated_types",
    "cryptography",
)


def _refuse_unquotable(task_queue: str) -> None:
    if UNQUOTABLE.intersection(task_queue):
        raise BadRequest(
            f"the task queue {task_queue!r} must not contain a quote, a backslash or a null character: the worker looks"
            " for the runs of its queue with List Filters, which can't contain them",
            field="task_queue",
        )


def _without_loom(workflows: Sequence[type]) -> Callable[[Sequence[type] | None], Sequence[type]]:
    return lambda given: [*(each for each in given or () if each not in workflows), *workflows]


def _deployment(settings: Settings) -> WorkerDeploymentConfig | None:
    """Return the version that this worker serves, or None if the worker isn't versioned.

    Your own workflows are pinned to the version on which they started, unless they declare another behavior.
    """
    if settings.deployment is None or settings.build is None:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(settings.deployment, settings.build),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


def _runner(given: WorkflowRunner | None) -> WorkflowRunner:
    """Return a runner that delivers events in history order and, if sandboxed, passes Loom's modules through."""
    if given is None or isinstance(given, InHistoryOrder):
        return given or WORKFLOW_RUNNER
    if isinstance(given, SandboxedWorkflowRunner):
        given = replace(given, restrictions=given.restrictions.with_passthrough_modules(*_PASSED_THROUGH))
    return InHistoryOrder(given)


def _meters(client: Client) -> Meters | None:
    """Return what records measurements in the client's runtime, or None if the runtime has no metrics."""
    meter = (client.service_client.config.runtime or Runtime.default()).metric_meter
    return None if meter is MetricMeter.noop else Meters(meter)


@asynccontextmanager
async def _beside(served: _Served, settings: Settings, task_queue: str, identity: str) -> AsyncIterator[None]:
    """Run background services while the worker is running. These services never block a run."""
    parts = served.parts
    if parts.definitions is not None:
        await asyncio.to_thread(tell_changed_files, parts.definitions, settings, task_queue)
    async with (
        memory_running(parts.memory, parts.transport, settings, served.client, task_queue),
        task_handlers_running(parts.registry.handlers, parts.transport),
        _task_requests(served, settings, task_queue),
        audit_running(served.audited, settings, served.client, task_queue),
        knowledge_ingestion(parts),
        traces_running(settings, parts.spans, parts.cipher),
        gauges_running(parts.meters, settings, served.client, task_queue),
        failing_runs_told(parts.stream, served.client, task_queue),
        _own_queue(served),
        worker_reporting(parts, settings, identity=identity, task_queue=task_queue),
    ):
        yield


@asynccontextmanager
async def _task_requests(served: _Served, settings: Settings, task_queue: str) -> AsyncIterator[None]:
    """Run this worker's agents and crews for the Tasks on the bus that ask for them, if the settings say so."""
    parts = served.parts
    if settings.task_requests == "off" or parts.transport is None:
        if settings.task_requests == "on":
            _log.warning("tasks_start_no_runs", why="there is no bus: set LOOM_REDIS_URL or LOOM_BUS_URL")
        yield
        return
    config = served.client.config(active_config=True)
    config["plugins"] = []
    # The authors of the Tasks don't have the owner's key, so the runs must not have the owner's rights.
    config["interceptors"] = [each for each in config["interceptors"] if not isinstance(each, SigningClient)]
    requests = TaskRequests(
        LoomClient(Client(**config), task_queue=task_queue, settings=settings),
        agents={DEFAULT_AGENT, *parts.registry.agents},
        crews=parts.registry.crews,
    )
    subscriptions = {f"agents:{task_queue}": (Action.EXECUTE, requests.handle)}
    async with subscribed(Bus(parts.transport), subscriptions, at_once=MOST_RUNS):
        yield


@asynccontextmanager
async def _own_queue(served: _Served) -> AsyncIterator[None]:
    """Serve the tool calls that only this worker can continue, because an MCP server keeps them open."""
    queue = served.parts.servers.own_queue
    if not queue:
        yield
        return
    config = served.client.config(active_config=True)
    config["plugins"] = []  # this plugin would add all of Loom to the worker
    names = {each.__name__ for each in (ToolRunner.run_tool, ToolRunner.run_tool_in_clone)}
    only = [each for each in served.activities if each.__name__ in names]
    async with Worker(
        Client(**config),
        task_queue=queue,
        activities=only,
        graceful_shutdown_timeout=GRACE,
        max_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
        default_heartbeat_throttle_interval=HEARTBEAT_THROTTLE,
    ):
        yield


@asynccontextmanager
async def worker(
    settings: Settings | None = None,
    *,
    app: LoomApp | None = None,
    workflows: Sequence[type] = (),
    activities: Sequence[Callable[..., Any]] = (),
    wait_for_server: bool = False,
) -> AsyncIterator[Worker]:
    """Serve runs, along with your own workflows and activities, on one task queue until the `async with` block ends.

        async with loom.worker(settings, app=app, workflows=[Nightly], activities=[fetch]) as worker:
            await worker.client.start_workflow(Nightly.run, id="nightly", task_queue=worker.task_queue)

    This does the same work as `loom worker`: it connects to the Temporal server, registers Loom's Search Attributes and
    opens the app's dependencies. It yields a Temporal `Worker`. When the block ends, running activities have 8 seconds
    to finish.

    If you omit `settings`, `load_settings()` reads them from the environment. `app` overrides the app named in the
    settings. Raises UnreachableError if no server responds, unless you set `wait_for_server`, and BadRequest if the app
    can't be served.
    """
    chosen = settings or load_settings()
    plugin = LoomPlugin(chosen, app=app)
    connecting = connected(chosen, _runtime(chosen), encryption=plugin.encryption, wait_for_server=wait_for_server)
    async with connecting as client:
        serving = Worker(
            client, task_queue=chosen.task_queue, workflows=workflows, activities=activities, plugins=[plugin]
        )
        async with plugin.opened(serving), serving:
            yield serving


def main(*, fail_fast: bool = False) -> None:
    """Run a worker with settings from the environment until it receives SIGTERM or SIGINT.

    If no server responds, wait for it, or raise UnreachableError if the worker is to fail fast. Raises BadRequest if
    the settings or the app are invalid.
    """
    gc.freeze()  # no collection needs to go through what the imports have created
    gc.enable()
    _return_freed_memory()
    _raise_open_files()
    settings = load_settings()
    configure_logs(settings.log_level, settings.log_format, secret_mask(settings).redact)
    with suppress(asyncio.CancelledError):  # stopped before it was ready
        asyncio.run(_main(settings, fail_fast=fail_fast))


def _return_freed_memory() -> None:
    """Make glibc return freed memory to the system.

    By default, each thread keeps the memory that it frees in its own arena. After a first large buffer has been freed,
    such as a carried conversation, glibc also takes large buffers from these arenas. In a very long run, the worker's
    resident memory then grows. Other C libraries don't have `mallopt`.

    The threshold is above the buffers of each turn: asyncio reads from sockets into 256 KB, and Temporal's core uses
    372 KB. Otherwise, the system would map and clear them anew each time.
    """
    # The numbers of M_ARENA_MAX and M_MMAP_THRESHOLD in malloc.h, by the variables that set them for a process.
    options = {"MALLOC_ARENA_MAX": (-8, 2), "MALLOC_MMAP_THRESHOLD_": (-3, 512 * 1024)}
    with suppress(AttributeError):
        for name, (parameter, value) in options.items():
            if name not in os.environ:
                ctypes.CDLL(None).mallopt(parameter, value)


def _raise_open_files() -> None:
    """Raise the soft limit of open files, because one sandboxed command may need hundreds, and it is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # some systems permit fewer than the hard limit says
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _main(settings: Settings, *, fail_fast: bool) -> None:
    if (starting := asyncio.current_task()) is not None:
        _on_stop_signal(starting.cancel)  # an app's factory may take arbitrarily long
    async with worker(settings, wait_for_server=not fail_fast):
        gc.freeze()  # keep the schemas out of collections, too
        stop = asyncio.Event()
        _on_stop_signal(stop.set)
        _log.info(
            "worker_ready",
            pid=os.getpid(),
            address=settings.temporal_address,
            task_queue=settings.task_queue,
            model=settings.model,
            live_stream=settings.redis_url is not None,
            payload_store=settings.database_url is not None,
            memory=settings.remembers,
            deployment=settings.deployment,
            build=settings.build,
        )
        await stop.wait()
        _log.info("worker_stopping", pid=os.getpid())


def _on_stop_signal(react: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, react)


def _runtime(settings: Settings) -> Runtime | None:
    """Return a runtime that serves metrics on the configured port, or None if metrics are off.

    If the default port is already in use, the runtime uses another free port.
    """
    if settings.metrics_port is None:
        return None
    port = settings.metrics_port or any_free()
    try:
        runtime = _serving_metrics(settings.metrics_host, port)
    except ValueError as error:
        if "metrics_port" in settings.model_fields_set:
            reason = str(error).rpartition(": ")[2]
            raise BadRequest(
                f"LOOM_METRICS_PORT: cannot serve metrics at {settings.metrics_host}:{port} ({reason}): set another"
                " port, 0 for any free port, or off",
                field="LOOM_METRICS_PORT",
            ) from None
        port = any_free()
        runtime = _serving_metrics(settings.metrics_host, port)
    _log.info("metrics_served", address=f"http://{settings.metrics_host}:{port}/metrics")
    return runtime


def _serving_metrics(host: str, port: int) -> Runtime:
    metrics = PrometheusConfig(
        bind_address=f"{host}:{port}", durations_as_seconds=True, histogram_bucket_overrides=BUCKETS
    )
    return Runtime(telemetry=TelemetryConfig(metrics=metrics))


if __name__ == "__main__":
    code = 0
    if spare.is_spare():
        with suppress(LoomError):  # the worker reports invalid settings
            preload(read_settings().model)
        if not spare.await_order():
            leave(code)
    try:
        main()
    except LoomError as error:
        sys.stderr.write(f"loom worker: {error.message}\n")
        code = code_of(error)
    leave(code)
