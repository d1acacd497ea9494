"""A chat: one run that answers messages one after the other, told as transcripts."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest

from loom.domain.core.requests import Budget, RunRequest, RunStatus
from loom.domain.core.tasks import Action
from loom.domain.core.tool_calls import Verdict
from loom.domain.machine.limits import deadline
from loom.domain.machine.steering import extent, refusal
from loom.domain.machine.transitions import next_action, start
from loom.domain.run.actions import AwaitMessage, BeginTurn, CallModel, Finish
from loom.domain.run.activity_payloads import ModelReply
from loom.domain.run.chat import MOST_ANSWERS, Chat, ChatAnswer
from loom.domain.run.events import AbortRequested, MessageAnswered, MessageReceived, ModelReplied, PauseRequested
from loom.domain.run.state import RunState, result_of, status_of, waiting_on
from tests.unit.domain.story import (
    AT,
    BEGAN,
    READS,
    after,
    asks,
    at,
    call,
    conversation,
    fails,
    notices,
    says,
    told,
    wants,
    yes,
)

ANSWERED: Final = MessageAnswered(at=at(10))


def hears(text: str, message_id: str = "", **how: Any) -> MessageReceived:
    """A person sends a message."""
    return MessageReceived(**{"text": text, "message_id": message_id, "at": at(20), **how})


def chat_of(state: RunState) -> Chat:
    """The run's chat."""
    assert state.chat is not None
    return state.chat


def ids(state: RunState) -> tuple[list[str], list[str], list[tuple[str, ...]]]:
    """What is being answered, what waits, and what is answered."""
    chat = chat_of(state)
    answered = [answer.message_ids for answer in chat.answers]
    return [m.id for m in chat.answering], [m.id for m in chat.queue], answered


def handled(state: RunState, event: MessageReceived) -> Any:
    """What the receipt says of a message."""
    return extent(state, event)["handling"]


WAITING: Final = told(BEGAN, says("Hello."), ANSWERED, chat=True)
WORKING: Final = after(WAITING, hears("And now?", "b"), BEGAN)


def test_the_task_is_the_first_message_and_its_answer_does_not_end_the_run() -> None:
    answered = told(BEGAN, says("Hello."), chat=True)

    assert isinstance(next_action(answered), Finish)
    assert status_of(answered) is RunStatus.RUNNING
    assert next_action(WAITING) == AwaitMessage(since=at(10))
    assert ids(WAITING) == ([], [], [("m1",)])
    assert (status_of(WAITING), waiting_on(WAITING)) == (RunStatus.WAITING_FOR_INPUT, "message")
    assert WAITING.outcome is None


def test_the_next_message_goes_on_with_the_same_conversation() -> None:
    heard = after(WAITING, hears("And now?", "b"))
    assert isinstance(next_action(heard), BeginTurn)
    state = after(heard, BEGAN, says("Now this."), ANSWERED)

    said = [("user", "Do it."), ("assistant", "Hello."), ("user", "And now?"), ("assistant", "Now this.")]
    assert conversation(state) == said
    assert [answer.output for answer in chat_of(state).answers] == ["Hello.", "Now this."]
    assert [answer.turns for answer in chat_of(state).answers] == [1, 1]
    assert [answer.usage.total_tokens for answer in chat_of(state).answers] == [15, 15]


def test_each_answer_is_told_to_the_stream() -> None:
    state = after(WORKING, says("Now this."), ANSWERED)
    told_answers = [notice for notice in state.notices.pending if notice.action is Action.ANSWER]

    assert [notice.parameters for notice in told_answers] == [{"message_ids": ["m1"]}, {"message_ids": ["b"]}]
    assert [(notice.result or {})["output"] for notice in told_answers] == ["Hello.", "Now this."]
    assert ("node.message", {"text": "And now?", "message_id": "b"}) in notices(state)


