"""The workers that poll a task queue now, as Temporal lists them and as they report themselves in Redis."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from loom.activities.crew_lookup import unknown_members
from loom.activities.encryption import PLAIN, Cipher
from loom.activities.ports import StreamUnavailable
from loom.composition.client_settings import ClientSettings
from loom.composition.encryption import encryption_with
from loom.domain.agents.worker_catalog import WorkerCatalog
from loom.domain.agents.worker_report import WorkerReport, problem_with
from loom.domain.core.errors import BadRequest
from loom.domain.core.repositories import Repository
from loom.domain.core.requests import RunRequest
from loom.stack.state import lived_at

if TYPE_CHECKING:
    from loom.activities.adapters.redis.worker_reports import RedisWorkerReports

POLL: Final = 70.0
"""Seconds; a long poll that receives no task ends after one minute, and the worker then polls again."""
ANSWER_WITHIN: Final = timedelta(seconds=2)
KEPT: Final = 2.0
"""Seconds for which a client relies on the reports that it has read, unless they would refuse a request."""
LOOK: Final = 0.5
"""Seconds between two looks at the reports while a newer one is awaited."""


async def live_pollers(client: Client, task_queue: str) -> list[str]:
    """Return the identities of the workers that poll this task queue for workflows. Raises RPCError."""
    queue = await client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=client.namespace,
            task_queue=TaskQueue(name=task_queue),
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        ),
        timeout=ANSWER_WITHIN,
    )
    return [poller.identity for poller in queue.pollers if _lives(poller)]


async def live_reports(settings: ClientSettings) -> list[WorkerReport]:
    """Return the reports of the task queue's workers, newest worker first. Return none without Redis.

    Raises StreamUnavailable if Redis doesn't respond.
    """
    async with _reports(settings) as reports:
        return [] if reports is None else await _living(reports)


async def live_catalogs(settings: ClientSettings) -> list[tuple[WorkerReport, WorkerCatalog]]:
    """Return the task queue's workers with what they have, newest worker first. Return none without Redis.

    Raises StreamUnavailable if Redis doesn't respond, and EncryptionKeyError.
    """
    keys = encryption_with(settings.encryption_keys, url=None)  # the stack's key encrypts catalogs
    async with _reports(settings, keys.cipher) as reports:
        if reports is None:
            return []
        living = await _living(reports)
        catalogs = await asyncio.gather(*(reports.catalog(report.identity) for report in living))
        return [(report, has) for report, has in zip(living, catalogs, strict=True) if has is not None]


@asynccontextmanager
async def _reports(settings: ClientSettings, cipher: Cipher = PLAIN) -> AsyncIterator["RedisWorkerReports | None"]:
    """Yield the reports in Redis, or None without Redis."""
    if not settings.redis_url:
        yield None
        return
    from loom.activities.adapters.redis.connection import RedisConnection  # noqa: PLC0415 - takes half a second
    from loom.activities.adapters.redis.worker_reports import RedisWorkerReports  # noqa: PLC0415

    link = RedisConnection(settings.redis_url, cipher=cipher)
    try:
        yield RedisWorkerReports(link, namespace=settings.temporal_namespace, task_queue=settings.task_queue)
    finally:
        await link.aclose()


async def _living(reports: "RedisWorkerReports") -> list[WorkerReport]:
    return [report for report in await reports.read() if _is_alive(report)]


class LiveWorkers:
    """The workers of one task queue, as a client asks about them."""

    def __init__(self, settings: ClientSettings, client: Client, task_queue: str) -> None:
        self._settings = settings.model_copy(update={"task_queue": task_queue})
        self._client = client
        self._reports: list[WorkerReport] = []
        self._read_at = -KEPT

    async def reason_to_refuse(self, request: RunRequest) -> BadRequest | None:
        """Return the reason that none of the live workers would serve the request, or None if one may serve it."""
        first: datetime | None = None
        if monotonic() - self._read_at < KEPT and None in self._problems(request):
            return None
        while True:
            try:
                self._reports, self._read_at = await live_reports(self._settings), monotonic()
            except StreamUnavailable:
                return None
            problems = self._problems(request)
            error = next(iter(problems), None)
            if error is None or None in problems:
                return None
            # A worker finds new skills without a restart, so only a newer report can say that one is missing.
            told_at = self._reports[0].told_at
            first = first or told_at
            if error.context.get("field") != "skills" or told_at != first:
                return error if await self._all_report() else None
            await asyncio.sleep(LOOK)

    def _problems(self, request: RunRequest) -> list[BadRequest | None]:
        is_owner = self._settings.key_path.is_file()
        return [
            problem_with(_seen_from(report, request), report, is_owner=is_owner)
            or _no_folder(request, report)
            or _unknown_members(request, report)
            for report in self._reports
        ]

    async def _all_report(self) -> bool:
        """Whether every worker that polls the task queue has reported itself. An older worker doesn't."""
        known = {report.identity for report in self._reports}
        try:
            return known.issuperset(await live_pollers(self._client, self._settings.task_queue))
        except RPCError:
            return False


def _seen_from(report: WorkerReport, request: RunRequest) -> RunRequest:
    """Return the request with the real path of its workspace. The paths of another machine aren't known here."""
    if request.workspace is None:
        return request
    if isinstance(request.workspace, Repository):  # the worker makes a folder for it
        return replace(request, workspace=None)
    is_here = report.host == socket.gethostname()
    return replace(request, workspace=_real_path(request.workspace) if is_here else None)


def _no_folder(request: RunRequest, report: WorkerReport) -> BadRequest | None:
    """Return the error if the worker is on this machine and the workspace isn't a folder here, or None."""
    if not isinstance(request.workspace, str) or report.host != socket.gethostname():
        return None
    real = _real_path(request.workspace)
    if real is not None and os.path.isdir(real):  # noqa: PTH112 - `Path.is_dir` raises if the path is too long
        return None
    return BadRequest(f"workspace {request.workspace!r} is not a folder on the worker; create it", field="workspace")


def _unknown_members(request: RunRequest, report: WorkerReport) -> BadRequest | None:
    """Return the error for a crew in the request with agents or tools that the worker doesn't have."""
    if request.crew is None or isinstance(request.crew, str):
        return None
    from loom.app.forms.crew import read_crew  # noqa: PLC0415 - off the path of a run without a crew

    return unknown_members(read_crew(request.crew), report.agents, report.tools)


def _real_path(workspace: str) -> str | None:
    """Return the real path on this machine, or None for text that can't be a path."""
    try:
        return str(Path(workspace).expanduser().resolve())
    except (OSError, RuntimeError, ValueError):
        return None


def pid_here(identity: str) -> int | None:
    """Return the process ID from an identity such as `pid@host`. Return None if the host isn't this machine."""
    pid, _, host = identity.partition("@")
    return int(pid) if pid.isdigit() and host == socket.gethostname() else None


def _lives(poller: PollerInfo) -> bool:
    """Return whether the poller is still running. Temporal lists dead pollers for several minutes.

    If the poller runs on this machine, its process is checked. Otherwise, the time of its last poll is checked.
    """
    pid, seen = pid_here(poller.identity), poller.last_access_time.ToSeconds()
    return lived_at(pid, seen) if pid is not None else time.time() - seen < POLL


def _is_alive(report: WorkerReport) -> bool:
    return report.host != socket.gethostname() or lived_at(report.pid, report.told_at.timestamp())
