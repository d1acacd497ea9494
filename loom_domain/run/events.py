"""The events of a run. `evolve` computes the next state from an event. Event names are in the past tense."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from loom.domain.agents.hook_steps import HookPoint, HookResult
from loom.domain.core.messages import JsonObject, Part
from loom.domain.core.notifications import NotifyPlan
from loom.domain.core.repositories import Checkout, ReturnedChange
from loom.domain.core.requests import Budget, RunError
from loom.domain.core.tool_calls import ToolResult
from loom.domain.run.activity_payloads import Compressed, Evaluated, ModelReply, Prepared, PreparedCalls, Sampled
from loom.domain.run.chat import WhenBusy
from loom.domain.run.retry_policy import Failure
from loom.domain.tree.events import TreeEvent


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPrepared:
    """The agent has been resolved, and the run can begin."""

    prepared: Prepared


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRefused:
    """The run was refused because it cannot start as requested or cannot continue."""

    error: RunError


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkspacePrepared:
    """The run's repository has been cloned."""

    checkout: Checkout
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeStored:
    """The change to the run's repository has been stored, as far as that was possible."""

    change: ReturnedChange
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePushed:
    """The change to the run's repository has been pushed, or can't be."""

    commit: str = ""
    """The commit on the branch. Empty if it wasn't pushed."""
    problem: str = ""
    """Why it wasn't pushed."""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ReturnStopped:
    """The run no longer waits until its change is stored or pushed, because a person ended the wait."""

    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class HookReturned:
    """A hook has returned. It ran before the first turn or after the end of the run."""

    step: HookPoint
    answer: HookResult
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class HookFailed:
    """A hook has failed. It ran before the first turn or after the end of the run."""

    step: HookPoint
    failure: Failure
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnBegan:
    """A turn has begun."""

    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelReplied:
    """The model answered, or its worker asked for the full transcript."""

    reply: ModelReply
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFailed:
    """An attempt to call the model failed."""

    failure: Failure
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextCompressed:
    """The conversation was compressed, or the worker asked for the full conversation."""

    compressed: Compressed
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressionFailed:
    """An attempt to compress the conversation failed."""

    failure: Failure
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerEvaluated:
    """The final answer was rated, or the worker asked for the full conversation."""

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
    """Calls were prepared again. `plans` has one prepared call for each of `call_ids`, in order."""

    call_ids: tuple[str, ...]
    plans: PreparedCalls
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolsReturned:
    """Attempts to run tool calls ended, each with a result or a platform failure."""

    outcomes: Mapping[str, ToolResult | Failure]
    local: frozenset[str] = frozenset()
    """The ids of the calls whose attempts were local activities."""
    at: datetime | None = None
    """The time of the event. If None, calls that must run again do so without a delay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSampled:
    """The model answered an MCP server."""

    call_id: str
    sampled: Sampled
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingFailed:
    """The model could not answer an MCP server."""

    call_id: str
    failure: Failure
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Approved:
    """A person approved one specific call."""

    call_id: str | None = None
    scope: Literal["once", "run"] = "once"
    arguments: JsonObject | None = None
    digest: str | None = None
    by: str = ""
    proof: str = ""
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
    """One or more asks may have expired without an answer."""

    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class AbortRequested:
    """The run was aborted."""

    reason: str = ""
    by: str = ""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class PauseRequested:
    """The run was paused."""

    by: str = ""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeRequested:
    """The run was resumed."""

    by: str = ""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageReceived:
    """A person or another agent sent a message to the running agent."""

    text: str
    by: str = ""
    from_agent: bool = False
    """Whether an agent sent the message. If so, it doesn't answer a question that the run asked a person."""
    parts: tuple[Part, ...] = ()
    """The images, recordings and files that belong to the message. They aren't stored yet."""
    message_id: str = ""
    """The id of a chat's message. If empty, the chat numbers it."""
    when_busy: WhenBusy | None = None
    """What a chat's message does if the agent is at work. None means `queue`."""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class PermissionsSet:
    """The run's permission rules were changed."""

    rules: Mapping[str, str]
    by: str = ""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryRequested:
    """A person asked a parked run to try its model call now, or an ended run to go on."""

    model: str | None = None
    """The model to go on with. None keeps the run's model."""
    by: str = ""
    at: datetime
    end: int | None = None
    """The number of the end that this takes back. None if the run hasn't ended. Only an ended run takes the following
    fields.
    """
    max_turns: int | None = None
    budget: Budget = field(default_factory=Budget)
    """The limits that replace those of the request."""
    message: str = ""
    """A message that the agent reads when it goes on."""

    @property
    def changes_ended_run(self) -> bool:
        """Whether the request has fields that only an ended run takes."""
        return bool(self.max_turns or self.message or self.budget != Budget())


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReopened:
    """An ended run goes on, because a person asked for it."""

    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageAnswered:
    """The outcome of a chat's run is the answer to its message, and the run goes on."""

    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeRanOut:
    """The run has reached its deadline."""

    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class SignatureUsed:
    """A signed request was accepted, so its signature no longer counts."""

    fingerprint: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReset:
    """Somebody has reset the run to the point that its history has reached."""

    at: datetime
    """The time at which the run goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SignalIgnored:
    """A signal was unknown, malformed, or too late."""

    signal: str
    why: str
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class RunAdmitted:
    """The run's tenant has room for the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartsStored:
    """The parts of the messages that the model reads next were stored."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class NoticesPublished:
    """The first `count` notices were published to the stream."""

    count: int
    notify: NotifyPlan | None = None
    """Whom the worker tells of the run's end, if that was one of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitEnded:
    """A wait ended, or work was cancelled, because of an event that has already been handled."""


SteeringEvent: TypeAlias = (
    Approved
    | Denied
    | AbortRequested
    | PauseRequested
    | ResumeRequested
    | RetryRequested
    | MessageReceived
    | PermissionsSet
)
OwnEvent: TypeAlias = (
    RunPrepared
    | WorkspacePrepared
    | ChangeStored
    | ChangePushed
    | ReturnStopped
    | RunRefused
    | RunAdmitted
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
    | ModelSampled
    | SamplingFailed
    | AsksExpired
    | TimeRanOut
    | RunReopened
    | MessageAnswered
    | SignatureUsed
    | RunReset
    | SignalIgnored
    | PartsStored
    | NoticesPublished
    | WaitEnded
    | SteeringEvent
)
Event: TypeAlias = OwnEvent | TreeEvent
