"""Make the Tasks with which a client asks for work on the bus."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from loom.domain.core.tasks import Action, Task

PENDING: Final = "pending"
"""The status of a Task that asks for work."""


def new_task(
    target_agent: str,
    parameters: Mapping[str, Any],
    *,
    action: Action = Action.EXECUTE,
    task_id: str | None = None,
    session_id: str = "",
    metadata: Mapping[str, Any] | None = None,
) -> Task:
    """Return a Task that asks an agent or a crew for work.

    `parameters` are the fields of a request: `{"task": "Review src/", "max_turns": 10}`. A Task with the same `task_id`
    does its work once.
    """
    name = task_id or f"task-{uuid4()}"
    return Task(
        task_id=name,
        run_id=name,
        root_run_id=name,
        session_id=session_id,
        action=action,
        created_at=datetime.now(UTC),
        target_agent=target_agent,
        status=PENDING,
        parameters=dict(parameters),
        metadata=dict(metadata or {}),
    )
