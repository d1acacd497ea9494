"""Tool calls of one turn: groups, rules that change, workers that die, the end."""

from dataclasses import replace
from typing import Any

import pytest

from loom.domain.core.messages import Message
from loom.domain.core.requests import RunRequest, RunStatus
from loom.domain.core.signatures import SignatureChecks
from loom.domain.core.tasks import Action, Notice
from loom.domain.core.tool_calls import LOCAL_READ, QUICK_READ, Effect, PreparedCall, ToolResult, Verdict, failed
from loom.domain.core.tool_names import CREATE_TOOL
from loom.domain.machine.activity_requests import model_request, tool_request
from loom.domain.machine.tool_results import OUT_OF_TIME, UNKNOWN_OUTCOME, local_calls, quick_calls, without_local_calls
from loom.domain.machine.transitions import closed, evolve, next_action, start
from loom.domain.run.actions import Backoff, BeginTurn, RunTools
from loom.domain.run.activity_payloads import Prepared
from loom.domain.run.events import AbortRequested, BackoffEnded, Event, PermissionsSet, RunPrepared, ToolsReturned
from loom.domain.run.retry_policy import STORE_AWAY, TIMED_OUT, Failure
from loom.domain.run.state import Environment, OpenCalls, Outcome, RunState, expires_at, result_of
from loom.domain.tree.budget import Share
from loom.domain.tree.lineage import TreeLimits
from loom.domain.tree.tree import Tree
from tests.unit.domain.story import (
    AT,
    AWAY,
    BEGAN,
    FORBIDDEN,
    LOST,
    READS,
    SPEC,
    UNKNOWN_TOOL,
    WEEK,
    WRITES,
    after,
    asks,
    at,
    call,
    conversation,
    judged,
    judging,
    no,
    results,
    returned,
    running,
    says,
    told,
    wants,
    yes,
)

RESEND = ToolResult(content="", resend=True)
RULES = PermissionsSet(rules={"bash": "allow"}, by="ann", at=AT)


# ---- groups ---------------------------------------------------------------------------------------------------------


def test_reads_run_together_and_the_write_after_them_alone() -> None:
    state = told(BEGAN, wants((call("a"), READS), (call("b"), READS), (call("w"), WRITES), (call("c"), READS)))
    assert running(state) == ["a", "b"]
    state = evolve(state, returned(a="A", b="B"))
    assert running(state) == ["w"]
    state = evolve(state, returned(w="W"))
    assert running(state) == ["c"]
    state = evolve(state, returned(c="C"))
    assert next_action(state) == BeginTurn()
    assert results(state) == [("a", "A", False), ("b", "B", False), ("w", "W", False), ("c", "C", False)]


def test_results_join_the_conversation_in_the_order_of_the_calls() -> None:
    state = told(BEGAN, wants((call("a"), READS), (call("b"), READS)), returned(b="B"), returned(a="A"))
    assert [name for name, _, _ in results(state)] == ["a", "b"]


def test_calls_that_cannot_run_are_answered_without_running() -> None:
    state = told(BEGAN, wants((call("x"), UNKNOWN_TOOL), (call("y"), FORBIDDEN)))
    assert next_action(state) == BeginTurn()
    assert results(state) == [
        ("x", "there is no tool `bsh`; did you mean `bash`?", True),
        ("y", "Not permitted: denied by the rule bash. Find another way.", True),
    ]
    assert state.spending.tool_calls == 0


# ---- rules that change ----------------------------------------------------------------------------------------------


def test_rules_that_change_while_calls_are_open_have_them_judged_again() -> None:
    state = told(BEGAN, wants((call("a"), asks()), (call("b"), WRITES)), RULES)
    assert judging(state) == ["a", "b"]
    assert evolve(state, yes("a")).calls == state.calls
    state = evolve(state, judged(a=WRITES, b=FORBIDDEN))
    assert running(state) == ["a"]


def test_rules_that_change_while_the_model_thinks_have_its_calls_judged_again() -> None:
    state = told(BEGAN, RULES, wants((call("a"), FORBIDDEN), (call("b"), asks())))
    assert judging(state) == ["a", "b"]


