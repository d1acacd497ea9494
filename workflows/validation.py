"""Validate all values that callers send to a run. Each error names the invalid field and explains the problem."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    AliasChoices,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
)
from temporalio import workflow

from loom.domain.core.approval_proofs import LONGEST
from loom.domain.core.errors import BadRequest
from loom.domain.core.media import MOST_PARTS
from loom.domain.core.messages import JsonObject, Part, canonical
from loom.domain.core.model_options import read_model_options
from loom.domain.core.repositories import (
    FORK,
    Archive,
    ArchiveWorkspace,
    GitWorkspace,
    Workspace,
    problem_of_address,
    problem_of_branch,
    problem_of_revision,
)
from loom.domain.core.requests import CREW_RUN, LONGEST_RUN, Budget, ForkedFrom, ModelOptions, RunError, RunRequest
from loom.domain.core.tenants import TENANT_NAME, USER_ID
from loom.domain.core.value_problems import DIGEST, WEB_ADDRESS, problem_of_value
from loom.domain.machine.transitions import evolve, start
from loom.domain.memory.backfill import UpkeepRequest
from loom.domain.permissions.judge import Mode
from loom.domain.permissions.rules import parse_rules
from loom.domain.run.carried_state import upgraded
from loom.domain.run.events import (
    AbortRequested,
    Approved,
    Denied,
    MessageReceived,
    PauseRequested,
    PermissionsSet,
    ResumeRequested,
    RetryRequested,
    RunRefused,
    SteeringEvent,
)
from loom.domain.run.state import RunState
from loom.domain.tree.budget import BudgetRequest
from loom.domain.tree.budget_shares import GRANT, WANT
from loom.domain.tree.events import AncestryChanged, BudgetGranted, BudgetRequested, ChildReported
from loom.domain.tree.lineage import Lineage, is_child
from loom.domain.tree.signals import ANCESTRY, REPORT
from loom.domain.tree.tree import ChildReport
from loom.workflows.payload_converter import Undecodable, adapter_of

_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
_Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=300)]
"""The maximum length of a name. Names become search attributes, which the server limits to 2,048 bytes."""
_MessageId = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100)]
_Tenant = Annotated[str, StringConstraints(pattern=TENANT_NAME)]
_UserId = Annotated[str, StringConstraints(pattern=USER_ID)]


_Number = TypeVar("_Number", int, float)
MOST_COUNTED: Final = 10**300
"""The highest number in a budget. A larger one may have no `float` to compare with what is measured."""


def _counted(number: _Number) -> _Number:
    if number > MOST_COUNTED:
        raise ValueError("must be at most 10^300")
    return number


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


FormT = TypeVar("FormT", bound=Form)


_Count = Annotated[int, AfterValidator(_counted)]
_Amount = Annotated[float, AfterValidator(_counted)]


class BudgetForm(Form):
    tokens: _Count | None = Field(None, gt=0, validation_alias=AliasChoices("tokens", "max_tokens"))
    cost_usd: _Amount | None = Field(
        None, gt=0, validation_alias=AliasChoices("cost_usd", "max_cost_usd", "cost", "max_cost")
    )
    tool_calls: _Count | None = Field(None, gt=0, validation_alias=AliasChoices("tool_calls", "max_tool_calls"))
    seconds: float | None = Field(
        None, gt=0, le=LONGEST_RUN, validation_alias=AliasChoices("seconds", "max_seconds", "wall_time")
    )
    turns: _Count | None = Field(None, gt=0)
    depth: _Count | None = Field(None, ge=0)
    children: _Count | None = Field(None, ge=0)


class _ForkedFrom(Form):
    run_id: _Text
    turn: int = Field(ge=0)
    message: _Text | None = None


def _right(problem_of: Callable[[str], str]) -> AfterValidator:
    """Return a validator that refuses values with a problem."""

    def checked(value: str) -> str:
        if problem := problem_of(value):
            raise ValueError(problem)
        return value

    return AfterValidator(checked)


class GitForm(Form):
    """A Git repository that a run works on, in a clone of its own."""

    git: Annotated[_Text, StringConstraints(max_length=2000), _right(problem_of_address)]
    revision: Annotated[_Text, _right(problem_of_revision)] | None = None
    push: Annotated[_Text, _right(problem_of_branch)] | None = None


class ArchiveContentForm(Form):
    """The content of an archive: itself, or the digest of one that is stored."""

    data: _Text | None = None
    digest: Annotated[str, StringConstraints(pattern=DIGEST)] | None = None
    name: str = Field("", max_length=300)


class ArchiveForm(Form):
    """An archive whose files a run works on, in a clone of its own."""

    archive: ArchiveContentForm


_FOLDER, _REPOSITORY, _ARCHIVE = "<folder>", "<repository>", "<archive>"
"""The kinds of workspaces. The library adds them to the place of an error, from which they are left out."""


def _kind_of_workspace(value: object) -> str | None:
    if isinstance(value, ArchiveForm) or (isinstance(value, Mapping) and "archive" in value):
        return _ARCHIVE
    if isinstance(value, Mapping | GitForm):
        return _REPOSITORY
    return _FOLDER if isinstance(value, str) else None


_Workspace = Annotated[
    Annotated[_Text, Tag(_FOLDER)] | Annotated[GitForm, Tag(_REPOSITORY)] | Annotated[ArchiveForm, Tag(_ARCHIVE)],
    Discriminator(
        _kind_of_workspace,
        custom_error_type="neither_folder_nor_repository",
        custom_error_message="must be a path, or an object with `git` or `archive`",
    ),
]


class SharedForm(Form):
    """The request fields that runs, forks and chats have in common."""

    model: _Name | None = None
    workspace: _Workspace | None = None
    permissions: dict[str, str] = Field(default_factory=dict)
    mode: Mode | None = Field(None, strict=False)
    max_turns: int | None = Field(None, ge=1, le=100_000)
    patience: float | None = Field(None, ge=0, le=LONGEST_RUN)
    budget: BudgetForm | None = None
    require_done_tool: bool | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    priority: int | None = Field(None, ge=1, le=5)
    tenant: _Tenant | None = None
    user_id: _UserId | None = None
    model_options: dict[str, Any] = Field(default_factory=dict)


class ForkForm(SharedForm):
    """The request fields that a fork may change. `tenant` and `user_id` are those of the other run."""

    session_id: _Name | None = None


class RequestForm(ForkForm):
    """The request fields that agent runs and crew runs have in common."""

    task: _Text
    skills: tuple[_Name, ...] = Field((), strict=False)
    output_schema: JsonObject | None = None
    forked_from: _ForkedFrom | None = None


class PartForm(Form):
    data: _Text | None = None
    path: _Text | None = None
    url: Annotated[str, StringConstraints(pattern=WEB_ADDRESS, max_length=4000)] | None = None
    digest: Annotated[str, StringConstraints(pattern=DIGEST)] | None = None
    name: str = Field("", max_length=300)
    # Accepted and ignored, because the content decides: a part of a transcript can be sent again.
    type: Literal["text", "image", "audio", "file"] | None = None
    media_type: str | None = None


class RunForm(RequestForm):
    agent: _Name = "default"
    parts: tuple[PartForm, ...] = Field((), strict=False, max_length=MOST_PARTS)
    chat: bool = False
    message_id: _MessageId | None = None


class CrewForm(RequestForm):
    crew: _Name | dict[str, Any]


class _UpkeepRequest(Form):
    since: AwareDatetime | None = Field(None, strict=False)
    rounds: int = Field(UpkeepRequest().rounds, ge=1, le=10_000)


class _Approve(Form):
    call_id: _Text | None = None
    scope: Literal["once", "run"] = "once"
    arguments: dict[str, Any] | None = None
    digest: str | None = None
    by: str = ""
    proof: str = Field("", max_length=LONGEST)


class _Deny(Form):
    call_id: _Text | None = None
    reason: str = ""
    by: str = ""


class _Abort(Form):
    reason: str = ""
    by: str = ""


class _By(Form):
    by: str = ""


class _Retry(Form):
    model: _Name | None = None
    by: str = ""
    end: int | None = Field(None, ge=1)
    max_turns: int | None = Field(None, ge=1, le=100_000)
    budget: BudgetForm | None = None
    message: str = ""


class _SendMessage(Form):
    text: _Text
    by: str = ""
    from_agent: bool = False
    parts: tuple[PartForm, ...] = Field((), strict=False, max_length=MOST_PARTS)
    message_id: _MessageId | Literal[""] = ""
    when_busy: Literal["queue", "interrupt", "own_run"] | None = None


class _SetPermissions(Form):
    rules: dict[str, str] = Field(min_length=1)
    by: str = ""


RELATIVES: Final = (REPORT, WANT, ANCESTRY, GRANT)
"""The signals that are sent only by other runs in the same tree."""


def _retry_requested(*, budget: BudgetForm | None, **given: Any) -> RetryRequested:
    return RetryRequested(budget=_budget(budget), **given)


def _message_received(*, parts: tuple[PartForm, ...], **given: Any) -> MessageReceived:
    return MessageReceived(parts=_parts(parts), **given)


def _parts(given: tuple[PartForm, ...]) -> tuple[Part, ...]:
    """Return the parts as they were given. Their type is known once their content is read."""
    for number, part in enumerate(given):
        if sum(source is not None for source in (part.data, part.path, part.url, part.digest)) != 1:
            where = f"parts.{number}"
            raise BadRequest(f"{where}: a part has one of `data` (base64), `path`, `url` and `digest`", field=where)
    return tuple(
        Part(
            type="file",
            data=part.data or "",
            path=part.path or "",
            url=part.url or "",
            digest=part.digest or "",
            name=part.name,
        )
        for part in given
    )


_STEERING: Final[Mapping[str, tuple[type[Form], Callable[..., SteeringEvent]]]] = {
    "abort": (_Abort, AbortRequested),
    "pause": (_By, PauseRequested),
    "resume": (_By, ResumeRequested),
    "retry": (_Retry, _retry_requested),
    "approve": (_Approve, Approved),
    "deny": (_Deny, Denied),
    "send_message": (_SendMessage, _message_received),
    "set_permissions": (_SetPermissions, PermissionsSet),
}

STEERING: Final = tuple(_STEERING)
"""The names of a run's signals and updates."""

