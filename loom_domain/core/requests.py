"""What a caller asks for and what it gets back: the public contract in types."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from loom.domain.core.messages import JsonObject


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


ENDED: Final = frozenset(
    {RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.ABORTED, RunStatus.LIMIT_REACHED, RunStatus.BUDGET_EXHAUSTED}
)


LONGEST_RUN: Final = 10 * 366 * 24 * 3600.0
"""Seconds that a budget may name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a run may spend; None is without limit."""

    tokens: int | None = None
    cost_usd: float | None = None
    tool_calls: int | None = None
    seconds: float | None = None
    """Wall time since the start, pauses and waits included."""
    turns: int | None = None
    """Of the run and everything that it delegates, while `max_turns` is of the run alone."""
    depth: int | None = None
    """Levels of sub-agents."""
    children: int | None = None
    """Sub-agents in all."""

    def or_else(self, other: "Budget") -> "Budget":
        """This budget, with the other's limits where it has none."""
        mine = {name: value for name in self.__dataclass_fields__ if (value := getattr(self, name)) is not None}
        return replace(other, **mine)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkedFrom:
    """The turn of another run at whose end this one begins."""

    run_id: str
    turn: int
    """0: before its first."""
    message: str | None = None
    """Said to the agent there."""


def fork_view(forked: ForkedFrom | None) -> JsonObject | None:
    """Which turn of which run a fork began at."""
    return None if forked is None else {"run_id": forked.run_id, "turn": forked.turn}


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
    skills: tuple[str, ...] = ()
    """Skills that are active from the start, beside those that the agent may load."""
    output_schema: JsonObject | None = None
    metadata: JsonObject = field(default_factory=dict)
    forked_from: ForkedFrom | None = None
    crew: str | JsonObject | None = None
    """The crew that does it, in the place of an agent: a registered one by name, or the whole of one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunError:
    """Why a run ended short of success; `type` is a name of `loom.domain.core.errors` or of a limit."""

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
    children: tuple[JsonObject, ...] = ()
    """The runs that it delegated work to; usage, cost and tool calls above include theirs."""
    own: JsonObject | None = None
    """Usage, cost and tool calls without theirs; None where there are none."""
