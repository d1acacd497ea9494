"""Going round in circles: what counts as a loop, and what only looks like one."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.requests import RunStatus
from loom.domain.core.tool_calls import OpenCall, ToolResult
from loom.domain.machine.transitions import next_action
from loom.domain.run.actions import BeginTurn
from loom.domain.run.events import MessageReceived
from loom.domain.run.state import RunState
from loom.domain.tools.loop_detection import Repetition, call_steps, circles, followed, is_loop
from tests.unit.domain.story import AT, BEGAN, READS, SPEC, after, call, notices, returned, says, told, wants

WINDOW = 5
WATCHED = replace(SPEC, loop_window=WINDOW)


def walked(turns: Sequence[Sequence[str]], window: int = WINDOW) -> tuple[int | None, int | None]:
    """The turn after which the model is warned, and the one after which the run is stopped; each letter is a step."""
    state, warned, stopped = Repetition(), None, None
    for number, turn in enumerate(turns, 1):
        state = followed(state, tuple(turn), window)
        if circles(state):
            warned = warned or number
            state = Repetition(recent=state.recent, turns=state.turns, warned=True)
        if is_loop(state, window):
            stopped = stopped or number
    return warned, stopped


@pytest.mark.parametrize(
    ("turns", "warned", "stopped"),
    [
        ("AAAAA", 3, 5),
        ("ABABAB", 4, 6),
        ("ABCABCA", 5, 7),
        (["AB", "BA", "AB", "BA", "AB"], 3, 5),
        ("AABAABAA", 5, 7),
        ("AAA", 3, None),
        ("ABCDEFGHIJ", None, None),
        ("ATBTCTDTETFT", None, None),
        ("AAABAAA", 3, None),
        ("ABCDEFABCDEF", None, None),
    ],
    ids=str,
)
def test_what_is_a_loop(turns: Sequence[str], warned: int | None, stopped: int | None) -> None:
    assert walked(turns) == (warned, stopped)


def test_a_window_of_none_sees_no_loop() -> None:
    assert walked("A" * 100, window=0) == (None, None)


steps = st.lists(st.lists(st.sampled_from("ABC"), min_size=1, max_size=3), max_size=40)


@given(steps, st.integers(1, 8))
def test_nobody_is_stopped_without_a_turn_to_heed_the_warning(turns: list[list[str]], window: int) -> None:
    warned, stopped = walked(["".join(turn) for turn in turns], window)

    assert stopped is None or (warned is not None and warned < stopped)


@given(st.lists(st.sampled_from("AB"), min_size=1, max_size=5), st.integers(5, 12))
def test_whatever_repeats_within_the_window_is_stopped(period: list[str], window: int) -> None:
    _, stopped = walked(period * 30, window)

    assert stopped is not None
    assert stopped <= len(period) + window + len(period)


def test_polling_what_moves_is_no_loop_and_what_stands_still_is() -> None:
    moving = [[step(f"{percent} %")] for percent in range(50)]
    still = [[step("pending")] for _ in range(50)]

    assert walked(moving) == (None, None)
    assert walked(still) == (3, 5)


def step(result: str, artifact: str = "") -> str:
    """The digest of one call with this result."""
    (digest,) = call_steps([OpenCall(call=call("c"), plan=READS, result=ToolResult(content=result, artifact=artifact))])
    return digest


def test_a_long_output_is_the_same_although_it_is_kept_under_another_name_each_time() -> None:
    assert step("… artifact t1-c1", artifact="t1-c1") == step("… artifact t2-c2", artifact="t2-c2")
    assert step("… artifact t1-c1") != step("… artifact t2-c2")


def turned(state: RunState, *results: str) -> RunState:
    """The run after turns that each call `bash` with the same arguments and get such results."""
    for result in results:
        name = f"c{state.turn}"
        state = after(state, BEGAN, wants((call(name, command="ls"), READS)), returned(**{name: result}))
    return state


def test_a_model_is_warned_once_and_then_the_run_is_stopped_with_the_reason_loop() -> None:
    state = turned(told(spec=WATCHED), *["same"] * 5)

    reminders = [m.text for m in state.transcript.messages if m.metadata.get("kind") == "reminder"]
    assert len(reminders) == 1
    assert "repeated calls" in reminders[0]
    assert [name for name, _ in notices(state)] == ["node.budget"]
    ended = after(state, BEGAN).outcome
    assert ended is not None
    assert ended.error is not None
    assert (ended.status, ended.error.type) == (RunStatus.LIMIT_REACHED, "LoopDetected")
    assert ended.error.context["reason"] == "loop"


def test_a_word_from_a_person_begins_the_count_anew() -> None:
    state = turned(told(spec=WATCHED), *["same"] * 4)
    state = turned(after(state, MessageReceived(text="keep polling", at=AT)), *["same"] * 4)

    assert isinstance(next_action(state), BeginTurn)
    assert after(state, BEGAN).outcome is None


def test_text_again_and_again_where_done_is_wanted_is_a_loop() -> None:
    state = told(spec=replace(WATCHED, require_done_tool=True))
    for _ in range(5):
        state = after(state, BEGAN, says("I am finished."))

    ended = after(state, BEGAN).outcome
    assert ended is not None
    assert ended.status is RunStatus.LIMIT_REACHED