STOPS: Final = ("abort", "pause")
"""The signals that stop a run. They are carried out even if the payload is malformed."""
_LONGEST: Final = 500
"""The maximum number of characters that are kept if a text field has an invalid value."""
_LONGEST_NAME: Final = 200
"""The maximum number of characters of a field's name in an error."""


def read_request(payload: object) -> RunRequest:
    """Read the input of a run. Raises BadRequest if it is invalid."""
    if payload is None:
        raise BadRequest('no input: a run needs at least {"task": "…"}', field="task")
    checked = _check(RunForm, payload, "the run's input")
    if checked.message_id is not None and not checked.chat:
        raise BadRequest("message_id: only a chat's first message has an id; set `chat`, too", field="message_id")
    if checked.chat and checked.forked_from is not None:
        raise BadRequest("chat: a fork can't be a chat; leave out `chat` or `forked_from`", field="chat")
    if checked.chat and isinstance(checked.workspace, GitForm) and checked.workspace.push:
        raise BadRequest(
            "workspace.push: a chat ends when a person ends it, and only a run that completes pushes its change: leave"
            " `push` out, and use the patch in the run's artifacts",
            field="workspace.push",
        )
    asked = replace(_request(checked), agent=checked.agent, parts=_parts(checked.parts))
    return replace(asked, chat=True, message_id=checked.message_id) if checked.chat else asked


