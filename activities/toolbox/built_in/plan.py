"""`create_plan`: plan a task whose steps can run in parallel. The run starts the steps."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, field_validator

from loom.activities.ports import Tool, ToolContext
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import ToolUnavailableError, ToolValidationError
from loom.domain.core.messages import ToolCall
from loom.domain.core.tool_calls import Effect, Scope
from loom.domain.core.tool_names import CREATE_PLAN
from loom.domain.permissions.subjects import Subject
from loom.domain.skills.catalog import goes_along
from loom.domain.tree.plans import circle_in

MOST_STEPS = 20


class Step(Arguments):
    """One step."""

    id: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    task: str = Field(
        min_length=1,
        max_length=50_000,
        description="In full. Its agent sees only this, the goal and the results of `after`",
    )
    after: tuple[str, ...] = Field((), max_length=MOST_STEPS, description="Ids of steps that it needs")
    agent: str | None = None
    tools: tuple[str, ...] = Field((), max_length=100, description="Default: all of yours")


class CreatePlan(Arguments):
    """Arguments of create_plan."""

    goal: str = Field(min_length=1, max_length=50_000)
    steps: tuple[Step, ...] = Field(min_length=1, max_length=MOST_STEPS)

    @field_validator("steps")
    @classmethod
    def _in_order(cls, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        ids = [step.id for step in steps]
        if twice := next((name for name in ids if ids.count(name) > 1), None):
            raise ValueError(f"two steps are called {twice!r}: give each an id of its own")
        for step in steps:
            if missing := next((name for name in step.after if name not in ids), None):
                raise ValueError(
                    f"step {step.id!r} waits for {missing!r}, which is not a step: the steps are {', '.join(ids)}"
                )
        if circle := circle_in({step.id: step.after for step in steps}):
            raise ValueError(f"these steps wait for each other: {' → '.join(circle)}; remove one `after`")
        return steps


def plan_tool() -> Tool:
    """Return the tool. Each call that a step makes is judged separately."""
    about = (
        "Carry out a plan. A sub-agent does each step, and independent steps run in parallel. The result says what"
        " each returned, and what failed or was not started."
    )
    return FunctionTool(
        spec=tool_spec(CREATE_PLAN, about, CreatePlan, effect=Effect.READ, scope=Scope.CONTEXT),
        arguments=CreatePlan,
        function=_not_here,
        touches=_agents_of,
    )


def refuse_wrong_plan(call: ToolCall, arguments: object, spec: AgentSpec, agents: Sequence[str]) -> None:
    """Reject steps that can't be started. Raises a ToolValidationError that lists the valid values."""
    if call.name != CREATE_PLAN or not isinstance(arguments, CreatePlan):
        return
    own = [tool.name for tool in spec.tools if not goes_along(tool)]
    for step in arguments.steps:
        if step.agent is not None and step.agent not in agents:
            there = ", ".join(agents) or "none"
            raise ToolValidationError(f"step {step.id!r}: there is no agent {step.agent!r}; there are {there}")
        if step.agent is None and (unknown := [name for name in step.tools if name not in own]):
            raise ToolValidationError(f"step {step.id!r}: you do not have {', '.join(unknown)} yourself")


def _agents_of(arguments: CreatePlan, _workspace: Path) -> Sequence[Subject]:
    """Return the steps' agents as subjects, so that a `delegate_task(NAME)` or `delegate_task(agent:NAME)` rule also
    matches these agents.
    """
    named = dict.fromkeys(step.agent for step in arguments.steps if step.agent)
    return tuple(Subject(text=name, loose=f"agent:{name}") for name in named)


async def _not_here(_arguments: CreatePlan, _context: ToolContext) -> str:
    raise ToolUnavailableError("only a run can carry out a plan, and there is no run here")
