"""The shared code of all forms: the strict base class, value types and readable error messages."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from loom.domain.core.value_problems import problem_of_value

Name = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[^\s\x00-\x1f](.*[^\s])?$")]
Model = Annotated[str, StringConstraints(pattern=r"^(demo|(openai|openai-responses|anthropic):.+)$")]
Verdict = Literal["allow", "ask", "deny"]
Count = Annotated[int, Field(ge=1)]


class Form(BaseModel):
    """Fields that a person writes. Unknown fields are rejected, and values aren't coerced to other types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def explained(problem: Any, fields_at: Callable[[Sequence[int | str]], Sequence[str]]) -> str:
    """Translate pydantic's errors into messages for the person who wrote the fields.

    `fields_at` returns the valid fields at a location.
    """
    location, kind, value = problem["loc"], problem["type"], problem["input"]
    # Steps in brackets aren't part of the document: a mapping's key, or one of several forms of a value.
    field = ".".join(str(step) for step in location if not str(step).startswith("["))
    if kind == "extra_forbidden":
        known = fields_at(location)
        near = get_close_matches(str(location[-1]), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the fields are {', '.join(known)}"
        return f"there is no field {field}: {hint}"
    if location[0] == "permissions" and len(location) > 1:
        return f"permissions: rule {str(location[1])!r} must be allow, ask or deny, not {value!r}"
    if location[-1] == "name" and kind != "string_type":
        return f"{field}: {value!r} cannot be a name: use 1 to 64 characters on one line, without a space at either end"
    if kind == "string_pattern_mismatch":
        return f"{field}: {value!r} is not a model: use openai:NAME, openai-responses:NAME, anthropic:NAME or demo"
    if kind == "list_type" and isinstance(value, str):
        return f"`{field}` must be a list of names: [{value!r}]"
    limits = problem.get("ctx", {})
    if (limit := next((limit for limit in _WORDS if limit in limits), None)) is not None:
        return f"{field} {value!r} {_WORDS[limit]} {str(limits[limit]).replace(chr(39), '')}"
    if kind == "missing":
        return f"{field} is missing"
    known = _KINDS.get(kind) or problem_of_value(problem)
    is_beyond = limits.keys() & {"ge", "gt", "le"}
    return f"{field} {value!r} {known}" if is_beyond else f"{field}: {value!r} is invalid: it {known}"


_WORDS: Final = {
    "expected": "must be one of",
    "min_length": "must have at least",
    "max_length": "is longer than",
}
_KINDS: Final = {
    "string_type": "must be text; put it in quotes",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must contain `name: value` lines",
    "model_type": "must contain `name: value` lines",
    "finite_number": "must be a finite number",
}
