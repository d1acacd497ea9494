"""Counting tokens without a tokenizer: near what real ones count, in every script."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.messages import Message, Part, ToolCall, user
from loom.domain.core.tokens import (
    IMAGE,
    MESSAGE,
    is_plausible,
    learned,
    text_tokens,
    tokens_of,
    within,
)
from loom.domain.core.tool_calls import ToolSpec

ENGLISH = (
    "A run is a fold over turns. The domain is a pure state machine; the workflow is the only place that advances it;"
    " an activity is the only place that touches the world; Temporal's history is the only truth."
)
PYTHON = '''def settled(state: RunState) -> RunState:
    """Once every call of the turn has its result, the results join the conversation."""
    if state.phase is not Phase.ACTING or any(call.result is None for call in state.calls.open):
        return state
    return _observed(replace(state, phase=Phase.READY, retry_at=None))
'''
CHINESE = (
    "持久化的智能体运行在工作流之上：每一次模型调用和工具调用都是一个活动。进程崩溃以后，运行会从历史记录继续，"
    "不会重复已经完成的步骤。用户可以随时暂停、恢复或者终止一次运行。"
)
MIXED = "请阅读 docs/architecture.md，然后运行 pytest -q tests/domain，并把失败的用例列出来。"
JAPANESE = "この実行は履歴から再開され、完了した手順は繰り返されません。"
RUSSIAN = "Запуск продолжается из истории, и ни один завершённый шаг не повторяется."
LISTING = "-rw-r--r-- 1 root root  7349 Oct 10 02:11 acting.py\n-rw-r--r-- 1 root root  3121 Oct 10 02:11 agents.py\n"


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        (ENGLISH, (45, 45)),
        (PYTHON, (73, 74)),
        (CHINESE, (59, 94)),
        (MIXED, (22, 29)),
        (JAPANESE, (24, 32)),
        (RUSSIAN, (18, 32)),
        (LISTING, (47, 47)),
    ],
    ids=["English", "Python", "Chinese", "Chinese and English", "Japanese", "Russian", "a listing"],
)
def test_an_estimate_is_near_what_tokenizers_count(text: str, counted: tuple[int, int]) -> None:
    # What o200k_base and cl100k_base count; the estimate is at most a quarter off the nearer end.
    least, most = min(counted), max(counted)
    assert 0.75 * least <= text_tokens(text) <= 1.25 * most


def test_chinese_is_not_counted_at_four_characters_to_a_token() -> None:
    assert text_tokens(CHINESE) == len(CHINESE)


@given(st.text(), st.text())
def test_more_text_never_has_fewer_tokens(one: str, other: str) -> None:
    assert (
        max(text_tokens(one), text_tokens(other)) <= text_tokens(one + other) <= text_tokens(one) + text_tokens(other)
    )


def test_a_message_counts_its_text_its_calls_and_its_pictures() -> None:
    call = ToolCall(id="c", name="bash", arguments={"command": "ls"})
    picture = Part(type="image", media_type="image/png", data="A" * 8000)
    assert user("x" * 40).tokens == MESSAGE + 10
    assert Message(role="assistant", tool_calls=(call,)).tokens == 2 * MESSAGE + text_tokens('bash{"command":"ls"}')
    assert Message(role="tool", content=(Part(type="text", text="x" * 40), picture)).tokens == MESSAGE + 10 + IMAGE
    assert tokens_of([user("x" * 40)] * 3) == 3 * (MESSAGE + 10)


def test_a_tool_counts_its_description_and_its_schema() -> None:
    spec = ToolSpec(name="look", description="d" * 400, parameters={"type": "object"})
    assert 100 < tokens_of([spec]) < 130


def test_the_providers_figures_correct_the_estimate_step_by_step() -> None:
    ratios = [1.0]
    for _ in range(6):
        ratios.append(learned(ratios[-1], counted=1500, estimated=1000))
    assert ratios[:3] == [1.0, 1.25, 1.375]
    assert ratios[-1] == pytest.approx(1.5, abs=0.02)


@pytest.mark.parametrize("counted", [0, 10, 499, 3001])
def test_a_figure_that_cannot_be_about_the_same_context_corrects_nothing(counted: int) -> None:
    assert not is_plausible(counted, 1000)
    assert learned(1.2, counted=counted, estimated=1000) == 1.2


def test_without_an_estimate_nothing_is_learned() -> None:
    assert learned(1.2, counted=1000, estimated=0) == 1.2


@given(st.text(max_size=400), st.integers(0, 100))
def test_a_cut_text_has_at_most_as_many_tokens_as_it_may(text: str, most: int) -> None:
    cut = within(text, most)
    assert text_tokens(cut) <= most
    assert cut == text or not cut or text.startswith(cut.removesuffix(" …"))
