"""What is wrong with a value is said in Loom's words, whatever the validation library calls it."""

from datetime import datetime
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from loom.domain.core.tenants import TENANT_NAME, USER_ID
from loom.domain.core.value_problems import problem_of_value

NAMED = "62 letters, digits, dots, dashes or underscores"


class Inner(BaseModel):
    """A form within a form."""

    model_config = ConfigDict(extra="forbid", strict=True)
    number: int


def _refuse(value: str) -> str:
    raise ValueError("Must be a port")


def problem(kind: Any, value: object) -> str:
    """What is said of the first thing that is wrong."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value, strict=True)
    return problem_of_value(caught.value.errors(include_url=False)[0])


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (int, "many", "must be a whole number"),
        (str, 5, "must be text"),
        (bool, 5, "must be true or false"),
        (list[int], 5, "must be a list"),
        (dict[str, int], [], "must be an object"),
        (Inner, 5, "must be an object"),
        (Inner, {}, "is missing"),
        (Inner, {"number": 1, "x": 2}, "is not a known field"),
        (Annotated[int, Field(ge=1)], 0, "must be at least 1"),
        (Annotated[float, Field(gt=0)], 0.0, "must be more than 0"),
        (Annotated[float, Field(le=2)], 3.0, "must be at most 2"),
        (Annotated[float, Field(allow_inf_nan=False)], float("nan"), "must be a finite number"),
        (Annotated[str, Field(min_length=1)], "", "must not be empty"),
        (Annotated[str, Field(max_length=2)], "abc", "must have at most 2 characters"),
        (Annotated[list[int], Field(min_length=2)], [1], "must have at least 2 items"),
        (Annotated[str, Field(pattern="^a$")], "b", "must match ^a$"),
        (
            Annotated[str, Field(pattern=TENANT_NAME)],
            "a b",
            f"must begin with a letter or digit, followed by up to {NAMED}",
        ),
        (Annotated[str, Field(pattern=USER_ID)], "a\nb", "must have 1 to 200 characters, without control characters"),
        (Literal["allow", "ask", "deny"], "alow", "must be one of allow, ask, deny; did you mean 'allow'?"),
        (Literal["a"], 5, "must be a"),
        (AwareDatetime, datetime(2026, 1, 1), "must be a time with a time zone, such as 2026-01-31T12:00:00Z"),  # noqa: DTZ001
        (Annotated[str, AfterValidator(_refuse)], "x", "must be a port"),
        (complex, "x", "is not a valid value"),
    ],
)
def test_each_problem_has_words(kind: Any, value: object, said: str) -> None:
    assert problem(kind, value) == said


@given(st.text(), st.text(), st.dictionaries(st.sampled_from(["ge", "expected", "min_length", "x"]), st.integers()))
def test_no_text_of_the_library_comes_through(kind: str, message: str, limits: dict[str, int]) -> None:
    library = {"type": f"unknown_{kind}", "msg": f"Input should be {message}", "ctx": limits}

    assert "Input should" not in problem_of_value(library)
