"""What a person is asked before a call runs, and every way to answer."""

from dataclasses import replace
from typing import Any

import pytest

from loom.domain.agents.hook_steps import HookPoint, HookResult, Moment
from loom.domain.core.messages import ask_digest, call_digest
from loom.domain.core.requests import RunRequest, RunStatus
from loom.domain.core.signatures import microseconds
from loom.domain.core.tool_calls import PreparedCall, ToolResult
from loom.domain.machine.activity_requests import prepare_calls_request, tool_request
from loom.domain.machine.steering import extent
from loom.domain.machine.transitions import evolve, next_action, start
from loom.domain.run.actions import AskPerson, AwaitPerson, BeginTurn
from loom.domain.run.activity_payloads import Prepared
from loom.domain.run.events import (
    Approved,
    AsksExpired,
    Event,
    HookReturned,
    MessageReceived,
    PermissionsSet,
    RunPrepared,
    RunReset,
    SteeringEvent,
    ToolsReturned,
)
from loom.domain.run.pending_approvals import open_asks
from loom.domain.run.state import RunState, expires_at, status_of
from loom.domain.run.status import status_view
from tests.unit.domain.story import (
    AT,
    BEGAN,
    FORBIDDEN,
    READS,
    SPEC,
    WEEK,
    WRITES,
    after,
    asked,
    asks,
    at,
    call,
    judged,
    judging,
    no,
    notices,
    results,
    returned,
    running,
    told,
    wants,
    yes,
)

RULES = PermissionsSet(rules={"bash": "allow"}, by="ann", at=AT)


# ---- asks -----------------------------------------------------------------------------------------------------------


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
        ("node.ignored", {"signal": "approve", "why": "2 calls are waiting for approval; name one: a, b"})
    ]


def test_an_approval_of_other_arguments_is_refused() -> None:
    state = told(BEGAN, wants((call("a"), asks("d1"))))
    refused = evolve(state, yes("a", digest="d0"))
    assert asked(refused) == ["a"]
    assert (
        notices(refused)[0][1]["why"] == "the digest d0 is not that of call 'a': look at the call before you approve it"
    )
    assert running(evolve(state, yes("a", digest="d1"))) == ["a"]


def test_late_double_and_unknown_answers_change_nothing_but_leave_a_notice() -> None:
    state = told(BEGAN, wants((call("a"), asks()), (call("b"), asks("d2"))), yes("a"))
    for answer in (yes("a"), no("a"), yes("nonsense")):
        ignored = evolve(state, answer)
        assert replace(ignored, notices=state.notices) == state
        assert ignored.notices.pending[-1].action == "node.ignored"


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
            "run_id": "run-1",
            "agent": "default",
            "depth": 0,
            "tool": "bash",
            "arguments": {"command": "ls"},
            "cut": False,
            "reason": "the rule bash says ask",
            "rule": "bash",
            "risk": "may change something for good, not safe to repeat",
            "digest": "d1",
            "for_run": ["bash(ls:*)"],
            "asked_at": "2026-01-02T03:04:05+00:00",
            "expires_at": "2026-01-09T03:04:05+00:00",
        }
    ]


# ---- time -----------------------------------------------------------------------------------------------------------


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


# ---- asks of a run that is reset ------------------------------------------------------------------------------------


HOOK = HookPoint(name="checks", moment=Moment.BEFORE)
RESET = RunReset(at=at(5))


def signed(*events: Event, **prepared: Any) -> RunState:
    """A run that takes only signed requests, after these events."""
    who = {"signed": True, "steering_key": "key", "approvals_are_named": True, "execution": "e", **prepared}
    began = start("run-1", RunRequest(task="Do it."), AT)
    return after(began, RunPrepared(prepared=replace(Prepared(spec=replace(SPEC, hooks=(HOOK,))), **who)), *events)


HELD = HookReturned(step=HOOK, answer=HookResult(), at=AT)


def test_a_reset_makes_earlier_approvals_void() -> None:
    state = signed(HELD, BEGAN, wants((call("a"), asks("d1"))), RESET)
    assert judging(state) == ["a"]
    request = prepare_calls_request(state, state.calls.open)
    assert request.origin.reset_at == microseconds(at(5))
    state = after(state, judged(a=asks("d2")), yes("a", digest="d1"))
    assert asked(state) == ["a"]
    assert running(evolve(state, yes("a", digest="d2"))) == ["a"]


@pytest.mark.parametrize("begun", [(), (wants((call("a"), asks("d1"))), RULES)], ids=["model", "rules"])
def test_calls_whose_preparation_began_before_a_reset_are_prepared_again(begun: tuple[Event, ...]) -> None:
    state = signed(HELD, BEGAN, *begun, RESET)
    state = evolve(state, judged(a=asks("d1")) if begun else wants((call("a"), asks("d1"))))
    assert judging(state) == ["a"]


def test_a_reset_asks_again_whether_the_run_may_start() -> None:
    state = signed(HookReturned(step=HOOK, answer=HookResult(verdict="ask", reason="big"), at=AT))
    (before,) = open_asks(state)
    state = evolve(state, RESET)
    (ask,) = open_asks(state)
    assert (ask.reason, ask.arguments) == (before.reason, before.arguments)
    assert notices(state)[-1][1]["digest"] == ask.digest != before.digest
    assert asked(evolve(state, yes("start", digest=before.digest))) == ["start"]
    assert next_action(evolve(state, yes("start", digest=ask.digest))) == BeginTurn()


