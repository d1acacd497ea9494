"""Answers held against a schema that somebody gave: what is refused, what is told, and what cannot do harm."""

from typing import Any

import pytest

from loom.activities.output_schema import OutputSchema, checked
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import BadRequest
from loom.domain.core.messages import Message, ToolCall
from loom.domain.core.output_schema import CheckedAnswer
from loom.domain.core.tool_calls import PreparedCall

ITEM = {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": {"$ref": "#/$defs/item"}}, "code": {"pattern": "^[A-Z]{2}$"}},
    "required": ["items"],
    "additionalProperties": False,
    "$defs": {"item": ITEM},
}
MULTIPLIED: dict[str, Any] = {
    "$ref": "#/$defs/d0",
    "$defs": {**{f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(30)}, "d30": {}},
}
"""Thirty definitions that would take days to check."""
SPEC = AgentSpec(name="a", model="demo", output_schema=SCHEMA)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "objekt"}, "is not a valid JSON Schema"),
        ({"$ref": "https://example.com/schema.json"}, "target is not in it: https://example.com/schema.json"),
        ({"$ref": "#/$defs/nowhere"}, "target is not in it"),
        ({"$ref": "#"}, "refers to itself endlessly"),
        (MULTIPLIED, "more than 10,000 of its schemas apply to one value"),
        ({"properties": {"name": {"$ref": "#/$defs/d0"}}, "$defs": MULTIPLIED["$defs"]}, "apply to one value"),
        ({"description": "x" * 70_000}, "longer than 65536 characters"),
        ({"pattern": "(?=a)"}, "look-around and back-references"),
        ({"patternProperties": {"^a": {}}}, "patternProperties"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_field(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRequest, match=why) as refused:
        OutputSchema(schema)

    assert refused.value.context == {"field": "output_schema"}


def test_a_value_that_fits_is_the_answer() -> None:
    value = {"items": [{"price": 1.5}], "code": "DE"}

    assert OutputSchema(SCHEMA).check([value]) == CheckedAnswer(value=value)


def test_what_is_wrong_is_told_with_its_place() -> None:
    wrong = {"items": [{"price": "dear"}, {}], "code": "deu", "more": 1}

    assert OutputSchema(SCHEMA).check([wrong]).problems == (
        "`$`: Additional properties are not allowed ('more' was unexpected)",
        "`$.code`: 'deu' does not match '^[A-Z]{2}$'",
        "`$.items[0].price`: 'dear' is not of type 'number'",
        "`$.items[1]`: 'price' is a required property",
    )


def test_of_many_problems_the_first_are_told() -> None:
    problems = OutputSchema({"items": {"type": "integer"}}).check([["x"] * 30]).problems

    assert len(problems) == 6
    assert problems[-1] == "and 25 more"


def test_the_first_value_that_fits_is_taken_whatever_stands_before_it() -> None:
    assert OutputSchema(SCHEMA).check([{"draft": 1}, {"items": []}]) == CheckedAnswer(value={"items": []})


def test_a_pattern_that_backtracks_for_ever_elsewhere_takes_no_time_here() -> None:
    # An engine that backtracks would take longer than the test's own limit.
    assert OutputSchema({"pattern": "^(a+)+$"}).check(["a" * 5000 + "!"]).problems


def test_null_is_an_answer_like_any_other() -> None:
    assert OutputSchema({"type": ["object", "null"]}).check([None]) == CheckedAnswer()


def said(text: str, *calls: ToolCall, **given: Any) -> CheckedAnswer | None:
    """What is made of an answer."""
    message = Message(role="assistant", content=text, tool_calls=calls)
    plans = [PreparedCall(error="" if call.name == "done" else "unknown") for call in calls]
    spec = given.pop("spec", SPEC)
    return checked(spec, given.pop("earlier", ()), message, plans, **{"stop": "end", "pieces": 0, **given})


def test_only_final_answers_are_checked() -> None:
    assert said("", ToolCall(id="c", name="bash")) is None
    assert said("so far", stop="length") is None
    assert said("  ") is None
    assert said("{}", spec=AgentSpec(name="a", model="demo")) is None


def test_pieces_are_checked_together() -> None:
    earlier = (Message(role="assistant", content='{"ite'), Message(role="user", content="go on"))

    assert said('ms": []}', earlier=earlier, pieces=1) == CheckedAnswer(value={"items": []})


def test_done_is_checked_by_its_arguments() -> None:
    assert said("I am finished.", ToolCall(id="d", name="done", arguments={"result": {"items": []}})) == CheckedAnswer(
        value={"items": []}
    )
    assert said("", ToolCall(id="d", name="done", arguments={"items": []})) == CheckedAnswer(value={"items": []})


def test_what_is_no_json_is_a_problem_too() -> None:
    answer = said("three")

    assert answer is not None
    assert answer.problems == ("the answer is not JSON: Expecting value at line 1, column 1",)


def test_a_number_that_is_too_large_for_json_readers_is_no_answer() -> None:
    checked = OutputSchema({"type": "object"}).check([{"a": [float("inf")]}])
    assert checked.problems == ("`$`: a number in it is too large: write numbers that JSON readers accept",)
