"""The model's to-do list: stored by the run, shown to people, and repeated to a model that forgets it."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from loom.domain.core.messages import JsonObject

TodoStatus: TypeAlias = Literal["pending", "in_progress", "done", "cancelled"]
MARKS: Final[dict[TodoStatus, str]] = {"pending": "[ ]", "in_progress": "[>]", "done": "[x]", "cancelled": "[-]"}
REMIND_AFTER: Final = 8
"""Turns without a change of the list after which the model is reminded of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Todo:
    """One item to do."""

    task: str
    status: TodoStatus = "pending"


@dataclass(frozen=True, kw_only=True, slots=True)
class Todos:
    """The list as the model last wrote it."""

    items: tuple[Todo, ...] = ()
    turn: int = 0
    """The turn in which the list was written or the model was last reminded of it."""

    @property
    def open(self) -> tuple[Todo, ...]:
        """Items that are neither done nor cancelled."""
        return tuple(todo for todo in self.items if todo.status in ("pending", "in_progress"))


def read_todos(arguments: JsonObject, turn: int) -> Todos:
    """The list in a call of `todo` that has been executed, so it is valid."""
    given = arguments.get("items") or ()
    items = tuple(Todo(task=str(item["task"]), status=item.get("status") or "pending") for item in given)
    return Todos(items=items, turn=turn)


def as_text(items: tuple[Todo, ...]) -> str:
    """One line for each item, its status first."""
    return "\n".join(f"{MARKS[todo.status]} {todo.task}" for todo in items)


def forgotten(todos: Todos, turn: int) -> str | None:
    """A reminder for a model that has not changed its list for long, or None."""
    if not todos.open or turn - todos.turn < REMIND_AFTER:
        return None
    return f"Your list of things to do has not changed for {turn - todos.turn} turns:\n{as_text(todos.open)}"