def test_messages_wait_for_their_turn_and_each_is_answered_by_itself() -> None:
    state = after(WORKING, hears("Third", "c"), hears("Fourth", "d"))
    assert ids(state)[:2] == (["b"], ["c", "d"])

    state = after(state, says("two"), ANSWERED)
    assert ids(state)[:2] == (["c"], ["d"])
    state = after(state, BEGAN, says("three"), ANSWERED, BEGAN, says("four"), ANSWERED)

    assert ids(state) == ([], [], [("m1",), ("b",), ("c",), ("d",)])
    assert [answer.output for answer in chat_of(state).answers] == ["Hello.", "two", "three", "four"]


@pytest.mark.parametrize("when_busy", ["queue", "interrupt", "own_run", None])
def test_a_message_that_is_sent_again_is_the_same_message(when_busy: Any) -> None:
    again = hears("And now?", "b", when_busy=when_busy)
    for state in (WORKING, after(WORKING, says("two"), ANSWERED)):
        assert after(state, again) == state
    assert handled(WORKING, again) == "answering"
    assert handled(after(WORKING, says("two"), ANSWERED), again) == "answered"


def test_a_message_without_an_id_is_numbered() -> None:
    assert extent(WAITING, hears("And now?"))["message_id"] == "m2"
    assert ids(after(WAITING, hears("And now?")))[0] == ["m2"]


def test_an_interruption_stops_the_answer_and_is_answered_next() -> None:
    waits = after(WORKING, hears("Third", "c"))
    assert handled(waits, hears("Stop", "d", when_busy="interrupt")) == "interrupts"
    stopped = after(waits, hears("Stop", "d", when_busy="interrupt", by="ann"))
    assert isinstance(next_action(stopped), Finish)

    broken_off = ModelReplied(reply=ModelReply(broken_off="I was about to"), at=AT)
    state = after(stopped, broken_off, ANSWERED)

    assert ids(state)[:2] == (["d"], ["c"])
    interrupted = chat_of(state).answers[-1]
    assert (interrupted.message_ids, interrupted.status) == (("b",), RunStatus.ABORTED)
    assert (interrupted.output, interrupted.error and interrupted.error.type) == (
        "I was about to",
        "MessageInterrupted",
    )
    said = conversation(after(state, BEGAN))
    assert said[-3] == ("assistant", "I was about to")
    assert "interrupted" in said[-2][1]
    assert said[-1] == ("user", "Stop")


def test_an_interruption_ends_calls_and_the_conversation_stays_valid() -> None:
    acting = after(WORKING, wants((call("a"), READS), (call("b"), asks())))
    state = after(acting, hears("Stop", "c", when_busy="interrupt"), ANSWERED)

    assert [(m.role, m.tool_call_id) for m in state.transcript.messages[-2:]] == [("tool", "a"), ("tool", "b")]
    assert not state.calls.open
    assert isinstance(next_action(after(state, BEGAN)), CallModel)


def test_a_message_before_the_run_is_prepared_waits_even_if_it_would_interrupt() -> None:

    state = start("run-1", RunRequest(task="Do it.", chat=True, message_id="a"), AT)
    assert handled(state, hears("Stop", "b", when_busy="interrupt")) == "queued"
    assert ids(after(state, hears("Stop", "b", when_busy="interrupt")))[:2] == (["a"], ["b"])


def test_a_message_for_a_run_of_its_own_leaves_the_work_alone() -> None:
    event = hears("Beside it", "c", when_busy="own_run")
    assert handled(WORKING, event) == "own_run"
    state = after(WORKING, event)

    assert ids(state)[:2] == (["b"], [])
    assert handled(after(state, says("two"), ANSWERED), event) == "own_run"
    assert handled(WAITING, event) == "answering"


def test_a_reply_to_the_agents_question_shares_the_answer() -> None:
    question = call("q", "ask_user", question="Which one?")
    asking = after(WORKING, wants((question, replace(READS, verdict=Verdict.ALLOW))))
    assert handled(asking, hears("the red one", "c")) == "replies"

    state = after(asking, hears("the red one", "c", by="ann"), BEGAN, says("Red it is."), ANSWERED)

    assert ids(state) == ([], [], [("m1",), ("b", "c")])
    assert chat_of(state).answer_to("c") == chat_of(state).answer_to("b")


