"""What a Task says, how important it is, what is left of it, and which words it is found by."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.lexemes import MOST, asked_lexemes, lexemes_of
from loom.domain.core.tasks import Action, Task
from loom.domain.memory.blended_search import MEANING, blended
from loom.domain.memory.content import (
    LONGEST,
    content_of,
    facts_from,
    fingerprint,
    is_remembered,
    is_small_talk,
    is_trivial,
    parts_of,
    says_the_same,
    summary_of,
    told_text,
)
from loom.domain.memory.importance import judged_importance
from loom.domain.memory.layers import Hit, Layer, Memory, hit_view, memory_view, seen_in

AT = datetime(2026, 1, 1, tzinfo=UTC)


def task(action: Action = Action.MESSAGE, **given: Any) -> Task:
    return Task(task_id="t", run_id="r", root_run_id="r", session_id="s", action=action, created_at=AT, **given)


# ---- what it says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "content"),
    [
        (task(parameters={"text": "hello", "by": "eva"}), "hello\nby: eva"),
        (
            task(Action.START, parameters={"task": "fix it", "agent": "default", "max_turns": 50}),
            "fix it",
        ),
        (
            task(Action.TOOL_CALL, parameters={"tool": "bash", "summary": "bash: ls", "arguments": {"command": "ls"}}),
            'bash: ls\ntool: bash\narguments: {"command":"ls"}',
        ),
        (task(Action.TOOL_RESULT, parameters={"turn": 3}, result={"content": "a.txt", "length": 5}), "a.txt"),
        (
            task(
                Action.ERROR, result={"status": "failed", "error": {"type": "BadRequest", "message": "no such agent"}}
            ),
            "error: BadRequest: no such agent",
        ),
        (task(Action.PAUSED), "node.paused"),
        (task(Action.TURN, parameters={"turn_id": "r/t2", "parent_turn_id": "r/t1"}), "node.turn"),
        (task(parameters={"text": "nul \0 half \ud800"}), "nul \ufffd half ?"),
    ],
)
def test_the_words_of_a_task_come_first_and_its_facts_after_them(said: Task, content: str) -> None:
    assert content_of(said) == content


@pytest.mark.parametrize(
    ("type_", "turns", "kept"),
    [("BadRequest", 0, False), ("BadRequest", 2, True), ("ProviderError", 0, True)],
)
def test_the_end_of_a_run_that_was_refused_is_not_kept(type_: str, turns: int, kept: bool) -> None:
    ended = {"status": "failed", "turns": turns, "error": {"type": type_, "message": "unknown agent 'defualt'"}}
    assert is_remembered(task(Action.ERROR, result=ended)) is kept


def test_a_search_in_memory_is_not_found_by_its_question() -> None:
    given = {"tool": "search_memory", "arguments": {"query": "which port?"}}
    assert content_of(task(Action.TOOL_CALL, parameters=given)) == "node.tool_call: search_memory"
    result = {"content": "- which port? 8080"}
    assert content_of(task(Action.TOOL_RESULT, parameters=given, result=result)) == "node.tool_result: search_memory"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(st.characters(codec=None, categories=None), max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["text", "error", "arguments", "x"]), JSON),
    st.none() | st.just({"content": "y" * 9999}),
)
def test_any_task_has_content_that_every_store_takes(parameters: dict[str, Any], result: dict[str, Any] | None) -> None:
    content = content_of(task(parameters=parameters, result=result))
    assert 0 < len(content) <= LONGEST
    assert "\0" not in content
    content.encode()


@pytest.mark.parametrize("text", ["ok", " OK! ", "thanks", "Thank you.", "好的", "谢谢！", "", "…", "ok\nby: eva"])
def test_small_talk_is_trivial(text: str) -> None:
    assert is_small_talk(text)
    assert is_trivial(text, 0)


@pytest.mark.parametrize("text", ["no", "yes, delete it", "谢谢你的密码是42", "thanks for the port 8080"])
def test_what_says_something_is_no_small_talk_however_short(text: str) -> None:
    assert not is_small_talk(text)
    assert is_trivial(text, 50)
    assert not is_trivial(text.ljust(50, "x"), 50)


@pytest.mark.parametrize(
    ("text", "is_short"),
    [("我喜欢喝茶", False), ("喝茶", True), ("Use tabs.", True), ("I use tabs.", False), ("喝茶\nby: somebody", True)],
)
def test_a_chinese_sentence_is_as_long_as_what_it_says(text: str, is_short: bool) -> None:
    assert is_trivial(text, 10) is is_short


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("I like tea\nby: Eva", "Eva: I like tea"),
        ("two\nlines\nby: Eva\nscope: all", "Eva: two\nlines\nscope: all"),
        ("I like tea", "I like tea"),
        ("it stands by: the door", "it stands by: the door"),
        ("by: Eva", "by: Eva"),
    ],
)
def test_the_speaker_is_told_first(content: str, told: str) -> None:
    assert told_text(content) == told


def test_a_summary_of_an_earlier_release_names_its_speaker_last() -> None:
    assert told_text("I like tea by: Eva", is_summary_of_old=True) == "Eva: I like tea"
    assert told_text("I like tea", is_summary_of_old=True) == "I like tea"


# ---- what is left of it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("short", "short"),
        ("  two \n lines  ", "two lines"),
        ("First one. Second one. Third.", "First one."),
        ("Hi. A second sentence that is long.", "Hi. A second…"),
        ("这是第一句话，它说明了问题。第二句很长很长很长很长很长。", "这是第一句话，它说明了问题。"),
        ("no sentence at all here", "no sentence at all…"),
        ("unbrokenunbrokenunbroken", "unbrokenunbrokenunb…"),
        ("v1.2.3 of it. And more to come", "v1.2.3 of it."),
    ],
)
def test_a_summary_is_the_first_sentences_that_fit(text: str, summary: str) -> None:
    assert summary_of(text, 20) == summary


@given(st.text(), st.integers(1, 60))
def test_no_summary_is_longer_than_allowed_and_none_is_lost(text: str, limit: int) -> None:
    summary = summary_of(text, limit)
    assert len(summary) <= limit
    assert bool(summary) == bool(text.split())


def test_facts_are_at_most_three_short_and_different() -> None:
    assert facts_from(["a", " ", "A ", "b", "c" * 30, "d"], 10) == ("a", "b", "ccccccccc…")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("the port is 80", "The Port is 80!", True),
        ("the port is 80", "the port is 8080", False),
        ("deploys are allowed", "deploys are not allowed", False),
        ("it works", "it doesn't work", False),
        ("可以部署", "不可以部署", False),
        ("version 1.10", "version 1.1", False),
    ],
)
def test_numbers_and_negations_tell_texts_apart(one: str, other: str, same: bool) -> None:
    assert says_the_same(one, other) is same
    assert says_the_same(other, one) is same


def test_a_fingerprint_ignores_case_width_and_spaces() -> None:
    assert fingerprint("Ａ  b\n") == fingerprint("a B")
    assert fingerprint("a b") != fingerprint("ab")


# ---- how important it is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metadata", "importance"),
    [
        ({}, 0.5),
        ({"importance": 0.9}, 0.9),
        ({"importance": 1}, 1.0),
        ({"importance": 7}, 1.0),
        ({"importance": -1}, 0.0),
    ]
    + [({"importance": wrong}, 0.5) for wrong in (True, "0.9", None, float("nan"))],
)
def test_importance_is_what_the_task_says_or_one_half(metadata: dict[str, Any], importance: float) -> None:
    assert judged_importance(task(Action.EXECUTE, metadata=metadata)) == importance


@pytest.mark.parametrize(
    ("said", "importance"),
    [
        (task(Action.ERROR), 0.9),
        (task(Action.COMPLETE), 0.9),
        (task(Action.APPROVAL_DECIDED), 0.8),
        (task(Action.MESSAGE), 0.8),
        (task(Action.TOOL_RESULT), 0.5),
        (task(Action.TOOL_RESULT, status="error"), 0.7),
        (task(Action.MODEL_CALL, status="failed"), 0.7),
        (task(Action.MODEL_CALL), 0.2),
        (task(Action.ERROR, metadata={"importance": 0.1}), 0.1),
    ],
)
def test_judged_importance_goes_by_action_and_outcome(said: Task, importance: float) -> None:
    assert judged_importance(said) == importance


# ---- words -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lexemes"),
    [
        ("The tests passed", ["the", "test", "passed"]),
        ("readFile", ["readfile", "read", "file"]),
        ("HTTPServer2", ["httpserver2", "http", "server", "2"]),
        ("src/app.py", ["src/app.py", "src", "app", "py"]),
        ("web_fetch-now", ["web_fetch-now", "web", "fetch", "now"]),
        ("数据库密码", ["数据", "据库", "库密", "密码"]),
        ("用 pgvector 检索", ["用", "pgvector", "检索"]),
        ("端口8080", ["端口", "8080"]),
        (
            "classes, boxes, bodies, status, glass, this, gas",
            ["class", "box", "body", "status", "glass", "this", "gas"],
        ),
        ("ＡＢＣ Straße", ["abc", "strasse"]),
        ("'; DROP\\ \0 \ud800", ["drop"]),
        ("", []),
    ],
)
def test_words_for_english_chinese_and_code(text: str, lexemes: list[str]) -> None:
    assert lexemes_of(text) == lexemes


@given(st.text(st.characters(codec=None, categories=None)))
def test_lexemes_are_plain_words_and_bounded(text: str) -> None:
    found = lexemes_of(text * 50)
    assert len(found) <= MOST
    assert not [lexeme for lexeme in found if set(lexeme) & set("'\\\0 &|!():*<>") or not 0 < len(lexeme) <= 64]
    assert set(asked_lexemes(text)) <= set(lexemes_of(text))


def test_a_question_of_common_words_only_keeps_them() -> None:
    assert asked_lexemes("where is the disk disk") == ["disk"]
    assert asked_lexemes("to be or not to be") == ["to", "be", "or", "not"]


# ---- one ranking -----------------------------------------------------------------------------------------------


def test_what_both_searches_find_comes_first() -> None:
    scores = blended({"a": 0.5, "b": 0.45}, {"b": 0.85, "c": 0.84, "d": 0.75})
    assert list(scores) == ["b", "a", "c", "d"]
    assert scores["b"] == pytest.approx((1 - MEANING) * 0.45 + MEANING)
    assert scores["d"] == 0.0


def test_a_word_that_says_little_does_not_outweigh_the_nearest_meaning() -> None:
    assert list(blended({"a": 0.1, "b": 0.09}, {"c": 0.9, "a": 0.7})) == ["c", "a", "b"]


def test_without_a_vector_the_words_decide() -> None:
    assert blended({"a": 0.3, "b": 0.6}, None) == {"b": 0.6, "a": 0.3}
    assert blended({}, None) == blended({}, {}) == {}
    assert blended({}, {"a": 0.7}) == {"a": MEANING}


SHARES = st.dictionaries(st.integers(0, 9), st.floats(0, 1), max_size=8)


@given(SHARES, st.none() | st.dictionaries(st.integers(0, 9), st.floats(-1, 1), max_size=8))
def test_every_item_has_a_score_within_zero_and_one(worded: dict[int, float], similar: dict[int, float] | None) -> None:
    scores = blended(worded, similar)
    assert set(scores) == {*worded, *(similar or {})}
    assert all(0 <= score <= 1 + 1e-9 for score in scores.values())
    assert list(scores.values()) == sorted(scores.values(), reverse=True)


# ---- what is shown ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stored", "asked", "named"),
    [
        (Layer.L2, frozenset(), Layer.L2),
        (Layer.L2, frozenset({Layer.L1}), Layer.L1),
        (Layer.L2, frozenset({Layer.L1, Layer.L2}), Layer.L2),
        (Layer.L3, frozenset({Layer.L4}), Layer.L4),
        (Layer.L4, frozenset({Layer.L4}), Layer.L4),
    ],
)
def test_a_hit_names_the_layer_it_was_asked_in(stored: Layer, asked: frozenset[Layer], named: Layer) -> None:
    assert seen_in(stored, asked) is named


def test_a_hit_is_shown_in_the_words_of_the_contract() -> None:
    memory = Memory(
        id=7, layer=Layer.L2, content="text", session_id="s", run_id="r", task_id="t", turn=1, ordinal=2, node="n",
        action="node.message", importance=0.8, created_at=AT, task=task(),
    )  # fmt: skip
    shown = hit_view(Hit(memory=memory, layer=Layer.L1, score=0.98765, similarity=0.5))
    wanted = {"id": 7, "content": "text", "layer": "L1", "score": 0.9877, "session_id": "s", "task_id": "t"}
    assert {name: shown[name] for name in wanted} == wanted
    assert "task" not in shown
    assert memory_view(memory, whole=True)["task"]["task_id"] == "t"


def test_the_text_of_a_model_call_is_its_content_and_it_is_important_if_it_says_something() -> None:
    said = "We go with Zulip rather than Slack."
    telling, dull, silent = (
        task(Action.MODEL_CALL, parameters={"model": "m", "tokens": 12}, result=result)
        for result in ({"content": said}, {"content": "Reading on."}, None)
    )

    assert content_of(telling) == said
    assert "tokens: 12" in content_of(silent)
    assert [judged_importance(each) for each in (telling, dull, silent)] == [0.65, 0.2, 0.2]


def test_a_long_text_is_kept_whole_in_parts() -> None:
    text = " ".join(f"Sentence number {n} ends here." for n in range(80)) + "数" * 1_200

    parts = parts_of(text, 1_000)

    assert max(map(len, parts)) <= 1_000
    assert "".join("".join(parts).split()) == "".join(text.split())
