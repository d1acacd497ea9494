"""The forms of a JSON Schema that `tool_schemas` makes: `mended`, `merged` and `shown_form`, one after the other."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final
from urllib.parse import unquote

from loom.activities.json_schemas import DATA, NAMED, BrokenSchema
from loom.domain.core.argument_names import argument_name
from loom.domain.core.messages import JsonObject

_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
"""Keywords whose value is a list of schemas."""
_SINGLE: Final = frozenset({
    *("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames", "contains"),
    *("not", "if", "then", "else", "contentSchema"),
})  # fmt: skip
"""Keywords whose value is one schema."""
_CHOICES: Final = ("anyOf", "oneOf")
_NOT_AT_TOP: Final = frozenset({
    *("$ref", "anyOf", "oneOf", "allOf", "enum", "const", "not", "if", "then", "else", "dependentSchemas"),
})  # fmt: skip
_OF_NUMBERS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
_OF_TYPE: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset({
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties"),
        *("maxProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties"),
    }),
    "array": frozenset({
        *("items", "contains", "minContains", "maxContains", "minItems", "maxItems", "uniqueItems"),
        "unevaluatedItems",
    }),
    "string": frozenset({"minLength", "maxLength", "pattern", "format", "contentEncoding", "contentMediaType"}),
    "number": _OF_NUMBERS,
    "integer": _OF_NUMBERS,
}  # fmt: skip
"""Keywords that concern only the values of one type."""
_MOST_VISITS: Final = 2000
"""Maximum number of schemas that are joined into one. A chain of references can lead to any number of them."""
_MOST_SETS: Final = 8
"""Maximum number of alternative sets of arguments that a description lists."""


def mended(schema: Any) -> Any:
    """Return the schema without what is often malformed and what means nothing, in the form of draft 2020-12.

    Null counts as not given, as do lists and objects of the wrong type. Other faults are left for validation.
    """
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, Mapping):
        return {}
    given = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
    return dict(pair for key, value in given.items() for pair in _mended_keyword(key, value, schema))


def _mended_keyword(key: str, value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    match value:
        case None if key in ("const", "default"):
            yield key, None
        case Mapping() if key in NAMED:
            yield key, {name: mended(each) for name, each in value.items()}
        case list() if value and (key in _LISTS or key == "items"):
            yield "prefixItems" if key == "items" else key, [mended(each) for each in value]
        case Mapping() | bool() if key in _SINGLE:
            yield key, mended(value)
        case _ if key not in NAMED | _LISTS | _SINGLE and (kept := _mended_value(key, value, schema)) is not None:
            yield key, kept


def _mended_value(key: str, value: Any, schema: Mapping[str, Any]) -> Any:
    """Return the keyword's value, or None to leave the keyword out."""
    match key:
        case "type" if isinstance(value, list):
            names = _texts(value)
            return names[0] if len(names) == 1 else names or None
        case "type" | "title" | "description" | "$ref" | "$dynamicRef":
            return value if isinstance(value, str) else None
        case "required":
            return _texts(value)
        case "enum" | "examples":
            return value if isinstance(value, list) and value else None
        case "dependentRequired":
            return {name: _texts(each) for name, each in value.items()} if isinstance(value, Mapping) else None
        case "pattern":
            return value if isinstance(value, str) and _compiles(value) else None
        case "exclusiveMinimum" | "exclusiveMaximum" if isinstance(value, bool):  # draft 4
            limit = schema.get("minimum" if key == "exclusiveMinimum" else "maximum")
            return limit if value and isinstance(limit, int | float) else None
        case _:
            return value if key in DATA or not isinstance(value, Mapping | list) else None  # of no known form


def _texts(value: Any) -> list[str]:
    return list(dict.fromkeys(each for each in value if isinstance(each, str))) if isinstance(value, list) else []


def _compiles(expression: str) -> bool:
    """OpenAI rejects expressions that Python can't read."""
    try:
        re.compile(expression)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def merged(schema: JsonObject) -> dict[str, Any] | None:
    """Return a sound schema of an object in which all arguments are properties at the top, or None if it describes no
    object. Arguments that fit the schema fit the result, too.
    """
    found = _flat(schema, schema, (), count())
    if found is None:
        return None
    properties, required = found
    made = {key: value for key, value in schema.items() if key not in _NOT_AT_TOP}
    made |= {"type": "object", "properties": properties}
    if required:
        made["required"] = required
    if about := " ".join(part for part in (made.get("description"), _alternatives(schema)) if part):
        made["description"] = about
    return made


def _flat(
    schema: Any, root: JsonObject, seen: tuple[str, ...], visits: Iterator[int]
) -> tuple[dict[str, Any], list[str]] | None:
    """Return the properties and the required names of an object, or None if the schema describes none."""
    if next(visits) > _MOST_VISITS:
        raise BrokenSchema("its schema combines too many others")
    if isinstance(schema, bool):
        return ({}, []) if schema else None
    kinds = schema.get("type", "object")
    if "object" not in ([kinds] if isinstance(kinds, str) else kinds):
        return None
    parts = list(schema.get("allOf", ()))
    if (reference := schema.get("$ref")) is not None:
        if reference in seen:
            raise BrokenSchema("its schema refers to itself endlessly")
        parts.append(target(reference, root))
        seen = (*seen, reference)
    every = [_flat(part, root, seen, visits) for part in parts]
    choices = [[_flat(each, root, seen, visits) for each in schema[key]] for key in _CHOICES if key in schema]
    if None in every or any(not any(possible) for possible in choices):
        return None
    inner = [each for each in every if each is not None]
    properties = _joined("allOf", [schema.get("properties", {}), *(each[0] for each in inner)])
    required = [*schema.get("required", ()), *(name for each in inner for name in each[1])]
    for possible in choices:
        kept = [each for each in possible if each is not None]
        properties = {**_joined("anyOf", [each[0] for each in kept]), **properties}
        required += [name for name in kept[0][1] if all(name in each[1] for each in kept)]
    return properties, list(dict.fromkeys(required))