@pytest.mark.parametrize(
    ("plan", "runs"), [(WRITES, True), (asks("d9"), True), (FORBIDDEN, False), (UNKNOWN_TOOL, False)]
)
def test_a_yes_holds_against_new_rules_unless_they_forbid_the_call(plan: PreparedCall, runs: bool) -> None:
    state = told(BEGAN, wants((call("a"), asks())), yes("a"), RULES, judged(a=plan))
    assert isinstance(next_action(state), RunTools) is runs


def test_rules_that_change_while_calls_are_judged_have_them_judged_once_more() -> None:
    forbid = replace(RULES, rules={"bash": "deny"})
    state = told(BEGAN, wants((call("a"), asks())), RULES, forbid, judged(a=WRITES))
    assert judging(state) == ["a"]
    assert results(evolve(state, judged(a=FORBIDDEN)))[0][2]


def test_a_call_that_becomes_an_ask_has_its_whole_time() -> None:
    state = told(BEGAN, wants((call("a"), asks())), RULES, judged(a=WRITES), RULES)
    state = evolve(state, replace(judged(a=asks()), at=at(50)))
    assert expires_at(state, state.calls.open[0]) == at(WEEK + 50)


def test_a_result_that_arrives_after_the_rules_changed_still_counts() -> None:
    state = told(BEGAN, wants((call("a"), WRITES), (call("b"), WRITES)), RULES, returned(a="A"))
    assert judging(state) == ["b"]
    assert state.spending.tool_calls == 1


# ---- attempts -------------------------------------------------------------------------------------------------------


def test_a_lost_call_that_must_not_run_twice_has_an_unknown_outcome() -> None:
    state = told(BEGAN, wants((call("a"), WRITES)), returned(a=LOST))
    assert results(state) == [("a", UNKNOWN_OUTCOME, True)]
    assert state.conversation.produced == frozenset()


@pytest.mark.parametrize("effect", [Effect.READ, Effect.IDEMPOTENT])
def test_a_lost_call_that_may_run_twice_runs_again(effect: Effect) -> None:
    state = told(BEGAN, wants((call("a"), replace(WRITES, effect=effect))), *[returned(a=LOST)] * 3)
    assert (running(state), state.calls.open[0].attempt) == (["a"], 4)


def accounted(*events: Event) -> RunState:
    """A run whose workers keep account of effects, after these events."""
    prepared = RunPrepared(prepared=Prepared(spec=SPEC, ledger=True))
    return after(start("run-1", RunRequest(task="Do it."), AT), prepared, BEGAN, *events)


def test_with_an_account_of_effects_the_next_attempt_asks_what_came_of_a_lost_call() -> None:
    state = accounted(wants((call("a"), WRITES)), returned(a=LOST))
    request = tool_request(state, state.calls.open[0], "x", with_notices=False)
    assert (running(state), request.attempt, request.begun) == (["a"], 2, True)
    assert results(evolve(state, returned(a="kept"))) == [("a", "kept", False)]


def test_a_call_that_never_began_is_no_begun_one() -> None:
    state = accounted(wants((call("a"), WRITES)), returned(a=AWAY), BackoffEnded())
    assert not tool_request(state, state.calls.open[0], "x", with_notices=False).begun


NO_STORE = replace(AWAY, type=STORE_AWAY, context={"has_run": False})


def test_a_call_waits_for_the_account_a_while_and_then_goes_without() -> None:
    state = accounted(wants((call("a"), WRITES)), returned(a=NO_STORE), BackoffEnded(), returned(a=NO_STORE))
    request = tool_request(state, state.calls.open[0], "x", with_notices=False)
    assert (request.attempt, request.accounted, request.begun) == (3, False, False)
    assert results(after(state, BackoffEnded(), returned(a=LOST))) == [("a", UNKNOWN_OUTCOME, True)]


