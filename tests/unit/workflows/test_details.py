"""What the Web UI shows of a run: what to do, and nothing that a model could pass off as ours."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loom.domain.core.messages import Usage
from loom.domain.core.requests import Budget, RunStatus
from loom.domain.core.tool_calls import PreparedCall
from loom.domain.machine.transitions import evolve
from loom.domain.run.events import AbortRequested, PauseRequested
from loom.domain.tree.tree import Child
from loom.workflows.visibility import markdown
from tests.unit.domain.story import AT, BEGAN, READS, SPEC, asks, call, says, told, wants


def asking(call_id: str = "a", plan: PreparedCall | None = None, **arguments: Any) -> str:
    return markdown(told(BEGAN, wants((call(call_id, **arguments), plan or asks()))))


def test_a_run_that_thinks_shows_where_it_stands() -> None:
    assert markdown(told(BEGAN, max_turns=9)) == (
        "**running** · turn 1 of 9 · 0 tool calls · 0 tokens · $0.0000\n\n"
        "agent `default`, model `demo`\n\n"
        "waiting on model"
    )


def test_what_is_spent_stands_beside_what_there_is() -> None:
    budget = Budget(tokens=50_000, cost_usd=0.5, tool_calls=9, seconds=3600, turns=20, children=4)
    spent = says("x", usage=Usage(input_tokens=11_000, output_tokens=1_000, model_calls=1), stop="length")
    assert markdown(told(BEGAN, spent, budget=budget)).split("\n")[0] == (
        "**running** · turn 1 of 50 · 1 of 20 turns in all · 0 of 9 tool calls · 0 of 4 sub-agents"
        " · 12,000 of 50,000 tokens · $0.0001 of $0.5000 · time until 2026-01-02T04:04:05+00:00"
    )


def test_an_ask_shows_what_is_asked_and_every_way_to_answer() -> None:
    assert asking(command="ls").split("\n\n")[2:] == [
        "waiting on approval: bash: ls",
        "### Approve? bash: ls",
        "Risk: may change something for good, not safe to repeat",
        "Why: the rule bash says ask · denied if unanswered until 2026-01-09T03:04:05+00:00",
        '```json\n{"command":"ls"}\n```',
        'Send the `approve` signal with `{"call_id": "a", "digest": "d1"}`, or `deny` with'
        ' `{"call_id": "a", "reason": "…"}`; or run `loom approve run-1 a`.',
    ]


def test_a_question_shows_how_to_answer_it() -> None:
    asks_blue = call("q", "ask_user", question="*Red* or blue?")
    assert markdown(told(BEGAN, wants((asks_blue, READS)))).split("\n\n")[2:] == [
        r"waiting on answer: \*Red\* or blue?",
        'To answer, send the `send_message` signal with `{"text": "…"}`, or run `loom send run-1 "your answer"`.',
    ]


def test_a_sub_agents_question_shows_how_to_answer_it() -> None:
    child = Child(
        run_id="run-1/d1-1-9f2c",
        call_id="d",
        agent="scout",
        description="look",
        status=RunStatus.WAITING_FOR_INPUT,
        waiting_on="answer: Where?",
    )
    state = told(BEGAN)
    assert markdown(replace(state, tree=replace(state.tree, children=(child,)))).endswith(
        "- waiting_for_input · scout: look · `run-1/d1-1-9f2c` · answer: Where?"
        ' · `loom send run-1/d1-1-9f2c "your answer"`'
    )


def test_a_paused_run_says_how_to_go_on() -> None:
    paused = evolve(told(BEGAN), PauseRequested(at=AT))
    assert markdown(paused).endswith(
        "waiting on resume\n\nTo continue, send the `resume` signal, or run `loom resume run-1`."
    )


def test_a_run_that_has_ended_says_why_and_asks_nothing() -> None:
    shown = markdown(told(BEGAN, wants((call("a"), asks())), AbortRequested(reason="*enough*", at=AT)))
    assert r"ExecutionAbortedError: aborted: \*enough\*. Until then:" in shown
    assert "Approve?" not in shown


def test_an_unknown_cost_is_not_shown_as_none_spent() -> None:
    assert "cost unknown" in markdown(told(BEGAN, says("x", cost_micros=None)))


def test_text_of_the_model_is_shown_as_text() -> None:
    shown = asking(command="# Approved\n[click](http://x) <b>`x`</b> ![i](y) ~~z~~")
    assert r"### Approve? bash: \# Approved \[click\](http://x) \<b\>\`x\`\</b\> \!\[i\](y) \~\~z\~\~" in shown


def test_ids_of_calls_end_neither_their_code_nor_a_command() -> None:
    shown = asking("a`; rm -rf ~ #")
    assert "`loom approve run-1 'a’; rm -rf ~ #'`" in shown
    assert shown.count("`") % 2 == 0


def test_long_arguments_are_cut() -> None:
    assert "x" * 500 in asking(command="x" * 5000)
    assert "x" * 700 not in asking(command="x" * 5000)


def test_long_texts_are_cut() -> None:
    shown = markdown(told(BEGAN, AbortRequested(reason="*" * 5_000_000, at=AT)))
    assert r"\*" * 1_500 in shown
    assert len(shown) < 5_000


@given(st.text(max_size=80))
def test_nothing_that_a_model_writes_starts_a_line_of_its_own(text: str) -> None:
    harmless = asking("a", asks(), command="ls").split("\n")
    shown = asking(text, replace(asks(), reason=text), command=text).split("\n")
    assert [line[:4] for line in shown if line[:3] in ("###", "```", "Why", "Sen")] == [
        line[:4] for line in harmless if line[:3] in ("###", "```", "Why", "Sen")
    ]
    assert len(shown) == len(harmless)


def test_names_of_agents_and_models_stay_code() -> None:
    state = told(agent="a`b", spec=replace(SPEC, model="m`n"))
    assert "agent `a’b`, model `m’n`" in markdown(state)
