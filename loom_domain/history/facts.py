"""A run's decoded history: its activities with their inputs and results, and the outcome of the run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeAlias

from loom.domain.agents.hook_steps import HookResult
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult
from loom.domain.core.tasks import Origin, Published
from loom.domain.core.tool_calls import ToolResult
from loom.domain.run.activity_payloads import (
    Compressed,
    CompressRequest,
    ConductRequest,
    Evaluated,
    EvaluateRequest,
    HookRequest,
    ModelReply,
    ModelRequest,
    PrepareCallsRequest,
    Prepared,
    PreparedCalls,
    PrepareRequest,
    Sampled,
    SampleRequest,
    ToolRequest,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptFailure:
    """The details of an attempt's failure."""

    type: str
    message: str


ActivityRequest: TypeAlias = (
    PrepareRequest
    | HookRequest
    | ModelRequest
    | ConductRequest
    | ToolRequest
    | PrepareCallsRequest
    | CompressRequest
    | EvaluateRequest
    | SampleRequest
)
ActivityOutcome: TypeAlias = (
    Prepared | HookResult | ModelReply | ToolResult | PreparedCalls | Compressed | Evaluated | Sampled | AttemptFailure
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedSettings:
    """The settings of a spec that appear in stream events."""

    model: str = ""
    approval_timeout: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecutionStarted:
    """The start of the run's first execution, or of a later execution after continue-as-new."""

    origin: Origin
    pinned: Mapping[str, PinnedSettings] = field(default_factory=dict)
    """The known settings of the spec in the run's input, keyed by the spec's digest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivityAttempt:
    """One finished attempt at an activity."""

    request: ActivityRequest
    outcome: ActivityOutcome | None = None
    """The result. None if the worker died or the attempt was cancelled."""
    began: datetime | None = None
    """The start time. None if no worker has started the attempt."""
    ended: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedNotices:
    """Notices that the `publish` activity published, locally or not."""

    published: Published


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnded:
    """The end of the run, with its result."""

    result: RunResult
    at: datetime


Fact: TypeAlias = ExecutionStarted | ActivityAttempt | PublishedNotices | RunEnded


class History:
    """Information from one history that is needed to interpret the facts in that history."""

    def __init__(self, facts: Iterable[Fact]) -> None:
        self.facts: Sequence[Fact] = tuple(facts)
        self._pinned: dict[str, PinnedSettings] = {}
        self.arguments: dict[str, JsonObject] = {}
        self.origins: Sequence[Origin] = tuple(self._origins())
        """The origin of the run's events at each fact. It changes when the run is prepared."""
        for fact in self.facts:
            self._learn(fact)

    def pinned(self, request: ModelRequest | CompressRequest | EvaluateRequest) -> PinnedSettings:
        """Return the known settings of the spec that the activity used."""
        return self._pinned.get(request.spec_digest, PinnedSettings())

    def _origins(self) -> Iterator[Origin]:
        attempts = [fact for fact in self.facts if isinstance(fact, ActivityAttempt)]
        origin = attempts[0].request.origin if attempts else self._asked_for()
        for fact in self.facts:
            match fact:
                case ActivityAttempt(outcome=Prepared(execution=execution)):
                    origin = replace(origin, execution=execution)
                case _:
                    pass
            yield origin

    def _asked_for(self) -> Origin:
        """Return the task origin for a run that has no activities. For a rejected request, the origin contains only the
        run id.
        """
        began = next((fact.origin for fact in self.facts if isinstance(fact, ExecutionStarted)), Origin(run_id=""))
        errors = [fact.result.error for fact in self.facts if isinstance(fact, RunEnded)]
        refused = any(error is not None and error.type == "BadRequest" for error in errors)
        return Origin(run_id=began.run_id) if refused else began

    def _learn(self, fact: Fact) -> None:
        match fact:
            case ExecutionStarted(pinned=pinned):
                self._pinned = {**pinned, **self._pinned}  # the result of prepare_run contains more settings
            case ActivityAttempt(
                request=ModelRequest(spec=AgentSpec() as spec) | CompressRequest(spec=AgentSpec() as spec) as request
            ):
                self._pinned[request.spec_digest] = _pinned(spec)
            case ActivityAttempt(outcome=Prepared(spec=spec)):
                self._pinned[spec.digest] = _pinned(spec)
            case _:
                pass
        if (
            isinstance(fact, ActivityAttempt)
            and isinstance(fact.outcome, ModelReply)
            and fact.outcome.message is not None
        ):
            self.arguments |= {call.id: call.arguments for call in fact.outcome.message.tool_calls}


def _pinned(spec: AgentSpec) -> PinnedSettings:
    return PinnedSettings(model=spec.model, approval_timeout=spec.approval_timeout)