def test_a_call_that_may_have_begun_under_the_account_waits_for_it() -> None:
    waits = (returned(a=NO_STORE), BackoffEnded()) * 5
    state = accounted(wants((call("a"), WRITES)), returned(a=LOST), *waits)
    request = tool_request(state, state.calls.open[0], "x", with_notices=False)
    assert (request.accounted, request.begun) == (True, True)


def test_a_call_that_takes_twenty_workers_with_it_is_given_up() -> None:
    state = told(BEGAN, wants((call("a"), READS)), *[returned(a=LOST)] * 21)
    assert results(state) == [("a", UNKNOWN_OUTCOME, True)]


def test_a_worker_without_the_arguments_gets_them_even_if_the_call_is_judged_again_meanwhile() -> None:
    long = call("a", text="x" * 1000)
    state = told(BEGAN, wants((long, WRITES)))
    assert tool_request(state, state.calls.open[0], "x", with_notices=False).arguments is None
    state = after(state, RULES, returned(a=RESEND), judged(a=WRITES))
    request = tool_request(state, state.calls.open[0], "x", with_notices=False)
    assert (running(state), request.arguments, request.attempt) == (["a"], {"text": "x" * 1000}, 2)


def test_an_outage_of_looms_own_parts_is_waited_for_between_attempts() -> None:
    state = told(BEGAN, wants((call("a"), WRITES)), returned(a=AWAY))
    assert next_action(state) == Backoff(until=at(1))
    state = after(state, BackoffEnded(), returned(a=AWAY))
    assert next_action(state) == Backoff(until=at(2))
    assert running(evolve(state, BackoffEnded())) == ["a"]


def test_a_call_whose_result_was_lost_on_its_way_runs_again_only_if_it_may() -> None:
    unstored = replace(AWAY, context={"has_run": True})
    assert results(told(BEGAN, wants((call("a"), WRITES)), returned(a=unstored))) == [("a", UNKNOWN_OUTCOME, True)]
    assert next_action(told(BEGAN, wants((call("a"), READS)), returned(a=unstored))) == Backoff(until=at(1))


def test_what_is_kept_whole_is_named_in_the_result_of_the_run() -> None:
    cut = ToolResult(content="head … tail", artifact="t1-a", length=70_000)
    state = told(BEGAN, wants((call("a"), READS)), returned(a=cut), BEGAN, says("done"))
    kept = {"id": "t1-a", "call_id": "a", "tool": "bash", "characters": 70_000}
    assert result_of(state, Outcome(status=RunStatus.COMPLETED)).artifacts == (kept,)


def test_a_tool_that_the_agent_made_is_its_own_from_then_on() -> None:
    made = {"name": "double", "description": "Doubles.", "parameters": {"type": "object"}, "code": "def run(x): ..."}
    state = told(BEGAN, wants((call("a", CREATE_TOOL, **made), WRITES)), returned(a="made"), BEGAN)
    assert [(tool.name, tool.source) for tool in state.agent.tools] == [("made__double", "def run(x): ...")]
    assert model_request(state).spec == state.agent
    state = evolve(state, wants((call("b", "made__double", x=2), WRITES)))
    assert tool_request(state, state.calls.open[0], "x", with_notices=False).made == state.agent.tools[0]


def test_a_tool_made_again_under_its_name_stays_the_one_that_people_know() -> None:
    made = {"name": "double", "description": "Doubles.", "parameters": {"type": "object"}, "code": "first"}
    state = told(BEGAN, wants((call("a", CREATE_TOOL, **made), WRITES)), returned(a="made"), BEGAN)
    other = call("b", CREATE_TOOL, **{**made, "code": "second"})
    state = after(state, wants((other, WRITES)), returned(b="made"), BEGAN)
    assert [tool.source for tool in state.agent.tools] == ["first"]


def test_an_outage_does_not_count_as_lost_workers() -> None:
    waits = (returned(a=NO_STORE), BackoffEnded()) * 30
    state = accounted(wants((call("a"), WRITES)), returned(a=LOST), *waits, returned(a=LOST))
    assert (running(state), state.calls.open[0].lost) == (["a"], 2)


def test_a_tool_that_could_not_be_made_is_none() -> None:
    state = told(BEGAN, wants((call("a", CREATE_TOOL, name="x"), WRITES)), returned(a=failed("no", "validation")))
    assert state.agent.tools == ()


