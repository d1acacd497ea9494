"""What can happen to a run, past tense; `evolve` makes the next state of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias

from loom.domain.agents.hook_steps import HookAnswer, HookStep
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunError
from loom.domain.core.tool_calls import ToolResult
from loom.domain.run.activity_payloads import CallPlans, Compressed, Evaluated, ModelReply, Prepared
from loom.domain.run.retry_policy import Failure
from loom.domain.tree.events import TreeEvent


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPrepared:
    """The agent is resolved; the run can begin."""

    prepared: Prepared


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRefused:
    """The run cannot start as asked, or cannot go on."""

    error: RunError


@dataclass(frozen=True, kw_only=True, slots=True)
class HookReturned:
    """A hook around the run has answered."""

    step: HookStep
    answer: HookAnswer
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class HookFailed:
    """A hook around the run gave no answer that counts."""

    step: HookStep
    failure: Failure
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnBegan:
    """A turn is due."""

    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReplied:
    """The model answered, or its worker asked for the transcript whole."""

    reply: ModelReply
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFailed:
    """An attempt at the model call failed."""

    failure: Failure
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextCompressed:
    """The conversation is shorter now, or its worker asked for it whole."""

    compressed: Compressed
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressionFailed:
    """An attempt at compressing failed."""

    failure: Failure
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerEvaluated:
    """The final answer is rated, or the worker asked for the conversation whole."""

    evaluated: Evaluated
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationFailed:
    """The final answer could not be rated."""

    failure: Failure
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class BackoffEnded:
    """The wait before the next try is over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallsPlanned:
    """Calls were judged again; `plans` are those of the calls in `call_ids`, in order."""

    call_ids: tuple[str, ...]
    plans: CallPlans
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolsReturned:
    """Attempts at tool calls ended, each with a result or a failure of the platform."""

    outcomes: Mapping[str, ToolResult | Failure]
    at: datetime | None = None
    """None: calls that have to run again do so at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Approved:
    """A person said yes to one exact call."""

    call_id: str | None = None
    scope: Literal["once", "run"] = "once"
    arguments: JsonObject | None = None
    digest: str | None = None
    by: str = ""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Denied:
    """A person said no."""

    call_id: str | None = None
    reason: str = ""
    by: str = ""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class AsksExpired:
    """Nobody answered in time."""

    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class AbortRequested:
    """Somebody stops the run."""

    reason: str = ""
    by: str = ""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class PauseRequested:
    """Somebody wants the run to wait."""

    by: str = ""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeRequested:
    """Somebody lets the run go on."""

    by: str = ""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageReceived:
    """A person tells the running agent something, or another agent does."""

    text: str
    by: str = ""
    from_agent: bool = False
    """It is no person's word: it answers no question that is meant for people."""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class PermissionsSet:
    """Somebody lays new rules over the run's."""

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
    """A wait is over, or work was cancelled; what ended it has been taken in already."""


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
    | CallsPlanned
    | ToolsReturned
    | AsksExpired
    | TimeRanOut
    | SignalIgnored
    | NoticesPublished
    | WaitEnded
    | SteeringEvent
)
Event: TypeAlias = OwnEvent | TreeEvent
