"""`ask_user`: how a model asks a person; the run itself waits for the answer, for days if need be."""

from pydantic import BaseModel, ConfigDict, Field

from activities.ports import Tool, ToolContext
from activities.toolbox.function_tool import FunctionTool, tool_spec
from loom_domain.errors import ToolExecutionError
from loom_domain.tool_calls import ASK_USER, Effect


class AskUserArguments(BaseModel):
    """One question."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: str = Field(min_length=1, description="The question, complete: the person sees nothing else.")


async def _never_run(_arguments: AskUserArguments, _context: ToolContext) -> str:
    raise ToolExecutionError("`ask_user` is answered by a person and is not run as a tool")


def ask_user_tool() -> Tool:
    """The tool as the model sees it."""
    description = "Ask the person a question that only they can answer, and wait for it. Ask rarely, and alone."
    return FunctionTool(
        spec=tool_spec(ASK_USER, description, AskUserArguments, effect=Effect.READ),
        arguments=AskUserArguments,
        function=_never_run,
    )
