"""Forks: from what a run's history holds, exactly the run as it was between two turns."""

from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import ToolCall
from loom.domain.core.requests import Budget, ForkedFrom, RunRequest
from loom.domain.core.tool_calls import PreparedCall, ToolResult
from loom.domain.core.tool_names import CREATE_TOOL, DONE, TODO
from loom.domain.history.forks import begun_at, fork_point, fork_request
from loom.domain.history.past_turns import ModelAttempt, Record, ToolAttempt
from loom.domain.machine.activity_requests import model_request, tool_request
from loom.domain.machine.transitions import evolve, next_action, start
from loom.domain.permissions.judge import Level
from loom.domain.run.actions import BeginTurn, CallModel, Finish, RunTools
from loom.domain.run.activity_payloads import Prepared
from loom.domain.run.events import Event, MessageReceived, ModelReplied, RunPrepared, ToolsReturned, TurnBegan
from loom.domain.run.state import RunState, Spending
from loom.domain.tools.todos import Todo
from tests.unit.domain.story import AT, FORBIDDEN, READS, SPEC, UNKNOWN_TOOL, WRITES, call, says, wants

REQUEST: Final = RunRequest(task="Do it.", agent="default", budget=Budget(tokens=9_000), metadata={"ticket": 7})
GROWN: Final = {"name": "grown", "description": "d", "parameters": {}, "code": "def run(): ..."}


class Recorded:
    """A run of the domain that keeps what its history would hold, and how each turn left it."""

    def __init__(self, *, prepared: Prepared | None = None) -> None:
        done = prepared or Prepared(spec=SPEC)
        self.records: list[Record] = [REQUEST, done]
        self.state = evolve(start("run-1", REQUEST, AT), RunPrepared(prepared=done))
        self.after: list[RunState] = [self.state]

    def turn(self, reply: ModelReplied, *, said: str = "", rotated: bool = False) -> "Recorded":
        """A turn with this answer, all its tools run; `said` by a person while they did."""
        self._is_next(BeginTurn)
        self._take(TurnBegan(at=AT))
        self._is_next(CallModel)
        self.records.append(ModelAttempt(request=model_request(self.state), reply=reply.reply))
        self._take(reply)
        if said:
            self._take(MessageReceived(text=said, by="ann", at=AT))
        while isinstance(action := next_action(self.state), RunTools):
            results = {open_call.call.id: _result(open_call.call) for open_call in action.calls}
            for one in action.calls:
                request = tool_request(self.state, one, "first", with_notices=False)
                self.records.append(ToolAttempt(request=request, result=results[one.call.id]))
            self._take(ToolsReturned(outcomes=results, at=AT))
        self.after.append(self.state)
        if rotated:
            self.records.append(self.state)
        return self

    def _take(self, event: Event) -> None:
        self.state = evolve(self.state, event)

    def _is_next(self, kind: type[Any]) -> None:
        assert isinstance(next_action(self.state), kind), next_action(self.state)


def _result(one: ToolCall) -> ToolResult:
    artifact = f"t-{one.id}" if one.name == "bash" else ""
    return ToolResult(content=f"result of {one.id}", artifact=artifact, length=len(artifact))


@st.composite
def stories(draw: st.DrawFn) -> Recorded:
    """Runs of some turns, with tools of every fate, words of people, and rotations."""
    story, plans = Recorded(), [READS, WRITES, FORBIDDEN, UNKNOWN_TOOL]
    for number in range(1, draw(st.integers(1, 5)) + 1):
        wanted = [(call(f"c{number}", TODO, items=[{"task": f"step {number}"}]), WRITES)]
        wanted += [(call(f"m{number}", CREATE_TOOL, **GROWN), WRITES)] if draw(st.booleans()) else []
        chosen = draw(st.lists(st.sampled_from(plans), max_size=3))
        wanted += [(call(f"b{number}-{place}", command="ls"), plan) for place, plan in enumerate(chosen)]
        said = draw(st.sampled_from(["", f"word {number}"]))
        story.turn(wants(*wanted), said=said, rotated=draw(st.booleans()))
    return story


