"""Events: what can happen to a run. `evolve` makes the next state from one. Their names are in the past tense."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from loom.domain.agents.hook_steps import HookPoint, HookResult
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunError
from loom.domain.core.tool_calls import ToolResult
from loom.domain.run.activity_payloads import Compressed, Evaluated, ModelReply, Prepared, PreparedCalls
from loom.domain.run.retry_policy import Failure
from loom.domain.tree.events import TreeEvent


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPrepared:
    """The agent is resolved; the run can begin."""

    prepared: Prepared


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRefused:
    """The run cannot start as requested, or cannot go on."""

    error: RunError


@dataclass(frozen=True, kw_only=True, slots=True)
class HookReturned:
    """A hook before the first turn or after the end has answered."""

    step: HookPoint
    answer: HookResult
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class HookFailed:
    """A hook before the first turn or after the end has failed."""

    step: HookPoint
    failure: Failure
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnBegan:
    """A turn is due."""

    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReplied:
    """The model answered, or its worker asked for the whole transcript."""

    reply: ModelReply
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFailed:
    """An attempt at the model call failed."""

    failure: Failure
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextCompressed:
    """The conversation was compressed, or the worker asked for the whole of it."""

    compressed: Compressed
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressionFailed:
    """An attempt at compression failed."""

    failure: Failure
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerEvaluated:
    """The final answer was rated, or the worker asked for the whole conversation."""

    evaluated: Evaluated
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationFailed:
    """The final answer could not be rated."""

    failure: Failure
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class BackoffEnded:
    """The wait before the next attempt is over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallsPrepared:
    """Calls were judged again; `plans` has one plan for each of `call_ids`, in order."""

    call_ids: tuple[str, ...]
    plans: PreparedCalls
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolsReturned:
    """Attempts at tool calls ended, each with a result or a failure of the platform."""

    outcomes: Mapping[str, ToolResult | Failure]
    at: datetime | None = None
    """None: calls that have to run again do so without a delay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Approved:
    """A person approved one exact call."""

    call_id: str | None = None
    scope: Literal["once", "run"] = "once"
    arguments: JsonObject | None = None
    digest: str | None = None
    by: str = ""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Denied:
    """A person denied a call."""

    call_id: str | None = None
    reason: str = ""
    by: str = ""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class AsksExpired:
    """Asks may have expired without an answer."""

    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class AbortRequested:
    """Somebody aborted the run."""

    reason: str = ""
    by: str = ""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class PauseRequested:
    """Somebody paused the run."""

    by: str = ""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeRequested:
    """Somebody resumed the run."""

    by: str = ""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageReceived:
    """A person, or another agent, sent the running agent a message."""

    text: str
    by: str = ""
    from_agent: bool = False
    """Sent by an agent: it does not answer a question that the run asked a person."""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class PermissionsSet:
    """Somebody changed permission rules of the run."""

    rules: Mapping[str, str]
    by: str = ""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeRanOut:
    """The run's time is over."""

    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class SignalIgnored:
    """A signal was unknown, malformed or came too late."""

    signal: str
    why: str
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class NoticesPublished:
    """The first `count` notices are on the stream."""

    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitEnded:
    """A wait is over, or work was cancelled; the event that ended it has been handled already."""


SteeringEvent: TypeAlias = (
    Approved | Denied | AbortRequested | PauseRequested | ResumeRequested | MessageReceived | PermissionsSet
)
OwnEvent: TypeAlias = (
    RunPrepared
    | RunRefused
    | HookReturned
    | HookFailed
    | TurnBegan
    | ModelReplied
    | ModelFailed
    | ContextCompressed
    | CompressionFailed
    | AnswerEvaluated
    | EvaluationFailed
    | BackoffEnded
    | CallsPrepared
    | ToolsReturned
    | AsksExpired
    | TimeRanOut
    | SignalIgnored
    | NoticesPublished
    | WaitEnded
    | SteeringEvent
)
Event: TypeAlias = OwnEvent | TreeEvent
