"""Validate the cases of `loom permissions test`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BeforeValidator, Field, JsonValue, ValidationError
from pydantic_core import PydanticCustomError

from loom.app.document_files import read_entries
from loom.app.forms.form import Form, Name, Verdict, explained
from loom.domain.agents.inheritance import DEFAULT_AGENT
from loom.domain.core.errors import BadRequest
from loom.domain.permissions.rules import parse_rules

_VERDICTS: Final = get_args(Verdict)


def _expectation(value: Any) -> Any:
    expected = value if isinstance(value, list) else [value]
    if not expected or any(each not in _VERDICTS for each in expected):
        raise PydanticCustomError("expectation", "must be allow, ask or deny, or a list of these")
    return value


class PermissionCase(Form):
    """A tool call and its expected verdicts."""

    tool: str
    arguments: dict[str, JsonValue]
    """The call's arguments. Arguments that rules don't check may be omitted."""
    expect: Annotated[str | list[str], BeforeValidator(_expectation)]
    permissions: dict[str, Verdict] = Field({})
    """Rules that override the agent's rules."""
    mode: Literal["default", "read-only", "accept-edits", "bypass"] | None = None
    agent: Name = DEFAULT_AGENT
    name: str | None = None
    """A name that identifies the case in reports."""

    def expects(self, verdict: str) -> bool:
        """Return whether this verdict is expected."""
        return verdict in ([self.expect] if isinstance(self.expect, str) else self.expect)


def read_cases(path: Path) -> tuple[tuple[int, PermissionCase], ...]:
    """Return the cases in a file, each with its line. Raises BadRequest, which lists all errors by line and field."""
    cases: list[tuple[int, PermissionCase]] = []
    problems: list[str] = []
    for line, entry in read_entries(path):
        try:
            case = PermissionCase.model_validate(entry)
            parse_rules(case.permissions)
        except ValidationError as error:
            problems.extend(f"{path}:{line}: {problem}" for problem in _explained(error))
        except BadRequest as error:
            problems.append(f"{path}:{line}: permissions: {error.message}")
        else:
            cases.append((line, case))
    if problems:
        raise BadRequest("\n".join(problems), field="FILE")
    return tuple(cases)


def _explained(error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_url=False):
        if not problem["loc"]:
            yield f"must be an object with fields such as `tool`, not {problem['input']!r:.60}"
        else:
            yield explained(problem, _fields)


def _fields(_: Sequence[int | str]) -> Sequence[str]:
    return tuple(PermissionCase.model_fields)
