"""Answers as Python types: the JSON Schema of a type for the model, and its answer as a value of that type."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from loom.domain.core.errors import OutputSchemaError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class TypedResult(RunResult, Generic[T]):
    """The result of a run whose answer is a value of the type `T`."""

    structured_output: T | None
    """None when the run ended without an answer."""


def schema_of(output: Any) -> JsonObject:
    """The JSON Schema of a type; a mapping is taken as a schema."""
    if isinstance(output, Mapping):
        return output
    return TypeAdapter(output).json_schema()


def typed(result: RunResult, output: Any) -> RunResult:
    """The result with its structured output as a value of the type `output`; for a mapping the result as it is.

    Raises OutputSchemaError when the answer fits the schema but the type refuses it, for example in a validator.
    """
    if isinstance(output, Mapping):
        return result
    given = {field.name: getattr(result, field.name) for field in fields(result)}
    if result.structured_output is None:
        return TypedResult(**given)
    try:
        value = TypeAdapter(output).validate_json(json.dumps(result.structured_output))
    except ValidationError as error:
        problems = [f"`{'.'.join(map(str, e['loc'])) or '$'}`: {e['msg']}" for e in error.errors(include_url=False)]
        message = (
            f"the answer fits the JSON Schema, but it is not a valid {getattr(output, '__name__', output)}: "
            + "; ".join(problems)
        )
        raise OutputSchemaError(message, problems=problems, answer=result.output) from None
    return TypedResult(**{**given, "structured_output": value})
