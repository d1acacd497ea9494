"""Tool calls of one turn: groups, asks and their answers, rules that change, workers that die."""

from dataclasses import replace

import pytest

from loom_domain.acting import OUT_OF_TIME, UNKNOWN_OUTCOME
from loom_domain.asking import plan_request, tool_request
from loom_domain.messages import Message
from loom_domain.retries import Failure
from loom_domain.run import closed, evolve, next_action
from loom_domain.run_state import RunState, expires_at, status_view
from loom_domain.run_steps import (
    AbortRequested,
    Approved,
    AskPerson,
    AsksExpired,
    Backoff,
    BackoffEnded,
    BeginTurn,
    PermissionsSet,
    PlanCalls,
    RunTools,
)
from loom_domain.tool_calls import CallPlan, Effect, ToolResult, Verdict, call_digest
from tests.domain.story import (
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
    no,
    notices,
    returned,
    told,
    wants,
    yes,
)

RESEND = ToolResult(content="", resend=True)
RULES = PermissionsSet(rules={"bash": "allow"}, by="ann", at=AT)


def running(state: RunState) -> list[str]:
    """The calls that run now."""
    action = next_action(state)
    assert isinstance(action, RunTools), action
    return [c.call.id for c in action.calls]


def asked(state: RunState) -> list[str]:
    """The calls that a person is asked about now."""
    action = next_action(state)
    assert isinstance(action, AskPerson), action
    return [c.call.id for c in action.calls]


def judging(state: RunState) -> list[str]:
    """The calls that are judged again now."""
    action = next_action(state)
    assert isinstance(action, PlanCalls), action
    return [c.call.id for c in action.calls]


def results(state: RunState) -> list[tuple[str | None, str, bool]]:
    return [(m.tool_call_id, m.text, m.is_error) for m in state.transcript.messages if m.role == "tool"]


# ---- groups ----------------------------------------------------------------------------------------------------


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
    assert state.tool_calls == 0


# ---- asks ------------------------------------------------------------------------------------------------------


def test_nothing_of_the_turn_runs_before_every_ask_is_answered() -> None:
    state = told(BEGAN, wants((call("r"), READS), (call("a"), asks()), (call("b"), asks("d2"))))
    assert next_action(state) == AskPerson(calls=state.asks, until=at(WEEK))
    state = evolve(state, yes("b"))
    assert asked(state) == ["a"]
    state = evolve(state, no("a", "wrong folder"))
    assert running(state) == ["r"]
    state = after(state, returned(r="R"), returned(b="B"))
    assert results(state) == [
        ("r", "R", False),
        ("a", "Denied by ann: wrong folder. Do not try the same again; find another way or ask what is wanted.", True),
        ("b", "B", False),
    ]


def test_an_answer_without_a_call_means_the_only_ask() -> None:
    one = told(BEGAN, wants((call("a"), asks())))
    assert running(evolve(one, yes())) == ["a"]
    two = told(BEGAN, wants((call("a"), asks()), (call("b"), asks())))
    assert asked(evolve(two, yes())) == ["a", "b"]
    assert notices(evolve(two, yes())) == [
        ("node.ignored", {"signal": "approve", "why": "2 calls wait for approval; name one: a, b"})
    ]


def test_an_approval_of_other_arguments_is_refused() -> None:
    state = told(BEGAN, wants((call("a"), asks("d1"))))
    refused = evolve(state, yes("a", digest="d0"))
    assert asked(refused) == ["a"]
    assert notices(refused)[0][1]["why"] == "the digest d0 is not that of call 'a' (d1): it was changed since"
    assert running(evolve(state, yes("a", digest="d1"))) == ["a"]


def test_late_double_and_unknown_answers_change_nothing_but_leave_a_notice() -> None:
    state = told(BEGAN, wants((call("a"), asks()), (call("b"), asks("d2"))), yes("a"))
    for answer in (yes("a"), no("a"), yes("nonsense")):
        ignored = evolve(state, answer)
        assert replace(ignored, notices=state.notices, noticed=state.noticed) == state
        assert ignored.notices[-1].action == "node.ignored"


def test_who_decided_what_is_kept_with_the_result_and_told_to_the_stream() -> None:
    state = told(BEGAN, wants((call("a"), asks())), yes("a"))
    assert notices(state) == [
        (
            "node.approval_decided",
            {
                "call_id": "a",
                "tool": "bash",
                "approved": True,
                "scope": "once",
                "edited": False,
                "by": "ann",
                "rule": "bash",
                "digest": "d1",
            },
        )
    ]
    answer = evolve(state, returned(a="A")).transcript.messages[-1]
    assert answer.metadata == {"approved": True, "scope": "once", "by": "ann", "rule": "bash"}


