"""Delegation as a transcript: a call becomes a child, the child reports, asks, wants more, and ends."""

import json
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.agents.spec import AgentSpec
from loom.domain.core.messages import Usage
from loom.domain.core.requests import Budget, RunError, RunRequest, RunResult, RunStatus
from loom.domain.core.signatures import SignatureChecks, microseconds
from loom.domain.core.tool_calls import Effect, PreparedCall, Verdict
from loom.domain.machine.activity_requests import origin_of
from loom.domain.machine.delegation import child_start
from loom.domain.machine.limits import remaining
from loom.domain.machine.transitions import closed, evolve, next_action, start
from loom.domain.permissions.judge import Level
from loom.domain.run.actions import AwaitBudget, CallModel, Finish, RunChildren, RunTools
from loom.domain.run.activity_payloads import Prepared
from loom.domain.run.events import (
    AbortRequested,
    PauseRequested,
    PermissionsSet,
    ResumeRequested,
    RunPrepared,
    RunReset,
)
from loom.domain.run.pending_approvals import LONGEST_TEXT, open_asks, shortened_for_ancestors
from loom.domain.run.state import RunState, status_of
from loom.domain.tree.budget import Share, Spend
from loom.domain.tree.events import (
    AncestryChanged,
    BudgetGranted,
    ChildEnded,
    ChildrenBegan,
    ChildReported,
    ChildStarted,
)
from loom.domain.tree.lineage import Lineage, TreeLimits, is_child
from loom.domain.tree.signals import PARENT, TURNS_BETWEEN_REPORTS, with_report_sent
from loom.domain.tree.tree import ChildReport, Tree, TreeAsk, TreeSignal
from tests.unit.domain.story import AT, BEGAN, READS, SPEC, after, call, no, results, says, wants, yes

PLAN: Final = PreparedCall(effect=Effect.READ, parallel=True)
LIMITS: Final = TreeLimits(depth=3, children=4)
CHILD: Final = "run-1/d1-1"
ASK: Final = TreeAsk(
    call_id="b1", run_id=CHILD, agent="default", depth=1, tool="bash", arguments={"command": "ls"}, digest="d9"
)


def hand_over(call_id: str, **given: Any) -> Any:
    """A call that hands over work, planned."""
    return call(call_id, "delegate_task", description=f"part {call_id}", prompt="Do it.", **given), PLAN


def run(*events: Any, lineage: Lineage | None = None, spec: AgentSpec = SPEC, **request: Any) -> RunState:
    """A run that may delegate, after these events."""
    begun = start("run-1", RunRequest(task="Do it all.", **request), AT, lineage)
    return after(begun, RunPrepared(prepared=Prepared(spec=spec, limits=LIMITS)), BEGAN, *events)


def with_child(*events: Any, **request: Any) -> RunState:
    """A run whose one child runs."""
    names = ChildrenBegan(names={"c1": "d1-1"}, at=AT)
    return run(wants(hand_over("c1")), names, ChildStarted(run_id=CHILD), *events, **request)


def result(output: str = "ok", status: RunStatus = RunStatus.COMPLETED, tokens: int = 30, **more: Any) -> RunResult:
    """What a child ends with."""
    return RunResult(
        status=status,
        output=output,
        structured_output=None,
        completed_explicitly=False,
        turns=2,
        usage={"input_tokens": tokens, "output_tokens": 0, "model_calls": 2},
        cost=0.25,
        quality_metrics=None,
        tool_calls=3,
        artifacts=(),
        error=None,
        **more,
    )


def letters(state: RunState) -> list[tuple[str, str]]:
    """Who is told what."""
    return [(letter.to, letter.signal) for letter in state.tree.unsent]


def test_reading_calls_run_first_and_all_work_that_is_handed_over_at_once() -> None:
    state = run(wants(hand_over("c1"), (call("r1", "read_file"), READS), hand_over("c2")))
    reading = next_action(state)
    assert isinstance(reading, RunTools)
    assert [c.call.id for c in reading.calls] == ["r1"]
    both = next_action(run(wants(hand_over("c1"), hand_over("c2"))))
    assert isinstance(both, RunChildren)
    assert [c.call.id for c in both.calls] == ["c1", "c2"]


def test_a_child_sees_its_task_and_the_hints_and_nothing_else() -> None:
    state = run(wants(hand_over("c1", context_hints=["it is blue"])), ChildrenBegan(names={"c1": "d1-1"}, at=AT))
    begun = child_start(state, state.tree.children[0])
    assert "Do it.\n\nWhat is known already:\n- it is blue\n\nYou are a sub-agent" in begun.request.task
    assert (begun.request.session_id, begun.request.model) == ("run-1", "demo")
    lineage = begun.lineage
    assert (begun.run_id, lineage.parent_run_id, lineage.root_run_id, lineage.depth) == (CHILD, "run-1", "run-1", 1)
    assert [level.whose for level in lineage.above] == ["default"]


