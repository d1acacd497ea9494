"""Run the agents and crews that Tasks on the bus ask for.

    client                              worker
    publish(new_task(…)) ──execute──▶ start a run, once for each `task_id`, and wait for its result
                         ◀──reply────  the Task, with the run's status and result

A run itself publishes `execute` Tasks with the status `running`, which report the work that it has delegated. Only a
Task with the status `pending` asks for work.
"""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from hashlib import sha256
from typing import Final

import structlog

from loom.client import LoomClient
from loom.domain.core.errors import BadRequest, LoomError, RunExistsError, UnreachableError
from loom.domain.core.messages import JsonObject, canonical
from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.core.tasks import CORRELATION, Task, correlation_of
from loom.new_tasks import PENDING

_log = structlog.get_logger("loom.task_requests")

MOST_RUNS: Final = 1_000
"""Maximum number of Tasks whose runs one worker awaits. A run may wait for a person for days, and needs no place in the
worker meanwhile, so this is far above the number of runs that a worker advances at the same time.
"""
_PAUSE: Final = 2.0
"""Seconds between two attempts to reach the Temporal server."""


class TaskRequests:
    """Runs a worker's agents and crews for Tasks on the bus."""

    def __init__(self, client: LoomClient, *, agents: Collection[str], crews: Collection[str]) -> None:
        """`client` doesn't sign its requests, because anyone who can write to the bus decides what they contain."""
        self._client = client
        self._agents = agents
        self._crews = crews

    async def handle(self, task: Task) -> Task | None:
        """Return the Task with the result of its run. Return None for a Task that asks for something else."""
        name = task.target_agent
        if task.status != PENDING or name is None or name not in (*self._agents, *self._crews):
            return None
        run_id = _run_id(task, name)
        with structlog.contextvars.bound_contextvars(run_id=run_id, task_id=task.task_id):
            while True:
                try:
                    await self._started(task, name, run_id)
                    return _answered(task, run_id, await self._client.result(run_id))
                except UnreachableError as error:
                    _log.warning("server_away", error=error.message)
                    await asyncio.sleep(_PAUSE)
                except LoomError as error:
                    return replace(task, status="failed", result=_error(type(error).__name__, error.message))

    async def _started(self, task: Task, name: str, run_id: str) -> None:
        """Start the run, unless an earlier delivery of the same Task has started it."""
        fields = dict(task.parameters)
        words = fields.pop("task", None)
        if not isinstance(words, str):
            raise BadRequest("the Task's parameters must have a text `task`: what the agent should do", field="task")
        if unknown := {"agent", "crew", "run_id", "output"} & fields.keys():
            raise BadRequest(f"the Task's parameters can't have `{min(unknown)}`", field=min(unknown))
        metadata = {**task.metadata, **(fields.pop("metadata", None) or {})}
        fields["metadata"] = {**metadata, CORRELATION: correlation_of(metadata) or task.task_id}
        if task.session_id:
            fields["session_id"] = task.session_id
        try:
            if name in self._crews:
                await self._client.start_crew(name, words, run_id=run_id, **fields)
            else:
                await self._client.start(words, run_id=run_id, agent=name, **fields)
        except RunExistsError:
            _log.info("task_delivered_again")
        else:
            _log.info("task_started", agent=name)


def _run_id(task: Task, target: str) -> str:
    """Return the same id for each delivery of the Task. Other targets, tenants and users have other runs."""
    owner = {name: task.parameters.get(name) for name in ("tenant", "user_id")}
    who = canonical({"task_id": task.task_id, "target": target, **owner})
    return f"task-{sha256(who.encode()).hexdigest()[:32]}"


def _answered(task: Task, run_id: str, result: RunResult) -> Task:
    error = None if result.error is None else _error(result.error.type, result.error.message)["error"]
    told = {"run_id": run_id, "output": result.output, "structured_output": result.structured_output, "error": error}
    status = RunStatus(result.status).value
    return replace(task, status=status, result={name: value for name, value in told.items() if value is not None})


def _error(kind: str, message: str) -> JsonObject:
    return {"error": {"type": kind, "message": message}}