def test_the_status_shows_what_a_person_has_to_know() -> None:
    state = told(BEGAN, wants((call("a", command="ls"), asks("d1", "bash(ls:*)"))))
    assert status_view(state)["pending_approvals"] == [
        {
            "call_id": "a",
            "tool": "bash",
            "arguments": {"command": "ls"},
            "reason": "the rule bash says ask",
            "rule": "bash",
            "digest": "d1",
            "for_run": ["bash(ls:*)"],
            "asked_at": "2026-01-02T03:04:05+00:00",
            "expires_at": "2026-01-09T03:04:05+00:00",
        }
    ]


# ---- time ------------------------------------------------------------------------------------------------------


def test_an_ask_that_nobody_answers_counts_as_denied() -> None:
    state = told(BEGAN, wants((call("a"), asks())))
    assert asked(evolve(state, AsksExpired(at=at(WEEK - 1)))) == ["a"]
    state = evolve(state, AsksExpired(at=at(WEEK)))
    assert results(state)[0][1].startswith("Denied by timeout: nobody answered in time.")
    assert evolve(state, yes("a")).phase is state.phase


def test_asks_expire_each_at_its_own_time() -> None:
    state = told(BEGAN, wants((call("a"), asks()), (call("b"), WRITES)))
    later = replace(judged(b=asks("d2")), at=at(100))
    state = after(state, replace(RULES, rules={"bash": "ask"}), replace(judged(a=asks()), at=at(100)), later)
    assert next_action(state) == AskPerson(calls=state.asks, until=at(WEEK))
    state = evolve(state, AsksExpired(at=at(WEEK)))
    assert next_action(state) == AskPerson(calls=state.asks, until=at(WEEK + 100))
    assert asked(state) == ["b"]


# ---- edited arguments ------------------------------------------------------------------------------------------


def edited(**how: str) -> Approved:
    return yes("a", arguments={"command": "ls"}, **how)


def test_edited_arguments_are_judged_again_and_then_run_without_a_second_question() -> None:
    state = told(BEGAN, wants((call("a", command="rm -r x"), asks())), edited(digest="d1"))
    assert judging(state) == ["a"]
    assert plan_request(state, state.calls).calls == (call("a", command="ls"),)
    assert state.notices[-1].parameters["digest"] == call_digest("run-1", call("a", command="ls"))
    state = evolve(state, judged(a=asks("d2")))
    assert running(state) == ["a"]
    request = tool_request(state, state.calls[0], "run-1/x", with_notices=False)
    assert (request.arguments, request.note) == (
        {"command": "ls"},
        'A person changed the arguments to {"command":"ls"}.',
    )


def test_edited_arguments_that_the_rules_forbid_do_not_run() -> None:
    state = told(BEGAN, wants((call("a", command="make"), asks())), edited(), judged(a=FORBIDDEN))
    assert results(state) == [
        (
            "a",
            'A person changed the arguments to {"command":"ls"}.'
            " Not permitted: denied by the rule bash. Find another way.",
            True,
        )
    ]


@pytest.mark.parametrize(("before", "edit"), [(1, True), (1, 1.0), (0, False), ("a", "b")])
def test_arguments_count_as_edited_when_they_are_spelled_otherwise(before: object, edit: object) -> None:
    state = told(BEGAN, wants((call("a", value=before), asks())), yes("a", arguments={"value": edit}))
    assert judging(state) == ["a"]


def test_the_same_arguments_are_no_edit() -> None:
    state = told(BEGAN, wants((call("a", x=1, y=2), asks())), yes("a", arguments={"y": 2, "x": 1}))
    assert running(state) == ["a"]


# ---- approvals for the rest of the run -------------------------------------------------------------------------


def test_an_approval_for_the_run_has_the_other_asks_judged_again() -> None:
    plan = asks("d1", "bash(ls:*)")
    state = told(BEGAN, wants((call("a"), plan), (call("b"), asks("d2")), (call("r"), READS)), yes("a", scope="run"))
    assert state.grants == ("bash(ls:*)",)
    assert judging(state) == ["b"]
    assert running(evolve(state, judged(b=WRITES))) == ["a"]
    again = evolve(state, judged(b=asks("d2")))
    assert asked(again) == ["b"]
    assert expires_at(again, again.calls[1]) == at(WEEK)


def test_an_edited_approval_for_the_run_allows_what_was_approved_not_what_was_asked() -> None:
    state = told(BEGAN, wants((call("a", command="rm"), asks("d1", "bash(rm:*)")), (call("b"), asks("d2"))))
    state = evolve(state, edited(scope="run"))
    assert state.grants == ()
    state = evolve(state, judged(a=asks("d3", "bash(ls:*)")))
    assert state.grants == ("bash(ls:*)",)
    assert judging(state) == ["b"]


def test_an_approval_for_the_run_that_grants_nothing_covers_this_call_only() -> None:
    state = told(BEGAN, wants((call("a"), asks()), (call("b"), asks("d2"))), yes("a", scope="run"))
    assert asked(state) == ["b"]


