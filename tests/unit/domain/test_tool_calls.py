"""Tool calls by themselves: grouping, naming, describing, results."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.messages import Message, ToolCall, ask_digest, call_digest, canonical
from loom.domain.core.tool_calls import (
    EMPTY_OUTPUT,
    Effect,
    OpenCall,
    PreparedCall,
    ToolResult,
    describe,
    failed,
    next_group,
    read_done,
    tool_message,
)
from tests.unit.domain.story import call

OK = ToolResult(content="ok")


def open_calls(shape: str) -> list[OpenCall]:
    """One call a letter: r reads, w writes, p may run beside others, too; upper case has a result."""
    effects = {"r": Effect.READ, "w": Effect.ONCE, "p": Effect.IDEMPOTENT}
    return [
        OpenCall(
            call=call(str(place)),
            plan=PreparedCall(effect=effects[letter.lower()], parallel=letter in "rRpP"),
            result=OK if letter.isupper() else None,
        )
        for place, letter in enumerate(shape)
    ]


@pytest.mark.parametrize(
    ("shape", "limit", "group"),
    [
        ("", 10, ""),
        ("R", 10, ""),
        ("rrr", 10, "012"),
        ("rrr", 2, "01"),
        ("rrr", 0, "0"),
        ("rrw", 10, "01"),
        ("wrr", 10, "0"),
        ("Wrr", 10, "12"),
        ("RrwR", 10, "1"),
        ("pp", 10, "01"),
        ("rp", 10, "01"),
    ],
)
def test_leading_calls_that_may_run_together_do_and_any_other_runs_alone(shape: str, limit: int, group: str) -> None:
    assert "".join(c.call.id for c in next_group(open_calls(shape), limit)) == group


@given(st.text("rwpRWP", max_size=8), st.integers(-1, 5))
def test_every_group_is_of_waiting_calls_in_order_and_never_empty_while_one_waits(shape: str, limit: int) -> None:
    calls = open_calls(shape)
    group = next_group(calls, limit)
    waiting = [c for c in calls if c.result is None]
    assert list(group) == waiting[: len(group)]
    assert bool(group) is bool(waiting)


# ---- naming ----------------------------------------------------------------------------------------------------

ARGUMENTS = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.booleans(), max_size=4)


@given(ARGUMENTS)
def test_the_order_of_arguments_does_not_count(arguments: dict[str, Any]) -> None:
    turned = dict(reversed(arguments.items()))
    assert call_digest("run-1", call("a", **arguments)) == call_digest("run-1", call("a", **turned))


def test_run_call_tool_and_arguments_count() -> None:
    digests = {
        call_digest("run-1", call("a", x="1")),
        call_digest("run-2", call("a", x="1")),
        call_digest("run-1", call("b", x="1")),
        call_digest("run-1", call("a", "grep", x="1")),
        call_digest("run-1", call("a", x=1)),
        call_digest("run-1", call("a", x=True)),
    }
    assert len(digests) == 6
    assert {len(digest) for digest in digests} == {12}


def test_an_approval_is_for_one_turn_of_one_execution_as_it_is_after_a_reset() -> None:
    digests = {
        ask_digest(run_id, execution, turn, call("a", x=text), reset_at=reset_at)
        for run_id in ("run-1", "run-2")
        for execution in ("", "e", "f")
        for turn in (1, 11)
        for text in ("1", "2")
        for reset_at in (0, 1, 2)
    }
    assert len(digests) == 72
    assert {len(digest) for digest in digests} == {32}


def test_half_a_character_in_arguments_has_a_digest() -> None:
    assert len(call_digest("run-1", call("a", x="\ud83d"))) == 12
    assert len(ask_digest("run-1", "e", 1, call("a", x="\ud83d"), reset_at=0)) == 32


def test_arguments_have_one_spelling() -> None:
    assert canonical({"b": [1, {"d": None, "c": "é"}], "a": True}) == '{"a":true,"b":[1,{"c":"é","d":null}]}'


# ---- for people and models -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (call("a", "bash", command="ls -l"), "bash: ls -l"),
        (call("a", "bash", timeout=5, command="make\n  test"), "bash: make test"),
        (call("a", "bash", command="x" * 61), "bash: " + "x" * 59 + "…"),
        (call("a", "todo", items=[1]), "todo"),
        (call("a", "todo", text="  "), "todo"),
        (ToolCall(id="a", name="bash", malformed='{"comm'), "bash: malformed arguments"),
    ],
)
def test_a_call_is_described_by_its_tool_and_first_text(made: ToolCall, line: str) -> None:
    assert describe(made) == line


@pytest.mark.parametrize("key", ["result", "output", "answer", "summary", "message"])
def test_the_final_answer_is_read_under_any_common_name(key: str) -> None:
    made = call("d", "done", other=1, **{key: "ready"})
    assert read_done(made) == "ready"


def test_a_done_without_text_has_no_answer() -> None:
    assert read_done(call("d", "done", result=42)) == ""


def test_a_result_becomes_a_message_that_answers_its_call() -> None:
    assert tool_message(call("a"), failed("no", "timeout"), {"by": "ann"}) == Message(
        role="tool", content="no", tool_call_id="a", name="bash", is_error=True, metadata={"by": "ann"}
    )
    warned = ToolResult(content="half", status="warning")
    assert not tool_message(call("a"), warned).is_error


def test_a_results_facts_have_their_public_names() -> None:
    assert ToolResult(content=EMPTY_OUTPUT, stage_ms=(1.0, 2.0, 0.5)).metadata == {
        "execution_time": 0.0035,
        "stage_breakdown": {"discover": 1.0, "validate": 2.0, "authorize": 0.5},
        "error_type": None,
        "recoverable": True,
        "empty_response": True,
    }
    assert not failed("no", "permission").metadata["recoverable"]
