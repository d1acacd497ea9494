"""Answers as types of Python: a pydantic model, a dataclass, or whatever else pydantic takes, out and back."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from loom.domain.core.errors import OutputSchemaError
from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunResult


def schema_of(output: Any) -> JsonObject:
    """The JSON Schema that an answer of this type has to fit; a mapping is one already."""
    if isinstance(output, Mapping):
        return output
    return TypeAdapter(output).json_schema()


def typed(result: RunResult, output: Any) -> RunResult:
    """The result with its structured output as a value of this type; one that has no answer as it is.

    Raises OutputSchemaError when the type wants more than its schema can say, such as a validator of its own.
    """
    if result.structured_output is None or isinstance(output, Mapping):
        return result
    try:
        value = TypeAdapter(output).validate_json(json.dumps(result.structured_output))
    except ValidationError as error:
        problems = [f"`{'.'.join(map(str, e['loc'])) or '$'}`: {e['msg']}" for e in error.errors(include_url=False)]
        message = f"the answer fits the schema but is no {getattr(output, '__name__', output)}: {'; '.join(problems)}"
        raise OutputSchemaError(message, problems=problems, answer=result.output) from None
    return replace(result, structured_output=value)