def read_crew_request(payload: object) -> RunRequest:
    """Read the input of a crew run. Raises BadRequest if it is invalid."""
    if payload is None:
        raise BadRequest('no input: a crew needs at least {"crew": "…", "task": "…"}', field="task")
    checked = _check(CrewForm, payload, "the crew's input")
    name = checked.crew if isinstance(checked.crew, str) else checked.crew.get("name")
    if not isinstance(name, str) or not name.strip():
        raise BadRequest("crew.name: a crew needs a name", field="crew.name")
    return replace(_request(checked), agent=name, crew=checked.crew)


def read_upkeep_request(payload: object) -> UpkeepRequest:
    """Read the input of memory's upkeep. Raises BadRequest if it is invalid."""
    checked = _check(_UpkeepRequest, {} if payload is None else payload, "the upkeep's input")
    return UpkeepRequest(since=checked.since, rounds=checked.rounds)


def _request(checked: RequestForm) -> RunRequest:
    if checked.permissions:
        parse_rules(checked.permissions)
    given = {name: getattr(checked, name) for name in RequestForm.model_fields}
    budget, workspace = _budget(checked.budget), _workspace(checked)
    options = read_model_options(checked.model_options, "model_options") if checked.model_options else ModelOptions()
    forked = ForkedFrom(**checked.forked_from.model_dump()) if checked.forked_from else None
    whole = {**given, "budget": budget, "workspace": workspace, "forked_from": forked, "model_options": options}
    return RunRequest(**whole)