def test_a_tool_that_broke_is_a_result_that_the_model_reads() -> None:
    broke = Failure(kind="provider", type="ValueError", message="a bug", context={})
    assert results(told(BEGAN, wants((call("a"), WRITES)), returned(a=broke))) == [("a", "The tool broke: a bug", True)]


def test_a_tool_that_does_not_come_back_may_have_taken_effect() -> None:
    late = Failure(kind="provider", type=TIMED_OUT, message="", context={})
    assert results(told(BEGAN, wants((call("a"), WRITES)), returned(a=late))) == [("a", OUT_OF_TIME, True)]


def test_a_result_for_a_call_that_has_one_or_waits_for_a_person_changes_nothing() -> None:
    state = told(BEGAN, wants((call("a"), asks()), (call("b"), asks("d2"))), no("b"))
    assert evolve(state, returned(a="A", b="B", c="C")) == state


def test_at_least_one_call_runs_whatever_the_limit() -> None:
    state = told(BEGAN, wants((call("a"), READS), (call("b"), READS)), spec=replace(SPEC, parallel_limit=0))
    assert running(state) == ["a"]


# ---- the end --------------------------------------------------------------------------------------------------------


def test_a_closed_run_says_of_each_call_what_is_known() -> None:
    state = told(BEGAN, wants((call("a"), READS), (call("w"), WRITES)), returned(a="A"), AbortRequested(at=AT))
    assert results(closed(state, AT)) == [
        ("a", "A", False),
        (
            "w",
            "not finished: the run ended before. If this had begun, it may have taken effect in part.",
            True,
        ),
    ]
    state = told(BEGAN, wants((call("a"), asks())), AbortRequested(at=AT))
    assert results(closed(state, AT)) == [("a", "not run: the run ended while this waited for approval", True)]


def test_results_that_arrive_after_an_abort_are_kept() -> None:
    state = told(BEGAN, wants((call("a"), READS), (call("b"), READS)), AbortRequested(at=AT), returned(a="A"))
    assert results(closed(state, AT))[0] == ("a", "A", False)
    assert closed(closed(state, AT), AT) == closed(state, AT)


def test_the_model_reads_a_failed_call_as_an_error() -> None:
    state = told(BEGAN, wants((call("a"), PreparedCall(verdict=Verdict.DENY, reason="no"))))
    assert state.transcript.messages[-1] == Message(
        role="tool", content="Not permitted: no. Find another way.", tool_call_id="a", name="bash", is_error=True
    )
    assert conversation(state)[-1][0] == "tool"


# ---- quick reads ----------------------------------------------------------------------------------------------------

QUICK = PreparedCall(effect=QUICK_READ, parallel=True)


def read(content: str = "A", **result: Any) -> PreparedCall:
    """A quick read that has run with the model call."""
    return replace(QUICK, result=ToolResult(content=content, **result))


def test_the_results_of_quick_reads_come_with_the_answer() -> None:
    state = told(BEGAN, wants((call("a"), read("A")), (call("x"), UNKNOWN_TOOL), (call("b"), read("B"))))
    assert next_action(state) == BeginTurn()
    assert [content for _, content, _ in results(state)] == ["A", UNKNOWN_TOOL.error, "B"]
    assert (state.spending.tool_calls, state.conversation.produced) == (2, frozenset("ab"))


def test_a_read_that_was_not_done_in_time_becomes_the_second_attempt_of_an_activity() -> None:
    state = told(BEGAN, wants((call("a"), read("A")), (call("b"), QUICK), (call("w"), WRITES)))
    assert running(state) == ["b"]
    (again,) = [each for each in state.calls.open if each.call.id == "b"]
    assert (again.attempt, again.begun, again.effect) == (2, False, Effect.READ)
    state = evolve(evolve(state, returned(b="B")), returned(w="W"))
    assert [content for _, content, _ in results(state)] == ["A", "B", "W"]


