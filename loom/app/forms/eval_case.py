"""Validate the data sets of `loom eval`: tasks with checks."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import BeforeValidator, Discriminator, Field, JsonValue, StringConstraints, Tag, ValidationError
from pydantic_core import PydanticCustomError

from loom.activities.output_schema import OutputSchema
from loom.app.document_files import read_entries
from loom.app.forms.form import Count, Form, Verdict, explained
from loom.domain.core.errors import BadRequest
from loom.workflows.validation import read_request

CASE_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,59}$"
"""Names of cases and evals. They are parts of the ids of runs, joined by dots."""

C = TypeVar("C", bound="Check")


def _pattern(value: Any) -> Any:
    try:
        re.compile(value)
    except re.error as error:
        raise PydanticCustomError("pattern", "is not a regular expression: {reason}", {"reason": str(error)}) from None
    except TypeError:
        pass  # not a text, which pydantic says
    return value


Pattern: TypeAlias = Annotated[str, BeforeValidator(_pattern)]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1)]


class ExactCheck(Form):
    """The answer is this text. Leading and trailing whitespace doesn't count."""

    exact: str


class ContainsCheck(Form):
    """The answer contains this text."""

    contains: Text


class RegexCheck(Form):
    """A part of the answer matches this regular expression."""

    regex: Pattern


class SchemaCheck(Form):
    """The answer is JSON that matches this JSON Schema."""

    json_schema: dict[str, JsonValue] = Field(alias="schema")


class RuleCheck(Form):
    """Your function accepts the run: `package.module:function`, or `file.py:function` next to the data set."""

    rule: Text


class JudgeCheck(Form):
    """A model scores how well the answer meets this rubric."""

    judge: Text
    min_score: float = Field(0.7, ge=0, le=1, strict=False)
    model: str | None = None
    """The model that judges. Default: `--judge-model`, or the worker's default model."""


class FileCheck(Form):
    """A file in the run's workspace exists, and its text matches these fields."""

    file: Text
    exists: bool = True
    exact: str | None = None
    contains: Text | None = None
    regex: Pattern | None = None


class CalledCheck(Form):
    """The run called this tool. `arguments` contains only those that matter."""

    called: Text
    arguments: dict[str, JsonValue] = Field({})
    status: str | None = None
    """The status of the call's result, such as `success` or `denied`."""
    times: int | None = Field(None, ge=1)


class NotCalledCheck(Form):
    """The run didn't call this tool, whether or not the call was allowed."""

    not_called: Text
    arguments: dict[str, JsonValue] = Field({})


Check: TypeAlias = (
    FileCheck
    | CalledCheck
    | NotCalledCheck
    | JudgeCheck
    | RuleCheck
    | SchemaCheck
    | ExactCheck
    | ContainsCheck
    | RegexCheck
)
_BY_FIELD: Final[Mapping[str, type[Form]]] = {
    "file": FileCheck,  # first: a check of a file also has `contains`
    "called": CalledCheck,
    "not_called": NotCalledCheck,
    "judge": JudgeCheck,
    "rule": RuleCheck,
    "schema": SchemaCheck,
    "exact": ExactCheck,
    "contains": ContainsCheck,
    "regex": RegexCheck,
}


def _kind(value: Any) -> str | None:
    kind = next((field for field in _BY_FIELD if isinstance(value, dict) and field in value), None)
    return None if kind is None else f"[{kind}]"


_OneCheck: TypeAlias = Annotated[
    Annotated[FileCheck, Tag("[file]")]
    | Annotated[CalledCheck, Tag("[called]")]
    | Annotated[NotCalledCheck, Tag("[not_called]")]
    | Annotated[JudgeCheck, Tag("[judge]")]
    | Annotated[RuleCheck, Tag("[rule]")]
    | Annotated[SchemaCheck, Tag("[schema]")]
    | Annotated[ExactCheck, Tag("[exact]")]
    | Annotated[ContainsCheck, Tag("[contains]")]
    | Annotated[RegexCheck, Tag("[regex]")],
    Discriminator(
        _kind,
        custom_error_type="check",
        custom_error_message=f"a check has one of {', '.join(_BY_FIELD)}",
    ),
]


class CaseForm(Form):
    """A task, how it runs, and the checks of its answer."""

    task: Text
    checks: list[_OneCheck] = Field(min_length=1)
    name: Annotated[str, StringConstraints(pattern=CASE_NAME)] | None = None
    """Default: `case-` and the number of the case in the file."""
    agent: str | None = None
    model: str | None = None
    permissions: dict[str, Verdict] = Field({})
    mode: Literal["default", "read-only", "accept-edits", "bypass"] | None = None
    workspace: Text | None = None
    """A folder next to the data set. Each run works in a copy of it."""
    attach: list[Text] = Field([])
    """Files next to the data set, or URLs."""
    output_schema: dict[str, JsonValue] | None = None
    skills: list[str] = Field([])
    max_turns: Count | None = None
    budget: dict[str, JsonValue] = Field({})
    model_options: dict[str, JsonValue] = Field({})
    metadata: dict[str, JsonValue] = Field({})


