"""The loop of a run: turns, answers, messages, limits. Each test reads as a transcript."""

from dataclasses import replace
from datetime import timedelta

import pytest

from loom.domain.core.messages import reminder, user
from loom.domain.core.requests import Budget, RunError, RunRequest, RunStatus
from loom.domain.machine.transitions import evolve, next_action, start
from loom.domain.run.actions import BeginTurn, CallModel, Finish, Prepare, RunTools
from loom.domain.run.events import (
    AbortRequested,
    BackoffEnded,
    Event,
    MessageReceived,
    NoticesPublished,
    RunRefused,
    TurnBegan,
    WaitEnded,
)
from loom.domain.run.state import Outcome, Phase, RunState, result_of
from loom.domain.tree.lineage import Lineage, TreeLimits
from tests.unit.domain.story import (
    AT,
    BEGAN,
    PREPARED,
    READS,
    SPEC,
    UNKNOWN_TOOL,
    WRITES,
    after,
    asks,
    at,
    call,
    conversation,
    cut,
    fails,
    notices,
    returned,
    says,
    told,
    wants,
)

DONE = call("d", "done", result="ready")
HELLO = MessageReceived(text="use blue", by="ann", at=AT)


def ended(state: RunState) -> Outcome:
    action = next_action(state)
    assert isinstance(action, Finish)
    return action.outcome


def error_of(state: RunState) -> RunError:
    error = ended(state).error
    assert error is not None
    return error


# ---- the loop -------------------------------------------------------------------------------------------------------


def test_a_plain_answer_ends_the_run() -> None:
    state = start("run-1", RunRequest(task="Do it."), AT)
    assert next_action(state) == Prepare()
    state = evolve(state, PREPARED)
    assert next_action(state) == BeginTurn()
    state = evolve(state, BEGAN)
    assert next_action(state) == CallModel()
    state = evolve(state, says("Four."))
    assert next_action(state) == Finish(outcome=Outcome(status=RunStatus.COMPLETED, output="Four."))
    assert conversation(state) == [("user", "Do it."), ("assistant", "Four.")]


def test_a_run_alternates_between_model_and_tools_until_it_answers() -> None:
    state = told(BEGAN, wants((call("a"), WRITES)), returned(a="one"))
    assert (state.phase, state.turn, next_action(state)) == (Phase.READY, 1, BeginTurn())
    state = after(state, BEGAN, says("Finished."))
    assert conversation(state) == [
        ("user", "Do it."),
        ("assistant", "a"),
        ("tool", "one"),
        ("assistant", "Finished."),
    ]
    assert (state.turn, state.spending.tool_calls, state.spending.usage.total_tokens, state.spending.cost_micros) == (
        2,
        1,
        30,
        200,
    )


def test_a_run_that_cannot_be_prepared_fails_with_the_reason() -> None:
    wrong = RunError(type="BadRequest", message="unknown agent")
    state = evolve(start("run-1", RunRequest(task="x"), AT), RunRefused(error=wrong))
    assert ended(state) == Outcome(status=RunStatus.FAILED, error=wrong)


def test_rules_of_the_request_are_laid_over_those_of_the_agent() -> None:
    spec = replace(SPEC, permissions={"bash": "deny", "grep": "allow"})
    assert told(spec=spec, permissions={"bash": "ask"}).agent.permissions == {"bash": "ask", "grep": "allow"}


@pytest.mark.parametrize(
    "event",
    [PREPARED, BEGAN, returned(a="x"), fails("LLMUnavailableError"), BackoffEnded(), WaitEnded()],
    ids=lambda event: type(event).__name__,
)
def test_an_event_that_does_not_fit_changes_nothing(event: Event) -> None:
    answered = told(BEGAN, says("Four."))
    asking = told(BEGAN, wants((call("a"), asks())))
    assert evolve(answered, event) == answered
    assert evolve(asking, event) == asking


def test_a_second_answer_to_one_model_call_changes_nothing() -> None:
    state = told(BEGAN, wants((call("a"), WRITES)))
    assert evolve(state, says("again")) == state


# ---- done -----------------------------------------------------------------------------------------------------------


def test_done_ends_the_run_at_once_and_other_calls_are_not_run() -> None:
    state = told(BEGAN, wants((call("w"), WRITES), (DONE, READS), (call("x"), UNKNOWN_TOOL)))
    assert ended(state) == Outcome(status=RunStatus.COMPLETED, output="ready", explicit=True)
    assert conversation(state)[2:] == [
        ("tool", "not run: `done` was called beside this"),
        ("tool", "Done."),
        ("tool", UNKNOWN_TOOL.error),
    ]


