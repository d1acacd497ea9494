"""Schemas of tools from anybody: what models see is accepted by every provider, or the tool is left out."""

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema.validators import Draft202012Validator
from pydantic import BaseModel, Field

from loom.activities.json_schemas import BrokenSchema, subschemas
from loom.activities.ports import ToolContext, ToolOutput
from loom.activities.toolbox import tool_schemas
from loom.activities.toolbox.argument_schema import ArgumentSchema
from loom.activities.toolbox.built_in.made_tools import MadeTools
from loom.activities.toolbox.mcp_tool import McpCall, offer
from loom.activities.toolbox.pipeline import authorize
from loom.activities.toolbox.tool_schemas import tool_schema, with_own_names
from loom.activities.toolbox.user_tools.tool import user_tool
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.argument_names import argument_name
from loom.domain.core.errors import ToolValidationError
from loom.domain.core.messages import ToolCall
from loom.domain.core.tool_calls import Verdict
from loom.domain.permissions.dead_rules import dead_rules
from loom.domain.permissions.subjects import Place
from loom.domain.tools.mcp_servers import ListedTool, McpServer

ANTHROPIC_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def names(schema: Any) -> Iterator[str]:
    """The names of all properties, at any level."""
    for each in subschemas(schema):
        if isinstance(each.get("properties"), Mapping):
            yield from each["properties"]


def every(schema: Any, holds: Callable[[Mapping[str, Any]], bool]) -> bool:
    """Whether this holds for each schema in the schema."""
    return all(holds(each) for each in subschemas(schema))


RULES: Mapping[str, Callable[[Any], bool]] = {
    "OpenAI: the top is an object with properties": lambda s: (
        s["type"] == "object" and isinstance(s["properties"], dict)
    ),
    "OpenAI, Anthropic: no choice at the top": lambda s: s.keys().isdisjoint(
        {"anyOf", "oneOf", "allOf", "enum", "not", "$ref"}
    ),
    "OpenAI: an array has items": lambda s: every(s, lambda each: each.get("type") != "array" or "items" in each),
    "OpenAI: a pattern is an expression of Python": lambda s: every(
        s, lambda each: not isinstance(each.get("pattern"), str) or bool(re.compile(each["pattern"]))
    ),
    "Anthropic: the names of properties": lambda s: all(map(ANTHROPIC_NAME.fullmatch, names(s))),
    "Anthropic: valid in draft 2020-12": lambda s: Draft202012Validator.check_schema(s) is None,
    "Gemini: a type is one name": lambda s: every(s, lambda each: not isinstance(each.get("type"), list)),
    "Gemini: what is required is a property": lambda s: every(
        s, lambda each: set(each.get("required", ())) <= each.get("properties", {}).keys()
    ),
    "Gemini: at most 100 levels in a request": lambda s: depth(s) < 90,
    "all: UTF-8, and no URL of a schema": lambda s: (
        bool(json.dumps(s, ensure_ascii=False, allow_nan=False).encode())
        and every(s, lambda each: "$schema" not in each and "$id" not in each)
    ),
}
"""What providers reject a whole request for."""


