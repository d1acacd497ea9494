"""`todo`: the model's to-do list. The run stores the latest one and shows it."""

from typing import Final

from pydantic import Field

from loom.activities.ports import Tool, ToolContext
from loom.activities.toolbox.function_tool import Arguments, FunctionTool, tool_spec
from loom.domain.core.tool_calls import Effect, Scope
from loom.domain.core.tool_names import TODO
from loom.domain.tools.todos import Todo, TodoStatus, as_text

MOST: Final = 100


class Item(Arguments):
    """One item to do."""

    task: str = Field(min_length=1, max_length=500)
    status: TodoStatus = "pending"


class TodoArguments(Arguments):
    """Arguments of todo."""

    items: tuple[Item, ...] = Field(max_length=MOST)


async def _listed(arguments: TodoArguments, _context: ToolContext) -> str:
    items = tuple(Todo(task=item.task, status=item.status) for item in arguments.items)
    return as_text(items) if items else "The list is empty."


def todo_tool() -> Tool:
    """Return the tool. Writing the same list again is harmless, and the tool changes nothing outside the run."""
    description = "Keep a to-do list for work with three or more steps. Send the whole list each time."
    return FunctionTool(
        spec=tool_spec(TODO, description, TodoArguments, effect=Effect.READ, scope=Scope.CONTEXT),
        arguments=TodoArguments,
        function=_listed,
    )
