"""Measure what the events of runs don't show: the open runs of a worker's task queue, and what waits in its stores.

All workers of a task queue report the same numbers of runs, also of runs that no worker has in memory.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from time import monotonic, time
from typing import Final

import psutil
import structlog
from temporalio.client import Client, WorkflowExecution, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from loom.activities import traces
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.consumer import backlogs
from loom.activities.adapters.redis.permits import read_states
from loom.activities.adapters.temporal.task_faults import FAILING_RUNS
from loom.activities.memory import writer
from loom.activities.metering import Meters
from loom.activities.ports import StreamUnavailable
from loom.composition.settings import Settings
from loom.domain.core import metrics
from loom.domain.core.metrics import Metric, model_labels
from loom.visibility import REPAIR
from loom.workflows.agent_run import AgentRun

_log = structlog.get_logger("loom.metrics")

EVERY: Final = 15.0
"""Seconds between two measurements."""
ALIVE_EVERY: Final = 5.0
"""Seconds between two signs of life. A worker that is stuck, or that hasn't started to serve, doesn't give any."""
MOST_ASKING: Final = 200
"""The runs that are asked for the age of their calls, newest first. Others are in the number of waiting runs only."""
ASKED_AGAIN: Final = 300.0
"""Seconds after which a run that still waits is asked again. Each question costs a worker a query."""
AT_ONCE: Final = 5
_ANSWER: Final = timedelta(seconds=5)
WAITING: Final = ("approval", "input", "resume", "tenant", "provider", "operator")
_UNANSWERED: Final = (RPCError, WorkflowQueryFailedError, StreamUnavailable)


@asynccontextmanager
async def gauges_running(meters: Meters | None, settings: Settings, client: Client, queue: str) -> AsyncIterator[None]:
    """Measure every 15 seconds while the body is running. Without meters, measure nothing."""
    if meters is None:
        yield
        return
    async with AsyncExitStack() as stack:
        readings: list[Callable[[], Awaitable[None]]] = [_OpenRuns(meters, client, queue).read]
        if settings.redis_url is not None:
            link = RedisConnection(settings.redis_url)
            stack.push_async_callback(link.aclose)
            lags = {
                **({writer.GROUP: metrics.MEMORY_LAG} if settings.remembers else {}),
                **({traces.GROUP: metrics.TRACE_LAG} if settings.otlp_endpoint is not None else {}),
            }
            readings += [Lags(meters, link, lags).read, Breakers(meters, link).read]
        measuring = {asyncio.create_task(_measure(meters, readings)), asyncio.create_task(_show_life(meters))}
        try:
            yield
        finally:
            for task in measuring:
                task.cancel()
            await asyncio.wait(measuring)


async def _show_life(meters: Meters) -> None:
    while True:
        meters.measure(metrics.ALIVE, value=time())
        await asyncio.sleep(ALIVE_EVERY)


async def _measure(meters: Meters, readings: Sequence[Callable[[], Awaitable[None]]]) -> None:
    own = psutil.Process()
    while True:
        meters.measure(metrics.MEMORY_BYTES, value=own.memory_info().rss)
        for read in readings:
            try:
                await read()
            except _UNANSWERED as error:
                _log.debug("not_measured", reading=read.__qualname__, error=str(error))
            except Exception as error:  # noqa: BLE001 - an answer of another release must not end all measurements
                _log.error("not_measured", reading=read.__qualname__, exc_info=error)
        await asyncio.sleep(EVERY)


class Lags:
    """The tasks on the bus that a group of consumers hasn't acknowledged yet, by the metric of the group."""

    def __init__(self, meters: Meters, link: RedisConnection, groups: Mapping[str, Metric]) -> None:
        self._meters = meters
        self._link = link
        self._groups = groups

    async def read(self) -> None:
        """Measure once. Raises StreamUnavailable."""
        for group, waiting in (await self._link.call(backlogs)).items():
            if group in self._groups and waiting is not None:
                self._meters.measure(self._groups[group], value=waiting)


