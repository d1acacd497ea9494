"""What a model means by arguments that don't have the form of the tool's schema.

Models encode a list or an object once more, or put all arguments into an object called `arguments`. Such arguments are
converted as soon as the model has answered, and recorded this way: rules, people and the tool see the same value. A
value is converted only if the schema can't mean the value that was sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from loom.domain.core.json_text import NotJson, is_deeper, read_written
from loom.domain.core.messages import JsonObject, ToolCall
from loom.domain.core.tool_calls import ToolSpec

_WRAPPERS: Final = frozenset({"arguments", "args", "input", "parameters", "params"})
_DEPTH: Final = 50
"""Maximum nesting depth of the values that are converted."""
_MOST_SCHEMAS: Final = 10_000
"""Maximum number of schemas that are read for one call. With more, its arguments stay as they are."""
_KINDS: Final = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})


class _TooManySchemas(Exception):
    """The schema's alternatives are more than Loom looks at."""


def with_decoded_arguments(calls: Sequence[ToolCall], tools: Sequence[ToolSpec]) -> tuple[ToolCall, ...]:
    """Return the calls with their arguments in the form of the tools' schemas, as far as that is unambiguous."""
    schemas = {tool.name: tool.parameters for tool in tools}
    return tuple(_decoded_call(call, schemas.get(call.name)) for call in calls)


def decoded_arguments(arguments: JsonObject, schema: JsonObject) -> JsonObject:
    """Return the arguments in the form of the schema, as far as that is unambiguous. Otherwise, return them
    unchanged.
    """
    try:
        decoded = _decoded(_unwrapped(arguments, schema), schema, _Forms(schema), _DEPTH)
    except _TooManySchemas:
        return arguments
    return decoded if isinstance(decoded, Mapping) else arguments


def _decoded_call(call: ToolCall, schema: JsonObject | None) -> ToolCall:
    if call.malformed is not None or schema is None or not call.arguments:
        return call
    decoded = decoded_arguments(call.arguments, schema)
    return call if decoded is call.arguments else replace(call, arguments=decoded)


def _unwrapped(arguments: JsonObject, schema: JsonObject) -> JsonObject:
    """Return the object that contains all arguments, if it is the only argument and the tool takes none of its name."""
    known = schema.get("properties")
    if len(arguments) != 1 or not isinstance(known, Mapping) or schema.get("additionalProperties"):
        return arguments
    ((name, value),) = arguments.items()
    if name not in _WRAPPERS or name in known:
        return arguments
    inner = _read(value, {"object"}) if isinstance(value, str) else value
    required = schema.get("required")
    needed = required if isinstance(required, list) else ()
    if isinstance(inner, dict) and inner.keys() <= known.keys() and all(name in inner for name in map(str, needed)):
        return inner
    return arguments


def _decoded(value: Any, schema: Any, forms: "_Forms", depth: int) -> Any:
    """Return the value in the form of the schema, or the same object if nothing has to be converted."""
    if not depth:
        return value
    if isinstance(value, str):
        kinds = forms.of(schema).kinds
        read = None if "string" in kinds else _read(value, kinds)
        return value if read is None else _decoded(read, schema, forms, depth - 1)
    if isinstance(value, dict):
        form = forms.of(schema).objects
        members = {name: _decoded(each, _member(form, name), forms, depth - 1) for name, each in value.items()}
        return members if any(members[name] is not each for name, each in value.items()) else value
    if isinstance(value, list):
        form = forms.of(schema).arrays
        items = [_decoded(each, _item(form, number), forms, depth - 1) for number, each in enumerate(value)]
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    return value


@dataclass(frozen=True, slots=True)
class _Form:
    """What a schema permits."""

    kinds: frozenset[str]
    objects: Mapping[str, Any]
    """The schema of objects, if there is only one. Otherwise, this module converts nothing in them."""
    arrays: Mapping[str, Any]


class _Forms:
    """What the parts of a tool's schema permit. Each part is read once, however many values it is for."""

    def __init__(self, whole: JsonObject) -> None:
        self._whole = whole
        self._known: dict[int, _Form] = {}
        self._left = _MOST_SCHEMAS

    def of(self, schema: Any) -> _Form:
        """Return what this part of the schema permits. Raises _TooManySchemas."""
        form = self._known.get(id(schema))
        if form is None:
            branches = self._branches(schema)
            kinds = frozenset[str]().union(*map(_kinds_of, branches)) if branches else _KINDS
            objects, arrays = (_only(kind, branches) for kind in ("object", "array"))
            form = self._known[id(schema)] = _Form(kinds, objects, arrays)
        return form

    def _branches(self, schema: Any) -> Sequence[Mapping[str, Any]]:
        """Return the alternatives of a schema. One that this module doesn't understand permits every kind of value."""
        branches: list[Mapping[str, Any]] = []
        followed: set[str] = set()
        waiting = [schema]
        while waiting:
            self._left -= 1
            if self._left < 0:
                raise _TooManySchemas
            each = waiting.pop()
            if not isinstance(each, Mapping) or "allOf" in each:
                branches.append({})
            elif "$ref" in each:
                # A reference that occurs again adds no alternative, and could go on without end.
                reference = str(each["$ref"])
                if reference not in followed:
                    followed.add(reference)
                    waiting.append(_referred(reference, self._whole))
            elif "type" in each or not isinstance(options := each.get("anyOf", each.get("oneOf")), list):
                branches.append(each)
            else:
                waiting.extend(options)
        return branches


def _only(kind: str, branches: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    fitting = [branch for branch in branches if kind in _kinds_of(branch)]
    return fitting[0] if len(fitting) == 1 else {}


def _referred(reference: str, whole: JsonObject) -> Any:
    """Return the schema at this place of the whole schema, or None if there is none."""
    start, *steps = reference.split("/")
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
