"""The unit of communication (axiom A2): one entry of the live stream, with the same shape for every kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from loom.domain.core.messages import JsonObject


class Action(StrEnum):
    """The action of a task. The dotted names are the public contract."""

    EXECUTE = "execute"
    REGISTERED = "tool.registered"
    START = "node.start"
    MANIFEST = "node.manifest"
    TURN = "node.turn"
    PLANNING = "node.planning"
    THINKING = "node.thinking"
    SEGMENT_RESET = "node.segment_reset"
    MODEL_CALL = "node.model_call"
    FALLBACK = "node.fallback"
    HOOK = "node.hook"
    TOOL_CALL = "node.tool_call"
    TOOL_PROGRESS = "node.tool_progress"
    TOOL_RESULT = "node.tool_result"
    APPROVAL_REQUESTED = "node.approval_requested"
    APPROVAL_DECIDED = "node.approval_decided"
    MESSAGE = "node.message"
    PAUSED = "node.paused"
    RESUMED = "node.resumed"
    IGNORED = "node.ignored"
    COMPRESSION = "node.compression"
    BUDGET = "node.budget"
    COMPLETE = "node.complete"
    ERROR = "node.error"


FINAL_ACTIONS = frozenset({Action.COMPLETE, Action.ERROR})

SHOWN_ONLY = frozenset({Action.THINKING, Action.TOOL_PROGRESS, Action.SEGMENT_RESET})
"""Fragments of text for a screen. Another task contains the whole text, so they are not on the bus or in memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """Something that happened while no activity ran. The next activity publishes it."""

    action: Action
    key: str
    """Identifies the task together with action and run, so that writing it twice has no effect."""
    at: datetime
    parameters: JsonObject = field(default_factory=dict)
    status: str = "completed"
    result: JsonObject | None = None
    target_agent: str | None = None
    """The agent that receives work or a message."""


CORRELATION: Final = "correlation_id"
"""In the metadata of a request, if the caller has an id of its own, and of every task."""


def correlation_of(metadata: Mapping[str, object]) -> str:
    """The id in a request; empty if it has none, or it is not a string."""
    given = metadata.get(CORRELATION)
    return given if isinstance(given, str) else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The run that tasks belong to."""

    run_id: str
    root_run_id: str = ""
    session_id: str = ""
    agent: str = "default"
    correlation_id: str = ""
    """The caller's id of the work; empty: the root run's id."""

    @property
    def correlated(self) -> str:
        """Connects everything that one request caused, in events and logs."""
        return self.correlation_id or self.root_run_id or self.run_id

    @property
    def log_ids(self) -> Mapping[str, str]:
        """The ids in each line that a worker logs about the run."""
        return {"run_id": self.run_id, "correlation_id": self.correlated}

    @property
    def depth(self) -> int:
        """Levels below the root."""
        return len(runs_above(self.run_id, self.root_run_id))


def runs_above(run_id: str, root_run_id: str) -> tuple[str, ...]:
    """The runs above a run, root first: a child's id is its parent's with one more segment."""
    if not root_run_id or not run_id.startswith(f"{root_run_id}/"):
        return ()
    parts = run_id.removeprefix(f"{root_run_id}/").split("/")
    return tuple("/".join((root_run_id, *parts[:count])) for count in range(len(parts)))


def is_last(task: "Task", run_id: str) -> bool:
    """Whether this task ends the stream of that run. The last tasks of child runs do not."""
    return task.action in FINAL_ACTIONS and task.run_id == run_id


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """One attempt at one segment of the stream. A later attempt fences off the earlier ones."""

    name: str
    """For example `t3-model` or `t3-call-call_1`."""
    attempt: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A task as it is published. The store adds the offset."""

    task_id: str
    run_id: str
    root_run_id: str
    session_id: str
    action: Action
    created_at: datetime
    parent_task_id: str | None = None
    source_agent: str = ""
    target_agent: str | None = None
    status: str = "completed"
    parameters: JsonObject = field(default_factory=dict)
    result: JsonObject | None = None
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What the activity `publish` had to publish, for history: as a local activity, its input is not recorded."""

    notices: tuple[Notice, ...] = ()
    """Without the run's last one, which the end of the history contains."""


def task_of(
    origin: Origin,
    action: Action,
    key: str,
    *,
    at: datetime,
    status: str = "completed",
    parameters: JsonObject | None = None,
    result: JsonObject | None = None,
    parent_task_id: str | None = None,
    target_agent: str | None = None,
) -> Task:
    """The task of one run with that `key`. The same key and action always give the same `task_id`."""
    return Task(
        task_id=f"{origin.run_id}/{key}/{action}",
        run_id=origin.run_id,
        root_run_id=origin.root_run_id or origin.run_id,
        session_id=origin.session_id or origin.run_id,
        action=action,
        created_at=at,
        source_agent=origin.agent,
        target_agent=target_agent,
        status=status,
        parameters=parameters or {},
        result=result,
        parent_task_id=parent_task_id,
        metadata={CORRELATION: origin.correlated},
    )


def task_of_notice(origin: Origin, notice: Notice) -> Task:
    """The task that a notice becomes."""
    return task_of(
        origin,
        notice.action,
        notice.key,
        at=notice.at,
        status=notice.status,
        parameters=notice.parameters,
        result=notice.result,
        target_agent=notice.target_agent,
    )
