"""Worker deployments: their versions, the runs that are pinned to a version, and the version that new runs start on."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from temporalio.api.deployment.v1 import WorkerDeploymentInfo
from temporalio.api.enums.v1 import RoutingConfigUpdateState, WorkerDeploymentVersionStatus
from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    ListWorkerDeploymentsRequest,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client, WorkflowExecution
from temporalio.common import WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.adapters.temporal.errors import unanswered
from loom.domain.core.errors import BadRequest

UPGRADE: Final = "upgrade"
"""The signal that tells a pinned run to continue on the current version."""

CURRENT: Final = "current"
_STATUS: Final = "WORKER_DEPLOYMENT_VERSION_STATUS_"
_RUNS: Final = "WorkflowType IN ('AgentRun', 'CrewRun')"
_LOOM: Final = "WorkflowType IN ('AgentRun', 'CrewRun', 'MemoryUpkeep')"
_RUNNING: Final = "ExecutionStatus = 'Running'"
_OFTEN: Final = 2.0
"""Seconds between two counts of the runs that are left."""
_AGAIN: Final = 4.0
"""Seconds after which a run that is still on its version is signaled again. They double with each signal."""
_KNOWN: Final = 10.0
"""Seconds that the server may take to learn about new workers and all their task queues."""
_APPLIED: Final = 30.0
"""Seconds that the server may take to apply a new current version to all task queues."""
_SOON: Final = 0.2
_UNKNOWN: Final = (RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION)
_SIGNALS: Final = 20
"""Maximum number of signals that are sent concurrently."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentVersion:
    """A version of a worker deployment."""

    deployment: str
    build: str
    status: str
    """`current`, `ramping`, `draining`, `drained`, `inactive` or `created`."""
    runs: int
    """The number of runs in progress that are pinned to the version."""
    other_workflows: int
    """The number of other running workflows that are pinned to it: memory upkeep, and your own."""
    since: datetime | None
    """When the version last became current or ramping, or stopped being so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """When a run is to be signaled again."""

    again: float
    times: int

    def once_more(self, now: float) -> "_Asked":
        return _Asked(again=now + _AGAIN * 2**self.times, times=self.times + 1)


_NEVER: Final = _Asked(again=0.0, times=0)


class TemporalDeployments:
    """Access to worker deployments.

    Every method raises BadRequest if the server rejects the request, and UnreachableError if it doesn't respond.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def versions(self) -> Sequence[DeploymentVersion]:
        """Return all versions of all deployments, newest first within each deployment."""
        with _answered():
            return [each async for name in self._names() for each in await self._versions_of(name)]

    async def unversioned_runs(self) -> int:
        """Return the number of runs in progress that aren't pinned to a version."""
        with _answered():
            return await self._count(f"{_RUNS} AND TemporalWorkerDeploymentVersion IS NULL")

    async def runs_on(self, version: WorkerDeploymentVersion) -> Sequence[WorkflowExecution]:
        """Return the running workflows that are pinned to a version, newest first."""
        with _answered():
            return [each async for each in self._client.list_workflows(f"{_on(version)} AND {_RUNNING}")]

    async def promote(self, version: WorkerDeploymentVersion) -> None:
        """Make a version current: new runs start on it. Return when all task queues follow, or after 30 seconds.

        Wait up to 10 seconds for workers of the version, because the server doesn't know new ones at once.
        """
        change = SetWorkerDeploymentCurrentVersionRequest(
            namespace=self._client.namespace,
            deployment_name=version.deployment_name,
            build_id=version.build_id,
            identity=self._client.identity,
        )
        with _answered(version):
            await self._set_current(change)
            applying = RoutingConfigUpdateState.ROUTING_CONFIG_UPDATE_STATE_IN_PROGRESS
            for _ in range(int(_APPLIED / _SOON)):
                if (await self._described(version.deployment_name)).routing_config_update_state != applying:
                    return
                await asyncio.sleep(_SOON)

    async def drain(self, version: WorkerDeploymentVersion) -> AsyncGenerator[int, None]:
        """Ask the runs on a version to continue on the current one. Yield how many are left, until none is left.

        Workflows other than Loom's aren't asked, but they count. Raises BadRequest if the version is current.
        """
        with _answered(version):
            current = (await self._described(version.deployment_name)).routing_config.current_deployment_version
        if current.build_id in ("", version.build_id):
            raise BadRequest(
                f"runs can't leave {version.deployment_name} {version.build_id}: no other version is current",
                field="BUILD",
            )
        asked: dict[str, _Asked] = {}
        empty = 0  # a run that starts just now may not be visible yet, so one count is not enough
        while empty < 2:
            left = await self.runs_on(version)
            await self._ask(version, asked)
            empty = 0 if left else empty + 1
            yield len(left)
            await asyncio.sleep(_OFTEN)

    async def _set_current(self, change: SetWorkerDeploymentCurrentVersionRequest) -> None:
        end = asyncio.get_running_loop().time() + _KNOWN
        while True:
            try:
                await self._client.workflow_service.set_worker_deployment_current_version(change)
                return
            except RPCError as error:
                if error.status not in _UNKNOWN or asyncio.get_running_loop().time() > end:
                    raise
            await asyncio.sleep(_SOON)

    async def _ask(self, version: WorkerDeploymentVersion, asked: dict[str, _Asked]) -> None:
        """Signal Loom's workflows on the version. Repeat this, because a run may not yet see what is current."""
        now, slots = asyncio.get_running_loop().time(), asyncio.Semaphore(_SIGNALS)

        async def send(execution: WorkflowExecution) -> None:
            handle = self._client.get_workflow_handle(execution.id, run_id=execution.run_id)
            async with slots:
                try:
                    await handle.signal(UPGRADE)
                except RPCError as error:
                    if error.status is not RPCStatusCode.NOT_FOUND:  # it has ended or continued as new
                        raise

        with _answered():
            found = self._client.list_workflows(f"{_on(version)} AND {_RUNNING} AND {_LOOM}")
            due = [each async for each in found if now >= asked.get(each.run_id, _NEVER).again]
            asked.update({each.run_id: asked.get(each.run_id, _NEVER).once_more(now) for each in due})
            await asyncio.gather(*map(send, due))

    async def _names(self) -> AsyncIterator[str]:
        token = b""
        while True:
            page = await self._client.workflow_service.list_worker_deployments(
                ListWorkerDeploymentsRequest(namespace=self._client.namespace, next_page_token=token)
            )
            for each in page.worker_deployments:
                yield each.name
            if not (token := page.next_page_token):
                return

    async def _versions_of(self, deployment: str) -> Sequence[DeploymentVersion]:
        info = await self._described(deployment)
        newest_first = sorted(info.version_summaries, key=lambda each: -each.create_time.ToNanoseconds())
        return [await self._version_of(summary) for summary in newest_first]

    async def _version_of(self, summary: WorkerDeploymentInfo.WorkerDeploymentVersionSummary) -> DeploymentVersion:
        version = WorkerDeploymentVersion(
            summary.deployment_version.deployment_name, summary.deployment_version.build_id
        )
        runs = await self._count(f"{_on(version)} AND {_RUNS}")
        return DeploymentVersion(
            deployment=version.deployment_name,
            build=version.build_id,
            status=WorkerDeploymentVersionStatus.Name(summary.status).removeprefix(_STATUS).lower(),
            runs=runs,
            other_workflows=await self._count(_on(version)) - runs,
            since=summary.routing_update_time.ToDatetime(UTC) if summary.HasField("routing_update_time") else None,
        )

    async def _described(self, deployment: str) -> WorkerDeploymentInfo:
        found = await self._client.workflow_service.describe_worker_deployment(
            DescribeWorkerDeploymentRequest(namespace=self._client.namespace, deployment_name=deployment)
        )
        return found.worker_deployment_info

    async def _count(self, query: str) -> int:
        return (await self._client.count_workflows(f"{query} AND {_RUNNING}")).count


def _on(version: WorkerDeploymentVersion) -> str:
    return f"TemporalWorkerDeploymentVersion = '{version.deployment_name}:{version.build_id}'"


@contextmanager
def _answered(version: WorkerDeploymentVersion | None = None) -> Iterator[None]:
    """Translate the server's errors. `version` is the one that the request names."""
    try:
        yield
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND and version is not None:
            words = f"--deployment {version.deployment_name} --build {version.build_id}"
            told = f"the Temporal server knows no such version: start a worker with `loom worker {words}` first"
            raise BadRequest(told, field="BUILD") from error
        if error.status is RPCStatusCode.FAILED_PRECONDITION:
            raise BadRequest(error.message, field="BUILD") from error
        if error.status is RPCStatusCode.UNIMPLEMENTED:
            raise BadRequest(
                "this Temporal server is too old for worker deployments", field="TEMPORAL_ADDRESS"
            ) from error
        raise unanswered(error, "") from error