def _joined(key: str, tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in dict.fromkeys(name for table in tables for name in table):
        schemas: list[Any] = []
        for table in tables:
            if name in table and table[name] not in schemas:
                schemas.append(table[name])
        made[name] = schemas[0] if len(schemas) == 1 else {key: schemas}
    return made


def _alternatives(schema: JsonObject) -> str:
    """Return a sentence about the sets of arguments that a choice at the top of the schema allows."""
    for key in _CHOICES:
        sets = [each.get("required", ()) for each in schema.get(key, ()) if isinstance(each, Mapping)]
        if len(sets) > 1 and all(sets):
            shown = ["`" + "`, `".join(map(argument_name, names)) + "`" for names in sets[:_MOST_SETS]]
            return f"Send {'exactly one' if key == 'oneOf' else 'at least one'} of these sets: {'; '.join(shown)}."
    return ""


def shown_form(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sound schema in the form that models see."""
    made = {key: _shown_value(key, value) for key, value in schema.items() if key not in ("required", "prefixItems")}
    properties = schema.get("properties", {})
    if "properties" in schema:
        made["properties"] = {
            argument_name(name): _shown_property(name, each) for name, each in properties.items() if each is not False
        }
    required = [argument_name(name) for name in schema.get("required", ()) if properties.get(name, False) is not False]
    if required:
        made["required"] = required
    if "prefixItems" in schema:
        made["items"] = _any_of([*schema["prefixItems"], *([schema["items"]] if schema.get("items") else [])])
    kinds = made.get("type", ())
    if "array" in ([kinds] if isinstance(kinds, str) else kinds):
        made.setdefault("items", {})
    return made if isinstance(kinds, str) or not kinds else _with_one_type(made)


def _shown_value(key: str, value: Any) -> Any:
    if key == "dependentRequired":
        return {argument_name(name): list(map(argument_name, names)) for name, names in value.items()}
    if key in DATA:
        return value
    if key in NAMED and key != "properties":
        name = argument_name if key == "dependentSchemas" else str
        return {name(each): _shown_schema(inner) for each, inner in value.items()}
    if key in _LISTS:
        return [_shown_schema(each) for each in value]
    if key == "items" or (key in _SINGLE and isinstance(value, Mapping)):
        return _shown_schema(value)
    return _shown_reference(value) if key in ("$ref", "$dynamicRef") else value


def _shown_schema(schema: Any) -> dict[str, Any]:
    return shown_form(schema) if isinstance(schema, Mapping) else {} if schema else {"not": {}}


def _shown_property(name: str, schema: Any) -> dict[str, Any]:
    """Return a property's schema. Its title is the tool's own name if models see another one (see `with_own_names`)."""
    made = _shown_schema(schema)
    return made if argument_name(name) == name else {**made, "title": name}


def _any_of(schemas: Sequence[Any]) -> dict[str, Any]:
    different: list[dict[str, Any]] = []
    for each in map(_shown_schema, schemas):
        if each not in different:
            different.append(each)
    return different[0] if len(different) == 1 else {"anyOf": different}


def _with_one_type(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with a choice between types instead of a list of types."""
    kinds = schema.pop("type")
    if not schema.keys().isdisjoint(("anyOf", "oneOf", "allOf", "$ref")):
        return schema  # they say what the values are
    special = frozenset[str]().union(*(_OF_TYPE.get(kind, frozenset()) for kind in kinds), ("enum",))
    choices = []
    for kind in kinds:
        choice = {"type": kind, **{key: schema[key] for key in schema if key in _OF_TYPE.get(kind, ())}}
        if "enum" in schema:
            choice["enum"] = [value for value in schema["enum"] if _is_of(kind, value)]
        if choice.get("enum", True):
            choices.append(choice)
    common = {key: value for key, value in schema.items() if key not in special}
    if len(choices) < 2:
        return {**(choices[0] if choices else {}), **common}
    return {**common, "anyOf": choices}


def _is_of(kind: str, value: Any) -> bool:
    match value:
        case None:
            return kind == "null"
        case bool():
            return kind == "boolean"
        case int():
            return kind in ("integer", "number")
        case float():
            return kind == "number"
        case str():
            return kind == "string"
        case list():
            return kind == "array"
        case _:
            return kind == "object"


def target(reference: str, root: Any) -> Any:
    """Return the part of the schema that a reference names. Raises BrokenSchema if it names none by its place."""
    found = root
    for step in _steps(reference):
        try:
            found = found[int(step)] if isinstance(found, list) else found[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise BrokenSchema(f"its schema has a $ref whose target is not in it: {reference[:200]}") from None
    return found


def _steps(reference: str) -> list[str]:
    pointer = unquote(reference.removeprefix("#"))
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _shown_reference(reference: str) -> str:
    """Return the reference with the shown names of the properties on its way."""
    is_name, shown = False, ["#"]
    steps = _steps(reference)
    if not steps or not reference.startswith("#/"):
        return reference
    for before, step in zip(("", *steps), steps, strict=False):
        is_name = before in NAMED and not is_name
        own = argument_name(step) if is_name and before in ("properties", "dependentSchemas") else step
        shown.append(own.replace("~", "~0").replace("/", "~1"))
    return "/".join(shown)
