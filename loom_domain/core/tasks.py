"""The unit of communication (axiom A2): one entry in the live stream. Every kind of entry has the same shape."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import blake2b
from typing import Final

from loom.domain.core.messages import JsonObject
from loom.domain.core.notifications import NotifyPlan
from loom.domain.core.tenants import Owner


class Action(StrEnum):
    """The action of a task. The dotted names are the public contract."""

    EXECUTE = "execute"
    REGISTERED = "tool.registered"
    START = "node.start"
    MANIFEST = "node.manifest"
    WORKSPACE = "node.workspace"
    """The run's repository has been cloned, or the change to it has been returned."""
    TURN = "node.turn"
    PLANNING = "node.planning"
    THINKING = "node.thinking"
    """A fragment of the model's text."""
    REASONING = "node.reasoning"
    """A fragment of what the model thinks before its text. It isn't part of the answer."""
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
    ANSWER = "node.answer"
    """The answer to a message of a chat."""
    PAUSED = "node.paused"
    RESUMED = "node.resumed"
    PARKED = "node.parked"
    UNPARKED = "node.unparked"
    RETRIED = "node.retried"
    IGNORED = "node.ignored"
    COMPRESSION = "node.compression"
    BUDGET = "node.budget"
    COMPLETE = "node.complete"
    ERROR = "node.error"


FINAL_ACTIONS = frozenset({Action.COMPLETE, Action.ERROR})

SHOWN_ONLY = frozenset({Action.THINKING, Action.REASONING, Action.TOOL_PROGRESS, Action.SEGMENT_RESET})
"""The actions for fragments of a text that are only displayed. Another task contains the full text, so fragments aren't
sent to the bus or to memory.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """An event that occurred while no activity was running. The next activity publishes it."""

    action: Action
    key: str
    """The key, the action and the run together identify the task. Publishing a task is therefore idempotent."""
    at: datetime
    parameters: JsonObject = field(default_factory=dict)
    status: str = "completed"
    result: JsonObject | None = None
    target_agent: str | None = None
    """The agent that receives the work or the message."""


CORRELATION: Final = "correlation_id"
"""The key for the caller's own id in the metadata of a request and of each of its tasks."""


def correlation_of(metadata: Mapping[str, object]) -> str:
    """Return the caller's id from a request's metadata, or an empty string if the metadata contains no such string."""
    given = metadata.get(CORRELATION)
    return given if isinstance(given, str) else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """The run that a task belongs to."""

    run_id: str
    """The run's id."""
    root_run_id: str = ""
    """The run at the top of the tree."""
    session_id: str = ""
    """The session, in which runs share memories."""
    agent: str = "default"
    """The name of the run's agent."""
    correlation_id: str = ""
    """The caller's id for the work. If the caller provides no id, the root run's id is used."""
    execution: str = ""
    """Tells runs apart that use the same id one after the other. Runs that an earlier release prepared have none."""
    root_execution: str = ""
    """The same of the root, if this run has a parent."""
    tenant: str = ""
    """The tenant that the run works for, if the request names one."""
    user_id: str = ""
    """The person that the run works for, if the request names one."""
    reset_at: int = 0
    """The time of the reset since which the run needs new approvals, in microseconds since the epoch, or 0."""

    @property
    def owner(self) -> Owner:
        """Whom the run works for."""
        return Owner(user_id=self.user_id, tenant=self.tenant)

    @property
    def correlated(self) -> str:
        """The id that connects all events and log lines that result from one request."""
        return self.correlation_id or self.root_run_id or self.run_id

    @property
    def log_ids(self) -> Mapping[str, str]:
        """The ids that a worker includes in each log line about the run."""
        return {"run_id": self.run_id, "correlation_id": self.correlated, "trace_id": self.trace_id}

    @property
    def trace_id(self) -> str:
        """The id of the trace that contains the spans of the run's whole tree, in hexadecimal."""
        if self.root_run_id in ("", self.run_id):
            return trace_id(self.run_id, self.execution)
        return trace_id(self.root_run_id, self.root_execution)

    def span_id(self, segment: "Segment") -> str:
        """Return the id of the span for one attempt at an activity, in hexadecimal."""
        return span_id(self.trace_id, task_id(self.run_id, self.execution, f"{segment.name}.{segment.attempt}"))

    @property
    def depth(self) -> int:
        """The number of levels between this run and the root."""
        return len(runs_above(self.run_id, self.root_run_id))


