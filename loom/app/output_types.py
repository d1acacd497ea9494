"""Convert a Python type to a JSON Schema for the model, and convert the model's answer to a value of the type."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from loom.domain.core.errors import OutputSchemaError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult
from loom.domain.core.value_problems import problem_of_value

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class TypedResult(RunResult, Generic[T]):
    """The result of a run whose answer has the type `T`."""

    structured_output: T | None
    """The answer, or None if the run ended without one."""


def schema_of(output: Any) -> JsonObject:
    """Return the JSON Schema of a type. If `output` is a mapping, treat it as a schema and return it unchanged."""
    if isinstance(output, Mapping):
        return output
    return TypeAdapter(output).json_schema()


def typed(result: RunResult, output: Any) -> RunResult:
    """Return the result with its structured output converted to the type `output`.

    If `output` is a mapping, the result is returned unchanged.

    Raises OutputSchemaError if the answer matches the schema but the type rejects it, for example in a validator.
    """
    if isinstance(output, Mapping):
        return result
    given = {field.name: getattr(result, field.name) for field in fields(result)}
    if result.structured_output is None:
        return TypedResult(**given)
    try:
        value = TypeAdapter(output).validate_json(json.dumps(result.structured_output))
    except ValidationError as error:
        problems = [
            f"`{'.'.join(map(str, e['loc'])) or '$'}` {problem_of_value(e)}" for e in error.errors(include_url=False)
        ]
        message = (
            f"the answer matches the JSON Schema, but it is not a valid {getattr(output, '__name__', output)}: "
            + "; ".join(problems)
        )
        raise OutputSchemaError(message, problems=problems, answer=result.output) from None
    return TypedResult(**{**given, "structured_output": value})