def test_a_childs_end_is_the_result_of_its_call_and_counts_for_the_run() -> None:
    state = with_child(ChildEnded(run_id=CHILD, result=result("found it"), at=AT))
    ((call_id, text, is_error),) = results(state)
    assert (call_id, json.loads(text), is_error) == (
        "c1",
        {"task": "part c1", "result": "found it", "status": "completed"},
        False,
    )
    assert state.tree.usage == Usage(input_tokens=30, model_calls=2)
    assert state.tree.cost_micros == 250_000


def test_a_long_result_is_cut_and_says_where_the_rest_is() -> None:
    state = with_child(ChildEnded(run_id=CHILD, result=result("x" * 40_000), at=AT))
    assert json.loads(results(state)[0][1])["result"].endswith(f"[10000 more characters are in the result of {CHILD}]")


def test_beyond_the_limits_nothing_is_started_and_the_model_is_told() -> None:
    five = [hand_over(f"c{n}") for n in range(5)]
    state = run(wants(*five), ChildrenBegan(names={f"c{n}": f"d1-{n}" for n in range(5)}, at=AT))
    assert len(state.tree.children) == 4
    deep = run(
        wants(hand_over("c1")),
        ChildrenBegan(names={"c1": "d1-1"}, at=AT),
        lineage=Lineage(parent_run_id="p", root_run_id="p", depth=3, limits=LIMITS, share=Share(children=9)),
    )
    assert deep.tree.children == ()
    assert "3 levels of sub-agents are allowed" in results(deep)[0][1]


def test_what_a_child_asks_is_an_ask_of_its_parent_under_a_name_of_its_own() -> None:
    report = ChildReport(run_id=CHILD, status=RunStatus.WAITING_FOR_APPROVAL, asks=(ASK,))
    state = with_child(ChildReported(report=report))
    assert status_of(state) is RunStatus.WAITING_FOR_APPROVAL
    assert [ask.call_id for ask in open_asks(state)] == ["d1-1/b1"]

    answered = evolve(state, yes("d1-1/b1"))
    assert answered.tree.unsent == (
        TreeSignal(to=CHILD, signal="approve", payload={"scope": "once", "digest": "d9", "by": "ann", "call_id": "b1"}),
    )
    assert open_asks(answered) == ()
    again = evolve(answered, ChildReported(report=report))
    assert open_asks(again) == (), "an answer is on its way: the same report does not bring the ask back"
    anew = replace(ASK, asked_at="2026-01-02T03:05:00+00:00")
    assert open_asks(evolve(again, ChildReported(report=replace(report, asks=(anew,))))) != ()


def test_a_denial_goes_down_with_its_reason() -> None:
    report = ChildReport(run_id=CHILD, status=RunStatus.WAITING_FOR_APPROVAL, asks=(ASK,))
    state = with_child(ChildReported(report=report), no(reason="not now"))
    assert state.tree.unsent[0].payload == {"reason": "not now", "by": "ann", "call_id": "b1"}


def test_long_arguments_are_cut_on_their_way_up_and_say_so() -> None:
    told = shortened_for_ancestors(replace(ASK, arguments={"content": "x" * (LONGEST_TEXT + 1), "path": "a"}))
    assert told.cut
    assert told.arguments["path"] == "a"
    assert len(told.arguments["content"]) < LONGEST_TEXT + 30
    assert not shortened_for_ancestors(ASK).cut


def test_pause_resume_rules_and_abort_go_down_once_each() -> None:
    paused = with_child(PauseRequested(at=AT), PauseRequested(at=AT))
    assert letters(paused) == [(CHILD, "pause")]
    stopped = after(
        paused, ResumeRequested(at=AT), PermissionsSet(rules={"bash": "deny"}, at=AT), AbortRequested(at=AT)
    )
    assert letters(stopped) == [(CHILD, name) for name in ("pause", "resume", "set_ancestry", "abort")]
    assert letters(with_child(ChildEnded(run_id=CHILD, result=result(), at=AT), AbortRequested(at=AT))) == []