def test_a_failure_is_an_answer_and_the_chat_goes_on() -> None:
    state = after(WORKING, fails("LLMAuthenticationError"))
    while not isinstance(next_action(state), Finish):
        state = after(state, fails("LLMBadRequestError"))
    state = after(state, ANSWERED)

    failed = chat_of(state).answers[-1]
    assert failed.status is RunStatus.FAILED
    assert failed.output == ""  # not the answer to the message before
    state = after(state, hears("Again", "c"), BEGAN, says("Better."), ANSWERED)
    assert chat_of(state).answers[-1].output == "Better."


def test_turns_are_limited_for_each_message() -> None:
    state = told(BEGAN, chat=True, max_turns=2)
    for number in range(3):
        state = after(state, says("done"), ANSWERED, hears("more", f"x{number}"), BEGAN)
    assert isinstance(next_action(state), CallModel)
    assert state.turns == 4


def test_time_is_limited_for_each_message_and_does_not_run_while_the_chat_waits() -> None:
    state = told(BEGAN, chat=True, budget=Budget(seconds=60))
    assert deadline(state) == AT + timedelta(seconds=60)
    state = after(state, says("done"), ANSWERED)
    assert deadline(state) is None
    assert deadline(after(state, hears("more", at=at(1000)))) == at(1060)


def test_an_abort_ends_the_chat_and_names_the_messages_that_were_not_answered() -> None:
    state = after(WORKING, hears("Third", "c"), AbortRequested(at=AT), MessageAnswered(at=AT))
    assert state.outcome is not None
    result = result_of(state, state.outcome)

    assert result.status is RunStatus.ABORTED
    assert result.error is not None
    assert result.error.context["unread"] == ["Third"]
    assert refusal(state, hears("Fourth")) == "the run has ended: aborted"


def test_an_abort_also_ends_a_chat_whose_answer_is_being_closed() -> None:
    state = after(WORKING, says("two"), AbortRequested(at=AT))
    assert state.outcome is not None
    assert state.outcome.status is RunStatus.ABORTED
    assert not state.is_answer


def test_a_message_that_arrives_while_an_answer_is_being_closed_is_answered_next() -> None:
    state = after(WORKING, says("two"), hears("Third", "c"))
    assert ids(state)[:2] == (["b"], ["c"])
    assert ids(after(state, ANSWERED))[:2] == (["c"], [])


def test_a_paused_chat_takes_messages_and_works_on_them_later() -> None:
    state = after(WAITING, PauseRequested(at=AT), hears("And now?", "b"))
    assert status_of(state) is RunStatus.PAUSED
    assert ids(state)[0] == ["b"]


def test_an_approval_for_the_run_holds_for_later_messages() -> None:
    state = after(WORKING, wants((call("a"), asks("d1", "bash"))), yes("a", scope="run"))
    assert state.calls.grants == ("bash",)
    state = after(state, hears("Stop", "c", when_busy="interrupt"), ANSWERED)
    assert state.calls.grants == ("bash",)


def test_a_chat_remembers_its_latest_answers_within_bounds() -> None:
    chat = chat_of(WAITING)
    for number in range(300):
        answer = ChatAnswer(message_ids=(f"a{number}",), status=RunStatus.COMPLETED, output="x" * 500, at=AT)
        chat = chat.with_answer(answer)
    assert len(chat.answers) == MOST_ANSWERS
    assert chat.answered == 301
    assert chat.handling_of("a0") == "answered"
    assert chat.answer_to("a0") is None
    long = ChatAnswer(message_ids=("long",), status=RunStatus.COMPLETED, output="x" * 1_000_000, at=AT)
    assert [answer.message_ids for answer in chat.with_answer(long).answers] == [("long",)]


def test_other_runs_are_as_they_were() -> None:
    state = told(BEGAN, hears("more"), says("ok"))
    assert state.chat is None
    assert state.outcome is None
    assert [m.text for m in state.inbox] == ["more"]
    assert extent(state, hears("more")) == {}
