"""`done` and `ask_user`: tools that let a model communicate with people. The run itself executes them."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from loom.activities.ports import Tool, ToolContext
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.domain.core.errors import ToolExecutionError
from loom.domain.core.tool_calls import Effect, Scope
from loom.domain.core.tool_names import ASK_USER, DONE


class Done(BaseModel):
    """Models use different names for the answer, so any argument is accepted."""

    model_config = ConfigDict(extra="allow", frozen=True)

    # The answer is declared as text, but any value is accepted, because models often pass a JSON value if the answer
    # must be JSON.
    result: Annotated[Any, WithJsonSchema({"type": "string"})] = Field(
        default="", description="The whole answer. The user sees nothing else"
    )


class AskUser(Arguments):
    """One question."""

    question: str = Field(min_length=1, description="The person sees nothing else")


async def _never_run(_arguments: BaseModel, _context: ToolContext) -> str:
    raise ToolExecutionError("only the run itself can execute this call")


def done_tool() -> Tool:
    """Return the tool that a model calls to end the run."""
    return _said(DONE, "End the run when the task is done. Call it alone.", Done)


def ask_user_tool() -> Tool:
    """Return the tool that a model calls to ask a person a question. The run can wait days for the answer."""
    description = "Ask the person what only they can answer. Ask rarely, and call it alone."
    return _said(ASK_USER, description, AskUser)


def _said(name: str, description: str, arguments: type[BaseModel]) -> Tool:
    spec = tool_spec(name, description, arguments, effect=Effect.READ, scope=Scope.CONTEXT)
    return FunctionTool(spec=spec, arguments=arguments, function=_never_run)
