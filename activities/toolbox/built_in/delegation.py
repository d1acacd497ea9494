"""`delegate_task`: delegate work to a sub-agent. The run itself starts the child."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from loom.activities.ports import Tool, ToolContext
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.domain.agents.definitions import AgentDefinition
from loom.domain.agents.spec import AgentSpec
from loom.domain.agents.sub_agent import FILES
from loom.domain.core.errors import ToolUnavailableError, ToolValidationError
from loom.domain.core.messages import ToolCall
from loom.domain.core.suggestions import nearest
from loom.domain.core.tool_calls import Effect, Scope
from loom.domain.core.tool_names import DELEGATE, DONE
from loom.domain.permissions.subjects import Subject
from loom.domain.skills.catalog import goes_along


class DelegateTask(Arguments):
    """Arguments of delegate_task."""

    description: str = Field(min_length=1, max_length=200, description="Three to five words")
    prompt: str = Field(
        min_length=1,
        max_length=100_000,
        description="The task in full. It sees only this and the hints",
    )
    tools: tuple[str, ...] = Field(
        (),
        max_length=100,
        description=f"Of your tools. Default: {', '.join(FILES)}, and those for shared memory",
    )
    agent: str | None = Field(None, description="A registered agent. Default: a copy of you")
    context_hints: tuple[str, ...] = Field((), max_length=50, description="Facts that it needs")
    add_skills: tuple[str, ...] = Field((), max_length=50, description="Your skills that it starts with")


def delegation_tool(agents: Mapping[str, AgentDefinition]) -> Tool:
    """Return the tool for a worker with these agents. The tool has no effects of its own, and each call that a
    sub-agent makes is judged separately.
    """
    about = "Give a self-contained task to a sub-agent. Its final answer is the result."
    several = " Call it several times in one turn for independent tasks."
    known = f" Registered agents: {', '.join(sorted(agents))}." if agents else ""

    return FunctionTool(
        spec=tool_spec(DELEGATE, about + several + known, DelegateTask, effect=Effect.READ, scope=Scope.CONTEXT),
        arguments=DelegateTask,
        function=_not_here,
        touches=_agent_of,
    )


def refuse_wrong_delegation(call: ToolCall, arguments: object, spec: AgentSpec, agents: Sequence[str]) -> None:
    """Reject arguments that can't start a child. Raises a ToolValidationError that lists the valid values."""
    if call.name != DELEGATE or not isinstance(arguments, DelegateTask):
        return
    if arguments.agent is not None and arguments.agent not in agents:
        raise ToolValidationError(f"there is no agent {arguments.agent!r}: {_nearest(arguments.agent, agents)}")
    skills = [skill.name for skill in spec.skills]
    if missing := [name for name in arguments.add_skills if name not in skills]:
        told = "; ".join(f"{name!r}: {_nearest(name, skills)}" for name in missing)
        raise ToolValidationError(f"add_skills: you cannot hand on skills that you do not have yourself: {told}")
    if arguments.agent is not None:
        return
    own = [tool.name for tool in spec.tools if not goes_along(tool)]
    if unknown := [name for name in arguments.tools if name not in (*own, DONE)]:
        told = "; ".join(f"{name!r}: {_nearest(name, own)}" for name in unknown)
        raise ToolValidationError(f"you cannot hand on tools that you do not have yourself: {told}")


def _nearest(name: str, known: Sequence[str]) -> str:
    return nearest(name, known, f"there are {', '.join(known) or 'none'}")


def _agent_of(arguments: DelegateTask, _workspace: Path) -> Sequence[Subject]:
    """Return the agent as a subject, so that a `delegate_task(NAME)` rule matches the agent with that name."""
    return (Subject(text=arguments.agent),) if arguments.agent else ()


async def _not_here(_arguments: DelegateTask, _context: ToolContext) -> str:
    raise ToolUnavailableError("only a run can start sub-agents, and there is no run here")