def depth(value: Any) -> int:
    """The number of nested values."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth, inner), default=0)


def shown(schema: Any) -> Any:
    """What models see of the schema. It keeps all rules."""
    made = ArgumentSchema(schema).shown
    assert [rule for rule, holds in RULES.items() if not holds(made)] == []
    return made


OBJECT: dict[str, Any] = {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, OBJECT),
        (True, OBJECT),
        ({"type": "object"}, OBJECT),
        ({"type": None, "properties": None, "required": None}, OBJECT),
        ({"type": ["object", "null"], "properties": []}, OBJECT),
        ({"type": "object", "properties": {}, "required": ["gone", 5]}, OBJECT),
        ({**OBJECT, "$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://x.example/a.json"}, OBJECT),
        ({"properties": {"a": True, "b": None, "d": False}}, {**OBJECT, "properties": {"a": {}, "b": {}}}),
        ({"properties": {"a": {"type": "array"}}}, {**OBJECT, "properties": {"a": {"type": "array", "items": {}}}}),
        (
            {"properties": {"a": {"type": "array", "items": [{"type": "number"}, {"type": "number"}]}}},
            {**OBJECT, "properties": {"a": {"type": "array", "items": {"type": "number"}}}},
        ),
        (
            {"properties": {"a": {"type": ["string", "null"], "maxLength": 3, "description": "A."}}},
            {
                **OBJECT,
                "properties": {
                    "a": {"description": "A.", "anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}
                },
            },
        ),
        (
            {"properties": {"a": {"type": ["string", "null"], "enum": ["x", None]}, "b": {"type": ["integer"]}}},
            {
                **OBJECT,
                "properties": {
                    "a": {"anyOf": [{"type": "string", "enum": ["x"]}, {"type": "null", "enum": [None]}]},
                    "b": {"type": "integer"},
                },
            },
        ),
        (
            {"properties": {"n": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "required": True}}},
            {**OBJECT, "properties": {"n": {"type": "number", "minimum": 0, "exclusiveMinimum": 0}}},
        ),
        ({"properties": {"a": {"pattern": "(?<n>", "title": 7}}}, {**OBJECT, "properties": {"a": {}}}),
        (
            {"properties": {"a": {"default": float("nan")}, "b": {"description": "half \ud83d", "default": None}}},
            {**OBJECT, "properties": {"a": {"default": None}, "b": {"description": "half \ufffd", "default": None}}},
        ),
    ],
)  # fmt: skip
def test_what_is_missing_or_malformed_is_completed(given: Any, expected: Any) -> None:
    assert shown(given) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "title": "t",
            "properties": {
                "a": {"type": "string", "format": "date", "x-mark": 1},
                "b": {"anyOf": [{"$ref": "#/$defs/B"}, {"type": "null"}], "default": None},
                "c": {"type": "object", "additionalProperties": {"type": "integer"}},
                "properties": {"type": "object", "properties": {"required": {"const": 5}}, "required": ["required"]},
            },
            "required": ["a"],
            "additionalProperties": False,
            "$defs": {"B": {"type": "object", "properties": {"b": {"$ref": "#/$defs/B"}}}},
        }
    ],
)
def test_a_sound_schema_is_shown_as_it_is(schema: Any) -> None:
    assert shown(schema) == schema


def test_a_choice_at_the_top_becomes_properties_and_is_still_checked() -> None:
    schema = ArgumentSchema({
        "properties": {"id": {"type": "integer"}, "$name": {"type": "string"}},
        "oneOf": [{"required": ["id"]}, {"required": ["$name"]}],
    })  # fmt: skip
    name = argument_name("$name")
    assert shown(schema._schema.checked) == {
        "type": "object",
        "properties": {"id": {"type": "integer"}, name: {"title": "$name", "type": "string"}},
        "description": f"Send exactly one of these sets: `id`; `{name}`.",
    }
    assert schema.check("t", {name: "a"}) == {"$name": "a"}
    with pytest.raises(ToolValidationError, match="is not valid under any of the given schemas|required"):
        schema.check("t", {})


def test_a_union_of_objects_is_joined_also_through_references() -> None:
    cat = {
        "type": "object",
        "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
        "required": ["kind", "lives"],
    }
    dog = {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]}
    made = shown({"anyOf": [{"$ref": "#/$defs/Cat"}, {"allOf": [dog]}, {"type": "null"}], "$defs": {"Cat": cat}})
    assert made["properties"] == {
        "kind": {"anyOf": [{"const": "cat"}, {"const": "dog"}]},
        "lives": {"type": "integer"},
    }
    assert made["required"] == ["kind"]
    assert shown({"$ref": "#/$defs/Cat", "$defs": {"Cat": cat}})["required"] == ["kind", "lives"]


CHAIN = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)} | {"a40": {}}


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (None, "does not describe an object"),
        ("object", "does not describe an object"),
        ([], "does not describe an object"),
        (False, "does not describe an object"),
        ({"type": "array", "items": {}}, "does not describe an object"),
        ({"anyOf": [{"type": "string"}, {"type": "array"}]}, "does not describe an object"),
        ({"allOf": [{}, {"type": "string"}]}, "does not describe an object"),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "is not a valid JSON Schema"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "a \\$ref whose target is not in it"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "refers to itself endlessly"),
        ({"properties": {"$a": {}, argument_name("$a"): {}}}, "two of its arguments would be called _a_"),
        ({"properties": {"a": {1, 2}}}, "is not JSON"),
        ({"$ref": "#/$defs/a0", "$defs": CHAIN}, "combines too many others"),
    ],
)
def test_what_cannot_be_completed_is_refused_with_the_reason(schema: Any, why: str) -> None:
    with pytest.raises(BrokenSchema, match=why):
        ArgumentSchema(schema)


@pytest.mark.parametrize("levels", [40, 500, 20_000])
def test_a_schema_that_is_too_deep_is_refused(levels: int) -> None:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(BrokenSchema, match="nested too deeply"):
        ArgumentSchema(schema)


@pytest.mark.parametrize(
    "name",
    ["StartTime<", "$select", "@odata.type", "x" * 100, "", "名前", "a b", "\0", "ä", "😀", "\ud83d", "a\n", "٣"],
)
def test_every_name_has_one_accepted_form(name: str) -> None:
    clean = argument_name(name)
    assert ANTHROPIC_NAME.fullmatch(clean)
    assert clean == argument_name(name) != name
    assert argument_name(clean) == clean


@given(st.lists(st.text(max_size=70), unique=True))
def test_two_names_never_become_one(given: list[str]) -> None:
    assert len({argument_name(name) for name in given}) == len(given)


def test_names_are_restored_at_every_level_and_nowhere_else() -> None:
    inner = {"type": "object", "properties": {"@odata.type": {"type": "string"}, "more": {"$ref": "#"}}}
    schema = ArgumentSchema({
        "type": "object",
        "properties": {
            "$select": {"type": "array", "items": {"anyOf": [inner, {"type": "string"}]}},
            "free": {"type": "object", "additionalProperties": {"allOf": [inner]}},
        },
        "required": ["$select"],
    })  # fmt: skip
    select, kind = argument_name("$select"), argument_name("@odata.type")
    sent = {select: [{kind: "a", "more": {select: []}}, kind], "free": {kind: {kind: "b"}, "x": {"y": {kind: 1}}}}
    assert schema.check("t", sent) == {
        "$select": [{"@odata.type": "a", "more": {"$select": []}}, kind],
        "free": {kind: {"@odata.type": "b"}, "x": {"y": {kind: 1}}},
    }
    assert schema.check("t", {"$select": []}) == {"$select": []}
    with pytest.raises(ToolValidationError) as wrong:
        schema.check("t", {select: [5]})
    assert wrong.value.message.splitlines()[1].startswith(f"- `{select}.0`: 5 is not")
    with pytest.raises(ToolValidationError, match=f"'{re.escape(select)}' is a required property"):
        schema.check("t", {})


def weather(名前: str, since: str = "") -> str:  # noqa: N803, PLC2401 - as people write it
    """Look."""
    return f"{名前} {since}"


def test_a_users_function_gets_its_own_names() -> None:
    tool = user_tool(weather, "app.py", {"effect": "read"})
    name = argument_name("名前")
    assert shown(tool.spec.parameters) == tool.spec.parameters
    assert list(tool.spec.parameters["properties"]) == [name, "since"]
    assert dict(tool.parse({name: "Oslo"}).values) == {"名前": "Oslo", "since": ""}
    assert dict(tool.parse({"名前": "Oslo"}).values)["名前"] == "Oslo"


@pytest.mark.parametrize("rows", [{}, {"type": "array", "items": {"properties": {"$a": {}}}}])
def test_an_argument_that_is_sent_under_both_of_its_names_has_one_value(rows: Any) -> None:
    schema = ArgumentSchema({"type": "object", "properties": {"$a": {}, "rows": rows}})
    name = argument_name("$a")
    assert schema.check("t", {name: [1, {"b": 2}], "$a": [1, {"b": 2}]}) == {"$a": [1, {"b": 2}]}
    different: list[tuple[Any, Any]] = [
        ("safe", "evil"),
        (1, True),
        (None, 0),
        ([{"b": 1}], [{"b": 2}]),
        ("", "\ud83d"),
    ]
    for one, other in different:
        for sent in ({name: one, "$a": other}, {"$a": one, name: other}):
            with pytest.raises(ToolValidationError, match=f"`{name}` is given twice|half a surrogate pair"):
                schema.check("t", sent)
            if rows:
                with pytest.raises(ToolValidationError, match=f"`{name}` is given twice|half a surrogate pair"):
                    schema.check("t", {"rows": [sent]})


def test_a_users_function_never_gets_one_of_two_values() -> None:
    tool = user_tool(weather, "app.py", {"effect": "read"})
    with pytest.raises(ToolValidationError, match="is given twice, with different values: send it once"):
        tool.parse({argument_name("名前"): "Oslo", "名前": "Bergen"})


MANY = {f"${n}": {"type": "string"} for n in range(40)}


@pytest.mark.parametrize(
    ("items", "row"),
    [
        ({"type": "object", "properties": MANY}, dict.fromkeys(map(argument_name, MANY), "x")),
        ({"allOf": [{"properties": {f"c{n}": {"type": "object"}}} for n in range(100)]}, {"c1": {"a": {}}, "x": 2}),
        ({"allOf": [{"additionalProperties": {"type": "object"}} for n in range(100)]}, {"a": {}, "b": {"c": {}}}),
    ],
)
def test_the_schemas_of_a_table_are_looked_through_once(items: Any, row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    applied = tool_schemas._Renaming._applied

    def counted(self: Any, schemas: Any) -> Any:
        looked.append(schemas)
        return applied(self, schemas)

    monkeypatch.setattr(tool_schemas._Renaming, "_applied", counted)
    made = tool_schema({"type": "object", "properties": {"$a": {}, "rows": {"type": "array", "items": items}}})
    for count in (1, 50):
        looked.clear()
        assert len(made.original({"rows": [row] * count})["rows"]) == count
        assert len(looked) <= 6


def test_without_other_names_arguments_are_not_looked_through() -> None:
    sent = {"rows": [{"a": 1}]}
    assert tool_schema({"type": "object", "properties": {"rows": {"type": "array"}}}).original(sent) is sent


def sized(größe: str) -> str:  # noqa: PLC2401
    """Look."""
    return größe


class Länge(BaseModel):  # noqa: PLC2401
    """A part of an argument."""

    größe: int = Field(description="In metres")  # noqa: PLC2401


def built(länge: Länge, größe: Annotated[float, Field(description="How large")]) -> str:  # noqa: PLC2401
    """Look."""
    return f"{länge} {größe}"


LENGTH, SIZE = argument_name("länge"), argument_name("größe")


@pytest.mark.parametrize(
    ("sent", "line"),
    [
        ({LENGTH: {SIZE: 1}}, f"- `{SIZE}` is missing: add it (number: How large)"),
        ({LENGTH: {SIZE: 1}, SIZE: "x"}, f"- `{SIZE}` must be a number, got 'x': send number: How large"),
        ({LENGTH: {SIZE: "x"}, SIZE: 1}, f"- `{LENGTH}.{SIZE}` must be a whole number, got 'x'"),
        ({LENGTH: {}, SIZE: 1}, f"- `{LENGTH}.{SIZE}` is missing: add it"),
        ({LENGTH: {SIZE: 1}, SIZE: float("nan")}, f"`{SIZE}` contains NaN or an infinite number"),
        ({LENGTH: {SIZE: 1}, SIZE: "\ud83d"}, f"`{SIZE}` contains half a surrogate pair"),
        ({LENGTH: {SIZE: 1}, SIZE: 1, "größer": 2}, "- `größer` is not an argument: leave it out; built takes "),
    ],
)  # fmt: skip
@pytest.mark.parametrize("says_own_names", [False, True])
def test_errors_use_the_names_that_the_model_sees(sent: Any, line: str, *, says_own_names: bool) -> None:
    tool = user_tool(built, "app.py", {"effect": "read"})
    with pytest.raises(ToolValidationError) as told:
        tool.parse(tool.schema.original(sent) if says_own_names else sent)
    assert told.value.message.splitlines()[-1].startswith(line)
    assert "`größe`" not in told.value.message


class Away:
    """A connection that nobody calls."""

    def trouble(self) -> str | None:
        return None

    def call(self, call: McpCall) -> Awaitable[ToolOutput]:
        raise AssertionError(call)

    def abandon(self, call_id: str, task: str = "") -> None:
        raise AssertionError(call_id)


@pytest.mark.parametrize("rule", ["größe", argument_name("größe")])
@pytest.mark.parametrize("sent", ["größe", argument_name("größe")])
def test_a_rule_about_an_argument_holds_under_both_of_its_names(rule: str, sent: str) -> None:
    server = McpServer(name="web", command=("serve",))
    listed = ListedTool(name="look", schema={"properties": {"größe": {"type": "string"}}})
    box = {**offer(server, [listed], Away()).tools, "look": user_tool(sized, "app.py", {"name": "look"})}
    for name, tool in box.items():
        rules = {name: "allow", f"{name}({rule}:*secret*)": "deny"}
        assert dead_rules(rules, [tool.spec], servers=["web"], place=Place(workspace="/w", home="/h")) == ()
        spec = AgentSpec(name="a", model="demo", tools=(tool.spec,), permissions=rules, workspace="/w")
        for said, verdict in (("a secret", Verdict.DENY), ("nothing", Verdict.ALLOW)):
            call = ToolCall(id="1", name=name, arguments={sent: said})
            assert authorize(call, tool, tool.parse(call.arguments), spec).judgement.verdict is verdict


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"type": "object"}, 'send it as {"properties":{},"type":"object"}'),
        ({"type": "object", "properties": {"a": {"type": "array"}}}, '"items":{}'),
        ({"type": "string"}, "does not describe an object"),
    ],
)
async def test_a_model_that_makes_a_tool_learns_which_schema_is_accepted(parameters: Any, told: str) -> None:
    maker = MadeTools(sandbox=None).maker()
    given = {"name": "double", "description": "d", "code": "def run(**_):\n    return 1", "parameters": parameters}
    context = ToolContext(workspace=Path("/"), run_id="r", call_id="c", idempotency_key="k", timeout=5)
    with pytest.raises(ToolValidationError, match="the tool was not created") as refused:
        await maker.run(maker.parse(given), context)
    assert told in refused.value.message
    sent = {**given, "parameters": {"type": "object", "properties": {"a": {"type": "array", "items": {}}}}}
    assert "You can call made__double" in str(await maker.run(maker.parse(sent), context))


KEYWORDS = [
    *("type", "properties", "required", "items", "enum", "anyOf", "oneOf", "allOf", "not", "$ref", "$defs", "$schema"),
    *("additionalProperties", "patternProperties", "prefixItems", "description", "default", "minimum", "pattern"),
    *("exclusiveMinimum", "const", "dependentRequired", "dependentSchemas", "if", "then", "title", "format", "x-odd"),
]
TEXTS = st.text(max_size=6) | st.sampled_from(
    ["$select", "@odata.type", "a", "b", "x" * 70, "\ud83d", "object", "array"]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.sampled_from(["#", "#/$defs/a", "string"])
ANY_JSON = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS) | TEXTS, inner, max_size=5)
    ),
    max_leaves=25,
)  # fmt: skip
SCHEMAS: st.SearchStrategy[Any] = st.deferred(
    lambda: (
        st.booleans()
        | st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["object", "array", "string", ["object", "null"], ["string", "array"]]),
                "properties": st.dictionaries(TEXTS, SCHEMAS, max_size=3),
                "required": st.lists(TEXTS, max_size=2),
                "items": SCHEMAS | st.lists(SCHEMAS, max_size=2),
                "additionalProperties": SCHEMAS,
                "anyOf": st.lists(SCHEMAS, max_size=2),
                "oneOf": st.lists(SCHEMAS, max_size=2),
                "allOf": st.lists(SCHEMAS, max_size=2),
                "$ref": st.sampled_from(["#", "#/$defs/a", "#/properties/$select", "#/properties/a/items"]),
                "$defs": st.fixed_dictionaries({}, optional={"a": SCHEMAS}),
                "enum": st.lists(LEAVES, max_size=2),
                "description": TEXTS,
            },
        )
    )
)  # fmt: skip


@settings(max_examples=60)
@given(ANY_JSON | SCHEMAS)
def test_any_schema_is_acceptable_or_refused(schema: Any) -> None:
    try:
        made = shown(schema)
    except BrokenSchema:
        return
    assert shown(made) == made
    assert tool_schema(schema) == tool_schema(json.loads(json.dumps(schema)))


WHOLE_TEXTS = TEXTS.filter(str.isprintable)
LEVELS = st.recursive(
    st.sampled_from([{"type": "string"}, {}, {"type": "integer"}]),
    lambda inner: (
        st.builds(
            lambda table: {"type": "object", "properties": table}, st.dictionaries(WHOLE_TEXTS, inner, max_size=3)
        )
        | st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner)
    ),
    max_leaves=8,
)


def example(schema: Any, draw: Callable[..., Any]) -> Any:
    """A value that fits a schema of LEVELS."""
    if "anyOf" in schema:
        return example(draw(st.sampled_from(schema["anyOf"])), draw)
    match schema.get("type"):
        case "object":
            return {name: example(each, draw) for name, each in schema["properties"].items() if draw(st.booleans())}
        case "array":
            return [example(schema["items"], draw) for _ in range(draw(st.integers(0, 2)))]
        case "string":
            return draw(st.text(alphabet="ab", max_size=3))
        case kind:
            return draw(st.integers()) if kind else draw(st.integers() | st.text(alphabet="ab", max_size=3))


def renamed(value: Any) -> Any:
    """The value under the names that models see."""
    if isinstance(value, dict):
        return {argument_name(name): renamed(each) for name, each in value.items()}
    return [renamed(each) for each in value] if isinstance(value, list) else value


@settings(max_examples=40)
@given(st.data(), st.dictionaries(WHOLE_TEXTS, LEVELS, max_size=3))
def test_arguments_that_fit_what_is_shown_arrive_under_the_tools_own_names(data: Any, table: Any) -> None:
    made = tool_schema({"type": "object", "properties": table})
    own = example({"type": "object", "properties": table}, data.draw)
    sent = renamed(own)
    assert Draft202012Validator(made.shown).is_valid(sent)
    assert made.original(sent) == own
    assert made.original(own) == own
    restored = ArgumentSchema(with_own_names(made.shown))  # a skill's script has only what is shown
    assert restored.check("t", sent) == own
    assert restored.shown == made.shown
