"""Runs on Temporal's test server, which skips the time while nothing runs."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio.testing import WorkflowEnvironment

from loom._worker import worker
from loom.app.loom_app import LoomApp
from loom.client import LoomClient
from loom.domain.core.errors import BadRequest
from loom.extras import install
from loom.testing.harness import Addresses, Harness, served, settings_for
from loom.testing.model_server import ModelServer
from loom.workflows.payload_converter import data_converter


@asynccontextmanager
async def time_skipping(
    workspace: Path, script: Any, *, app: LoomApp | None = None, **settings: Any
) -> AsyncIterator[tuple[Harness, ModelServer, WorkflowEnvironment]]:
    """A worker on a test server. Waiting for a result skips the time, and so does `await time.sleep(86_400)`.

        async with time_skipping(workspace, replies, app=app) as (loom, model, time):

    Raises BadRequest if the test server isn't installed.
    """
    program = Path(sys.executable).parent / "temporal-test-server"
    if not program.exists():
        raise BadRequest(f"{program} is missing: {install('testing')}", field="testing")
    async with (
        await WorkflowEnvironment.start_time_skipping(
            test_server_existing_path=str(program), data_converter=data_converter()
        ) as time,
        served(script, workspace) as model,
    ):
        addresses = Addresses(temporal=time.client.service_client.config.target_host, database="", redis="", ui="")
        chosen = settings_for(addresses, workspace, model, **{"database_url": None, "redis_url": None, **settings})
        async with worker(chosen, app=app):
            client = LoomClient(time.client, task_queue=chosen.task_queue, settings=chosen)
            yield Harness(client=client, settings=chosen, workspace=workspace), model, time
