"""The unit of communication (axiom A2): one entry of the live stream, the same shape for every kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from loom.domain.core.messages import JsonObject


class Action(StrEnum):
    """What a task says. The dotted names are the public contract."""

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
"""Pieces of text on their way to a screen. Whole they are in another task, so neither the bus nor memory has them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """Something that happened while no activity ran; it rides on the next one to the stream."""

    action: Action
    key: str
    """With action and run it names the task, so that writing it twice changes nothing."""
    at: datetime
    parameters: JsonObject = field(default_factory=dict)
    status: str = "completed"
    result: JsonObject | None = None
    target_agent: str | None = None
    """The agent that is given work, or told something."""


CORRELATION: Final = "correlation_id"
"""In the metadata of a request, if the caller has an id of its own, and of every Task."""


def correlation_of(metadata: Mapping[str, object]) -> str:
    """The id that a request gives; nothing where it gives none, or no text."""
    given = metadata.get(CORRELATION)
    return given if isinstance(given, str) else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Whose tasks these are."""

    run_id: str
    root_run_id: str = ""
    session_id: str = ""
    agent: str = "default"
    correlation_id: str = ""
    """What the caller knows the work by; nothing: the root run's id."""

    @property
    def correlated(self) -> str:
        """What ties together everything that one piece of work caused, in events and logs."""
        return self.correlation_id or self.root_run_id or self.run_id

    @property
    def log_ids(self) -> Mapping[str, str]:
        """What each line that a worker logs of the run has."""
        return {"run_id": self.run_id, "correlation_id": self.correlated}

    @property
    def depth(self) -> int:
        """Levels below the root."""
        return len(runs_above(self.run_id, self.root_run_id))


def runs_above(run_id: str, root_run_id: str) -> tuple[str, ...]:
    """The runs that a run was delegated by, root first: a child's id is its parent's with one more part."""
    if not root_run_id or not run_id.startswith(f"{root_run_id}/"):
        return ()
    parts = run_id.removeprefix(f"{root_run_id}/").split("/")
    return tuple("/".join((root_run_id, *parts[:count])) for count in range(len(parts)))


def is_last(task: "Task", run_id: str) -> bool:
    """Whether this task ends the stream of that run; those of runs below it do not."""
    return task.action in FINAL_ACTIONS and task.run_id == run_id


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """One attempt at one stretch of the stream; a later attempt fences off the earlier ones."""

    name: str
    """For example `t3-model` or `t3-call-call_1`."""
    attempt: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One entry of the stream as it is published; the store adds the offset."""

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
    """What the activity `publish` was given to tell, for history: its input is not there, since it runs locally."""

    notices: tuple[Notice, ...] = ()
    """Without the run's last one, which the end of the history tells."""


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
    """The task of one run that `key` names; the same key and action give the same `task_id`, whoever makes it."""
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
