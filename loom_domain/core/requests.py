"""Requests and results: the public contract as types."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from loom.domain.core.messages import JsonObject


class RunStatus(StrEnum):
    """The status of a run, as in the public contract."""

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
"""Maximum seconds of a budget."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a run may use. None means unlimited."""

    tokens: int | None = None
    cost_usd: float | None = None
    tool_calls: int | None = None
    seconds: float | None = None
    """Wall-clock time since the start, including pauses and waiting times."""
    turns: int | None = None
    """Of the run and everything that it delegates, while `max_turns` applies to the run alone."""
    depth: int | None = None
    """Levels of sub-agents."""
    children: int | None = None
    """Total number of sub-agents."""

    def or_else(self, other: "Budget") -> "Budget":
        """This budget, with the other's limits where it has none."""
        mine = {name: value for name in self.__dataclass_fields__ if (value := getattr(self, name)) is not None}
        return replace(other, **mine)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForkedFrom:
    """The turn of another run at whose end this one starts."""

    run_id: str
    turn: int
    """0: before its first turn."""
    message: str | None = None
    """A message to the agent at that point."""


def fork_view(forked: ForkedFrom | None) -> JsonObject | None:
    """The run and turn at which a fork starts."""
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
    """None: the agent's default."""
    budget: Budget = field(default_factory=Budget)
    require_done_tool: bool | None = None
    skills: tuple[str, ...] = ()
    """Skills that are active from the start, in addition to those that the agent may load."""
    output_schema: JsonObject | None = None
    metadata: JsonObject = field(default_factory=dict)
    forked_from: ForkedFrom | None = None
    crew: str | JsonObject | None = None
    """The crew that does the task in place of an agent: the name of a registered one, or its definition."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunError:
    """Why a run did not succeed; `type` is a name of `loom.domain.core.errors` or of a limit."""

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
    """US dollars; None if the price of the model is unknown."""
    quality_metrics: JsonObject | None
    tool_calls: int
    artifacts: tuple[JsonObject, ...]
    error: RunError | None
    children: tuple[JsonObject, ...] = ()
    """The runs that it delegated work to. Usage, cost and tool calls above include theirs."""
    own: JsonObject | None = None
    """Usage, cost and tool calls without theirs; None if there are none."""
