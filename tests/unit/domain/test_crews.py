"""What a crew does next, in each mode, and when members fail."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.messages import Message, reminder
from loom.domain.crews.actions import Answer, AssignJobs, CompareDescriptions, GiveUp
from loom.domain.crews.crew import Aggregation, Coordinator, Crew, Member, Route, Router, complaints
from loom.domain.crews.log import Choice, read_log
from loom.domain.crews.next_action import chosen, so_far
from loom.domain.crews.prompts import INLINE
from loom.domain.crews.routing import by_similarity
from tests.unit.domain.crew_story import FAILED, Told, crew

WORK = json.dumps({"assignments": [{"member": "a", "task": "find"}, {"member": "b", "task": "check"}]})
DONE = json.dumps({"answer": "forty-two"})


def test_a_sequential_crew_hands_on_what_each_has_brought() -> None:
    told = Told(crew("sequential", "a", Member(name="b", task="Write it up.")))
    assert told.jobs == [("a", 1)]
    told.came("facts")
    assert told.jobs == [("b", 1)]
    assert "facts" in told.prompt
    assert "Your part: Write it up." in told.prompt
    assert told.came("a report").answer == "a report"


def test_a_parallel_crew_works_at_once_and_its_answers_are_joined() -> None:
    told = Told(crew("parallel", "a", "b"))
    assert told.jobs == [("a", 1), ("b", 1)]
    assert told.came("one", "two").answer == "## a\n\none\n\n## b\n\ntwo"


def test_answers_are_merged_by_an_agent_or_made_one_value() -> None:
    merged = Told(crew("parallel", "a", "b", aggregate=Aggregation(by="merge", agent="editor"))).came("one", "two")
    assert merged.jobs == [("editor", 1)]
    assert "one" in merged.prompt
    assert merged.came("both").answer == "both"
    value = Told(crew("parallel", "a", "b", aggregate=Aggregation(by="structured"))).came('{"n": 1}', "plain")
    assert json.loads(value.answer) == {"a": {"n": 1}, "b": "plain"}


def test_a_coordinator_gives_out_work_reads_what_came_and_answers() -> None:
    told = Told(crew("coordinated", "a", "b"))
    assert told.jobs == [("coordinator", 1)]
    assert "- a: agent default" in told.prompt
    told.came(f"Sure! {WORK}")
    assert told.jobs == [("a", 1), ("b", 1)]
    assert "Do this: find" in told.prompt
    told.came("found", "checked")
    assert told.jobs == [("coordinator", 1)]
    assert "found" in told.prompt
    assert told.came(DONE).answer == "forty-two"


def test_a_coordinator_that_gives_out_work_for_ever_has_to_answer() -> None:
    told = Told(crew("coordinated", "a", "b", coordinator=Coordinator(max_rounds=1))).came(WORK).came("x", "y")
    assert "Answer now" in told.prompt
    told.came(WORK)
    assert "the answer must be" in told.prompt
    assert "coordinator failed 3 times" in told.came(WORK).came(WORK).error


@pytest.mark.parametrize(
    "answer", ["no idea", "{", '{"assignments": []}', '{"assignments": [{"member": "z", "task": "t"}]}']
)
def test_a_coordinator_that_does_not_answer_in_the_form_is_told_what_is_wrong(answer: str) -> None:
    told = Told(crew("coordinated", "a", "b")).came(answer)
    assert told.jobs == [("coordinator", 2)]
    assert "An earlier attempt at this (coordinator, attempt 1) failed" in told.prompt
    assert told.came(DONE).answer == "forty-two"


def test_a_coordinator_is_told_of_a_member_that_fails_twice() -> None:
    told = Told(crew("coordinated", "a", "b")).came(WORK).came("found", FAILED)
    assert told.jobs == [("b", 2)]
    assert "no answer" in told.prompt
    told.came(FAILED)
    assert told.jobs == [("coordinator", 1)]
    assert "## b\n(failed: LLMUnavailableError: no answer)" in told.prompt


class TestACrewThatIsRetriedAfterItsEnd:
    """What failed before counts no more, and what was done is not done again."""

    @pytest.mark.parametrize("ended", [FAILED, ("aborted", "ExecutionAbortedError: aborted", "")])
    def test_the_member_that_failed_tries_again_in_a_new_attempt(self, ended: tuple[str, ...]) -> None:
        told = Told(crew("sequential", "a", Member(name="b", retries=0))).came("by a").came(ended)
        assert "failed once" in told.error
        told.retried()
        assert told.jobs == [("b", 2)]
        assert told.came("by b").answer == "by b"

    def test_a_member_fails_as_often_as_before_until_the_crew_gives_up(self) -> None:
        told = Told(crew("sequential", Member(name="a", retries=1))).came(FAILED).came(FAILED)
        assert "failed twice" in told.error
        told.retried()
        assert told.came(FAILED).jobs == [("a", 4)]
        assert "failed 4 times" in told.came(FAILED).error

    def test_a_coordinator_is_asked_again(self) -> None:
        told = Told(crew("coordinated", "a")).came("no idea").came("no idea").came("no idea")
        assert "failed 3 times" in told.error
        assert told.retried().came(DONE).answer == "forty-two"


PART = ("limit_reached", "MaxTurnsReached: stopped", "half of it")


class TestWhatAMemberHasBroughtThatHadToEnd:
    """It is no answer, and not lost."""

    def test_the_coordinator_and_the_next_attempt_are_given_it(self) -> None:
        told = Told(crew("coordinated", "a", "b")).came(WORK).came("found", PART)
        assert told.jobs == [("b", 2)]
        assert told.prompt.endswith("failed: MaxTurnsReached: stopped\n\nUntil then it had this:\nhalf of it")
        told.came(PART)
        assert "## b\n(failed: MaxTurnsReached: stopped)\n\nUntil then it had this:\nhalf of it" in told.prompt

    def test_a_very_long_part_is_cut(self) -> None:
        told = Told(crew("sequential", "a")).came(("limit_reached", "stopped", "x" * 7000))
        assert told.prompt.endswith("x\n[…cut after 6000 characters]")

    def test_those_who_come_after_it_are_given_it(self) -> None:
        told = Told(crew("sequential", Member(name="a", retries=0, on_failure="skip"), "b")).came(PART)
        assert told.jobs == [("b", 1)]
        assert "half of it" in told.prompt

    def test_a_plan_tells_of_it(self) -> None:
        told = Told(crew("planned", "a", Member(name="b", retries=0))).came("x", PART)
        assert "## b: limit_reached\n\nMaxTurnsReached: stopped\n\nUntil then it had this:\nhalf of it" in told.answer

    def test_a_crew_that_has_to_end_has_it_where_there_is_no_answer(self) -> None:
        told = Told(crew("parallel", "a", "b", "c")).came("by a", PART, PART)
        told.came("by b", ("budget_exhausted", "spent", "more of it"))
        assert so_far(read_log(told.messages)).split("\n\n")[1:] == [
            *("## a", "by a", "## b", "by b", "## c (not done)", "more of it"),
        ]

    def test_an_answer_in_the_wrong_form_is_none_of_that(self) -> None:
        assert "Until then" not in Told(crew("coordinated", "a")).came("no idea").prompt


class TestRouting:
    """Who gets the task, and why."""

    CLERK = Member(name="clerk", capabilities=("refund", "invoice"))
    SMITH = Member(name="smith", description="mends things", capabilities=("repair",))

    def test_the_first_rule_that_matches_counts(self) -> None:
        rules = (Route(match=r"broke\w*", member="smith"), Route(match="broken", member="clerk"))
        told = Told(crew("routed", self.CLERK, self.SMITH, router=Router(rules=rules)), "My chair is BROKEN.")
        assert isinstance(told.step, AssignJobs)
        assert told.step.choice == Choice(member="smith", by="rules", reason=r"'BROKEN' matches 'broke\\w*'")
        assert told.came("mended").answer == "mended"

    def test_without_rules_capabilities_are_looked_for_in_the_task(self) -> None:
        told = Told(crew("routed", self.CLERK, self.SMITH), "I want a Refund for an invoice.")
        assert isinstance(told.step, AssignJobs)
        assert told.step.text == "To clerk (rules: the task says 'refund', 'invoice')"

    def test_a_choice_is_made_once(self) -> None:
        told = Told(crew("routed", self.CLERK, self.SMITH), "refund").came(FAILED)
        assert isinstance(told.step, AssignJobs)
        assert told.step.choice is None
        changed = Told(crew("routed", self.SMITH, Member(name="clerk")))
        changed.messages = told.messages
        assert changed.jobs == [("clerk", 2)]

    def test_a_task_that_nobody_fits_goes_to_the_fallback_or_names_what_the_crew_can_do(self) -> None:
        step = Told(crew("routed", self.CLERK, self.SMITH), "Sing.").step
        assert isinstance(step, GiveUp)
        assert step.no_match
        assert "clerk (refund, invoice); smith (repair)" in step.error
        told = Told(crew("routed", self.CLERK, self.SMITH, router=Router(fallback="smith")), "Sing.")
        assert told.jobs == [("smith", 1)]

    def test_a_model_chooses_with_a_reason(self) -> None:
        team = crew("routed", self.CLERK, self.SMITH, router=Router(by="model", agent="desk"))
        told = Told(team, "Sing.")
        assert told.jobs == [("router", 1)]
        chose = told.came('{"member": "smith", "reason": "has a voice"}')
        assert isinstance(chose.step, AssignJobs)
        assert chose.step.choice == Choice(member="smith", by="model", reason="has a voice")
        nobody = Told(team, "Sing.").came('{"member": null, "reason": "no singer"}')
        assert "(no singer)" in nobody.error

    def test_likeness_chooses_above_the_threshold(self) -> None:
        team = crew("routed", self.CLERK, self.SMITH, router=Router(by="embedding", threshold=0.5))
        assert Told(team).step == CompareDescriptions()
        choice, _ = by_similarity(team, [1.0, 0.0], [[0.0, 1.0], [1.0, 0.1]])
        assert choice == Choice(member="smith", by="embedding", reason="likeness 1.00, the next has 0.00")
        none, told = by_similarity(team, [1.0, 0.0], [[0.0, 1.0], [0.1, 1.0]])
        step = chosen(team, read_log(Told(team).messages), none, f" ({told})")
        assert isinstance(step, GiveUp)
        assert "the closest is 'smith' with 0.10, 0.50 are needed" in step.error


class TestRecovery:
    """What a member's failure means."""

    def test_it_is_tried_again_and_told_what_went_wrong(self) -> None:
        told = Told(crew("sequential", "a")).came(FAILED)
        assert told.jobs == [("a", 2)]
        assert "failed: LLMUnavailableError: no answer" in told.prompt
        assert told.came("done").answer == "done"

    def test_then_the_substitute_takes_over_in_its_own_words(self) -> None:
        first = Member(name="a", retries=0, substitute="b", description="Is quick.")
        told = Told(crew("parallel", first, Member(name="b", description="Is thorough."))).came(FAILED, "two")
        assert told.jobs == [("b", 2)]
        assert "Is thorough." in told.prompt
        assert told.came("one").answer == "## b\n\none\n\n## b\n\ntwo"

    def test_then_the_crew_stops(self) -> None:
        error = Told(crew("sequential", "a", "b")).came(FAILED).came(FAILED).error
        assert error == "the member 'a' failed twice: LLMUnavailableError: no answer"

    def test_or_goes_on_without_it(self) -> None:
        told = Told(crew("sequential", Member(name="a", retries=0, on_failure="skip"), "b")).came(FAILED)
        assert told.jobs == [("b", 1)]
        assert "## a\n(failed:" in told.prompt
        parallel = Told(crew("parallel", Member(name="a", retries=0), "b")).came(FAILED, "two")
        assert parallel.answer == "## b\n\ntwo"

    def test_a_crew_of_which_nobody_came_to_an_answer_has_none(self) -> None:
        told = Told(crew("parallel", Member(name="a", retries=0), Member(name="b", retries=0))).came(FAILED, FAILED)
        assert told.error.startswith("no member produced an answer: a: LLM")

    def test_who_was_stopped_on_purpose_is_not_tried_again(self) -> None:
        assert "the member 'a' failed once" in Told(crew("sequential", "a")).came(("aborted", "by ann")).error

    def test_who_has_spent_its_budget_is_not_tried_again(self) -> None:
        told = Told(crew("sequential", "a")).came(("budget_exhausted", "spent"))
        assert "the member 'a' failed once: spent" in told.error
        assert read_log(told.messages).ended_by_budget

    def test_a_member_that_was_never_started_has_failed(self) -> None:
        told = Told(crew("sequential", "a")).came(FAILED)
        told.messages[-1] = Message(role="tool", tool_call_id=told.messages[-1].tool_call_id, content="not delegated")
        assert "failed: not delegated" in told.prompt


