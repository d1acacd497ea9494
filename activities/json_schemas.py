"""Validate JSON Schemas from untrusted sources before they are used. External documents are never fetched."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from loom.domain.core.messages import JsonObject

if TYPE_CHECKING:  # the library takes 3 MB, and most workers validate against no JSON Schema
    from jsonschema.exceptions import ValidationError

SCHEMA_LIMIT: Final = 64 * 1024
"""Maximum number of characters in a schema. Each model call includes the schema."""

MOST_APPLIED: Final = 10_000
"""Maximum number of schemas that apply to one value. A few references can multiply to so many that no check ends."""

DATA: Final = frozenset({"enum", "const", "default", "examples", "example", "dependentRequired"})
"""Keywords whose values are data, not schemas."""
NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose keys are names, not keywords."""
_SAME_VALUE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "extends", "type", "disallow")
"""Keywords whose schemas, if they are schemas, apply to the value itself, not to a part of it."""
_BY_NAME: Final = ("dependentSchemas", "dependencies")
"""The same, by the names of fields."""
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


class BrokenSchema(Exception):
    """The schema can't be used. The message explains the reason."""


def require_sound(schema: JsonObject) -> None:
    """Raise BrokenSchema if the schema is invalid, is too long, or refers to other documents."""
    from jsonschema.exceptions import SchemaError  # noqa: PLC0415
    from jsonschema.validators import Draft202012Validator, validator_for  # noqa: PLC0415

    try:
        if len(json.dumps(schema)) > SCHEMA_LIMIT:
            raise BrokenSchema(f"its schema is longer than {SCHEMA_LIMIT} characters")
        validator_for(schema, default=Draft202012Validator).check_schema(dict(schema))
        _follow_references(schema)
    except SchemaError as error:
        raise BrokenSchema(f"its schema is not a valid JSON Schema: {error.message[:200]}") from None
    except RecursionError:
        raise BrokenSchema("its schema is nested too deeply") from None


def subschemas(node: object, *, names: bool = False) -> Iterator[Mapping[str, Any]]:
    """Yield the schema itself and every schema nested in it."""
    if isinstance(node, list):
        for item in node:
            yield from subschemas(item)
    elif isinstance(node, Mapping):
        if not names:
            yield node
        for key, value in node.items():
            if names or key not in DATA:
                yield from subschemas(value, names=key in NAMED and not names)


def deepest(error: "ValidationError") -> "ValidationError":
    """Return the most specific error. For `anyOf`, use the error from the branch that matches best."""
    from jsonschema.exceptions import best_match  # noqa: PLC0415

    return best_match(iter([error])) or error


def shortened(message: str) -> str:
    """Return the message, or its start and end if it is long. A message may quote a whole value."""
    return message if len(message) <= 200 else f"{message[:100]} … {message[-90:]}"


def _follow_references(schema: JsonObject) -> None:
    from referencing import Registry  # noqa: PLC0415
    from referencing.exceptions import NoSuchResource, Unresolvable  # noqa: PLC0415
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415

    resolver = Registry[Any]().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for node in subschemas(schema):
        for key in _REFERENCES:
            reference = node.get(key)
            if not isinstance(reference, str):
                continue
            try:
                resolver.lookup(reference)
            except (Unresolvable, NoSuchResource):
                raise BrokenSchema(f"its schema has a $ref whose target is not in it: {reference[:200]}") from None
    _refuse_multiplied(schema, lambda reference: resolver.lookup(reference).contents)


def _refuse_multiplied(schema: JsonObject, target: Callable[[str], object]) -> None:
    known: dict[int, int] = {}

    def applied(node: object) -> int:
        """Return how many schemas are checked if this one is: those that it refers to count each time."""
        if not isinstance(node, Mapping):
            return 0
        if id(node) not in known:
            known[id(node)] = 0  # one that refers to itself is found when it is used
            inner = [each for key in _SAME_VALUE for each in _listed(node.get(key))]
            inner += [each for key in _BY_NAME for each in _listed([*(node.get(key) or {}).values()])]
            inner += [target(node[key]) for key in _REFERENCES if isinstance(node.get(key), str)]
            known[id(node)] = 1 + sum(map(applied, inner))
        return known[id(node)]

    if any(applied(node) > MOST_APPLIED for node in subschemas(schema)):
        raise BrokenSchema(f"more than {MOST_APPLIED:,} of its schemas apply to one value: use fewer references")


def _listed(found: object) -> list[object]:
    return found if isinstance(found, list) else [found]