_REQUEST: Final = (
    "task",
    "agent",
    "model",
    "permissions",
    "mode",
    "output_schema",
    "skills",
    "max_turns",
    "budget",
    "model_options",
    "metadata",
)
"""The fields of a case that its runs' requests also have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalCase:
    """A case of a data set that is ready to run."""

    where: str
    """The file and the line, for errors."""
    name: str
    request: Mapping[str, Any]
    """The request of the case's runs, without its workspace and parts."""
    checks: tuple[Check, ...]
    workspace: Path | None
    attach: tuple[str, ...]

    def checks_of(self, kind: type[C]) -> tuple[C, ...]:
        """Return the checks of one kind."""
        return tuple(check for check in self.checks if isinstance(check, kind))


def read_eval_cases(path: Path) -> tuple[EvalCase, ...]:
    """Return the cases in a file: a YAML list, or one JSON object on each line.

    Raises BadRequest, which lists all errors by line and field.
    """
    cases: dict[str, EvalCase] = {}
    problems: list[str] = []
    for number, (line, entry) in enumerate(read_entries(path), start=1):
        where = f"{path}:{line}"
        try:
            case = _case(CaseForm.model_validate(entry), path.parent, where, f"case-{number}")
        except ValidationError as error:
            problems.extend(f"{where}: {problem}" for problem in _explained(error))
        except BadRequest as error:
            problems.append(f"{where}: {error.message}")
        else:
            if case.name in cases:
                problems.append(f"{where}: name: {case.name!r} is also in {cases[case.name].where}: rename one of them")
            cases[case.name] = case
    if problems:
        raise BadRequest("\n".join(problems), field="FILE")
    return tuple(cases.values())


def _case(form: CaseForm, folder: Path, where: str, default_name: str) -> EvalCase:
    """Return the case. Raises BadRequest if a run would refuse its request, or if a check can't be made."""
    given = {field: value for field in _REQUEST if (value := getattr(form, field)) not in (None, {}, [])}
    read_request(given)
    for number, check in enumerate(form.checks):
        try:
            _refuse_unusable(check, has_workspace=form.workspace is not None)
        except BadRequest as error:
            raise BadRequest(f"checks.{number}.{error.message}", field=f"checks.{number}") from None
    workspace = None if form.workspace is None else folder / form.workspace
    if workspace is not None and not workspace.is_dir():
        raise BadRequest(f"workspace: there is no folder {workspace}", field="workspace")
    files = tuple(each if _is_url(each) else str(folder / each) for each in form.attach)
    return EvalCase(
        where=where,
        name=form.name or default_name,
        request=given,
        checks=tuple(form.checks),
        workspace=workspace,
        attach=files,
    )


def _refuse_unusable(check: Check, *, has_workspace: bool) -> None:
    match check:
        case SchemaCheck():
            try:
                OutputSchema(check.json_schema)
            except BadRequest as error:
                raise BadRequest(error.message.replace("output_schema", "schema", 1), field="schema") from None
        case FileCheck() if not has_workspace:
            raise BadRequest("file: the case needs a `workspace`, so that each run has its own folder", field="file")
        case FileCheck(exists=False) if (check.exact, check.contains, check.regex) != (None, None, None):
            raise BadRequest("exists: a file that must not exist has no text to check", field="exists")
        case FileCheck() if Path(check.file).is_absolute() or ".." in Path(check.file).parts:
            raise BadRequest(f"file: {check.file!r} must be a path inside the workspace", field="file")
        case _:
            pass


def _is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def _explained(error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_url=False):
        where = ".".join(str(step) for step in problem["loc"] if not str(step).startswith("["))
        if not problem["loc"]:
            yield f"must be an object with fields such as `task` and `checks`, not {problem['input']!r:.60}"
        elif problem["type"] in ("check", "pattern"):
            yield f"{where}: {problem['msg']}"
        elif where == "name" and problem["type"] == "string_pattern_mismatch":
            yield f"name: {problem['input']!r} must have 1 to 60 letters, digits, hyphens and underscores"
        else:
            yield explained(problem, _fields)


def _fields(location: Sequence[int | str]) -> Sequence[str]:
    """Return the fields of the form at this location: of a check, if the location names its kind, else of a case."""
    kind = next((str(step).strip("[]") for step in location if str(step).startswith("[")), None)
    form: type[Form] = CaseForm if kind is None else _BY_FIELD[kind]
    return tuple(field.alias or name for name, field in form.model_fields.items())
