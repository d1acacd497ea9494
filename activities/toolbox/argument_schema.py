"""Validate arguments against a JSON Schema from an untrusted source.

`$ref` targets are never fetched. The schema's regular expressions are never run, because unlimited backtracking would
block the worker. The server that provided the schema checks its own expressions.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from loom.activities.json_schemas import DATA, NAMED, BrokenSchema, deepest, require_sound, shortened
from loom.domain.core.errors import ToolValidationError
from loom.domain.core.json_text import about_text, is_finite
from loom.domain.core.messages import JsonObject

if TYPE_CHECKING:  # see `json_schemas`
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

_COMPLAINTS: Final = 5


class ArgumentSchema:
    """A schema that is ready for use."""

    def __init__(self, schema: JsonObject) -> None:
        """Raises BrokenSchema if the schema can't be used."""
        from jsonschema.validators import Draft202012Validator, validator_for  # noqa: PLC0415
        from referencing import Registry  # noqa: PLC0415
        from referencing.exceptions import Unresolvable  # noqa: PLC0415

        self._properties: Mapping[str, Any] = _fit(schema)
        made: Any = validator_for(schema, default=Draft202012Validator)
        self._validator: Validator = made(_without_expressions(schema), registry=Registry())
        try:
            self._validator.is_valid({})
        except RecursionError:
            raise BrokenSchema("its schema refers to itself endlessly") from None
        except Unresolvable as error:
            raise BrokenSchema(f"its schema has a $ref without a target: {error.ref}") from None

    def check(self, tool: str, arguments: JsonObject) -> JsonObject:
        """Return the arguments if they match the schema. If they match only without their null values, return them
        without these values. Raises ToolValidationError if they don't match.
        """
        _require_sendable(tool, arguments)
        if not (errors := self._errors(tool, arguments)):
            return arguments
        given = {name: value for name, value in arguments.items() if value is not None}
        if len(given) < len(arguments) and not self._errors(tool, given):
            return given
        lines = [self._line(error) for error in errors[:_COMPLAINTS]]
        raise ToolValidationError(
            "\n".join([f"{tool} was not run because its arguments are wrong:", *(f"- {line}" for line in lines)]),
            tool=tool,
        )

    def _errors(self, tool: str, arguments: JsonObject) -> "Sequence[ValidationError]":
        from referencing.exceptions import Unresolvable  # noqa: PLC0415

        try:
            return sorted(self._validator.iter_errors(arguments), key=lambda error: [str(step) for step in error.path])
        except (RecursionError, Unresolvable):
            raise ToolValidationError(
                f"{tool} was not run: its arguments cannot be checked against its server's schema; try simpler ones",
                tool=tool,
            ) from None

    def _line(self, error: "ValidationError") -> str:
        known = ", ".join(self._properties) or "none"
        nearest = deepest(error)
        where = ".".join(str(step) for step in nearest.absolute_path) or "arguments"
        about = about_text(nearest.instance) if nearest.validator == "type" else ""
        return f"`{where}`: {about or shortened(nearest.message)}; the tool takes {known}"


def _fit(schema: JsonObject) -> Mapping[str, Any]:
    """Return the properties of a schema that describes an object and doesn't refer to other documents."""
    if schema.get("type") != "object":
        raise BrokenSchema("its schema does not describe an object")
    require_sound(schema)
    properties: Mapping[str, Any] = schema.get("properties", {})
    return properties


def _without_expressions(node: Any, *, names: bool = False) -> Any:
    """Return the schema without regular expressions and without the rules that depend on them."""
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
        key: value if key in DATA and not names else _without_expressions(value, names=key in NAMED and not names)
        for key, value in node.items()
        if key not in dropped
    }


def _require_sendable(tool: str, arguments: JsonObject) -> None:
    """Reject half a surrogate pair and infinite numbers. Python reads both from JSON, but they can't be sent to any
    server.
    """
    try:
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ToolValidationError(
            f"{tool} was not run: its arguments contain half a surrogate pair: send whole characters", tool=tool
        ) from None
    if not is_finite(arguments):
        raise ToolValidationError(
            f"{tool} was not run: its arguments contain NaN or an infinite number: send finite numbers", tool=tool
        )
