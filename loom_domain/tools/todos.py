"""The model's to-do list. The run stores the list, and people can view it. If the model neglects the list, it receives
a reminder.
"""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from loom.domain.core.messages import JsonObject

TodoStatus: TypeAlias = Literal["pending", "in_progress", "done", "cancelled"]
MARKS: Final[dict[TodoStatus, str]] = {"pending": "[ ]", "in_progress": "[>]", "done": "[x]", "cancelled": "[-]"}
REMIND_AFTER: Final = 8
"""The model is reminded of its list after this many turns without a change to the list."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Todo:
    """One to-do item."""

    task: str
    status: TodoStatus = "pending"


@dataclass(frozen=True, kw_only=True, slots=True)
class Todos:
    """The list as last written by the model."""

    items: tuple[Todo, ...] = ()
    turn: int = 0
    """The turn in which the list was last written or the model was last reminded of it."""

    @property
    def open(self) -> tuple[Todo, ...]:
        """The items that are neither done nor cancelled."""
        return tuple(todo for todo in self.items if todo.status in ("pending", "in_progress"))


def read_todos(arguments: JsonObject, turn: int) -> Todos:
    """Return the list from an executed `todo` call, which has already been validated."""
    given = arguments.get("items") or ()
    items = tuple(Todo(task=str(item["task"]), status=item.get("status") or "pending") for item in given)
    return Todos(items=items, turn=turn)


def as_text(items: tuple[Todo, ...]) -> str:
    """Return one line for each item, starting with its status."""
    return "\n".join(f"{MARKS[todo.status]} {todo.task}" for todo in items)


def forgotten(todos: Todos, turn: int) -> str | None:
    """Return a reminder if the model hasn't changed its list for many turns, or None."""
    if not todos.open or turn - todos.turn < REMIND_AFTER:
        return None
    return f"Your list of things to do has not changed for {turn - todos.turn} turns:\n{as_text(todos.open)}"
