"""Export traces beside a worker, if the settings name a receiver."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

import structlog

from loom.activities.adapters.otlp.exporter import ENDPOINT, OtlpExporter
from loom.activities.adapters.redis.connection import RedisConnection
from loom.activities.adapters.redis.consumer import ANSWER_SECONDS, RedisInbox
from loom.activities.adapters.redis.stream import RedisRunTasks
from loom.activities.encryption import Cipher
from loom.activities.ports import StreamUnavailable
from loom.activities.traces import GROUP, SpanOutbox, TraceExport
from loom.composition.settings import Settings
from loom.extras import install

_log = structlog.get_logger("loom.traces")


@asynccontextmanager
async def traces_running(settings: Settings, outbox: SpanOutbox | None, cipher: Cipher) -> AsyncIterator[None]:
    """Export the spans of runs while the body is running, if the settings name a receiver. `outbox` has the spans that
    this worker's parts add.

    Without Redis, or without the packages for it, nothing is exported, and a message is logged: the variable may have
    been set for all programs of the machine.
    """
    endpoint, url = settings.otlp_endpoint, settings.redis_url
    if endpoint is None or url is None or outbox is None:
        if endpoint is not None:
            _log.warning("no_traces", why="traces are built from the tasks on the bus: set LOOM_REDIS_URL")
        yield
        return
    try:
        exporter = OtlpExporter(endpoint, version=version("loom-agents"))
    except ImportError as error:
        _log.warning("no_traces", why=f"{error}: run `{install('otel')}`, or unset {ENDPOINT}")
        yield
        return
    inbox = RedisInbox(RedisConnection(url, answer_within=ANSWER_SECONDS, cipher=cipher), GROUP, since="now")
    link = RedisConnection(url, cipher=cipher)
    try:
        await inbox.join()  # before the first run begins
    except StreamUnavailable as error:
        _log.warning("traces_wait_for_redis", error=str(error))
    export = TraceExport(
        inbox,
        RedisRunTasks(link),
        exporter,
        outbox,
        with_content=settings.otlp_content,
        gather=settings.otlp_delay / 1000,
    )
    exporting = asyncio.create_task(export.run())
    exporting.add_done_callback(_log_end)
    try:
        yield
    finally:
        exporting.cancel()
        await asyncio.wait({exporting})
        await inbox.aclose()
        await link.aclose()
        exporter.close()


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("traces_ended", exc_info=error)