def test_a_quick_read_that_failed_is_tried_again_as_its_agent_says() -> None:
    spec = replace(SPEC, tool_attempts=2)
    state = told(BEGAN, wants((call("a"), read("no", status="error", error_type="execution"))), spec=spec)
    assert isinstance(next_action(state), Backoff)
    state = evolve(state, BackoffEnded())
    assert (running(state), state.calls.open[0].attempt) == (["a"], 2)


@pytest.mark.parametrize(
    ("planned", "ran"),
    [
        ([("a", QUICK), ("b", QUICK)], {"a", "b"}),
        ([("a", READS), ("b", QUICK)], {"b"}),
        ([("w", WRITES), ("b", QUICK)], set()),
        ([("a", QUICK), ("w", WRITES), ("b", QUICK)], {"a"}),
        ([("x", UNKNOWN_TOOL), ("b", QUICK)], {"b"}),
        ([("a", QUICK), ("p", asks())], set()),
        ([(f"c{n}", QUICK) for n in range(4)], {"c0", "c1", "c2"}),
    ],
)
def test_quick_reads_run_as_early_as_their_turn_comes(planned: list[tuple[str, PreparedCall]], ran: set[str]) -> None:
    calls = [call(name) for name, _ in planned]
    assert quick_calls(calls, [plan for _, plan in planned], 3, AT) == ran


@pytest.mark.parametrize("name", ["done", "ask_user"])
def test_beside_an_end_or_a_question_no_quick_read_runs(name: str) -> None:
    assert quick_calls([call("a"), call("d", name)], [QUICK, READS], 3, AT) == frozenset()


@pytest.mark.parametrize(
    ("change", "may"),
    [
        ({}, True),
        ({"environment": Environment()}, False),
        ({"request": RunRequest(task="Do it.", max_turns=1)}, False),
        ({"tree": Tree(limits=TreeLimits(), share=Share(tool_calls=5))}, False),
        ({"signature_checks": SignatureChecks(proofs=True), "calls": OpenCalls(grants=("bash(ls)",))}, False),
        ({"signature_checks": SignatureChecks(proofs=True)}, True),
    ],
)
def test_quick_reads_wait_where_something_else_decides_about_calls(change: dict[str, Any], may: bool) -> None:
    state = replace(told(BEGAN), environment=Environment(quick_reads=True))
    state = replace(state, **change)
    assert bool(model_request(state, "e1").quick_read_execution) is may


# ---- local calls ----------------------------------------------------------------------------------------------------

LOCAL = PreparedCall(effect=LOCAL_READ, parallel=True)


def test_reads_of_a_development_version_are_local_and_the_calls_beside_them_are_not() -> None:
    state = told(BEGAN, wants((call("a"), LOCAL), (call("b"), READS), (call("c"), LOCAL)))
    assert local_calls(state, state.calls.open) == {"a", "c"}


def test_a_call_that_publishes_notices_is_not_local() -> None:
    state = told(BEGAN, wants((call("a"), LOCAL), (call("b"), LOCAL)))
    pending = (Notice(action=Action.PAUSED, key="p1", at=AT),)
    state = replace(state, notices=replace(state.notices, pending=pending))
    assert local_calls(state, state.calls.open) == {"b"}


def test_after_a_local_attempt_that_took_too_long_the_call_is_an_activity() -> None:
    late = Failure(kind="provider", type=TIMED_OUT, message="it took too long", context={})
    state = told(BEGAN, wants((call("a"), LOCAL)))
    state = evolve(state, ToolsReturned(outcomes={"a": late}, local=frozenset({"a"}), at=AT))
    (again,) = state.calls.open
    assert (running(state), again.attempt, again.begun, again.lost) == (["a"], 2, False, 0)
    assert local_calls(state, state.calls.open) == frozenset()
    assert tool_request(state, again, "e", with_notices=False).effect is Effect.READ


def test_an_execution_begins_without_local_calls() -> None:
    state = without_local_calls(told(BEGAN, wants((call("a"), LOCAL), (call("b"), WRITES))))
    assert [each.plan.effect for each in state.calls.open] == [Effect.READ, WRITES.effect]