def test_a_child_that_was_reset_is_told_again_what_holds_for_it() -> None:
    parent = with_child(PermissionsSet(rules={"bash": "deny"}, at=AT), PauseRequested(at=AT))
    parent = replace(parent, tree=replace(parent.tree, unsent=()))
    report = ChildReport(run_id=CHILD, status=RunStatus.RUNNING)
    assert letters(evolve(parent, ChildReported(report=report))) == []
    told = evolve(parent, ChildReported(report=replace(report, reset_at=5)))
    assert letters(told) == [(CHILD, "set_ancestry"), (CHILD, "pause")]
    assert letters(evolve(told, ChildReported(report=replace(report, reset_at=5)))) == letters(told)


def test_a_signed_child_reports_its_reset() -> None:
    child = run(lineage=BELOW)
    signed = replace(child, signature_checks=SignatureChecks(signed=True, key="key", approvals_are_named=True))
    assert letters(evolve(child, RunReset(at=AT))) == []
    reset = evolve(signed, RunReset(at=AT))
    assert letters(reset) == [(BELOW.parent_run_id, "child_report")]
    assert reset.tree.unsent[0].payload["reset_at"] == microseconds(AT)


def test_a_child_that_has_not_started_yet_is_told_when_it_has() -> None:
    begun = run(wants(hand_over("c1")), ChildrenBegan(names={"c1": "d1-1"}, at=AT), PauseRequested(at=AT))
    assert letters(begun) == []
    assert letters(evolve(begun, ChildStarted(run_id=CHILD))) == [(CHILD, "pause")]


BELOW: Final = Lineage(parent_run_id="p", root_run_id="p", depth=1, limits=LIMITS, share=Share(tokens=1000, children=0))


def test_a_child_tells_its_parent_when_something_waits_and_when_it_does_not_any_more() -> None:
    write = (call("w1", "write_file"), PreparedCall(verdict=Verdict.ASK, digest="d1", rule="write_file"))
    asking = run(wants(write), lineage=BELOW)
    assert letters(asking) == [("p", "child_report")]
    assert asking.tree.unsent[0].payload["asks"][0]["call_id"] == "w1"
    assert letters(evolve(asking, yes("w1"))) == [("p", "child_report")] * 2


def test_new_rules_of_those_above_judge_what_has_not_run_yet_again() -> None:
    state = run(wants((call("r1", "read_file"), READS)), lineage=BELOW)
    above = (Level(whose="p", rules={"read_file": "deny"}),)
    changed = evolve(state, AncestryChanged(above=above))
    assert changed.agent.above == above
    assert changed.calls.open[0].stale == 1


def test_a_call_that_is_not_covered_asks_the_parent_and_goes_on_when_there_is_more() -> None:
    short = run(says("", message=None, uncovered=Spend(tokens=1500)), lineage=BELOW)
    assert isinstance(next_action(short), AwaitBudget)
    assert short.tree.unsent[0].payload == {"run_id": "run-1", "number": 1, "need": {"tokens": 500}}

    richer = evolve(short, BudgetGranted(number=1, granted=Spend(tokens=800)))
    assert isinstance(next_action(richer), CallModel)
    assert richer.tree.share.tokens == 1800


def test_without_more_a_run_gives_one_last_answer_and_ends_with_it() -> None:
    refused = run(
        says("", message=None, uncovered=Spend(tokens=1500)),
        BudgetGranted(number=1, granted=Spend()),
        says("", message=None, uncovered=Spend(tokens=1500)),
        lineage=BELOW,
    )
    assert isinstance(next_action(refused), CallModel)
    assert "This is your last answer" in refused.transcript.messages[-1].text
    over = next_action(evolve(refused, says("so far")))
    assert isinstance(over, Finish)
    assert (over.outcome.status, over.outcome.output) == (RunStatus.BUDGET_EXHAUSTED, "so far")


def test_a_last_answer_that_is_not_covered_either_ends_the_run_without_one() -> None:
    state = run(
        says("", message=None, uncovered=Spend(tokens=99)),
        says("", message=None, uncovered=Spend(tokens=50)),
        budget=Budget(tokens=10),
    )
    action = next_action(state)
    assert isinstance(action, Finish)
    assert action.outcome.status is RunStatus.BUDGET_EXHAUSTED
    assert action.outcome.error is not None
    assert "the next model call may take 99, and 10 are left" in action.outcome.error.message


def test_calls_beyond_the_budget_for_tool_calls_do_not_run() -> None:
    three = [(call(f"r{n}", "read_file"), READS) for n in range(3)]
    action = next_action(run(wants(*three), budget=Budget(tool_calls=2)))
    assert isinstance(action, RunTools)
    assert [c.call.id for c in action.calls] == ["r0", "r1"]


