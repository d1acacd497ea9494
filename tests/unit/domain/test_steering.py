"""What people do to a run, in whatever phase it is."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pytest

from loom.domain.core.messages import is_from_person, user
from loom.domain.core.requests import RunError, RunRequest, RunStatus
from loom.domain.core.tool_names import ASK_USER
from loom.domain.machine.steering import refusal
from loom.domain.machine.transitions import closed, evolve, next_action, start
from loom.domain.run.actions import AwaitResume, BeginTurn, Finish
from loom.domain.run.events import (
    AbortRequested,
    AsksExpired,
    BackoffEnded,
    MessageReceived,
    PauseRequested,
    PermissionsSet,
    ResumeRequested,
    SignalIgnored,
    SteeringEvent,
    TurnBegan,
)
from loom.domain.run.state import Outcome, Phase, RunState, expires_at, result_of, status_of
from loom.domain.run.status import status_view
from tests.unit.domain.story import (
    AT,
    BEGAN,
    PREPARED,
    READS,
    WEEK,
    WRITES,
    after,
    asks,
    at,
    call,
    conversation,
    fails,
    no,
    notices,
    results,
    returned,
    says,
    told,
    wants,
    yes,
)

ABORT: Final = AbortRequested(reason="enough", by="ann", at=AT)
PAUSE: Final = PauseRequested(by="ann", at=AT)
RESUME: Final = ResumeRequested(by="bob", at=at(9))
HELLO: Final = MessageReceived(text="use blue", by="ann", at=AT)
RULES: Final = PermissionsSet(rules={"bash": "deny"}, by="ann", at=AT)

MOMENTS: Final[Mapping[str, RunState]] = {
    "starting": start("run-1", RunRequest(task="Do it."), AT),
    "ready": told(),
    "thinking": told(BEGAN),
    "backing off": told(BEGAN, fails("LLMRateLimitError")),
    "asking": told(BEGAN, wants((call("a"), asks()), (call("b"), asks("d2")))),
    "judging": told(BEGAN, wants((call("a"), asks())), replace(RULES, rules={"bash": "ask"})),
    "running": told(BEGAN, wants((call("a"), READS), (call("w"), WRITES))),
    "between turns": told(BEGAN, wants((call("a"), READS)), returned(a="A")),
}
EVERY_MOMENT: Final = pytest.mark.parametrize("state", MOMENTS.values(), ids=MOMENTS)
EVERY_REQUEST: Final = pytest.mark.parametrize(
    "event", [ABORT, PAUSE, RESUME, HELLO, RULES, yes(), no()], ids=lambda event: type(event).__name__
)


# ---- abort -----------------------------------------------------------------------------------------------------


@EVERY_MOMENT
def test_an_abort_ends_the_run_at_any_moment_even_while_it_is_paused(state: RunState) -> None:
    for aborted in (evolve(state, ABORT), after(state, PAUSE, ABORT)):
        result = result_of(closed(aborted, AT), Outcome(status=RunStatus.ABORTED))
        action = next_action(aborted)
        assert isinstance(action, Finish)
        assert (action.outcome.status, status_of(aborted)) == (RunStatus.ABORTED, RunStatus.ABORTED)
        assert result.turns == state.turn


def test_an_abort_says_who_and_why_and_what_had_been_done() -> None:
    state = evolve(MOMENTS["between turns"], ABORT)
    assert next_action(state) == Finish(
        outcome=Outcome(
            status=RunStatus.ABORTED,
            error=RunError(
                type="ExecutionAbortedError",
                message="aborted by ann: enough. Until then: 1 turns, 1 finished tool calls.",
                context={"reason": "enough", "by": "ann"},
            ),
        )
    )


@EVERY_REQUEST
@EVERY_MOMENT
def test_a_run_that_has_ended_refuses_everything(state: RunState, event: SteeringEvent) -> None:
    ended = evolve(state, ABORT)
    assert refusal(ended, event) == "the run has ended: aborted"
    after_it = evolve(ended, event)
    assert replace(after_it, notices=ended.notices) == ended
    assert evolve(ended, AsksExpired(at=at(2 * WEEK))) == ended


# ---- pause -----------------------------------------------------------------------------------------------------


@EVERY_MOMENT
def test_nothing_starts_while_a_run_is_paused_and_it_goes_on_where_it_stood(state: RunState) -> None:
    paused = evolve(state, PAUSE)
    assert (next_action(paused), status_of(paused)) == (AwaitResume(), RunStatus.PAUSED)
    for event in (TurnBegan(at=AT), AsksExpired(at=at(2 * WEEK)), HELLO):
        assert next_action(evolve(paused, event)) == AwaitResume()
    assert type(next_action(evolve(paused, RESUME))) is type(next_action(state))


def test_work_under_way_ends_while_the_run_is_paused_and_nothing_follows_it() -> None:
    thinking = after(MOMENTS["thinking"], PAUSE, wants((call("a"), WRITES)))
    assert (next_action(thinking), thinking.phase) == (AwaitResume(), Phase.ACTING)
    running = after(MOMENTS["running"], PAUSE, returned(a="A"))
    assert (next_action(running), running.spending.tool_calls) == (AwaitResume(), 1)
    preparing = after(MOMENTS["starting"], PAUSE, PREPARED)
    assert (next_action(preparing), preparing.phase) == (AwaitResume(), Phase.READY)


@pytest.mark.parametrize("reply", [says("Red."), wants((call("d", "done", result="Red."), READS))])
def test_an_answer_that_comes_while_the_run_is_paused_waits_for_the_resume(reply: object) -> None:
    paused = after(told(BEGAN), PAUSE, reply)  # type: ignore[arg-type]  # parametrised
    assert next_action(paused) == AwaitResume()
    resumed = after(paused, RESUME, BEGAN)
    assert (status_of(resumed), resumed.turn) == (RunStatus.COMPLETED, 1)
    corrected = after(paused, HELLO, RESUME, BEGAN)
    assert conversation(corrected)[-1] == ("user", "use blue")
    assert status_of(evolve(corrected, says("Blue."))) is RunStatus.COMPLETED
    aborted = after(paused, ABORT)
    assert result_of(aborted, Outcome(status=RunStatus.ABORTED)).output == "Red."


def test_time_does_not_run_out_for_an_ask_while_the_run_is_paused() -> None:
    paused = evolve(MOMENTS["asking"], PAUSE)
    assert expires_at(paused, paused.calls.open[0]) is None
    assert [ask["expires_at"] for ask in status_view(paused)["pending_approvals"]] == [None, None]
    late = after(paused, replace(RESUME, at=at(3 * WEEK)))
    assert [expires_at(late, c) for c in late.calls.open] == [at(4 * WEEK)] * 2


def test_asks_can_be_answered_while_the_run_is_paused() -> None:
    state = after(MOMENTS["asking"], PAUSE, yes("a"), no("b"))
    assert (next_action(state), state.asks) == (AwaitResume(), ())


def test_pausing_twice_and_resuming_a_running_run_change_nothing_but_leave_a_notice() -> None:
    paused = evolve(MOMENTS["thinking"], PAUSE)
    twice = evolve(paused, PAUSE)
    assert (twice.hold, twice.notices.pending[-1].parameters) == (
        paused.hold,
        {"signal": "pause", "why": "the run is already paused"},
    )
    assert evolve(told(), RESUME).notices.pending[-1].parameters == {"signal": "resume", "why": "the run is not paused"}


def test_a_wait_that_ended_during_a_pause_is_not_waited_for_again() -> None:
    state = after(MOMENTS["backing off"], PAUSE, BackoffEnded(), RESUME)
    assert next_action(state) == next_action(MOMENTS["thinking"])


# ---- messages --------------------------------------------------------------------------------------------------


@EVERY_MOMENT
def test_a_message_is_kept_at_any_moment_and_shown_as_queued(state: RunState) -> None:
    told_it = evolve(state, HELLO)
    assert told_it.inbox == (user("use blue", by="ann"),)
    assert status_view(told_it)["queued_messages"] == 1
    assert notices(told_it)[-1] == ("node.message", {"text": "use blue", "by": "ann"})


# ---- rules -----------------------------------------------------------------------------------------------------


@EVERY_MOMENT
def test_new_rules_hold_from_any_moment_on(state: RunState) -> None:
    ruled = evolve(state, RULES)
    if ruled.phase is Phase.STARTING:
        ruled = evolve(ruled, PREPARED)
    assert ruled.agent.permissions["bash"] == "deny"
    assert (ruled.conversation.spec_digest, ruled.conversation.send_spec) == (ruled.agent.digest, True)
    assert all(call.stale for call in ruled.calls.open)


@pytest.mark.parametrize("rules", [{"bash": "perhaps"}, {"bash(": "allow"}, {"": "allow"}])
def test_rules_that_cannot_be_read_are_refused_whole(rules: dict[str, str]) -> None:
    state = evolve(told(), replace(RULES, rules={"grep": "deny", **rules}))
    assert (state.agent.permissions, state.notices.pending[-1].action) == ({}, "node.ignored")


# ---- the rest --------------------------------------------------------------------------------------------------


@EVERY_REQUEST
@EVERY_MOMENT
def test_what_is_refused_changes_nothing_but_its_notice(state: RunState, event: SteeringEvent) -> None:
    steered = evolve(state, event)
    if why := refusal(state, event):
        assert steered.notices.pending[-1].parameters["why"] == why
        assert replace(steered, notices=state.notices) == state
    else:
        assert steered != state


def test_a_signal_nobody_knows_leaves_a_notice() -> None:
    state = evolve(told(), SignalIgnored(signal="stop", why="unknown signal", at=AT))
    assert notices(state) == [("node.ignored", {"signal": "stop", "why": "unknown signal"})]
    assert next_action(state) == BeginTurn()


def test_notices_are_numbered_so_that_writing_one_twice_changes_nothing() -> None:
    keys = [n.key for n in after(told(), HELLO, PAUSE, PAUSE, RESUME).notices.pending]
    assert keys == ["n1", "n2", "n3", "n4"]


def test_what_another_agent_says_answers_no_question_that_is_meant_for_people() -> None:
    state = told(BEGAN, wants((call("c1", ASK_USER, question="May I?"), READS)))

    heard = after(state, MessageReceived(text="Yes, do.", by="b", from_agent=True, at=AT))
    assert status_of(heard) is RunStatus.WAITING_FOR_INPUT
    assert [(m.text, is_from_person(m)) for m in heard.inbox] == [("Yes, do.", False)]

    answered = after(heard, MessageReceived(text="No.", by="ann", at=AT))
    assert results(answered)[0][1] == "ann answers: No."