def _workspace(checked: RequestForm) -> Workspace | None:
    named = checked.workspace
    if named is None or isinstance(named, str):
        return named
    if checked.forked_from is not None:
        raise BadRequest(f"workspace: {FORK}", field="workspace")
    if isinstance(named, GitForm):
        return GitWorkspace(git=named.git, revision=named.revision or "", push=named.push or "")
    return _archive(named.archive)


def _archive(given: ArchiveContentForm) -> ArchiveWorkspace:
    if (given.data is None) == (given.digest is None):
        raise BadRequest(
            "workspace.archive: set exactly one of `data` (base64) and `digest`", field="workspace.archive"
        )
    return ArchiveWorkspace(archive=Archive(data=given.data or "", digest=given.digest or "", name=given.name))


def _budget(checked: BudgetForm | None) -> Budget:
    return Budget(**checked.model_dump()) if checked else Budget()


def read_steering(name: str, payload: object, at: datetime) -> SteeringEvent:
    """Convert the payload of a signal or update to an event. Raises BadRequest if it is invalid."""
    form, event = _STEERING[name]
    checked = _check(form, {} if payload is None else payload, f"the payload of `{name}`")
    return event(**{field: getattr(checked, field) for field in form.model_fields}, at=at)


def read_stop(name: str, payload: object, at: datetime) -> SteeringEvent:
    """Convert a stop request to an event, using the readable part of its payload. A stop request is never rejected."""
    form, event = _STEERING[name]
    given: Mapping[str, Any] = payload if isinstance(payload, Mapping) else {"reason": payload}
    return event(**{field: _text(given.get(field)) for field in form.model_fields}, at=at)


def _text(value: Any) -> str:
    if value is None or isinstance(value, Undecodable):
        return ""
    return value if isinstance(value, str) else canonical(value)[:_LONGEST]


def read_from_relative(name: str, payload: object) -> ChildReported | AncestryChanged | BudgetRequested | BudgetGranted:
    """Convert a signal from another run in the tree to an event. Raises BadRequest if it is invalid."""
    try:
        match name:
            case str() if name == REPORT:
                return ChildReported(report=adapter_of(ChildReport).validate_python(payload))
            case str() if name == WANT:
                return BudgetRequested(request=adapter_of(BudgetRequest).validate_python(payload))
            case str() if name == GRANT:
                return adapter_of(BudgetGranted).validate_python(payload)
            case _:
                return adapter_of(AncestryChanged).validate_python(payload)
    except ValidationError as error:
        where = field_path(error.errors(include_url=False, include_input=False)[0]["loc"])
        raise BadRequest(
            f"the payload of `{name}` is not a valid message from a run in the same tree: {where}", field=where
        ) from None


def read_lineage(payload: object) -> Lineage:
    """Read the lineage that a parent sends its child in addition to the request. Raises BadRequest if it is invalid."""
    try:
        return adapter_of(Lineage).validate_python(payload)
    except ValidationError as error:
        where = field_path(error.errors(include_url=False, include_input=False)[0]["loc"])
        raise BadRequest(f"the second argument is only for a run's own children: {where}", field=where) from None


