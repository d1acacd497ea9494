"""The fields of a request as typed keyword arguments: what `LoomClient.start`, `start_crew` and `fork` take.

A worker validates the same fields (`loom/workflows/validation.py`), for callers in every language.
Leave a field out, or set it to None, to use the agent's or the worker's default.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from loom.domain.core.messages import JsonObject
from loom.domain.permissions.judge import Mode

ModeName: TypeAlias = Mode | Literal["default", "read-only", "accept-edits", "bypass"]


class BudgetFields(TypedDict, total=False):
    """What a run and everything that it delegates may spend; a limit that is left out does not apply."""

    tokens: int | None
    cost_usd: float | None
    """US dollars; needs a model whose price is known."""
    tool_calls: int | None
    seconds: float | None
    """Wall time since the start, including pauses and waits."""
    turns: int | None
    depth: int | None
    """Levels of sub-agents; 0 allows none."""
    children: int | None
    """Sub-agents in the whole tree; 0 allows none."""


class ForkPointFields(TypedDict, total=False):
    """The turn of another run at whose end a run begins; `run_id` and `turn` are required."""

    run_id: str
    turn: int
    """0 is the other run's beginning."""
    message: str | None
    """A message to the agent at that point."""


class ForkFields(TypedDict, total=False):
    """The fields of a request that a fork may change."""

    model: str | None
    """`openai:NAME`, `anthropic:NAME`, `demo`, or a prefix that the app registers."""
    workspace: str | None
    """Folder on the worker's machine that tools work in."""
    permissions: Mapping[str, str] | None
    """Rules laid over the agent's: `{"bash(git diff:*)": "allow", "bash": "ask"}`; see docs/permissions.md."""
    mode: ModeName | None
    max_turns: int | None
    """Turns of this run alone, at least 1."""
    budget: BudgetFields | None
    require_done_tool: bool | None
    """True: the run ends only when the model calls the tool `done`."""
    session_id: str | None
    """Runs of one session share a memory."""
    metadata: Mapping[str, Any] | None
    """Any JSON; hooks and events carry it."""


class CrewRunFields(ForkFields, total=False):
    """The fields of a request for a crew's run, besides `crew` and `task`."""

    skills: Sequence[str] | None
    """Skills that are active from the start."""
    output_schema: JsonObject | None
    """JSON Schema of the answer; `output=` makes one from a type."""
    forked_from: ForkPointFields | None


class RunFields(CrewRunFields, total=False):
    """The fields of a request for an agent's run, besides `task`."""

    agent: str | None
    """Name of an agent that the worker serves; the default is `default`."""