@settings(max_examples=settings().max_examples // 2)
@given(stories())
def test_a_fork_begins_with_what_the_turn_left(story: Recorded) -> None:
    for turn, left in enumerate(story.after):
        point = fork_point(story.records, turn)

        assert point.earlier.messages == left.transcript.messages
        assert point.earlier.todos.items == left.work.todos.items
        assert point.earlier.artifacts == left.work.artifacts
        assert point.spec == left.agent
        assert point.request == REQUEST


@settings(max_examples=settings().max_examples // 2)
@given(stories())
def test_a_fork_of_a_fork_is_the_same_as_a_fork(story: Recorded) -> None:
    turn = len(story.after) - 1
    point = fork_point(story.records, turn)
    again = Recorded(prepared=Prepared(spec=point.spec, earlier=point.earlier))

    assert again.state.transcript == story.after[turn].transcript
    assert (again.state.turn, again.state.spending) == (0, Spending())
    again.turn(says("So it is."))
    assert replace(fork_point(again.records, 0), later_effects=0) == replace(point, later_effects=0)


def test_what_workers_have_of_a_fork_is_not_sent_again() -> None:
    point = fork_point(Recorded().turn(wants((call("c1"), WRITES))).records, 1)
    forked = Recorded(prepared=Prepared(spec=point.spec, earlier=point.earlier)).state

    request = model_request(evolve(forked, TurnBegan(at=AT)))

    assert (request.tail.base, request.tail.items) == (forked.transcript.ref, ())


def test_what_people_said_after_the_turn_is_not_part_of_it() -> None:
    story = Recorded().turn(wants((call("c1"), READS)), said="Stop that.").turn(says("Stopped."))
    assert [m.text for m in story.after[2].transcript.messages][-2:] == ["Stop that.", "Stopped."]
    assert fork_point(story.records, 1).earlier.messages[-1].text == "result of c1"


def test_the_message_of_a_fork_comes_last_and_an_answer_needs_one() -> None:
    point = fork_point(Recorded().turn(says("Four.")).records, 1)
    with pytest.raises(BadRequest, match="turn 1 ended with an answer"):
        begun_at(point, _forked(1))
    said = begun_at(point, _forked(1, "And three and three?"))
    assert [m.text for m in said.earlier.messages] == ["Do it.", "Four.", "And three and three?"]


def test_a_run_that_was_ended_by_its_agent_can_go_on() -> None:
    story = Recorded().turn(wants((call("d", DONE, result="ready"), READS)))
    assert isinstance(next_action(story.state), Finish)
    said = begun_at(fork_point(story.records, 1), _forked(1, "Not quite."))
    assert [(m.role, m.text) for m in said.earlier.messages][-2:] == [("tool", "Done."), ("user", "Not quite.")]


@pytest.mark.parametrize(
    ("turn", "says_why"),
    [(3, "no turn 3: it has turns 1 to 2, and turn 0 means before"), (2, "turn 2 is not over.*turn 1$")],
)
def test_a_fork_needs_a_turn_that_is_there_and_over(turn: int, says_why: str) -> None:
    story = Recorded().turn(wants((call("c1"), READS)))
    begun = evolve(story.state, TurnBegan(at=AT))
    asked = wants((call("c2"), PreparedCall()))
    running = ToolAttempt(
        request=tool_request(evolve(begun, asked), evolve(begun, asked).calls.open[0], "", with_notices=False)
    )
    records = [*story.records, ModelAttempt(request=model_request(begun), reply=asked.reply), running]

    with pytest.raises(BadRequest, match=says_why):
        fork_point(records, turn)
    assert fork_point(records, 1).earlier.messages == story.state.transcript.messages


def test_nothing_can_be_forked_before_the_first_turn() -> None:
    with pytest.raises(BadRequest, match="has not begun its first turn"):
        fork_point(Recorded().records, 0)


def test_a_fork_tells_of_later_calls_that_changed_something() -> None:
    story = Recorded().turn(wants((call("c1"), WRITES))).turn(wants((call("c2"), READS), (call("c3"), WRITES)))
    assert [fork_point(story.records, turn).later_effects for turn in (0, 1, 2)] == [2, 1, 0]


def test_the_request_of_a_fork_is_the_other_runs_without_what_its_state_brings_along() -> None:
    point = fork_point(Recorded().turn(says("Four.")).records, 0)
    asked = RunRequest(task="t", permissions={"bash": "ask"}, mode="bypass", workspace="/w", model="m")
    told = fork_request(replace(point, request=asked), _forked(2, "Go on."))
    assert told == {
        "task": "t",
        "agent": "default",
        "forked_from": {"run_id": "run-1", "turn": 2, "message": "Go on."},
    }
    assert fork_request(point, _forked(0))["budget"] == {"tokens": 9_000}


def test_todos_of_a_fork_are_as_old_as_the_fork() -> None:
    story = Recorded().turn(wants((call("c1", TODO, items=[{"task": "one"}]), WRITES)))
    todos = fork_point(story.records, 1).earlier.todos
    assert (todos.items, todos.turn) == ((Todo(task="one"),), 0)


def _forked(turn: int, message: str | None = None) -> ForkedFrom:
    return ForkedFrom(run_id="run-1", turn=turn, message=message)


def test_a_fork_of_a_sub_agent_stays_below_the_rules_above_it_without_what_people_granted_them() -> None:
    above = Level(whose="root", rules={"bash": "ask"}, grants=("bash",))
    prepared = Prepared(spec=replace(SPEC, above=(above,)))
    spec = fork_point(Recorded(prepared=prepared).turn(says("Done.")).records, 1).spec
    assert spec.above == (replace(above, grants=()),)