@pytest.mark.parametrize("who", [{"steering_key": ""}, {"approvals_are_named": False}], ids=["unsigned", "0.3.0"])
def test_other_runs_keep_their_asks_when_they_are_reset(who: dict[str, Any]) -> None:
    state = signed(HELD, BEGAN, wants((call("a"), asks("d1"))), RESET, **who)
    assert running(evolve(state, yes("a", digest="d1"))) == ["a"]


# ---- edited arguments -----------------------------------------------------------------------------------------------


def edited(**how: str) -> Approved:
    return yes("a", arguments={"command": "ls"}, **how)


def test_edited_arguments_are_judged_again_and_then_run_without_a_second_question() -> None:
    state = told(BEGAN, wants((call("a", command="rm -r x"), asks())), edited(digest="d1"))
    assert judging(state) == ["a"]
    assert prepare_calls_request(state, state.calls.open).calls == (call("a", command="ls"),)
    assert state.notices.pending[-1].parameters["digest"] == call_digest("run-1", call("a", command="ls"))
    state = evolve(state, judged(a=asks("d2")))
    assert running(state) == ["a"]
    request = tool_request(state, state.calls.open[0], "run-1/x", with_notices=False)
    assert (request.arguments, request.note) == (
        {"command": "ls"},
        'A person changed the arguments to {"command":"ls"}.',
    )


@pytest.mark.parametrize(
    "digest",
    [
        call_digest("run-1", call("a", command="make")),
        ask_digest("run-1", "", 1, call("a", command="make"), reset_at=0),
    ],
    ids=["as before 0.4.0", "of this turn"],
)
def test_edited_arguments_that_cannot_be_carried_out_leave_the_ask_as_it_was(digest: str) -> None:
    wrong = PreparedCall(error="command: Field required", error_type="validation")
    state = told(BEGAN, wants((call("a", command="make"), asks(digest))), edited(digest=digest), judged(a=wrong))
    (ask,) = state.asks
    assert ask.call == call("a", command="make")
    assert ask.plan.digest == digest
    assert "command: Field required" in ask.plan.reason
    assert running(evolve(state, yes("a"))) == ["a"]


def test_a_question_waits_for_what_comes_before_it_and_takes_the_next_message_as_its_answer() -> None:
    asks_blue = call("q", "ask_user", question="Red or blue?")
    state = told(BEGAN, wants((call("a", command="ls"), READS), (asks_blue, READS)))
    assert running(state) == ["a"]
    state = evolve(state, ToolsReturned(outcomes={"a": ToolResult(content="ok")}, at=AT))
    assert next_action(state) == AwaitPerson(call_id="q")
    assert status_of(state) is RunStatus.WAITING_FOR_INPUT
    state = evolve(state, MessageReceived(text="blue", by="ann", at=AT))
    assert results(state)[-1] == ("q", "ann answers: blue", False)
    assert state.inbox == ()


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


# ---- approvals for the rest of the run ------------------------------------------------------------------------------


def test_an_approval_for_the_run_has_the_other_asks_judged_again() -> None:
    plan = asks("d1", "bash(ls:*)")
    state = told(BEGAN, wants((call("a"), plan), (call("b"), asks("d2")), (call("r"), READS)), yes("a", scope="run"))
    assert state.calls.grants == ("bash(ls:*)",)
    assert judging(state) == ["b"]
    assert running(evolve(state, judged(b=WRITES))) == ["a"]
    again = evolve(state, judged(b=asks("d2")))
    assert asked(again) == ["b"]
    assert expires_at(again, again.calls.open[1]) == at(WEEK)


def test_an_edited_approval_for_the_run_allows_what_was_approved_not_what_was_asked() -> None:
    state = told(BEGAN, wants((call("a", command="rm"), asks("d1", "bash(rm:*)")), (call("b"), asks("d2"))))
    state = evolve(state, edited(scope="run"))
    assert state.calls.grants == ()
    state = evolve(state, judged(a=asks("d3", "bash(ls:*)")))
    assert state.calls.grants == ("bash(ls:*)",)
    assert judging(state) == ["b"]


def test_an_approval_for_the_run_that_grants_nothing_covers_this_call_only() -> None:
    state = told(BEGAN, wants((call("a"), asks()), (call("b"), asks("d2"))), yes("a", scope="run"))
    assert asked(state) == ["b"]
    assert notices(state)[-1][1]["scope"] == "once"


@pytest.mark.parametrize(
    ("plan", "answer", "receipt"),
    [
        (asks("d1", "bash(ls:*)"), yes("a", scope="run"), {"scope": "run"}),
        (asks(), yes("a"), {"scope": "once"}),
        (asks(), yes("a", scope="run", arguments={"command": "ls"}), {}),
        (
            asks(),
            yes("a", scope="run"),
            {"scope": "once", "why": "no rule can allow exactly this for the rest of the run"},
        ),
        (
            replace(asks(), rule="guard: rm of /"),
            yes("a", scope="run"),
            {"scope": "once", "why": "the guard against rm of / asks each time"},
        ),
        (asks(), yes("b", scope="run"), {}),
        (asks(), no("a"), {}),
    ],
)
def test_the_receipt_of_an_approval_says_what_it_is_for(
    plan: PreparedCall, answer: SteeringEvent, receipt: dict[str, str]
) -> None:
    assert extent(told(BEGAN, wants((call("a"), plan))), answer) == receipt