# ---- rules that change -----------------------------------------------------------------------------------------


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
def test_a_yes_holds_against_new_rules_unless_they_forbid_the_call(plan: CallPlan, runs: bool) -> None:
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
    assert expires_at(state, state.calls[0]) == at(WEEK + 50)


def test_a_result_that_arrives_after_the_rules_changed_still_counts() -> None:
    state = told(BEGAN, wants((call("a"), WRITES), (call("b"), WRITES)), RULES, returned(a="A"))
    assert judging(state) == ["b"]
    assert state.tool_calls == 1


# ---- attempts --------------------------------------------------------------------------------------------------


def test_a_lost_call_that_must_not_run_twice_has_an_unknown_outcome() -> None:
    state = told(BEGAN, wants((call("a"), WRITES)), returned(a=LOST))
    assert results(state) == [("a", UNKNOWN_OUTCOME, True)]
    assert state.produced == frozenset()


@pytest.mark.parametrize("effect", [Effect.READ, Effect.IDEMPOTENT])
def test_a_lost_call_that_may_run_twice_runs_again(effect: Effect) -> None:
    state = told(BEGAN, wants((call("a"), replace(WRITES, effect=effect))), *[returned(a=LOST)] * 3)
    assert (running(state), state.calls[0].attempt) == (["a"], 4)


def test_a_call_that_takes_twenty_workers_with_it_is_given_up() -> None:
    state = told(BEGAN, wants((call("a"), READS)), *[returned(a=LOST)] * 21)
    assert results(state) == [("a", UNKNOWN_OUTCOME, True)]


def test_a_worker_without_the_arguments_gets_them_even_if_the_call_is_judged_again_meanwhile() -> None:
    long = call("a", text="x" * 1000)
    state = told(BEGAN, wants((long, WRITES)))
    assert tool_request(state, state.calls[0], "x", with_notices=False).arguments is None
    state = after(state, RULES, returned(a=RESEND), judged(a=WRITES))
    request = tool_request(state, state.calls[0], "x", with_notices=False)
    assert (running(state), request.arguments, request.attempt) == (["a"], {"text": "x" * 1000}, 2)


def test_an_outage_of_looms_own_parts_is_waited_for_between_attempts() -> None:
    state = told(BEGAN, wants((call("a"), WRITES)), returned(a=AWAY))
    assert next_action(state) == Backoff(until=at(1))
    state = after(state, BackoffEnded(), returned(a=AWAY))
    assert next_action(state) == Backoff(until=at(2))
    assert running(evolve(state, BackoffEnded())) == ["a"]


def test_a_tool_that_broke_is_a_result_that_the_model_reads() -> None:
    broke = Failure(kind="provider", type="ValueError", message="a bug", context={})
    assert results(told(BEGAN, wants((call("a"), WRITES)), returned(a=broke))) == [("a", "The tool broke: a bug", True)]


def test_a_tool_that_does_not_come_back_may_have_taken_effect() -> None:
    late = Failure(kind="provider", type="Timeout", message="", context={})
    assert results(told(BEGAN, wants((call("a"), WRITES)), returned(a=late))) == [("a", OUT_OF_TIME, True)]


def test_a_result_for_a_call_that_has_one_or_waits_for_a_person_changes_nothing() -> None:
    state = told(BEGAN, wants((call("a"), asks()), (call("b"), asks("d2"))), no("b"))
    assert evolve(state, returned(a="A", b="B", c="C")) == state


def test_at_least_one_call_runs_whatever_the_limit() -> None:
    state = told(BEGAN, wants((call("a"), READS), (call("b"), READS)), spec=replace(SPEC, parallel_limit=0))
    assert running(state) == ["a"]


# ---- the end ---------------------------------------------------------------------------------------------------


def test_a_closed_run_says_of_each_call_what_is_known() -> None:
    state = told(BEGAN, wants((call("a"), READS), (call("w"), WRITES)), returned(a="A"), AbortRequested(at=AT))
    assert results(closed(state)) == [
        ("a", "A", False),
        (
            "w",
            "not finished: the run ended before. If this had begun, it may have taken effect in part.",
            True,
        ),
    ]
    state = told(BEGAN, wants((call("a"), asks())), AbortRequested(at=AT))
    assert results(closed(state)) == [("a", "not run: the run ended while this waited for approval", True)]


def test_results_that_arrive_after_an_abort_are_kept() -> None:
    state = told(BEGAN, wants((call("a"), READS), (call("b"), READS)), AbortRequested(at=AT), returned(a="A"))
    assert results(closed(state))[0] == ("a", "A", False)
    assert closed(closed(state)) == closed(state)


def test_the_model_reads_a_failed_call_as_an_error() -> None:
    state = told(BEGAN, wants((call("a"), CallPlan(verdict=Verdict.DENY, reason="no"))))
    assert state.transcript.messages[-1] == Message(
        role="tool", content="Not permitted: no. Find another way.", tool_call_id="a", name="bash", is_error=True
    )
    assert conversation(state)[-1][0] == "tool"
