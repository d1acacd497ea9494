"""Faces for programs: events as JSON lines, or nothing but the result; what people must know goes to standard error."""

from loom.activities.adapters.redis.stream import task_view
from loom.cli.output import one_line, print_json, tell
from loom.cli.watch.pending_approvals import Ask, Question
from loom.domain.core.messages import JsonObject, ToolCall
from loom.domain.core.tasks import Task
from loom.domain.core.tool_calls import describe


class Quiet:
    """Shows no event."""

    def __init__(self, run_id: str, *, answered: bool = False) -> None:
        """`answered`: somebody answers the asks, so nobody needs to be told of them."""
        self._run_id = run_id
        self._answered = answered
        self._is_away = False

    def event(self, offset: int, task: Task) -> None:
        """Nothing to see."""

    def away(self, status: JsonObject, why: str) -> None:
        """Say once that there are no events; the result will come all the same."""
        if not self._is_away:
            self._is_away = True
            tell(f"live stream is away ({one_line(why)}); the run is {status['status']}")

    def status(self, status: JsonObject) -> None:
        """Nothing to see."""

    def asked(self, ask: Ask) -> None:
        """Say what the run waits for."""
        call = one_line(describe(ToolCall(id=ask.call_id, name=ask.tool, arguments=ask.arguments)))
        if self._answered:
            tell(f"approving {call}")
        else:
            tell(f"waiting for approval of {call}; answer with `loom approve {self._run_id} {ask.call_id}`")

    def questioned(self, question: Question) -> None:
        """Say what the run asks, and how to answer it."""
        tell(f'waiting for an answer to "{one_line(question.text, 400)}"; {question.hint}')

    def say(self, text: str) -> None:
        """Pass it on."""
        tell(text)


class JsonLines(Quiet):
    """Shows every event as the contract writes it."""

    def event(self, offset: int, task: Task) -> None:
        """One line."""
        print_json(task_view(offset, task))
