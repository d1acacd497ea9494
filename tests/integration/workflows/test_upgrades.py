"""Workflows that leave their version of the workers without an order, once another version is current."""

from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHistory
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import Worker, WorkerDeploymentConfig

from loom._worker import worker
from loom.activities.adapters.temporal.deployments import TemporalDeployments
from loom.testing.harness import Addresses
from loom.testing.model_server import ToolUse, calls, script, text
from loom.testing.waiting import eventually
from loom.workflows import options
from loom.workflows.memory_upkeep import MemoryUpkeep
from loom.workflows.payload_converter import data_converter
from loom.workflows.runner import WORKFLOW_RUNNER
from tests.deployments import served
from tests.integration.workflows.conftest import Working
from tests.integration.workflows.test_memory_upkeep import Steps, start

WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")


async def test_a_run_that_has_waited_for_long_continues_on_the_current_version(
    monkeypatch: pytest.MonkeyPatch, working: Working
) -> None:
    monkeypatch.setattr(options, "LONG_ACTION", timedelta(0))
    first = WorkerDeploymentVersion(f"test-{uuid4().hex[:8]}", "1")
    loom, _ = await working(
        script([calls(WRITE), text("written")]), deployment=first.deployment_name, build=first.build_id
    )
    deployments = TemporalDeployments(loom.client.temporal)
    await deployments.promote(first)
    run_id = await loom.start()
    await loom.asked(run_id)

    async with worker(loom.settings.model_copy(update={"build": "2"})):
        await deployments.promote(WorkerDeploymentVersion(first.deployment_name, "2"))
        await loom.client.approve(run_id, "w1")
        assert (await loom.client.result(run_id)).output == "written"

    assert served(await loom.histories(run_id)) == ["1", "2"]


@pytest.mark.slow
async def test_the_upkeep_of_memory_continues_on_the_current_version_after_its_round(addresses: Addresses) -> None:
    client = await Client.connect(addresses.temporal, namespace=addresses.namespace, data_converter=data_converter())
    queue, steps, name = f"upkeep-{uuid4().hex[:8]}", Steps(), f"test-{uuid4().hex[:8]}"

    def serving(version: WorkerDeploymentVersion) -> Worker:
        return Worker(
            client,
            task_queue=queue,
            workflows=[MemoryUpkeep],
            activities=steps.all(),  # type: ignore[arg-type]
            workflow_runner=WORKFLOW_RUNNER,
            deployment_config=WorkerDeploymentConfig(
                version=version, use_worker_versioning=True, default_versioning_behavior=VersioningBehavior.PINNED
            ),
        )

    old, new = WorkerDeploymentVersion(name, "1"), WorkerDeploymentVersion(name, "2")
    async with serving(old):
        await TemporalDeployments(client).promote(old)
        handle = await start(client, queue)
        first = client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
        async with serving(new):
            await TemporalDeployments(client).promote(new)
            await handle.signal("upgrade")

            async def moved() -> list[WorkflowHistory] | None:
                second = await handle.fetch_history()
                return [await first.fetch_history(), second] if served([second]) == ["2"] else None

            assert served(await eventually(moved)) == ["1", "2"]
            await handle.terminate()
