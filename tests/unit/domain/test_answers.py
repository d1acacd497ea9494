"""What becomes of an answer that has to be JSON: taken, sent back with what is wrong, or the end of the run."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.domain.agents.hook_steps import HookPoint, HookResult, Moment
from loom.domain.core.json_text import NotJson, read_json
from loom.domain.core.output_schema import CheckedAnswer, instructions, values_of, values_of_done
from loom.domain.core.requests import RunStatus
from loom.domain.machine.activity_requests import model_request
from loom.domain.machine.model_replies import MAX_REPAIRS
from loom.domain.machine.transitions import closed, next_action
from loom.domain.run.actions import BeginTurn
from loom.domain.run.events import HookReturned, MessageReceived, ModelReplied
from loom.domain.run.state import Outcome, RunState, result_of
from tests.unit.domain.story import AT, BEGAN, READS, SPEC, after, call, cut, results, says, told, wants

SCHEMA = {"type": "object", "required": ["price"]}
WITH_SCHEMA = replace(SPEC, output_schema=SCHEMA)
GOOD = CheckedAnswer(value={"price": 3})
BAD = CheckedAnswer(problems=("`$`: 'price' is a required property",))


def run_with_schema(**spec: Any) -> RunState:
    """A prepared run whose answer has to fit a schema."""
    return told(spec=replace(WITH_SCHEMA, **spec))


def finishes(text: str, checked: CheckedAnswer | None, **arguments: Any) -> ModelReplied:
    """The model calls `done`."""
    return checks(wants((call("d", "done", result=text, **arguments), READS)), checked)


def checks(reply: ModelReplied, checked: CheckedAnswer | None) -> ModelReplied:
    """The reply with what the schema says of it."""
    return replace(reply, reply=replace(reply.reply, checked=checked))


def outcome(state: RunState) -> Outcome:
    """How the run ended."""
    assert state.outcome is not None
    return state.outcome


def test_an_answer_that_fits_is_the_structured_output() -> None:
    state = after(run_with_schema(), BEGAN, checks(says('{"price": 3}'), GOOD))

    result = result_of(state, outcome(state))
    assert (result.status, result.output) == (RunStatus.COMPLETED, '{"price": 3}')
    assert result.structured_output == {"price": 3}


def test_done_gives_one_too() -> None:
    state = after(run_with_schema(), BEGAN, finishes('{"price": 3}', GOOD))

    assert outcome(state).structured == {"price": 3}
    assert outcome(state).explicit


def test_an_answer_that_does_not_fit_is_sent_back_with_what_is_wrong_and_where() -> None:
    state = after(run_with_schema(), BEGAN, checks(says("three"), BAD))

    assert isinstance(next_action(state), BeginTurn)
    asked = after(state, BEGAN)
    assert "- `$`: 'price' is a required property" in asked.transcript.messages[-1].text
    assert outcome(after(asked, checks(says('{"price": 3}'), GOOD))).structured == {"price": 3}


def test_a_done_that_does_not_fit_reads_it_as_the_calls_result() -> None:
    state = after(run_with_schema(), BEGAN, finishes("three", BAD))

    ((name, text, is_error),) = results(state)
    assert (name, is_error) == ("d", True)
    assert "'price' is a required property" in text
    assert isinstance(next_action(state), BeginTurn)
    assert state.inbox == ()


def test_after_three_repairs_the_run_fails_and_the_last_answer_is_not_lost() -> None:
    state = run_with_schema()
    for number in range(MAX_REPAIRS + 1):
        assert state.outcome is None
        state = after(state, BEGAN, checks(says(f"answer {number}"), BAD))

    ended = outcome(state)
    assert ended.error is not None
    assert (ended.status, ended.error.type) == (RunStatus.FAILED, "OutputSchemaError")
    assert ended.error.context == {"problems": list(BAD.problems), "answer": "answer 3", "repairs": 3}
    assert ended.output == "answer 3"


def test_an_answer_that_nobody_has_checked_is_not_taken() -> None:
    state = after(run_with_schema(), BEGAN, says('{"price": 3}'))

    assert state.outcome is None


def test_without_a_schema_nothing_is_checked() -> None:
    assert outcome(after(told(), BEGAN, says("three"))).structured is None


def test_an_answer_in_pieces_is_checked_as_one() -> None:
    state = after(run_with_schema(), BEGAN, cut('{"price":'), BEGAN)

    assert model_request(state).pieces == 1
    assert outcome(after(state, checks(says(" 3}"), GOOD))).output == '{"price": 3}'


def test_a_message_that_came_in_is_read_before_an_answer_counts() -> None:
    state = after(run_with_schema(), BEGAN, MessageReceived(text="in euro", at=AT), checks(says('{"price": 3}'), GOOD))

    assert state.outcome is None
    later = after(state, BEGAN, checks(says('{"price": 4}'), CheckedAnswer(value={"price": 4})))
    assert outcome(later).structured == {"price": 4}


@pytest.mark.parametrize(
    ("answer", "values"),
    [
        ('{"a": 1}', ({"a": 1},)),
        ("  [1, 2]\n", ([1, 2],)),
        ('"just a text"', ("just a text",)),
        ('Here it is:\n```json\n{"a": 1}\n```\nDone.', ({"a": 1},)),
        ('```\n{"draft": 1}\n```\nbetter:\n```json\n{"a": 1}\n```', ({"a": 1}, {"draft": 1})),
        ('The result is\n\n{"a":\n 1}\n\nas asked.', ({"a": 1},)),
        ('<think>{"no": 0}</think>\n{"a": 1}', ({"a": 1},)),
        ('{"text": "```json\\n[]\\n```"}', ({"text": "```json\n[]\n```"},)),
    ],
)
def test_json_is_found_where_models_put_it(answer: str, values: tuple[Any, ...]) -> None:
    assert values_of(answer) == values


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("three", "not JSON: Expecting value at line 1, column 1"),
        ('{"a": 1', "not JSON: Expecting ',' delimiter at line 1, column 8"),
        ('{"a": NaN}', "NaN isn't a JSON number"),
        ('{"a": "\\ud800"}', "half a surrogate pair"),
        ("see [1] and {x}", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_json_says_why(answer: str, why: str) -> None:
    with pytest.raises(NotJson, match=why):
        values_of(answer)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=8,
)


@given(json_values, st.sampled_from(("{}", "```json\n{}\n```", "Here:\n```\n{}\n```\nThat is all.")))
def test_any_json_in_any_wrapping_comes_back(value: Any, wrapping: str) -> None:
    import json  # noqa: PLC0415 - only here

    text = json.dumps(value, ensure_ascii=False, indent=1)

    assert value in values_of(wrapping.replace("{}", text))


@given(st.text())
def test_no_text_breaks_the_search(text: str) -> None:
    with suppress(NotJson):
        assert values_of(text)


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ({"result": '{"a": 1}'}, ({"a": 1},)),
        ({"result": {"a": 1}}, ({"a": 1},)),
        ({"a": 1}, ({"a": 1}, "said beside")),
        ({"answer": "[1]"}, ({"answer": "[1]"}, [1])),
        ({}, ("said beside",)),
    ],
)
def test_models_call_done_in_every_way(arguments: dict[str, Any], values: tuple[Any, ...]) -> None:
    assert values_of_done(call("d", "done", **arguments), '"said beside"') == values


def test_the_model_is_told_the_schema_and_how_to_answer() -> None:
    assert "Answer with it and nothing else" in instructions(SCHEMA, through_done=False)
    assert instructions(SCHEMA, through_done=True).endswith('{"type":"object","required":["price"]}')
    assert read_json('{"type":"object","required":["price"]}') == SCHEMA


def test_an_answer_that_does_not_know_what_came_in_is_not_repaired() -> None:
    heard = MessageReceived(text="in euro", at=AT)
    for reply in (checks(says("three"), BAD), finishes("three", BAD)):
        state = after(run_with_schema(), BEGAN, heard, reply)

        assert state.answer.repairs == 0
        assert state.inbox[0].text == "in euro"
        assert after(state, BEGAN).transcript.messages[-1].text == "in euro"


def test_a_hook_that_changes_the_output_takes_the_value_away() -> None:
    step = HookPoint(moment=Moment.AFTER, name="mask")
    state = after(run_with_schema(hooks=(step,)), BEGAN, checks(says('{"price": 3}'), GOOD))

    masked = after(closed(state, AT), HookReturned(step=step, answer=HookResult(text="(withheld)"), at=AT))

    assert (outcome(masked).output, outcome(masked).structured) == ("(withheld)", None)
