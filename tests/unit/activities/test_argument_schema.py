"""Schemas of strangers: what is refused at once, and what arguments are told."""

import time
from typing import Any

import pytest

from loom.activities.json_schemas import BrokenSchema
from loom.activities.toolbox.argument_schema import ArgumentSchema
from loom.domain.core.errors import ToolValidationError

PLACE = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "pattern": {"type": "string", "pattern": "^a+$"},
        "place": {"$ref": "#/$defs/place"},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"place": PLACE},
}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "string"}, "does not describe an object"),
        ({"type": ["string", "null"]}, "does not describe an object"),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "is not a valid JSON Schema"),
        (
            {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}},
            "a \\$ref whose target is not in it: #/\\$defs/b",
        ),
        (
            {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/b"}}},
            "a \\$ref whose target is not in it",
        ),
        ({"type": "object", "$ref": "#"}, "refers to itself endlessly"),
        ({"type": "object", "description": "x" * 70_000}, "is longer than 65536 characters"),
    ],
)
def test_a_schema_that_nothing_can_be_held_against_is_refused(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(BrokenSchema, match=why):
        ArgumentSchema(schema)


@pytest.mark.parametrize(
    "arguments",
    [{"name": "a"}, {"name": "a", "place": {"x": 1}, "kind": "b"}, {"name": "a", "pattern": "not only a's"}],
)
def test_arguments_that_fit_are_passed_on(arguments: dict[str, Any]) -> None:
    assert ArgumentSchema(SCHEMA).check("t", arguments) == arguments


def test_null_counts_as_not_given_where_it_is_not_allowed() -> None:
    assert ArgumentSchema(SCHEMA).check("t", {"name": "a", "kind": None}) == {"name": "a"}
    nullable = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}
    assert ArgumentSchema(nullable).check("t", {"a": None}) == {"a": None}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({}, "- `arguments`: 'name' is a required property; the tool takes name, pattern, place, kind"),
        ({"name": 1}, "- `name`: 1 is not of type 'string'; the tool takes"),
        ({"name": "a", "place": {"x": "1"}}, "- `place.x`: '1' is not of type 'integer'; the tool takes"),
        ({"name": "a", "kind": "c"}, "- `kind`: 'c' is not one of ['a', 'b']; the tool takes"),
        ({"name": "a", "nome": "b"}, "- `arguments`: Additional properties are not allowed ('nome' was unexpected)"),
    ],
)
def test_arguments_that_do_not_fit_are_told_where_and_what(arguments: dict[str, Any], line: str) -> None:
    with pytest.raises(ToolValidationError) as told:
        ArgumentSchema(SCHEMA).check("t", arguments)
    first, second = told.value.message.split("\n")
    assert first == "t was not run because its arguments are wrong:"
    assert second.startswith(line)


def test_half_a_character_is_refused_wherever_it_stands() -> None:
    with pytest.raises(ToolValidationError, match="half a surrogate pair"):
        ArgumentSchema({"type": "object"}).check("t", {"a": [{"b": "\ud800"}]})


def test_a_regular_expression_of_a_stranger_is_not_run() -> None:
    slow = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}},
        "patternProperties": {"^(b+)+$": {}},
        "additionalProperties": False,
    }
    begun = time.process_time()
    ArgumentSchema(slow).check("t", {"a": "a" * 40 + "!", "b" * 40 + "!": 1})
    assert time.process_time() - begun < 60  # it would be for ever


def test_a_property_may_be_called_like_a_keyword() -> None:
    odd = {
        "type": "object",
        "properties": {"pattern": {"type": "string"}, "patternProperties": {"type": "integer"}},
        "additionalProperties": False,
    }
    with pytest.raises(ToolValidationError, match="`patternProperties`: 'x' is not of type 'integer'"):
        ArgumentSchema(odd).check("t", {"pattern": "a", "patternProperties": "x"})


def test_a_text_with_json_and_infinite_numbers_are_refused_with_the_cause() -> None:
    schema = {"type": "object", "properties": {"xs": {"type": "array"}, "n": {"type": "number"}}}
    with pytest.raises(ToolValidationError, match="`xs`: it is a text with JSON: send the list itself"):
        ArgumentSchema(schema).check("t", {"xs": "[1]"})
    with pytest.raises(ToolValidationError, match="contain NaN or an infinite number"):
        ArgumentSchema(schema).check("t", {"xs": [float("inf")]})