def test_done_without_a_result_takes_what_was_said_beside_it() -> None:
    assert ended(told(BEGAN, wants((call("d", "done"), READS), text="It is 4."))).output == "It is 4."


def test_a_done_that_is_malformed_does_not_end_the_run() -> None:
    state = told(BEGAN, wants((DONE, UNKNOWN_TOOL)))
    assert next_action(state) == BeginTurn()


def test_a_required_done_is_asked_for_until_it_comes() -> None:
    spec = replace(SPEC, require_done_tool=True)
    state = told(BEGAN, says("I think so."), spec=spec)
    assert next_action(state) == BeginTurn()
    state = evolve(state, BEGAN)
    assert state.transcript.messages[-1] == reminder(
        "Call the `done` tool with the result when the task is finished; go on otherwise."
    )
    assert ended(evolve(state, wants((DONE, READS)))).explicit


# ---- messages -------------------------------------------------------------------------------------------------------


def test_a_message_is_read_at_the_next_turn() -> None:
    state = told(BEGAN, wants((call("a"), WRITES)), HELLO, returned(a="one"), BEGAN)
    assert conversation(state)[-2:] == [("tool", "one"), ("user", "use blue")]
    assert state.inbox == ()


def test_an_answer_does_not_end_the_run_while_a_message_is_unread() -> None:
    state = told(BEGAN, HELLO, says("Red."))
    assert next_action(state) == BeginTurn()
    state = after(state, BEGAN, says("Blue."))
    assert ended(state).output == "Blue."
    assert conversation(state)[1:] == [("assistant", "Red."), ("user", "use blue"), ("assistant", "Blue.")]


def test_done_does_not_end_the_run_while_a_message_is_unread() -> None:
    state = told(BEGAN, HELLO, wants((DONE, READS)))
    assert next_action(state) == BeginTurn()
    assert conversation(state)[-1] == ("tool", "Not yet: a message has come in. Read it first, then call `done` again.")
    state = after(state, BEGAN, wants((call("e", "done", result="blue"), READS)))
    assert ended(state) == Outcome(status=RunStatus.COMPLETED, output="blue", explicit=True)


def test_a_run_that_has_to_end_says_which_messages_it_has_not_read() -> None:
    state = evolve(told(BEGAN, HELLO, wants((DONE, READS)), max_turns=1), BEGAN)
    result = result_of(state, ended(state))
    assert (result.status, result.output) == (RunStatus.LIMIT_REACHED, "ready")
    assert result.error == RunError(
        type="MaxTurnsReached",
        message="stopped after 1 turn with an answer that does not know what came in last."
        " Continue with `loom retry run-1 --max-turns N`, or split the task. Not read: 1 message sent to the run.",
        context={"limit": "max_turns", "pending": [], "unread": ["use blue"]},
    )


# ---- empty and cut answers ------------------------------------------------------------------------------------------


def test_an_answer_that_never_comes_to_its_end_is_a_limit_with_all_that_was_said() -> None:
    state = told(*[event for n in range(10) for event in (BEGAN, cut(f"{n} "))])
    assert state.outcome is not None
    assert (state.outcome.status, state.outcome.output) == (RunStatus.LIMIT_REACHED, "0 1 2 3 4 5 6 7 8 9 ")


def test_cut_answers_are_continued_and_joined() -> None:
    state = told(BEGAN, cut("one, "), BEGAN, cut("two, "), BEGAN, says("three"))
    assert ended(state).output == "one, two, three"


def test_a_run_that_ends_between_two_pieces_keeps_both() -> None:
    state = told(BEGAN, cut("one, "), BEGAN, cut("two, "), BEGAN, AbortRequested(at=AT))
    assert result_of(state, ended(state)).output == "one, two, "


def test_three_empty_answers_fail_the_run() -> None:
    state = told(BEGAN, says(""), BEGAN, says(" \n"), BEGAN)
    assert next_action(state) == CallModel()
    assert error_of(evolve(state, says(""))).type == "LLMBadResponseError"


def test_a_tool_call_between_empty_answers_counts_as_progress() -> None:
    acted = told(BEGAN, says(""), BEGAN, says(""), BEGAN, wants((call("a"), READS)), returned(a="x"))
    assert next_action(after(acted, BEGAN, says(""))) == BeginTurn()


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_a_run_out_of_turns_says_what_it_still_wanted_and_is_no_success() -> None:
    state = told(BEGAN, wants((call("a", command="make test"), WRITES)), max_turns=1)
    assert ended(state) == Outcome(
        status=RunStatus.LIMIT_REACHED,
        error=RunError(
            type="MaxTurnsReached",
            message="stopped after 1 turn without a final answer. It still wanted to run: bash: make test.",
            context={"limit": "max_turns", "pending": ["bash: make test"]},
        ),
    )
    assert conversation(state)[-1] == ("tool", "not run: the run's turns are used up")


