"""Plans: steps that wait for each other, each a run of its own; what waits for nothing runs at once.

A plan is a crew that is made on the spot: its members are the steps, its mode is `planned`. So it is run, watched,
steered, paid for and recovered like any crew, and the run that made it reads one result.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loom.domain.core.messages import JsonObject
from loom.domain.core.tool_names import CREATE_PLAN, DELEGATE, DONE

NAME: Final = "plan"
"""How the crew of a plan is called."""
_NEVER_IN_A_STEP: Final = (CREATE_PLAN, DELEGATE, DONE)
"""A step does its part: it neither plans again nor hands it on, and it always can say that it is done."""


def crew_of(goal: str, steps: Sequence[Mapping[str, Any]], *, agent: str, tools: Sequence[str]) -> JsonObject:
    """The crew, as a request brings it, for steps with `id`, `task`, and maybe `agent`, `tools`, `after`.

    A step that names no agent is for the agent that made the plan, with these tools of its own.
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
    """Steps that wait for each other in a circle, the first one again at the end; none where the order works out."""
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
