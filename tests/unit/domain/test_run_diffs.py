"""Two runs beside each other, and where they part."""

from dataclasses import replace

import pytest

from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import Message, Tail, ToolCall
from loom.domain.core.requests import ForkedFrom, RunResult, RunStatus
from loom.domain.core.tasks import Origin
from loom.domain.core.tool_calls import ToolResult
from loom.domain.history.diffs import Side, first_difference, paired, tools_used
from loom.domain.history.past_turns import ChildRun, ModelAttempt, PastCall, PastTurn, ToolAttempt, turns_of
from loom.domain.machine.delegation import execute_task_id
from loom.domain.run.activity_payloads import ModelReply, ModelRequest, ToolRequest
from loom.domain.tree.lineage import Lineage, TreeLimits

DONE = RunResult(
    status=RunStatus.COMPLETED,
    output="",
    structured_output=None,
    completed_explicitly=False,
    turns=1,
    usage={},
    cost=0.0,
    quality_metrics=None,
    tool_calls=0,
    artifacts=(),
    error=None,
)


def turn(number: int, text: str = "on it", result: str = "ok", *, model: str = "m", command: str = "ls") -> PastTurn:
    call = ToolCall(id=f"c{number}", name="bash", arguments={"command": command})
    message = Message(role="assistant", content=text, tool_calls=(call,))
    request = ModelRequest(origin=Origin(run_id="r"), turn=number, spec_digest="d", tail=Tail())
    attempt = ModelAttempt(request=request, reply=ModelReply(message=message))
    ran = ToolRequest(origin=Origin(run_id="r"), turn=number, call_id=call.id, tool="bash")
    return PastTurn(
        number=number,
        calls=(PastCall(attempt=attempt, spec=AgentSpec(name="a", model=model), messages=()),),
        tools=(ToolAttempt(request=ran, result=ToolResult(content=result)),),
    )


def side(run_id: str, *turns: PastTurn, fork: tuple[str, int] | None = None) -> Side:
    forked = ForkedFrom(run_id=fork[0], turn=fork[1]) if fork else None
    return Side(run_id=run_id, turns=turns, forked_from=forked)


def numbers(a: Side, b: Side) -> list[tuple[int | None, int | None]]:
    return [(pair.a.number if pair.a else None, pair.b.number if pair.b else None) for pair in paired(a, b)]


def test_runs_that_did_the_same_do_not_differ_whatever_their_model() -> None:
    pairs = paired(side("a", turn(1), turn(2)), side("b", turn(1, model="other"), turn(2)))
    assert first_difference(pairs) is None


@pytest.mark.parametrize("execution", ["", "7c1d2e3f4a5b"])
def test_what_a_sub_agent_has_answered_is_a_result_of_its_turn(execution: str) -> None:
    call = ToolCall(id="c1", name="delegate_task", arguments={"description": "look"})
    request = ModelRequest(origin=Origin(run_id="r"), turn=1, spec_digest="d", tail=Tail())
    asked = ModelAttempt(request=request, reply=ModelReply(message=Message(role="assistant", tool_calls=(call,))))

    def answered(output: str) -> Side:
        given = execute_task_id("r", execution, call.id)
        lineage = Lineage(
            parent_run_id="r", root_run_id="r", depth=1, limits=TreeLimits(), description="look", task_id=given
        )
        result = replace(DONE, output=output)
        return side("r", *turns_of([asked, ChildRun(run_id="r/d1-1", lineage=lineage, result=result)]))

    one, same, other = answered("fine"), answered("fine"), answered("broken")
    (pair,) = paired(one, other)
    assert first_difference(paired(one, same)) is None
    assert (pair.differs, tools_used(one.turns)) == (("results",), {"delegate_task": 1})


def test_the_first_difference_is_named() -> None:
    pairs = paired(side("a", turn(1), turn(2), turn(3)), side("b", turn(1), turn(2, result="no"), turn(3, "else")))
    first = first_difference(pairs)
    assert first is not None
    assert first.a is not None
    assert (first.a.number, first.differs) == (2, ("results",))
    assert [pair.differs for pair in pairs] == [(), ("results",), ("text",)]


def test_other_arguments_and_another_model_are_told() -> None:
    (pair,) = paired(side("a", turn(1)), side("b", turn(1, command="pwd", model="other")))
    assert pair.differs == ("model", "calls")


def test_a_turn_that_one_run_did_not_come_to_is_a_difference() -> None:
    pairs = paired(side("a", turn(1), turn(2)), side("b", turn(1)))
    first = first_difference(pairs)
    assert first is not None
    assert (first.a is None, first.b is None) == (False, True)


def test_a_fork_stands_beside_what_followed_it() -> None:
    first, fork = side("a", turn(1), turn(2), turn(3)), side("b", turn(1), turn(2), fork=("a", 1))
    assert numbers(first, fork) == [(2, 1), (3, 2)]
    assert numbers(fork, first) == [(1, 2), (2, 3)]


def test_two_forks_of_one_run_stand_beside_each_other_from_the_later_one_on() -> None:
    early, late = side("b", turn(1), turn(2), turn(3), fork=("a", 1)), side("c", turn(1), fork=("a", 2))
    assert numbers(early, late) == [(2, 1), (3, None)]


def test_tools_are_counted_once_a_call() -> None:
    again = turn(1)
    assert tools_used([PastTurn(number=1, tools=again.tools * 2), turn(2)]) == {"bash": 2}
