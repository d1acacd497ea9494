"""`search_tools`: find the tools that the model isn't shown from the start (`loom_domain/tools/tool_search.py`).

The search takes place where the call is prepared, because that step knows the run's tools and rules. History records
what it found with the call.
"""

from pydantic import Field

from loom.activities.ports import Tool, ToolContext
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import ToolExecutionError
from loom.domain.core.tool_calls import Effect, Scope, Verdict
from loom.domain.core.tool_names import SEARCH_TOOLS
from loom.domain.permissions.dead_rules import offered
from loom.domain.tools.tool_search import MOST_FOUND, divided, found_for, found_text, nothing_found


class SearchTools(Arguments):
    """Arguments of search_tools."""

    query: str = Field(min_length=1, max_length=500, description="What it should do, or its name")
    limit: int = Field(default=5, ge=1, le=MOST_FOUND)

    def found_in(self, spec: AgentSpec) -> tuple[str, ...]:
        """Return the names of the run's tools that fit the query, best first. Tools that a rule denies are left out.

        Raises a ToolExecutionError that says what to try if there is none.
        """
        _, deferred = divided(offered(spec.tools, spec.permissions), spec.on_demand)
        found = found_for(self.query, deferred, self.limit)
        if not found:
            raise ToolExecutionError(nothing_found(self.query, [tool.name for tool in deferred]))
        return found


def search_tools_tool() -> Tool:
    """Return the search_tools tool."""
    return FunctionTool(
        spec=tool_spec(
            SEARCH_TOOLS,
            "Find more tools. You can call them from your next turn on.",
            SearchTools,
            effect=Effect.READ,
            scope=Scope.CONTEXT,
            declared=Verdict.ALLOW,
        ),
        arguments=SearchTools,
        function=_shown,
        max_output=100_000,
    )


async def _shown(arguments: SearchTools, context: ToolContext) -> str:
    if not context.found:
        raise ToolExecutionError(f"no tool was found for {arguments.query!r}: only a run has tools to search")
    return found_text(context.found)
