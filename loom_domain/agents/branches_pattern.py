"""The `tree` pattern: several branches work on the task in parallel, each in its own child run, and the best answer is
used.

    round 1: branch 1 … branch K ──▶ the judge ──▶ the best ──▶ round 2: improve on it … ──▶ the best is the answer

The pattern creates a crew in `tree` mode whose members are copies of one agent. You can watch, steer and fork this crew
like any other crew. Budgets and recovery also work in the same way.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from loom.domain.agents.spec import DEFAULT_MAX_TURNS, AgentSpec
from loom.domain.core.errors import BadRequest
from loom.domain.core.requests import RunRequest
from loom.domain.core.tool_calls import ToolSpec
from loom.domain.crews.crew import (
    FEWEST_BRANCHES,
    MOST_BRANCHES,
    MOST_LEVELS,
    Crew,
    CrewMode,
    Judge,
    Member,
    branch_name,
)
from loom.domain.tree.lineage import TreeLimits

BRANCHES: Final = 3
"""The default number of branches."""
LEVELS: Final = 1


def checked_branches(branches: Any, where: str) -> int | None:
    """Return the number of branches. Raises BadRequest if the number is out of range."""
    if branches is None:
        return None
    if isinstance(branches, bool) or not isinstance(branches, int) or not _fits(branches):
        wanted = f"a number from {FEWEST_BRANCHES} to {MOST_BRANCHES}"
        raise BadRequest(f"{where}: branches must be {wanted}, not {branches!r}", field=where)
    return branches


def branches_of(agent: str, *, branches: int | None, rounds: int | None, tools: Sequence[str]) -> Crew:
    """Return a crew whose members are branches of one agent. Each branch has these tools or, if `tools` is empty, all
    of the agent's tools. Raises BadRequest if the crew is invalid.
    """
    levels = rounds or LEVELS
    if levels > MOST_LEVELS:
        raise BadRequest(f"the `tree` pattern has at most {MOST_LEVELS} rounds, not {levels}", field="rounds")
    names = [branch_name(number) for number in range(1, (branches or BRANCHES) + 1)]
    return Crew(
        name=agent,
        mode=CrewMode.TREE,
        # The crew drops a failed branch, because other branches remain.
        members=tuple(Member(name=name, agent=agent, tools=tuple(tools), retries=0) for name in names),
        judge=Judge(rounds=levels),
        origin="pattern tree",
    )


def led_by(crew: Crew, spec: AgentSpec, delegate: ToolSpec) -> AgentSpec:
    """Return the agent as the leader of a crew. The crew decides what happens in each turn, and the agent only assigns
    work.
    """
    return replace(
        spec,
        crew=crew,
        rounds=crew.judge.rounds,
        tools=(delegate,),
        skills=(),
        rules="",
        require_done_tool=False,
        max_turns=max(spec.max_turns, DEFAULT_MAX_TURNS),
    )


def refuse_without_room(crew: Crew, asked: RunRequest, limits: TreeLimits, *, depth: int) -> None:
    """Raise BadRequest if the branches would exceed the run's maximum depth or maximum number of children."""
    deep = limits.depth if asked.budget.depth is None else min(limits.depth, asked.budget.depth)
    if depth >= deep:
        raise BadRequest(
            f"the `tree` pattern needs sub-agents, but this run can't have any: at most {deep} levels are allowed"
            f" (LOOM_MAX_DEPTH, budget.depth), and the run is on level {depth}. Choose the `react` or `reflect`"
            " pattern",
            field="pattern",
        )
    levels = crew.judge.rounds
    most = limits.children if asked.budget.children is None else min(limits.children, asked.budget.children)
    if (need := levels * (len(crew.members) + 1)) > most:
        raise BadRequest(
            f"the `tree` pattern with {len(crew.members)} branches and {levels} rounds starts up to {need} sub-agents,"
            f" including each round's judge, but at most {most} are allowed (LOOM_MAX_CHILDREN, budget.children):"
            " choose fewer branches or rounds, or raise the limit",
            field="branches",
        )
    own = 2 * levels + 1
    if asked.max_turns is not None and asked.max_turns < own:
        raise BadRequest(
            f"max_turns must be at least {own}, not {asked.max_turns}: the `tree` pattern with {levels} rounds takes"
            " two turns for each round, and one for the answer",
            field="max_turns",
        )


def has_branches(spec: AgentSpec) -> bool:
    """Whether the members of this agent's crew are branches of a tree."""
    return spec.crew is not None and spec.crew.mode is CrewMode.TREE


def for_branch(child: RunRequest, asked: RunRequest, spec: AgentSpec) -> RunRequest:
    """Return the child's request, with the options of the run that started the branch. A judge keeps its own output
    schema.
    """
    if spec.pattern != "tree":
        return child
    model = child.model or spec.model
    if child.output_schema is not None:
        return replace(child, model=model)
    return replace(
        child,
        model=model,
        max_turns=asked.max_turns,
        require_done_tool=asked.require_done_tool,
        skills=asked.skills,
        output_schema=spec.output_schema,
    )


def _fits(branches: int) -> bool:
    return FEWEST_BRANCHES <= branches <= MOST_BRANCHES
