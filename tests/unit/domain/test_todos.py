"""The list of things to do that a model keeps."""

from typing import Any

from loom.domain.core.requests import RunStatus
from loom.domain.core.tool_names import TODO
from loom.domain.machine.transitions import evolve
from loom.domain.run.state import RunState, status_of
from loom.domain.run.status import status_view
from loom.domain.tools.todos import REMIND_AFTER, Todo, Todos
from tests.unit.domain.story import BEGAN, READS, call, conversation, returned, told, wants


def listed(*items: dict[str, Any]) -> RunState:
    return told(BEGAN, wants((call("a", TODO, items=list(items)), READS)), returned(a="ok"))


def idle(state: RunState, turns: int) -> RunState:
    for number in range(turns):
        name = f"c{number}"
        for event in (BEGAN, wants((call(name), READS)), returned(**{name: "same"})):
            state = evolve(state, event)
    return state


def test_the_run_remembers_the_list_as_it_was_written_last() -> None:
    state = listed({"task": "read", "status": "done"}, {"task": "write"})
    assert state.work.todos == Todos(items=(Todo(task="read", status="done"), Todo(task="write")), turn=1)
    assert status_view(state)["todos"] == [
        {"task": "read", "status": "done"},
        {"task": "write", "status": "pending"},
    ]


def test_a_model_that_forgets_its_list_is_reminded_of_what_is_left_now_and_then() -> None:
    state = idle(listed({"task": "read", "status": "done"}, {"task": "write"}), 2 * REMIND_AFTER)
    reminders = [text for role, text in conversation(state) if role == "user" and "list of things" in text]
    assert len(reminders) == 2
    assert "[ ] write" in reminders[0]
    assert "read" not in reminders[0]


def test_nothing_is_said_of_a_list_that_is_done_or_was_never_written() -> None:
    for begun in (listed({"task": "read", "status": "done"}), told()):
        state = idle(begun, 2 * REMIND_AFTER)
        assert status_of(state) is RunStatus.RUNNING
        assert not [text for role, text in conversation(state) if "list of things" in text]