class Breakers:
    """The circuit breakers that all workers share. A worker without calls doesn't notice that another one opens or
    closes them.
    """

    def __init__(self, meters: Meters, link: RedisConnection) -> None:
        self._meters = meters
        self._link = link
        self._known: set[str] = set()

    async def read(self) -> None:
        """Measure once. Raises StreamUnavailable."""
        states = [each for each in await self._link.call(read_states) if not each.agent]
        self._known |= {each.model for each in states}
        stopped = {each.model for each in states if each.state in ("open", "half-open")}
        for model in self._known:
            self._meters.measure(metrics.BREAKER_OPEN, *model_labels(model), value=float(model in stopped))


class _OpenRuns:
    """The open runs of a task queue, by what they wait for, and the calls that wait for a person."""

    def __init__(self, meters: Meters, client: Client, queue: str) -> None:
        self._meters = meters
        self._client = client
        self._open = f"TaskQueue = '{queue}' AND ExecutionStatus = 'Running'"
        self._known: dict[tuple[str, str | None], tuple[float, list[datetime]]] = {}
        """Each waiting run's answer, and when it was queried."""
        self._knows_failures = True

    async def read(self) -> None:
        """Measure once. Raises RPCError if the server doesn't respond."""
        counts = {reason: await self._count(f"LoomWaitingOn = '{reason}'") for reason in WAITING}
        if self._knows_failures:
            counts[REPAIR] = await self._failing()
        working = await self._count("LoomStatus = 'running' AND LoomWaitingOn = 'none'")
        self._meters.measure(metrics.ACTIVE_AGENTS, value=working)
        for reason, number in counts.items():
            self._meters.measure(metrics.WAITING_RUNS, reason, value=number)
        asked = await self._asks() if counts["approval"] else []
        oldest = max(((datetime.now(UTC) - at).total_seconds() for at in asked), default=0.0)
        self._meters.measure(metrics.OPEN_ASKS, value=len(asked))
        self._meters.measure(metrics.OLDEST_ASK, value=max(0.0, oldest))

    async def _count(self, condition: str) -> int:
        counted = await self._client.count_workflows(f"{self._open} AND {condition}", rpc_timeout=_ANSWER)
        return counted.count

    async def _failing(self) -> int:
        """Return the number of runs whose workflow task fails."""
        try:
            return await self._count(FAILING_RUNS)
        except RPCError as error:
            if error.status is not RPCStatusCode.INVALID_ARGUMENT:
                raise
            self._knows_failures = False  # an older server doesn't know this Search Attribute
            return 0

    async def _asks(self) -> list[datetime]:
        """Return the times at which the calls that wait were asked for."""
        query = f"{self._open} AND LoomWaitingOn = 'approval'"
        runs = [run async for run in self._client.list_workflows(query, limit=MOST_ASKING, rpc_timeout=_ANSWER)]
        now = monotonic()
        kept = {(run.id, run.run_id): self._known.get((run.id, run.run_id)) for run in runs}
        self._known = {key: told for key, told in kept.items() if told is not None and now - told[0] < ASKED_AGAIN}
        room = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(self._ask(run, room) for run in runs if (run.id, run.run_id) not in self._known))
        return [at for _, times in self._known.values() for at in times]

    async def _ask(self, run: WorkflowExecution, room: asyncio.Semaphore) -> None:
        handle = self._client.get_workflow_handle(run.id, run_id=run.run_id)
        async with room:
            try:
                status = await handle.query(AgentRun.status, rpc_timeout=_ANSWER)
            except _UNANSWERED:
                return  # it is asked again next time
        own = [ask for ask in status["pending_approvals"] if ask["run_id"] == run.id and ask["asked_at"]]
        self._known[run.id, run.run_id] = (monotonic(), [datetime.fromisoformat(ask["asked_at"]) for ask in own])
