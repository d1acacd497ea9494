"""Validate answers against a run's output schema.

The schema comes from the run's caller. `$ref` targets are never fetched, and regular expressions run in a linear-time
engine.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema

from loom.activities.json_schemas import BrokenSchema, deepest, require_sound, shortened, subschemas
from loom.domain.agents.spec import AgentSpec
from loom.domain.core.errors import BadRequest
from loom.domain.core.json_text import NotJson, is_finite
from loom.domain.core.messages import JsonObject, Message
from loom.domain.core.output_schema import CheckedAnswer, values_of, values_of_done
from loom.domain.core.tool_calls import PreparedCall
from loom.domain.core.tool_names import DONE
from loom.domain.run.activity_payloads import StopReason

if TYPE_CHECKING:  # see `json_schemas`
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

FIELD: Final = "output_schema"
_COMPLAINTS: Final = 5
_PROBES: Final[Sequence[Any]] = ({}, [], "")


class OutputSchema:
    """A schema that is ready for use."""

    def __init__(self, schema: JsonObject) -> None:
        """Prepare the schema. Raises BadRequest if the schema is invalid."""
        from jsonschema.validators import Draft202012Validator, extend, validator_for  # noqa: PLC0415
        from referencing import Registry  # noqa: PLC0415

        try:
            require_sound(schema)
            _require_patterns(schema)
        except BrokenSchema as error:
            raise BadRequest(f"{FIELD}: {error}", field=FIELD) from None
        dialect: Any = validator_for(schema, default=Draft202012Validator)
        made: Any = extend(dialect, {"pattern": _pattern})  # type: ignore[no-untyped-call]  # missing type in the stubs
        self._validator: Validator = made(schema, registry=Registry())
        self._require_an_end()

    def check(self, values: Sequence[Any]) -> CheckedAnswer:
        """Return the first value that matches the schema. If no value matches, return the errors of the first value."""
        wrong: tuple[str, ...] = ()
        for value in values:
            problems = self._problems(value)
            if not problems:
                return CheckedAnswer(value=value)
            wrong = wrong or problems
        return CheckedAnswer(problems=wrong)

    def _require_an_end(self) -> None:
        from referencing.exceptions import Unresolvable  # noqa: PLC0415

        try:
            for value in _PROBES:
                self._validator.is_valid(value)
        except RecursionError:
            raise BadRequest(f"{FIELD}: its schema refers to itself endlessly", field=FIELD) from None
        except Unresolvable as error:
            raise BadRequest(f"{FIELD}: its schema has a $ref without a target: {error.ref}", field=FIELD) from None

    def _problems(self, value: Any) -> tuple[str, ...]:
        from referencing.exceptions import Unresolvable  # noqa: PLC0415

        if not is_finite(value):
            return ("`$`: a number in it is too large: write numbers that JSON readers accept",)
        try:
            errors = sorted(self._validator.iter_errors(value), key=lambda error: error.json_path)
        except (RecursionError, Unresolvable):
            return ("`$`: this value cannot be checked against the schema; write a simpler value",)
        told = [_line(error) for error in errors[:_COMPLAINTS]]
        more = len(errors) - len(told)
        return (*told, *([f"and {more} more"] if more else []))


def checked(
    spec: AgentSpec,
    earlier: Sequence[Message],
    message: Message,
    plans: Sequence[PreparedCall],
    *,
    stop: StopReason,
    pieces: int,
) -> CheckedAnswer | None:
    """Validate an answer against the agent's schema. `pieces` is the number of earlier messages that are parts of the
    answer. Return None if the text isn't an answer.
    """
    if spec.output_schema is None or (spec.require_done_tool and not message.tool_calls):
        return None
    calls = zip(message.tool_calls, plans, strict=True)
    done = next((call for call, plan in calls if call.name == DONE and not plan.error), None)
    cut = [m.text for m in earlier if m.role == "assistant"][-pieces:] if pieces else []
    text = "".join((*cut, message.text))
    if done is None and (message.tool_calls or stop == "length" or not text.strip()):
        return None
    try:
        values = values_of_done(done, message.text) if done else values_of(text)
    except NotJson as error:
        return CheckedAnswer(problems=(str(error),))
    return OutputSchema(spec.output_schema).check(values)


def _line(error: "ValidationError") -> str:
    nearest = deepest(error)
    return f"`{nearest.json_path}`: {shortened(nearest.message)}"


def _require_patterns(schema: JsonObject) -> None:
    for node in subschemas(schema):
        if "patternProperties" in node:
            raise BrokenSchema("its schema has patternProperties, which is not supported: use additionalProperties")
        if isinstance(pattern := node.get("pattern"), str):
            try:
                _matcher(pattern)
            except PatternError:
                raise BrokenSchema(
                    f"its schema has the pattern {pattern[:100]!r}, which cannot be used: look-around and"
                    " back-references are not supported"
                ) from None


def _pattern(_validator: "Validator", pattern: str, value: Any, _schema: Any) -> "Iterator[ValidationError]":
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415

    if isinstance(value, str) and not _matcher(pattern).isinstance_python(value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _matcher(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
