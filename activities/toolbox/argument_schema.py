"""Arguments held against a JSON Schema that somebody else wrote, without trusting the schema either.

Nothing is fetched for a `$ref`, and regular expressions of the schema are not run: one that backtracks for ever would
stop the worker. The server that wrote them checks them itself.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from referencing import Registry
from referencing.exceptions import NoSuchResource, Unresolvable
from referencing.jsonschema import DRAFT202012

from loom_domain.errors import ToolValidationError
from loom_domain.messages import JsonObject

SCHEMA_LIMIT: Final = 64 * 1024
"""Characters of one schema: it is part of every model call."""

_COMPLAINTS: Final = 5
_DATA: Final = frozenset({"enum", "const", "default", "examples", "example"})
"""Keywords whose values are data, not schemas."""
_NAMED: Final = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose keys are names, not keywords."""


class BrokenSchema(Exception):
    """The schema cannot be held against anything; the message says why."""


class ArgumentSchema:
    """A schema that is fit for use."""

    def __init__(self, schema: JsonObject) -> None:
        """Raises BrokenSchema."""
        self._properties: Mapping[str, Any] = _fit(schema)
        made: Any = validator_for(schema, default=Draft202012Validator)
        self._validator: Validator = made(_without_expressions(schema), registry=Registry())
        try:
            self._validator.is_valid({})
        except RecursionError:
            raise BrokenSchema("its schema refers to itself without end") from None
        except Unresolvable as error:
            raise BrokenSchema(f"its schema has a $ref to nothing: {error.ref}") from None

    def check(self, tool: str, arguments: JsonObject) -> JsonObject:
        """The arguments if they fit, with or without those given as null; raises ToolValidationError."""
        _require_text(tool, arguments)
        if not (errors := self._errors(tool, arguments)):
            return arguments
        given = {name: value for name, value in arguments.items() if value is not None}
        if len(given) < len(arguments) and not self._errors(tool, given):
            return given
        lines = [self._line(error) for error in errors[:_COMPLAINTS]]
        raise ToolValidationError(
            "\n".join([f"{tool} was not run, its arguments are wrong:", *(f"- {line}" for line in lines)]), tool=tool
        )

    def _errors(self, tool: str, arguments: JsonObject) -> Sequence[ValidationError]:
        try:
            return sorted(self._validator.iter_errors(arguments), key=lambda error: [str(step) for step in error.path])
        except (RecursionError, Unresolvable):
            raise ToolValidationError(
                f"{tool} was not run: its server's schema cannot be followed for these arguments; try simpler ones",
                tool=tool,
            ) from None

    def _line(self, error: ValidationError) -> str:
        known = ", ".join(self._properties) or "none"
        deepest = best_match(iter([error])) or error
        where = ".".join(str(step) for step in deepest.absolute_path) or "arguments"
        message = (
            deepest.message if len(deepest.message) <= 200 else f"{deepest.message[:100]} … {deepest.message[-90:]}"
        )
        return f"`{where}`: {message}; the tool takes {known}"


def _fit(schema: JsonObject) -> Mapping[str, Any]:
    """The properties of a schema that describes an object and refers only to itself."""
    if schema.get("type") != "object":
        raise BrokenSchema("its schema does not describe an object")
    try:
        if len(json.dumps(schema)) > SCHEMA_LIMIT:
            raise BrokenSchema(f"its schema is longer than {SCHEMA_LIMIT} characters")
        validator_for(schema, default=Draft202012Validator).check_schema(dict(schema))
        _follow_references(schema)
    except SchemaError as error:
        raise BrokenSchema(f"its schema is no JSON Schema: {error.message[:200]}") from None
    except RecursionError:
        raise BrokenSchema("its schema is nested too deeply") from None
    properties: Mapping[str, Any] = schema.get("properties", {})
    return properties


def _follow_references(schema: JsonObject) -> None:
    resolver = Registry[Any]().with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except (Unresolvable, NoSuchResource):
            raise BrokenSchema(f"its schema has a $ref to nothing that is in it: {reference[:200]}") from None


def _references(node: object) -> Iterator[str]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            elif key not in _DATA:
                yield from _references(value)
    elif isinstance(node, list):
        for item in node:
            yield from _references(item)


def _without_expressions(node: Any, *, names: bool = False) -> Any:
    """The schema without regular expressions, and without the rules that mean nothing without them."""
    if isinstance(node, list):
        return [_without_expressions(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    dropped: set[str] = set()
    if not names:
        dropped |= {"pattern"}
        if "patternProperties" in node:
            dropped |= {"patternProperties", "additionalProperties", "unevaluatedProperties"}
    return {
        key: value if key in _DATA and not names else _without_expressions(value, names=key in _NAMED and not names)
        for key, value in node.items()
        if key not in dropped
    }


def _require_text(tool: str, arguments: JsonObject) -> None:
    """JSON's escapes can spell half a surrogate pair, which no server could be sent."""
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ToolValidationError(
            f"{tool} was not run: its arguments have half a surrogate pair in them: send whole characters", tool=tool
        ) from None