def runs_above(run_id: str, root_run_id: str) -> tuple[str, ...]:
    """Return a run's ancestors, root first. A child's id is its parent's id with one more segment."""
    if not root_run_id or not run_id.startswith(f"{root_run_id}/"):
        return ()
    parts = run_id.removeprefix(f"{root_run_id}/").split("/")
    return tuple("/".join((root_run_id, *parts[:count])) for count in range(len(parts)))


def is_last(task: "Task", run_id: str) -> bool:
    """Whether this task ends the stream. The last task of a child run does not end it."""
    return task.action in FINAL_ACTIONS and task.run_id == run_id


def reopens(task: "Task", run_id: str) -> bool:
    """Whether the stream goes on with this task after an end, because a person has retried the run."""
    return task.action is Action.RETRIED and task.run_id == run_id


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """One attempt at writing a segment of the stream. Once a later attempt starts, earlier attempts can no longer
    write.
    """

    name: str
    """The segment's name, for example `t3-model` or `t3-call-call_1`."""
    attempt: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A published task. The store adds the offset."""

    task_id: str
    """The task's id. A task that is published again has the same."""
    run_id: str
    """The run that it tells of."""
    root_run_id: str
    """The run at the top of the tree. It is the run itself unless this is a sub-agent."""
    session_id: str
    """The run's session."""
    action: Action
    """What happened, such as `node.tool_call`."""
    created_at: datetime
    """When it happened."""
    parent_task_id: str | None = None
    """The task that it belongs to, such as the call of a result."""
    source_agent: str = ""
    """The agent that it is from."""
    target_agent: str | None = None
    """The agent that it is for. None if it is for nobody in particular."""
    status: str = "completed"
    """How it came out, such as `completed`, `failed` or `success`."""
    parameters: JsonObject = field(default_factory=dict)
    """What went in. Each action has its own fields."""
    result: JsonObject | None = None
    """What came out. None if nothing did, or not yet."""
    metadata: JsonObject = field(default_factory=dict)
    """Data about the task, such as its turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """The notices that the `publish` activity published. History doesn't record the input if it is a local activity."""

    notices: tuple[Notice, ...] = ()
    """The notices, except the run's last notice, which is contained in the final history event."""
    notify: NotifyPlan | None = None
    """Whom the worker tells of the run's end. None if the run hasn't ended."""


def task_id(run_id: str, execution: str, *parts: str) -> str:
    """Return the id of a run's task, whose parts are its key and its action. The same parts produce the same id."""
    return "/".join((run_id, execution, *parts) if execution else (run_id, *parts))


def trace_id(root_run_id: str, root_execution: str) -> str:
    """Return the id of a tree's trace. It follows from the root run, so that every worker continues the same trace."""
    return blake2b(f"{root_run_id}/{root_execution}".encode(), digest_size=16).hexdigest()


def span_id(trace: str, key: str) -> str:
    """Return the id of the span with this key in a trace."""
    return blake2b(f"{trace}/{key}".encode(), digest_size=8).hexdigest()


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
    """Return the run's task with this `key`."""
    return Task(
        task_id=task_id(origin.run_id, origin.execution, key, action),
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
        metadata={CORRELATION: origin.correlated, **_named(origin.owner)},
    )


def _named(owner: Owner) -> JsonObject:
    """Return the names of the user and the tenant that a task's run works for."""
    return {name: value for name, value in (("user_id", owner.user_id), ("tenant", owner.tenant)) if value}


def task_of_notice(origin: Origin, notice: Notice) -> Task:
    """Convert a notice to a task."""
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
