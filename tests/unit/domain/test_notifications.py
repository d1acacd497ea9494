"""What people are told about a run, and what a receiver gets."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.notifications import (
    EVENTS,
    LONGEST_SUMMARY,
    Notification,
    NotifyEvent,
    NotifyPlan,
    body_of,
    escalates_at,
    message_id,
    still_waits,
    text_of,
)
from loom.domain.machine.transitions import evolve
from loom.domain.run.notifications import announced, unannounced
from loom.domain.run.state import RunState
from loom.domain.run.status import status_view
from tests.unit.domain.story import AT, BEGAN, READS, asks, at, call, returned, told, wants, yes

PLAN = NotifyPlan(events=EVENTS, channels=("webhook",), escalate_after=60.0)
ASKS_TWICE = wants((call("a", command="ls"), asks("d1")), (call("b", command="rm x"), asks("d2")))


def notifying(state: RunState, plan: NotifyPlan = PLAN) -> RunState:
    """The run, prepared by a worker with somebody to tell."""
    return replace(state, environment=replace(state.environment, notify=plan))


def keys(state: RunState) -> list[str]:
    return [each.key for each in unannounced(state, AT)]


def plainly(text: str) -> str:
    return text


def test_each_ask_is_announced_once_and_forgotten_after_its_answer() -> None:
    state = notifying(told(BEGAN, ASKS_TWICE))
    assert keys(state) == ["t1-ask-a-d1", "t1-ask-b-d2"]
    for notification in unannounced(state, AT):
        state = announced(state, notification, AT)
    assert (keys(state), state.announced) == ([], ("t1-ask-a-d1", "t1-ask-b-d2"))
    again = announced(evolve(state, yes("a")), notification, AT)
    assert again.announced == ("t1-ask-b-d2",)


def test_a_worker_without_receivers_or_without_this_event_announces_nothing() -> None:
    assert keys(told(BEGAN, ASKS_TWICE)) == []
    assert keys(notifying(told(BEGAN, ASKS_TWICE), replace(PLAN, events=(NotifyEvent.ENDED,)))) == []


def test_what_still_waits_is_read_from_the_status_query() -> None:
    state = notifying(told(BEGAN, ASKS_TWICE))
    first, second = unannounced(state, AT)
    answered = evolve(state, yes("a"))
    seen = status_view(answered)
    assert [still_waits(each, seen, plainly) for each in (first, second)] == [False, True]


def test_a_question_waits_until_its_answer() -> None:
    ask = call("q", "ask_user", question="Which colour?")
    state = notifying(told(BEGAN, wants((call("r"), READS), (ask, READS))))
    assert keys(state) == []  # the call before it hasn't returned
    state = evolve(state, returned(r="read"))
    (question,) = unannounced(state, at(5))
    assert (question.summary, question.since) == ("Which colour?", at(5))
    assert still_waits(question, status_view(state), plainly)
    assert not still_waits(question, {"question": "Which size?"}, plainly)


def test_only_what_waits_is_escalated() -> None:
    (first, _) = unannounced(notifying(told(BEGAN, ASKS_TWICE)), AT)
    assert escalates_at(first, PLAN) == at(60)
    assert escalates_at(replace(first, event=NotifyEvent.ENDED), PLAN) is None
    assert escalates_at(first, replace(PLAN, escalate_after=None)) is None


SAMPLE = unannounced(notifying(told(BEGAN, ASKS_TWICE)), AT)[0]


@given(st.text(), st.text(min_size=1), st.sampled_from(NotifyEvent))
def test_no_text_of_a_model_mentions_anybody_or_makes_a_message_too_long(
    summary: str, agent: str, event: NotifyEvent
) -> None:
    notification = replace(SAMPLE, summary=summary, agent=agent, event=event).redacted(plainly)
    assert not {"<", ">"} & set(text_of(notification, "webhook"))
    assert len(notification.summary) <= LONGEST_SUMMARY
    assert body_of(notification, "webhook")["data"]["event"] == event


def test_ids_stay_the_same_and_tell_notifications_apart() -> None:
    def ids(notification: Notification) -> set[str]:
        return {message_id(notification, "webhook"), message_id(notification, "escalation")}

    others = [replace(SAMPLE, key="x"), replace(SAMPLE, run_id="x"), replace(SAMPLE, execution="x")]
    assert ids(SAMPLE) == ids(replace(SAMPLE, summary="another"))
    assert len(set().union(*(ids(each) for each in (SAMPLE, *others)))) == 8
