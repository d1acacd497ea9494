"""Displays for programs. They print all events as JSON lines, or only the result. Hints go to standard error."""

from loom.activities.adapters.redis.stream import task_view
from loom.cli.output import one_line, print_json, print_notice
from loom.cli.watch.pending_approvals import PendingQuestion
from loom.domain.core.messages import JsonObject, ToolCall
from loom.domain.core.tasks import Action, Task
from loom.domain.core.tool_calls import describe
from loom.pending_approvals import PendingApproval


class ResultOnly:
    """Shows no events. Prints only hints about waits on standard error."""

    def __init__(self, run_id: str, *, approves: bool = False) -> None:
        """Set `approves` if the command approves every call itself, so that no instructions are printed."""
        self._run_id = run_id
        self._approves = approves
        self._is_away = False

    def event(self, offset: int, task: Task) -> None:
        """Report that a run is parked, and how it goes on. Show no other event."""
        if task.action is Action.PARKED:
            said = {name: one_line(str(value), 400) for name, value in task.parameters.items()}
            who = one_line(task.run_id)
            print_notice(f"{who} waits for its {said['waiting_on']}: {said.get('message', '')}. {said['way_out']}")

    def stream_lost(self, status: JsonObject, why: str) -> None:
        """Report once that the live stream is unavailable. The result is still printed when the run ends."""
        if not self._is_away:
            self._is_away = True
            print_notice(f"the live stream is unavailable ({one_line(why)}); the run is {status['status']}")

    def status(self, status: JsonObject) -> None:
        """Show nothing."""

    def approval_opened(self, ask: PendingApproval) -> None:
        """Report which call is waiting for approval."""
        call = one_line(describe(ToolCall(id=ask.call_id, name=ask.tool, arguments=ask.arguments)))
        if self._approves:
            print_notice(f"approving {call}")
        else:
            print_notice(f"waiting for approval of {call}; answer with `loom approve {self._run_id} {ask.call_id}`")

    def question_opened(self, question: PendingQuestion) -> None:
        """Report the run's question and how to answer it."""
        print_notice(question.notice)

    def say(self, text: str) -> None:
        """Print a message from the command itself."""
        print_notice(text)


class JsonEvents(ResultOnly):
    """Shows every event as JSON."""

    def event(self, offset: int, task: Task) -> None:
        """Print the event on one line."""
        print_json(task_view(offset, task))
