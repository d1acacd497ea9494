"""Validate arguments against a JSON Schema from an untrusted source, and restore the names that the tool knows.

`$ref` targets are never fetched. The schema's regular expressions are never run, because unlimited backtracking would
block the worker. The server that provided the schema checks its own expressions.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from loom.activities.json_schemas import DATA, NAMED, BrokenSchema, deepest, require_sound, shortened
from loom.activities.toolbox.tool_schemas import ToolSchema, tool_schema
from loom.domain.core.argument_names import argument_name
from loom.domain.core.errors import ToolValidationError
from loom.domain.core.json_text import about_text, is_finite
from loom.domain.core.messages import JsonObject

if TYPE_CHECKING:  # see `json_schemas`
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

_COMPLAINTS: Final = 5


class ArgumentSchema:
    """A schema that is ready for use."""

    def __init__(self, schema: object) -> None:
        """Raises BrokenSchema if the schema can't be used."""
        from jsonschema.validators import Draft202012Validator  # noqa: PLC0415
        from referencing import Registry  # noqa: PLC0415
        from referencing.exceptions import Unresolvable  # noqa: PLC0415

        self._schema: ToolSchema = tool_schema(schema)
        require_sound(self._schema.checked)
        require_sound(self._schema.shown)
        self._validator: Validator = Draft202012Validator(
            _without_expressions(self._schema.checked), registry=Registry()
        )
        try:
            self._validator.is_valid({})
        except RecursionError:
            raise BrokenSchema("its schema refers to itself endlessly") from None
        except Unresolvable as error:
            raise BrokenSchema(f"its schema has a $ref without a target: {error.ref}") from None

    @property
    def shown(self) -> JsonObject:
        """The schema in the form that every provider accepts. Some arguments may have other names in it."""
        return self._schema.shown

    def check(self, tool: str, arguments: JsonObject) -> JsonObject:
        """Return the arguments under the tool's own names if they match the schema. If they match only without their
        null values, return them without these values. Raises ToolValidationError if they don't match.
        """
        _require_sendable(tool, arguments)
        try:
            arguments = self._schema.original(arguments)
        except RecursionError:
            raise _uncheckable(tool) from None
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
            raise _uncheckable(tool) from None

    def _line(self, error: "ValidationError") -> str:
        known = ", ".join(self.shown["properties"]) or "none"
        nearest = deepest(error)
        about = about_text(nearest.instance) if nearest.validator == "type" else ""
        message = about or nearest.message
        steps = (argument_name(step) if step in self._own_names else str(step) for step in nearest.absolute_path)
        for shown, own in self._schema.names.items():
            message = message.replace(repr(own), repr(shown))
        return f"`{'.'.join(steps) or 'arguments'}`: {shortened(message)}; the tool takes {known}"

    @property
    def _own_names(self) -> frozenset[str]:
        return frozenset(self._schema.names.values())


def _uncheckable(tool: str) -> ToolValidationError:
    return ToolValidationError(
        f"{tool} was not run: its arguments cannot be checked against its server's schema; try simpler ones", tool=tool
    )


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
