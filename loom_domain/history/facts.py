"""What the history of a run says, decoded: who asked what of which activity, what came of it, and how the run ended."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from loom.domain.agents.hook_steps import HookAnswer
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult
from loom.domain.core.tasks import Origin, Published
from loom.domain.core.tool_calls import ToolResult
from loom.domain.run.activity_payloads import (
    CallPlans,
    Compressed,
    CompressRequest,
    ConductRequest,
    Evaluated,
    EvaluateRequest,
    HookRequest,
    ModelReply,
    ModelRequest,
    PlanRequest,
    Prepared,
    PrepareRequest,
    ToolRequest,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """How an attempt failed."""

    type: str
    message: str


Asked: TypeAlias = (
    PrepareRequest
    | HookRequest
    | ModelRequest
    | ConductRequest
    | ToolRequest
    | PlanRequest
    | CompressRequest
    | EvaluateRequest
)
Came: TypeAlias = Prepared | HookAnswer | ModelReply | ToolResult | CallPlans | Compressed | Evaluated | Failed


@dataclass(frozen=True, kw_only=True, slots=True)
class Pinned:
    """What a task shows of the agent's spec."""

    model: str = ""
    approval_timeout: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Began:
    """An execution of the run: the first, or one that goes on where the last one left off."""

    origin: Origin
    pinned: Mapping[str, Pinned] = field(default_factory=dict)
    """Of the spec that the run brought along, by the spec's digest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Did:
    """One attempt at one activity that is over."""

    asked: Asked
    came: Came | None = None
    """None: its worker died, or it was cancelled."""
    began: datetime | None = None
    """None: no worker has begun it."""
    ended: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """Notices that no activity of the run carried."""

    published: Published


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """The run has its result."""

    result: RunResult
    at: datetime


Fact: TypeAlias = Began | Did | Told | Ended


class History:
    """What facts say about each other."""

    def __init__(self, facts: Iterable[Fact]) -> None:
        self.facts: Sequence[Fact] = tuple(facts)
        self._pinned: dict[str, Pinned] = {}
        self.arguments: dict[str, JsonObject] = {}
        origins = [fact.asked.origin for fact in self.facts if isinstance(fact, Did)]
        self.origin = origins[0] if origins else self._asked_for()
        for fact in self.facts:
            self._learn(fact)

    def pinned(self, asked: ModelRequest | CompressRequest | EvaluateRequest) -> Pinned:
        """What is known of the spec that the activity went by."""
        return self._pinned.get(asked.spec_digest, Pinned())

    def _asked_for(self) -> Origin:
        """Whose tasks they are in a run that did nothing; a request that was refused says nothing about that."""
        began = next((fact.origin for fact in self.facts if isinstance(fact, Began)), Origin(run_id=""))
        errors = [fact.result.error for fact in self.facts if isinstance(fact, Ended)]
        refused = any(error is not None and error.type == "BadRequest" for error in errors)
        return Origin(run_id=began.run_id) if refused else began

    def _learn(self, fact: Fact) -> None:
        match fact:
            case Began(pinned=pinned):
                self._pinned = {**pinned, **self._pinned}  # what it was prepared with says more
            case Did(asked=ModelRequest(spec=AgentSpec() as spec) | CompressRequest(spec=AgentSpec() as spec) as asked):
                self._pinned[asked.spec_digest] = _pinned(spec)
            case Did(came=Prepared(spec=spec)):
                self._pinned[spec.digest] = _pinned(spec)
            case _:
                pass
        if isinstance(fact, Did) and isinstance(fact.came, ModelReply) and fact.came.message is not None:
            self.arguments |= {call.id: call.arguments for call in fact.came.message.tool_calls}


def _pinned(spec: AgentSpec) -> Pinned:
    return Pinned(model=spec.model, approval_timeout=spec.approval_timeout)