def test_what_people_say_reaches_whoever_works_next_and_reminders_do_not() -> None:
    told = Told(crew("sequential", "a", "b")).came("one").heard("Be brief.")
    told.messages.append(reminder("Nearly spent."))
    assert "- Be brief." in told.prompt
    assert "Nearly spent" not in told.prompt


def test_a_long_answer_is_passed_on_by_reference() -> None:
    told = Told(crew("sequential", "a", "b")).came("x" * (INLINE + 1))
    assert "read_artifact 'crew-s1' has the whole" in told.prompt
    assert told.prompt.count("x" * 50) <= INLINE / 50


@given(st.lists(st.booleans(), min_size=12, max_size=12), st.sampled_from(["sequential", "parallel", "routed"]))
def test_every_crew_ends_whoever_fails(fates: list[bool], mode: str) -> None:
    members = (
        Member(name="a", retries=1, substitute="b", capabilities=("task",)),
        Member(name="b", retries=0, on_failure="skip"),
        Member(name="c", retries=2),
    )
    told, left = Told(crew(mode, *members)), iter([*fates, *[True] * 20])
    for _ in range(20):
        step = told.step
        if not isinstance(step, AssignJobs):
            break
        told.came(*("ok" if next(left) else FAILED for _ in step.jobs))
    assert isinstance(told.step, Answer | GiveUp)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (crew("parallel"), "has no members"),
        (crew("parallel", "a", "a"), "two members are called 'a'"),
        (crew("parallel", Member(name="a", substitute="a"), "b"), "must be another member (b), not 'a'"),
        (crew("routed", "a"), "the router has no criteria"),
        (crew("routed", "a", router=Router(rules=(Route(match="(", member="a"),))), "is not a regular expression"),
        (crew("routed", "a", router=Router(rules=(Route(match="x", member="z"),))), "must name a member (a), not 'z'"),
        (crew("routed", "a", router=Router(by="model", fallback="z")), "router.fallback must be a member"),
        (crew("parallel", "a", permissions={"bash": "perhaps"}), "permissions: "),
    ],
)
def test_what_is_wrong_with_a_crew_is_named(wrong: Crew, says: str) -> None:
    assert any(says in complaint for complaint in complaints(wrong))
