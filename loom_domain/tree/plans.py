"""Plans: steps that can depend on each other. Each step is a separate run. Steps without dependencies start
immediately.

A plan becomes a crew in `planned` mode, with the steps as its members. You can therefore run, observe, and steer a plan
like any other crew, and budgets and recovery work in the same way. The run that created the plan receives a single
result.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loom.domain.core.messages import JsonObject
from loom.domain.core.tool_names import CREATE_PLAN, DELEGATE, DONE

NAME: Final = "plan"
"""The name of a plan's crew."""
_NEVER_IN_A_STEP: Final = (CREATE_PLAN, DELEGATE, DONE)
"""The tools that a step does not inherit. A step therefore cannot create plans or delegate its work. The `done` tool is
always available to a step.
"""


def crew_of(goal: str, steps: Sequence[Mapping[str, Any]], *, agent: str, tools: Sequence[str]) -> JsonObject:
    """Return the crew definition for these steps. Each step has an `id` and a `task`, and can have an `agent`, `tools`,
    and `after`.

    A step that doesn't specify an agent uses the agent that created the plan, with `tools`.
    """
    own = [name for name in tools if name not in _NEVER_IN_A_STEP]
    members = []
    for step in steps:
        named = step.get("agent")
        given = list(step.get("tools") or ()) or ([] if named else own)
        member = {
            "name": step["id"],
            "agent": named or agent,
            "task": step["task"],
            "after": list(step.get("after", ())),
        }
        members.append({**member, "tools": given})
    return {"name": NAME, "mode": "planned", "description": goal[:200], "members": members}


def circle_in(after: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return steps that form a dependency cycle, with the first step repeated at the end. The result is empty if there
    is no cycle.
    """
    left = dict(after)
    while free := [name for name, before in left.items() if not any(other in left for other in before)]:
        for name in free:
            del left[name]
    if not left:
        return ()
    way = [next(iter(left))]
    while (following := next(other for other in left[way[-1]] if other in left)) not in way:
        way.append(following)
    return (*way[way.index(following) :], following)
