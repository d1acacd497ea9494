"""What a caller asks for and what it gets back: the public contract in types."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from loom_domain.messages import JsonObject


class RunStatus(StrEnum):
    """Where a run stands, in the words of the public contract."""

    RUNNING = "running"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_INPUT = "waiting_for_input"
    PAUSED = "paused"
    COMPLETED = "completed"
    ABORTED = "aborted"
    LIMIT_REACHED = "limit_reached"
    BUDGET_EXHAUSTED = "budget_exhausted"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a run may spend; None is without limit."""

    tokens: int | None = None
    cost_usd: float | None = None
    tool_calls: int | None = None
    seconds: float | None = None
    """Wall time since the start, pauses and waits included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRequest:
    """The input of the workflow `AgentRun`; only `task` is required."""

    task: str
    agent: str = "default"
    session_id: str | None = None
    model: str | None = None
    workspace: str | None = None
    permissions: Mapping[str, str] = field(default_factory=dict)
    mode: str | None = None
    max_turns: int | None = None
    """None: as many as the agent has by default."""
    budget: Budget = field(default_factory=Budget)
    require_done_tool: bool | None = None
    output_schema: JsonObject | None = None
    metadata: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunError:
    """Why a run ended short of success; `type` is a name of `loom_domain.errors` or of a limit."""

    type: str
    message: str
    context: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResult:
    """The result of a run."""

    status: RunStatus
    output: str
    structured_output: Any
    completed_explicitly: bool
    turns: int
    usage: JsonObject
    cost: float | None
    """US dollars; None when the model's price is unknown."""
    quality_metrics: JsonObject | None
    tool_calls: int
    artifacts: tuple[JsonObject, ...]
    error: RunError | None
