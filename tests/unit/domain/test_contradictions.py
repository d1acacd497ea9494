"""Which facts about a person a newer one replaces."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.memory.contradictions import claims_of, replaced
from loom.domain.memory.people import FactKind, FactSource, PersonFact

START = datetime(2026, 1, 1, tzinfo=UTC)


def fact(number: int, content: str, source: FactSource = "rule", *, at: int | None = None) -> PersonFact:
    said = START + timedelta(hours=number if at is None else at)
    return PersonFact(
        id=number,
        user_id="ann",
        tenant="",
        kind=FactKind.PREFERENCE,
        content=content,
        source=source,
        session_id="s",
        run_id="r",
        task_id="t",
        created_at=said,
    )


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("I prefer tabs over spaces", "No, use spaces instead of tabs"),
        ("I prefer tabs", "I prefer spaces over tabs"),
        ("Always use tabs", "Never use tabs"),
        ("I like tea", "I don't like tea any more"),
        ("I hate tea", "I really love tea"),
        ("I never eat meat", "I always eat meat"),
        ("I prefer answers in French", "From now on, please reply in German"),
        ("Always answer in English", "以后请用中文回答"),
        ("用英文回复我", "请用中文回答"),
        ("The limit is 30 seconds", "The limit is 45 seconds"),
        ("We agreed on 3 replicas", "We decided to use 5 replicas"),
        ("Keep lines under 100 characters", "Keep lines under 120 characters"),
        ("Call me Ann", "Please call me Annie"),
        ("Call me Ann", "以后叫我小安"),
        ("My pronouns are she/her", "my pronouns are they/them."),
        ("我喜欢茶", "我不喜欢茶了"),
        ("以后请用表情符号", "不要用表情符号"),
        ("用制表符", "用空格，不要制表符"),
        ("我们决定用2个空格", "我们决定用4个空格"),
        ("I live in Oslo", "I recently moved to Bergen"),
        ("I'm based in Lisbon", "No, I live in Porto now"),
        ("I work at Siemens", "I work for SAP now"),
        ("My timezone is CET", "my time zone is UTC+1, btw"),
        ("I live in Oslo", "Forget that I live in Oslo"),
        ("I'm vegetarian", "Please forget that I'm vegetarian"),
        ("I live in Oslo", "I moved to Lisbon last month"),
        ("I live in Oslo", "I've just moved to Porto"),
        ("I live in Oslo", "Just moved to New York"),
        ("I work at Siemens", "I work for Linux Foundation"),
        ("我住在上海", "我刚搬到北京了"),
        ("我住在上海", "我搬去昆山市了"),
        ("我住在上海", "我搬到乡下住了"),
        ("我住在上海", "忘掉我住在上海"),
        ("我的时区是东八区", "我的时区是东九区"),
    ],
)
def test_a_newer_fact_replaces_what_it_contradicts(older: str, newer: str) -> None:
    assert replaced([fact(1, older), fact(2, newer)]) == {1: 2}
    assert replaced([fact(2, newer, at=1), fact(1, older, at=2)]) == {2: 1}, "the newer one is the one said later"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("I like tea", "I like coffee"),
        ("I prefer tabs", "I prefer short answers"),
        ("We decided to close ticket 12", "We decided to close ticket 13"),
        ("We decided to use Postgres", "We decided to use Redis"),
        ("Call me Ann", "Call me when you are done"),
        ("I prefer answers in French", "I like films in German"),
        ("I like number 1", "I like number 2"),
        ("I like it", "I don't like it"),
        ("The limit is 30 seconds", "The timeout is 45 seconds"),
        ("我喜欢茶", "我喜欢咖啡"),
        ("我们决定用第3版", "我们决定用第4版"),
        ("I live in Bergen", "Forget that I live in Oslo"),
        ("I live in Oslo", "I moved to the next chapter"),
        ("I live in Oslo", "I moved to Linux"),
        ("I live in Oslo", "I live in vim"),
        ("I live in Oslo", "I moved to product management"),
        ("I live in Oslo", "I moved to Product Management"),
        ("I live in Oslo", "I moved to TypeScript last year"),
        ("I live in Oslo", "I've moved to Postgres, by the way"),
        ("I live in Oslo", "I moved to tabs"),
        ("I live in Oslo", "Just moved to Neovim"),
        ("I work at Siemens", "I work for fun"),
        ("I work at Siemens", "I work at nights"),
        ("I work at Siemens", "I work at home"),
        ("我住在上海", "我搬到前端组了"),
        ("我住在上海", "我搬到新分区了"),
        ("我住在上海", "我搬去 TypeScript 了"),
        ("I live in Oslo", "I work at Siemens"),
        ("My timezone is CET", "My birthday is in May"),
    ],
)
def test_facts_that_can_both_hold_stay(one: str, other: str) -> None:
    assert replaced([fact(1, one), fact(2, other)]) == {}


def test_who_no_longer_lives_somewhere_does_not_take_back_another_place() -> None:
    assert replaced([fact(1, "I live in Oslo"), fact(2, "I no longer live in Oslo")]) == {1: 2}
    assert replaced([fact(1, "I live in Bergen"), fact(2, "I don't live in Oslo any more")]) == {}
    assert replaced([fact(1, "I no longer live in Oslo"), fact(2, "I live in Oslo")]) == {1: 2}


def test_a_fact_is_replaced_by_the_newest_that_contradicts_it() -> None:
    assert replaced([fact(1, "Call me Ann"), fact(2, "Call me Bo"), fact(3, "Call me Cy")]) == {1: 3, 2: 3}


def test_what_somebody_has_written_is_replaced_only_by_what_somebody_writes() -> None:
    assert replaced([fact(1, "Use tabs", "added"), fact(2, "Never use tabs")]) == {}
    assert replaced([fact(1, "Use tabs"), fact(2, "Never use tabs", "added")]) == {1: 2}
    assert replaced([fact(1, "Use tabs", "added"), fact(2, "Never use tabs", "added")]) == {1: 2}


@given(st.lists(st.text(alphabet="no usetab不用，.12 "), max_size=6))
def test_any_sentences_can_be_compared_and_nothing_replaces_itself(sentences: list[str]) -> None:
    facts = [fact(number, sentence) for number, sentence in enumerate(sentences)]
    assert all(old < new for old, new in replaced(facts).items())
    assert all(claims_of(sentence) == claims_of(f" {sentence}. ") for sentence in sentences if sentence.strip("., 。"))