def test_work_that_is_handed_over_is_paid_for_before_the_children_are_lent_the_rest() -> None:
    names = ChildrenBegan(names={f"c{n}": f"d1-{n}" for n in (1, 2, 3)}, at=AT)
    state = run(wants(*(hand_over(f"c{n}") for n in (1, 2, 3))), names, budget=Budget(tool_calls=11))
    assert [child.share.tool_calls for child in state.tree.children] == [2, 2, 2]
    assert remaining(state).tool_calls == 2
    for child in state.tree.children:
        ended = replace(result(), tool_calls=2)
        state = after(state, ChildStarted(run_id=child.run_id), ChildEnded(run_id=child.run_id, result=ended, at=AT))
    assert remaining(state).tool_calls == 2


def test_what_a_child_without_a_result_was_lent_is_spent() -> None:
    gone = RunError(type="TerminatedError", message="gone")
    budget, ended = Budget(tokens=1000), ChildEnded(run_id=CHILD, error=gone, at=AT)
    runs = with_child(budget=budget)
    assert remaining(evolve(runs, ended)).tokens == remaining(runs).tokens
    wanted = run(wants(hand_over("c1")), budget=budget)
    never = after(wanted, ChildrenBegan(names={"c1": "d1-1"}, at=AT), ended)
    assert remaining(never).tokens == remaining(wanted).tokens


def test_a_child_that_an_abort_came_before_is_no_child() -> None:
    names = ChildrenBegan(names={"c1": "d1-1"}, at=AT)
    aborted = run(wants(hand_over("c1")), names, AbortRequested(at=AT))
    assert closed(aborted, AT).tree.children == ()
    assert [child.run_id for child in closed(with_child(AbortRequested(at=AT)), AT).tree.children] == [CHILD]


def test_a_run_that_was_paused_itself_goes_on_when_it_is_resumed_itself() -> None:
    held = run(PauseRequested(by="ann", at=AT), ResumeRequested(by=PARENT, at=AT), lineage=BELOW)
    assert status_of(held) is RunStatus.PAUSED
    assert status_of(evolve(held, ResumeRequested(by="ann", at=AT))) is RunStatus.RUNNING
    with_tree = run(PauseRequested(by=PARENT, at=AT), ResumeRequested(by="ann", at=AT), lineage=BELOW)
    assert status_of(with_tree) is RunStatus.RUNNING


def test_a_child_is_known_by_its_name() -> None:
    begun = with_child()
    assert is_child(child_start(begun, begun.tree.children[0]).run_id, begun.run_id)
    for run_id, parent in (("run-1", "run-1"), ("run-1/d1-1/d1-1", "run-1"), ("run-1-d1", "run-1"), ("/d1-1", "")):
        assert not is_child(run_id, parent)


def test_a_correlation_id_is_the_callers_and_goes_down_the_tree() -> None:
    def child_of(**metadata: Any) -> tuple[str, str]:
        state = with_child(metadata=metadata)
        begun = child_start(state, state.tree.children[0])
        child = start(begun.run_id, begun.request, AT, begun.lineage)
        return origin_of(state).correlated, origin_of(child).correlated

    assert child_of(correlation_id="ticket-7") == ("ticket-7", "ticket-7")
    assert child_of() == ("run-1", "run-1")
    assert child_of(correlation_id=7) == ("run-1", "run-1")


@given(st.lists(st.integers(0, 3), max_size=40), st.booleans())
def test_only_a_detached_child_reports_regularly_and_so_may_miss_its_parent(steps: list[int], detached: bool) -> None:
    lineage = Lineage(parent_run_id="run", root_run_id="run", depth=1, limits=LIMITS, detached=detached)
    tree, turns = Tree(lineage=lineage), 0
    for step in steps:
        turns += step
        tree = with_report_sent(tree, ChildReport(run_id="run/d1-1", status=RunStatus.RUNNING, turns=turns))

    told = [signal.payload["turns"] for signal in tree.unsent]
    assert told == sorted(set(told))
    assert len(told) <= turns // TURNS_BETWEEN_REPORTS
    silent = turns - max(told, default=0)
    assert silent < TURNS_BETWEEN_REPORTS if detached else not told


@pytest.mark.parametrize("detached", [True, False])
def test_a_run_may_continue_as_new_beside_its_children_only_if_they_outlive_its_execution(detached: bool) -> None:
    began = run(wants(hand_over("c1")), ChildrenBegan(names={"c1": "d1-1"}, detached=detached, at=AT))
    started = after(began, ChildStarted(run_id=CHILD))
    ended = after(started, ChildEnded(run_id=CHILD, result=result(), at=AT))

    assert [state.tree.outlives_execution for state in (began, started, ended)] == [False, detached, True]
    assert child_start(began, began.tree.children[0]).lineage.detached is detached
