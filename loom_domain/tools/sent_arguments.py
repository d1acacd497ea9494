"""What a model means by arguments that don't have the form of the tool's schema.

Models encode a list or an object once more, or put all arguments into an object called `arguments`. Such arguments are
converted as soon as the model has answered, and recorded this way: rules, people and the tool see the same value. A
value is converted only if the schema can't mean the value that was sent.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from loom.domain.core.json_text import NotJson, is_deeper, read_written
from loom.domain.core.messages import JsonObject, ToolCall
from loom.domain.core.tool_calls import ToolSpec

_WRAPPERS: Final = frozenset({"arguments", "args", "input", "parameters", "params"})
_DEPTH: Final = 50
"""Maximum nesting depth of the values that are converted."""
_KINDS: Final = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})


def as_meant(calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> tuple[ToolCall, ...]:
    """Return the calls with their arguments in the form of the tools' schemas, as far as that is unambiguous."""
    schemas = {tool.name: tool.parameters for tool in tools}
    return tuple(_call_as_meant(call, schemas.get(call.name)) for call in calls)


def arguments_as_meant(arguments: JsonObject, schema: JsonObject) -> JsonObject:
    """Return the arguments in the form of the schema, as far as that is unambiguous. Otherwise, return them
    unchanged.
    """
    meant = _converted(_unwrapped(arguments, schema), schema, schema, _DEPTH)
    return meant if isinstance(meant, Mapping) else arguments


def _call_as_meant(call: ToolCall, schema: JsonObject | None) -> ToolCall:
    if call.malformed is not None or schema is None or not call.arguments:
        return call
    meant = arguments_as_meant(call.arguments, schema)
    return call if meant is call.arguments else replace(call, arguments=meant)


def _unwrapped(arguments: JsonObject, schema: JsonObject) -> JsonObject:
    """Return the object that contains all arguments, if it is the only argument and the tool takes none of its name."""
    known = schema.get("properties")
    if len(arguments) != 1 or not isinstance(known, Mapping) or schema.get("additionalProperties"):
        return arguments
    ((name, value),) = arguments.items()
    if name not in _WRAPPERS or name in known:
        return arguments
    inner = _read(value, {"object"}) if isinstance(value, str) else value
    if isinstance(inner, dict) and set(schema.get("required", ())) <= set(inner) <= set(known):
        return inner
    return arguments


def _converted(value: Any, schema: Any, whole: JsonObject, depth: int) -> Any:
    """Return the value in the form of the schema, or the same object if nothing has to be converted."""
    branches = list(_branches(schema, whole, _DEPTH)) if depth else []
    if isinstance(value, str):
        kinds = set().union(*(map(_kinds_of, branches))) if branches else _KINDS
        if "string" in kinds:
            return value
        read = _read(value, kinds)
        return value if read is None else _converted(read, schema, whole, depth - 1)
    if not isinstance(value, dict | list):
        return value
    kind = "object" if isinstance(value, dict) else "array"
    fitting = [branch for branch in branches if kind in _kinds_of(branch)]
    if len(fitting) != 1:
        return value
    if isinstance(value, dict):
        members = {name: _converted(each, _member(fitting[0], name), whole, depth - 1) for name, each in value.items()}
        return members if any(members[name] is not each for name, each in value.items()) else value
    items = [_converted(each, _item(fitting[0], number), whole, depth - 1) for number, each in enumerate(value)]
    return items if any(a is not b for a, b in zip(items, value, strict=True)) else value


def _branches(schema: Any, whole: JsonObject, depth: int) -> Iterator[Mapping[str, Any]]:
    """Yield the alternatives of a schema. One that this module doesn't understand permits every kind of value."""
    if not isinstance(schema, Mapping) or not depth or "allOf" in schema:
        yield {}
        return
    if "$ref" in schema:
        yield from _branches(_referred(schema["$ref"], whole), whole, depth - 1)
        return
    options = schema.get("anyOf", schema.get("oneOf"))
    if "type" in schema or not isinstance(options, list):
        yield schema
        return
    for option in options:
        yield from _branches(option, whole, depth - 1)


def _referred(reference: Any, whole: JsonObject) -> Any:
    """Return the schema at this place of the whole schema, or None if there is none."""
    start, *steps = str(reference).split("/")
    found: Any = whole if start == "#" else None
    for step in steps:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def _kinds_of(schema: Mapping[str, Any]) -> frozenset[str]:
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return frozenset({kinds})
    return frozenset(map(str, kinds)) if isinstance(kinds, list) else _KINDS


def _member(schema: Mapping[str, Any], name: str) -> Any:
    known = schema.get("properties")
    if isinstance(known, Mapping) and name in known:
        return known[name]
    return schema.get("additionalProperties") if "patternProperties" not in schema else None


def _item(schema: Mapping[str, Any], number: int) -> Any:
    first = schema.get("prefixItems")
    if isinstance(first, list) and number < len(first):
        return first[number]
    return schema.get("items")


def _read(text: str, kinds: set[str] | frozenset[str]) -> Any:
    """Return the text's JSON value if it has one of these kinds, else None."""
    try:
        value = read_written(text)
    except NotJson:
        return None
    fits = {
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
        "boolean": isinstance(value, bool),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
    }
    return value if any(fits.get(kind, False) for kind in kinds) and not is_deeper(value, _DEPTH) else None