def initial_state(request: object, carried: tuple[object, ...]) -> RunState:
    """Return the initial state of a new run or of a run that continues as new.

    If the request is invalid, the state is that of a refused run.
    """
    info = workflow.info()
    try:
        if info.continued_run_id is not None and carried:
            _refuse_forged_continuation(info)
            return read_state(carried[0])
        # A lineage is accepted only from the run's parent. A second input from any other caller is ignored.
        delegated = info.parent is not None and is_child(info.workflow_id, info.parent.workflow_id)
        lineage = read_lineage(carried[0]) if carried and delegated else None
        if lineage is not None and lineage.checkout is not None:
            _refuse_forged_root(info, lineage)
        return start(info.workflow_id, read_input(info.workflow_type, request), workflow.now(), lineage)
    except BadRequest as error:
        refused = start(info.workflow_id, RunRequest(task=""), workflow.now())
        wrong = RunError(type="BadRequest", message=error.message, context=error.context)
        return evolve(refused, RunRefused(error=wrong))


def _refuse_forged_continuation(info: workflow.Info) -> None:
    """Refuse a state that this run hasn't carried on itself.

    The server also continues a retried or a cron execution as new, with the input of whoever started it.
    """
    if info.cron_schedule is not None or info.attempt > 1:
        raise BadRequest("a run that has continued as new can't be retried or repeated by a cron schedule", field="")


def _refuse_forged_root(info: workflow.Info, lineage: Lineage) -> None:
    """Refuse a lineage that leads to the clone of another tree. The server knows the root of the run's tree."""
    if info.root is None or info.root.workflow_id != lineage.root_run_id:
        raise BadRequest(f"this run isn't in the tree of run {lineage.root_run_id!r}, whose clone it names", field="")


def read_input(workflow_type: str, request: object) -> RunRequest:
    """Read the input of a workflow of this type. Raises BadRequest if it is invalid."""
    return read_crew_request(request) if workflow_type == CREW_RUN else read_request(request)


def read_state(payload: object) -> RunState:
    """Read the state from a previous execution, which may have run on an earlier release."""
    return adapter_of(RunState).validate_python(upgraded(payload) if isinstance(payload, Mapping) else payload)


def _check(form: type[FormT], payload: object, what: str) -> FormT:
    if isinstance(payload, Undecodable):
        raise BadRequest(f"{what} cannot be read as JSON: {payload.reason}", field="")
    if not isinstance(payload, Mapping):
        raise BadRequest(f"{what} must be a JSON object, not {type(payload).__name__}", field="")
    # Callers in other languages send null for omitted values.
    given = {name: value for name, value in payload.items() if value is not None or name not in form.model_fields}
    try:
        return form.model_validate(given)
    except ValidationError as error:
        problems = sorted(error.errors(include_url=False), key=lambda each: each["type"] != "missing")
        named = [_explain(problem, form) for problem in problems]
        raise BadRequest(f"{what} is wrong: {'; '.join(named)}", field=field_path(problems[0]["loc"])) from None


def field_path(location: Sequence[int | str]) -> str:
    """Return the path of the field at this place, for people."""
    steps = (str(step) for step in location if step not in (_FOLDER, _REPOSITORY, _ARCHIVE))
    return ".".join(text if len(text) <= _LONGEST_NAME else f"{text[:_LONGEST_NAME]}…" for text in steps)


def _explain(problem: Mapping[str, Any], form: type[Form]) -> str:
    location = problem["loc"]
    if problem["type"] != "extra_forbidden":
        return f"{field_path(location)} {problem_of_value(problem)}"
    return f"unknown field {field_path(location)!r}{known_fields(location, form)}"


def known_fields(location: tuple[int | str, ...], form: type[BaseModel]) -> str:
    """Return which field of the form may have been meant, as the end of a sentence, or else which fields there are."""
    *outer, name = location
    inner: dict[str, type[Form]] = {
        "budget": BudgetForm,
        "forked_from": _ForkedFrom,
        "parts": PartForm,
        _REPOSITORY: GitForm,
        _ARCHIVE: ArchiveForm,
        "archive": ArchiveContentForm,
    }
    meant = next((inner[str(step)] for step in reversed(outer) if str(step) in inner), None) if outer else form
    if meant is None:
        return ""
    known = sorted(meant.model_fields)
    close = get_close_matches(str(name), known, n=1)
    return f", did you mean {field_path((*outer, close[0]))!r}?" if close else f"; known: {', '.join(known)}"
