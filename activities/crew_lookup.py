"""Look up the crews that a worker has registered or that a request defines."""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from loom.domain.agents.request_options import FIELD as OPTIONS_FIELD
from loom.domain.agents.request_options import KEY as OPTIONS_KEY
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunRequest
from loom.domain.core.suggestions import nearest
from loom.domain.core.tool_names import DONE, MADE, MCP, SEARCH_TOOLS
from loom.domain.crews.crew import Crew, CrewMode
from loom.domain.skills.catalog import COMPILED

CREWS: Final = "agents, not to crews: leave it out, and give the members agents that have it"


class Crews:
    """Finds the crew for a request."""

    def __init__(self, known: Mapping[str, Crew], read: Callable[[JsonObject], Crew]) -> None:
        """`read` creates a crew from its fields. It raises a BadRequest that lists every error in them."""
        self._known = known
        self._read = read

    def found(self, asked: str | JsonObject) -> Crew:
        """Return the crew with that name or those fields. Raises BadRequest if the crew doesn't exist or its fields are
        invalid.
        """
        if not isinstance(asked, str):
            return self._read(asked)
        if asked not in self._known:
            raise BadRequest(
                f"there is no crew {asked!r}: {_nearest(asked, self._known)}; the name of a file ends in .yaml",
                field="crew",
            )
        return self._known[asked]


def unknown_members(crew: Crew, agents: Collection[str], tools: Collection[str] | None) -> BadRequest | None:
    """Return the error for a crew with agents or tools that a worker doesn't have, or None if it has them all.

    The tools of MCP servers and of agents aren't checked, and none are if `tools` is None.
    """
    if told := "; ".join(f"{name!r}: {_nearest(name, agents)}" for name in sorted(crew.agents.difference(agents))):
        return BadRequest(f"the crew {crew.name!r} has members with unknown agents: {told}", field="crew")
    named = {name for member in crew.members for name in member.tools if not name.startswith((MCP, MADE, COMPILED))}
    if tools is not None and (unknown := sorted(named.difference(tools, (DONE, SEARCH_TOOLS)))):
        told = "; ".join(f"{name!r}: {_nearest(name, tools)}" for name in unknown)
        return BadRequest(f"the crew {crew.name!r} has members with unknown tools: {told}", field="crew")
    return None


def refuse_form(crew: Crew) -> None:
    """Reject an output schema for a combined answer, because a combined answer can't match a schema."""
    if not crew.is_answered_by_one:
        parts = f", aggregate.by {crew.aggregate.by}" if crew.mode is CrewMode.PARALLEL else ""
        raise BadRequest(
            f"the crew {crew.name!r} ({crew.mode.value}{parts}) has no single run that produces its answer, so it takes"
            " no schema: let an agent merge the answers (parallel, aggregate.by merge), or choose sequential or routed",
            field="output_schema",
        )


def refuse_ignored(request: RunRequest, because: str = CREWS) -> None:
    """Reject options that apply only to agents with a model, because other runs would silently ignore them."""
    asked = {
        "skills": request.skills,
        "require_done_tool": request.require_done_tool,
        "model_options": request.model_options.given,
        OPTIONS_FIELD: request.metadata.get(OPTIONS_KEY),
    }
    if field := next((field for field, given in asked.items() if given), None):
        raise BadRequest(f"`{field}` applies to {because}", field=field)


def _nearest(name: str, known: Collection[str]) -> str:
    return nearest(name, known, f"there are {', '.join(sorted(known)) or 'none'}")
