"""`done`: how a model says that it has finished; the run itself carries it out."""

from pydantic import BaseModel, ConfigDict, Field

from activities.ports import Tool, ToolContext
from activities.toolbox.function_tool import FunctionTool, tool_spec
from loom_domain.errors import ToolExecutionError
from loom_domain.tool_calls import DONE, Effect


class DoneArguments(BaseModel):
    """Models name the answer as they like, so any argument is taken."""

    model_config = ConfigDict(extra="allow", frozen=True)

    result: str = Field(default="", description="The final answer, complete: nothing else is shown to the user.")


async def _never_run(_arguments: DoneArguments, _context: ToolContext) -> str:
    raise ToolExecutionError("`done` ends the run and is not run as a tool: answer in plain text instead")


def done_tool() -> Tool:
    """The tool as the model sees it."""
    description = "End the run with the final result. Call it alone, when the task is done."
    return FunctionTool(
        spec=tool_spec(DONE, description, DoneArguments, effect=Effect.READ),
        arguments=DoneArguments,
        function=_never_run,
    )