def test_an_answer_in_the_last_turn_is_a_success() -> None:
    assert ended(told(BEGAN, says("Four."), max_turns=1)).status is RunStatus.COMPLETED


@pytest.mark.parametrize(
    ("budget", "now", "name"),
    [
        (Budget(tokens=15), AT, "tokens: 15 of 15"),
        (Budget(cost_usd=0.0001), AT, "cost_usd: 0.0001 of 0.0001"),
        (Budget(tool_calls=1), AT, "tool_calls: 1 of 1"),
        (Budget(seconds=60), at(60), "seconds: 60 of 60"),
    ],
)
def test_a_spent_budget_ends_the_run_before_its_next_turn(budget: Budget, now: object, name: str) -> None:
    state = told(BEGAN, wants((call("a"), READS)), returned(a="x"), budget=budget)
    assert next_action(state) == BeginTurn()
    outcome = ended(evolve(state, TurnBegan(at=now)))  # type: ignore[arg-type]  # parametrised
    assert outcome.status is RunStatus.BUDGET_EXHAUSTED
    assert outcome.error is not None
    spent, option = name.replace(":", " is spent:"), f"--budget '{{\"{name.partition(':')[0]}\": N}}'"
    assert outcome.error.message == f"the budget for {spent}."
    error = result_of(state, outcome).error
    assert error is not None
    assert error.message == f"the budget for {spent}. Continue with `loom retry run-1 {option}`."


def test_a_sub_agent_out_of_turns_says_what_its_parent_can_do() -> None:
    state = told(BEGAN, wants((call("a"), READS)), max_turns=1)
    lineage = Lineage(parent_run_id="root", root_run_id="root", depth=1, limits=TreeLimits(depth=1, children=1))
    error = result_of(replace(state, tree=replace(state.tree, lineage=lineage)), ended(state)).error
    assert error is not None
    assert error.message.endswith(" Start again with a larger max_turns, or split the task.")


def test_the_model_is_reminded_once_when_four_fifths_are_spent() -> None:
    state = told(BEGAN, wants((call("a"), READS)), returned(a="x"), BEGAN, budget=Budget(tokens=18))
    told_model = "Nearly spent — tokens: 15 of 18. Come to a conclusion soon."
    assert state.transcript.messages[-1] == reminder(told_model)
    assert notices(state) == [("node.budget", {"text": told_model})]
    again = after(state, fails("LLMRateLimitError"), BackoffEnded(), wants((call("b"), READS)))
    assert [m for m in again.transcript.messages if m.role == "user"] == [user("Do it."), reminder(told_model)]


def test_a_dollar_budget_without_a_price_is_said_once_and_never_spent() -> None:
    state = told(BEGAN, cut("a"), BEGAN, budget=Budget(cost_usd=1.0))
    state = evolve(state, says("b", cost_micros=None))
    assert (state.spending.cost_micros, [action for action, _ in notices(state)]) == (None, ["node.budget"])


# ---- notices --------------------------------------------------------------------------------------------------------


def test_notices_leave_in_order_and_those_made_meanwhile_stay() -> None:
    state = told(HELLO, replace(HELLO, text="or green"))
    riding = len(state.notices.pending)
    state = after(state, replace(HELLO, text="or red"), NoticesPublished(count=riding))
    assert [(n.key, n.parameters["text"]) for n in state.notices.pending] == [("n3", "or red")]


# ---- after the end --------------------------------------------------------------------------------------------------


def test_an_answer_that_arrives_after_an_abort_is_paid_for_and_changes_nothing_else() -> None:
    aborted = told(BEGAN, AbortRequested(reason="enough", by="ann", at=AT))
    state = evolve(aborted, wants((call("a"), WRITES)))
    assert ended(state) == ended(aborted)
    assert state.spending.usage.total_tokens == 15


def test_time_between_two_turns_counts_for_the_budget_of_seconds() -> None:
    state = told(budget=Budget(seconds=5))
    assert isinstance(next_action(evolve(state, TurnBegan(at=AT + timedelta(seconds=5)))), Finish)
    assert next_action(evolve(state, TurnBegan(at=at(4)))) == CallModel()


def test_calls_without_a_person_run_at_once() -> None:
    state = told(BEGAN, wants((call("a"), WRITES)))
    assert next_action(state) == RunTools(calls=state.calls.open)
