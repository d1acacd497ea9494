"""A worker with real parts around a scripted model, and a replay of every run it did."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from loom._worker import worker
from loom.client import LoomClient
from loom.composition.replay import has_decision
from loom.composition.settings import Settings
from loom.domain.core.errors import RunNotFoundError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult
from loom.workflows.agent_run import AgentRun
from loom.workflows.crew_run import CrewRun
from loom.workflows.payload_converter import data_converter
from loom.workflows.runner import WORKFLOW_RUNNER
from loom.workflows.signing import SignedRequests
from tests.model_server import ModelServer
from tests.waiting import eventually

HANGS_AFTER: Final = 100.0
"""Seconds; less than a test's own limit, so that its failure can say more than that time ran out."""

PATIENT_WITH_REDIS: Final = 30.0
"""Seconds. After the usual second, which a busy machine may take, a run goes on without its events."""


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where the session's servers listen."""

    temporal: str
    database: str
    redis: str
    ui: str


@dataclass
class Harness:
    """A running worker and what a test needs around it."""

    client: LoomClient
    settings: Settings
    workspace: Path
    started: list[str] = field(default_factory=list)

    async def start(self, task: str = "do it", **request: Any) -> str:
        """Start a run in the test's workspace."""
        request.setdefault("workspace", str(self.workspace))
        run_id = await self.client.start(task, run_id=f"test-{uuid4().hex[:8]}", **request)
        self.started.append(run_id)
        return run_id

    async def run(self, task: str = "do it", **request: Any) -> RunResult:
        """Start a run and wait for its result. One that hangs fails the test with what the server knows of its tree."""
        run_id = await self.start(task, **request)
        try:
            async with asyncio.timeout(HANGS_AFTER):
                return await self.client.result(run_id)
        except TimeoutError:
            told = [await self._last_seen(each) for each in (run_id, *await self.below(run_id))]
        raise AssertionError(f"not ended after {HANGS_AFTER} s:\n" + "\n".join(told))

    async def until(self, run_id: str, holds: Callable[[JsonObject], bool]) -> JsonObject:
        """Wait until the run's status satisfies `holds`, and return it."""

        async def look() -> JsonObject | None:
            status = await self.client.status(run_id)
            return status if holds(status) else None

        return await eventually(look)

    async def asked(self, run_id: str, calls: int = 1) -> JsonObject:
        """Wait until that many calls wait for a person."""
        return await self.until(run_id, lambda status: len(status["pending_approvals"]) == calls)

    async def below(self, run_id: str) -> list[str]:
        """The ids of all runs that a run has delegated work to, at any depth."""
        try:
            children = (await self.client.status(run_id))["children"]
        except RunNotFoundError:
            return []  # its parent is about to start it
        ids = [str(child["run_id"]) for child in children]
        return [each for child in ids for each in (child, *await self.below(child))]

    async def _last_seen(self, run_id: str) -> str:
        handle = self.client.temporal.get_workflow_handle(run_id)
        described = (await handle.describe()).raw_description
        events = (await handle.fetch_history()).events
        ends = [f"{each.event_time.ToJsonString()} {EventType.Name(each.event_type)}" for each in events[-3:]]
        pending = [
            f"{each.activity_type.name}, attempt {each.attempt}: {each.last_failure.message}"
            for each in described.pending_activities
        ]
        status = await self.client.status(run_id)
        return f"{run_id}: {status}\n  last events {ends}\n  activities {pending}\n  {described.pending_workflow_task}"

    async def histories(self, run_id: str) -> list[WorkflowHistory]:
        """The history of every execution of a run, oldest first, across continue-as-new."""
        chain: list[WorkflowHistory] = []
        execution: str | None = None
        while True:
            handle = self.client.temporal.get_workflow_handle(run_id, run_id=execution)
            history = await handle.fetch_history()
            chain.insert(0, history)
            started = history.events[0].workflow_execution_started_event_attributes
            execution = started.continued_execution_run_id or None
            if execution is None:
                return chain


@asynccontextmanager
async def harness(
    addresses: Addresses, workspace: Path, script: Any, *, replay: bool = True, **settings: Any
) -> AsyncIterator[tuple[Harness, ModelServer]]:
    """A worker on a queue of its own, talking to a model server that follows `script`."""
    async with ModelServer(script) as model:
        chosen = settings_for(addresses, workspace, model, **settings)
        async with worker(chosen), LoomClient.connected(chosen) as client:
            ready = Harness(client=client, settings=chosen, workspace=workspace)
            yield ready, model
            if replay:
                await replay_all(ready)


def settings_for(addresses: Addresses, workspace: Path, server: ModelServer, **given: Any) -> Settings:
    """Settings of a worker that has the session's servers and a scripted model."""
    return Settings(
        **{
            "model": "openai:scripted",
            "TEMPORAL_ADDRESS": addresses.temporal,
            "database_url": addresses.database,
            "redis_url": addresses.redis,
            "OPENAI_API_KEY": "sk-test",
            "OPENAI_BASE_URL": server.openai_url,
            "ANTHROPIC_API_KEY": "sk-test",
            "ANTHROPIC_BASE_URL": server.anthropic_url,
            "task_queue": f"test-{os.getpid()}-{uuid4().hex[:6]}",
            "workspace": workspace,
            "home": workspace.parent / ".loom",
            "redis_timeout": PATIENT_WITH_REDIS,
            "first_retry_delay": 0.05,
            "metrics_port": None,
            "skills_home": None,
            "memory": "off",
            # Scripts say the same for as many turns as a test needs.
            "loop_window": 0,
            **given,
        }
    )


async def replay_all(ready: Harness) -> None:
    """Replay every run of the harness; raises when a replay takes another path than its history."""
    replayer = Replayer(
        workflows=[AgentRun, CrewRun],
        workflow_runner=WORKFLOW_RUNNER,
        data_converter=data_converter(),
        interceptors=[SignedRequests()],  # without the key: only the recorded public key may matter
    )
    for run_id in [each for root in ready.started for each in (root, *await ready.below(root))]:
        for history in await ready.histories(run_id):
            if has_decision(history):
                await replayer.replay_workflow(history)
