"""Reading the arguments that models send: what is read, what is refused with its cause, and what is converted."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loom.activities.sent_arguments import decoded_arguments, with_decoded_arguments
from loom.domain.core.json_text import NotJson, about_text, is_finite, read_arguments
from loom.domain.core.messages import ToolCall
from loom.domain.core.tool_calls import ToolSpec

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "paths": {"type": "array", "items": {"type": "string"}},
        "either": {"anyOf": [{"type": "string"}, {"type": "array"}]},
        "maybe": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
        "place": {"$ref": "#/$defs/place"},
        "places": {"type": "array", "items": {"$ref": "#/$defs/place"}},
        "by_name": {"type": "object", "additionalProperties": {"type": "array"}},
        "pair": {"type": "array", "prefixItems": [{"type": "object"}, {"type": "string"}]},
        "text": {"type": "string"},
        "any": {},
        "enum": {"enum": ["[]", "a"]},
        "count": {"type": "integer"},
        "ratio": {"type": ["number", "null"]},
        "flag": {"type": "boolean"},
        "odd": {"allOf": [{"type": "array"}]},
        "lost": {"$ref": "#/$defs/none"},
    },
    "$defs": {"place": {"type": "object", "properties": {"xs": {"type": "array"}, "name": {"type": "string"}}}},
}


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_an_object_is_read_as_it_was_written_once_or_twice_encoded(value: dict[str, Any]) -> None:
    assert read_arguments(json.dumps(value)) == value
    assert read_arguments(json.dumps(json.dumps(value))) == value


@given(st.text(alphabet=st.characters(exclude_characters='"\\', exclude_categories=["Cs"])))
def test_raw_control_characters_in_a_text_are_read(content: str) -> None:
    assert read_arguments(f'{{"content": "{content}"}}') == {"content": content}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 400 + ".0"])
@pytest.mark.parametrize("around", ['{{"n": {}}}', '{{"a": [1, {{"b": [{}]}}]}}'])
def test_a_number_that_json_does_not_have_is_refused_with_its_name(number: str, around: str) -> None:
    text = around.format(number)
    for sent in (text, json.dumps(text)):
        with pytest.raises(NotJson, match=r"isn't a JSON number|is too large for a number") as caught:
            read_arguments(sent)
        assert number[:20] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('{"path": "a.tx', "Unterminated string starting at line 1, column 10"),
        ('{"a": 1,}', "Expecting property name enclosed in double quotes at line 1, column 9"),
        ('{"a": 1\n"b": 2}', "Expecting ',' delimiter at line 2, column 1"),
        ("{'a': 1}", "Expecting property name enclosed in double quotes at line 1, column 2"),
        ('{"a": 1} {"b": 2}', "Extra data at line 1, column 10"),
        ('{"a": 1, "a": 2}', "'a' occurs twice, with different values"),
        ('{"a": 1, "a": true}', "'a' occurs twice, with different values"),
        ("[1]", "it is a list, not an object"),
        ("3", "it is a number, not an object"),
        ("true", "it is true or false, not an object"),
        ("null", "it is null, not an object"),
        ('"\\"x\\""', "it is a text, not an object"),
        ('{"a": ' + "[" * 150 + "1" + "]" * 150 + "}", "it is nested too deeply"),
        ("[" * 100_000, "it is nested too deeply"),
        ('{"a": ' + "1" * 5000 + "}", "digits"),
    ],
)
def test_arguments_that_cannot_be_read_name_the_cause(text: str, cause: str) -> None:
    with pytest.raises(NotJson) as caught:
        read_arguments(text)
    assert cause in str(caught.value)


@given(st.integers(0, 60), st.sampled_from(['"', "\\\\", "}", "\\\\q", "'"]))
def test_an_error_quotes_no_part_of_a_value(at: int, stray: str) -> None:
    secret = "sk-proj-Zq9vKx4TnW7rYb2LmHc8"
    text = f'{{"command": "curl -H {secret}{stray}'
    broken = text[: len(text) - at] + '"' + text[len(text) - at :]
    with pytest.raises(NotJson) as caught:
        read_arguments(broken)
    assert not any(secret[part : part + 4] in str(caught.value) for part in range(len(secret) - 4))


def test_a_name_that_occurs_twice_with_the_same_value_is_read() -> None:
    assert read_arguments('{"a": [1], "a": [1]}') == {"a": [1]}


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"paths": '["a.txt"]'}, {"paths": ["a.txt"]}),
        ({"paths": ' [\n"a.txt"] '}, {"paths": ["a.txt"]}),
        ({"maybe": '["1", 2]'}, {"maybe": [1, 2]}),
        ({"place": '{"xs": "[1]"}'}, {"place": {"xs": [1]}}),
        (
            {"places": ['{"xs": []}', {"xs": "[2]", "name": "[3]"}]},
            {"places": [{"xs": []}, {"xs": [2], "name": "[3]"}]},
        ),
        ({"by_name": {"a": "[1]"}}, {"by_name": {"a": [1]}}),
        ({"pair": ["{}", "{}"]}, {"pair": [{}, "{}"]}),
        ({"count": "3", "ratio": "0.5", "flag": "true"}, {"count": 3, "ratio": 0.5, "flag": True}),
        ({"arguments": {"paths": []}}, {"paths": []}),
        ({"input": '{"paths": "[]"}'}, {"paths": []}),
        ({"parameters": {}}, {}),
    ],
)
def test_what_the_schema_can_only_mean_otherwise_is_converted(sent: dict[str, Any], meant: dict[str, Any]) -> None:
    assert decoded_arguments(sent, SCHEMA) == meant


@pytest.mark.parametrize(
    "sent",
    [
        {"paths": "a.txt"},
        {"paths": '{"a": 1}'},
        {"paths": "[NaN]"},
        {"paths": "[1,"},
        {"either": "[1]"},
        {"text": "[1]"},
        {"any": "[1]"},
        {"enum": "[]"},
        {"odd": "[1]"},
        {"lost": "[1]"},
        {"unknown": "[1]"},
        {"count": "3.0", "flag": "1"},
        {"count": "three"},
        {"arguments": {"paths": [], "other": 1}},
        {"arguments": {"paths": []}, "text": "a"},
        {"arguments": "paths"},
    ],
)
def test_what_can_be_meant_as_it_is_stays(sent: dict[str, Any]) -> None:
    assert decoded_arguments(sent, SCHEMA) is sent


def test_a_wrapper_that_the_tool_takes_itself_stays() -> None:
    sent = {"input": {"text": "a"}}
    assert decoded_arguments(sent, {"properties": {"input": {"type": "object"}, "text": {}}}) is sent
    assert decoded_arguments(sent, {"properties": {"text": {}}, "required": ["more"]}) is sent
    assert decoded_arguments(sent, {"properties": {"text": {}}, "additionalProperties": True}) is sent
    assert decoded_arguments(sent, {"type": "object"}) is sent


def test_a_schema_whose_alternatives_refer_to_themselves_is_read_once() -> None:
    again = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}, {"type": "array", "items": {"type": "array"}}]}
    schema = {"properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": again}}
    assert decoded_arguments({"x": '["[1]"]'}, schema) == {"x": [[1]]}
    either = {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}
    both = {"properties": {"x": either}, "$defs": {"a": either, "b": {"anyOf": [either, either, {"type": "integer"}]}}}
    assert decoded_arguments({"x": "3"}, both) == {"x": 3}


def test_a_value_with_many_items_reads_their_schema_once() -> None:
    schema = {"properties": {"xs": {"type": "array", "items": {"type": "integer"}}}}
    assert decoded_arguments({"xs": ["1"] * 20_000}, schema) == {"xs": [1] * 20_000}


def test_arguments_stay_if_their_schema_has_more_alternatives_than_are_read() -> None:
    sent = {"x": "1"}
    schema: dict[str, Any] = {"properties": {"x": {"anyOf": [{"type": "integer"}] * 20_000}}}
    assert decoded_arguments(sent, schema) is sent
    ladder = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(500)}
    chain = {"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": {**ladder, "d500": {"type": "integer"}}}
    assert decoded_arguments(sent, chain) == {"x": 1}


@pytest.mark.parametrize("required", [None, 3, "text", [{}], [None], {"text": 1}])
def test_a_schema_with_odd_required_properties_is_read(required: Any) -> None:
    schema = {"properties": {"text": {}}, "required": required}
    assert isinstance(decoded_arguments({"input": {"text": "a"}}, schema), dict)


def test_a_schema_that_refers_to_itself_ends() -> None:
    endless = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert decoded_arguments({"a": "[1]"}, endless) == {"a": "[1]"}
    tree: dict[str, Any] = {"type": "object", "properties": {"below": {"$ref": "#"}, "xs": {"type": "array"}}}
    assert decoded_arguments({"below": '{"below": {"xs": "[]"}}'}, tree) == {"below": {"below": {"xs": []}}}


@given(st.dictionaries(st.sampled_from([*SCHEMA["properties"], "input"]), VALUES, max_size=4), VALUES)
def test_converting_never_fails_and_a_second_time_changes_nothing(sent: dict[str, Any], odd: Any) -> None:
    meant = decoded_arguments(sent, SCHEMA)
    assert decoded_arguments(meant, SCHEMA) == meant
    assert isinstance(decoded_arguments(sent, {"type": "object", "properties": odd}), dict)
    assert isinstance(decoded_arguments(sent, {"properties": {"input": odd, "paths": {"anyOf": odd}}}), dict)


def test_calls_of_known_tools_are_converted_and_others_stay() -> None:
    spec = ToolSpec(name="commit", description="", parameters=SCHEMA)
    known = ToolCall(id="a", name="commit", arguments={"paths": "[]"})
    other = ToolCall(id="b", name="other", arguments={"paths": "[]"})
    broken = ToolCall(id="c", name="commit", malformed="{")
    assert [call.arguments for call in with_decoded_arguments((known, other, broken), (spec,))] == [
        {"paths": []},
        {"paths": "[]"},
        {},
    ]


def test_a_text_in_place_of_a_list_is_told_to_be_one() -> None:
    assert about_text("[1]") == "it is a text with JSON: send the list itself"
    assert about_text('{"a": 1}') == "it is a text with JSON: send the object itself"
    assert (
        about_text("[NaN]")
        == "it is a text that isn't valid JSON either: NaN isn't a JSON number; send the list itself"
    )
    assert about_text("a.txt") == about_text(3) == ""


def test_numbers_are_looked_for_at_any_depth() -> None:
    assert is_finite({"a": [1, 2.0, "NaN", None, {"b": True}]})
    assert not is_finite({"a": [{"b": (float("nan"),)}]})
