"""Validate a crew's fields, which come from a file, a request or Python code, and build the crew.

The JSON Schema of crew files is generated from this form (`loom validate --schema crew`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError
from typing_extensions import TypedDict

from loom.app.forms.form import Form, Model, Name, Verdict, explained
from loom.domain.core.errors import BadRequest
from loom.domain.crews import crew as crews
from loom.domain.crews.crew import Aggregation, Coordinator, Crew, CrewMode, Judge, Member, Route, Router

_Count = Annotated[int, Field(ge=0, le=20)]


class MemberForm(Form):
    """A member of a crew."""

    name: Name = Field(description="The member's name in the crew.")
    agent: Name = Field(crews.ANYBODY, description="The agent that does the member's work.")
    description: str = Field(
        "", description="The member's strengths. People and models read this text to choose a member."
    )
    capabilities: list[str] = Field(
        [], description="Single words that describe the member's strengths. Routers look for them in the task."
    )
    task: str = Field("", description="The member's share of every task.")
    model: Model | None = Field(None, description="openai:NAME, anthropic:NAME or demo. Default: the agent's model.")
    tools: list[str] = Field([], description="A subset of the agent's tools. Default: all of them.")
    after: list[str] = Field([], description="In a planned crew, the members whose answers this member needs.")
    retries: _Count = Field(1, description="Maximum number of retries after a failure.")
    substitute: Name | None = Field(None, description="The member that takes over after all retries have failed.")
    on_failure: Literal["stop", "skip"] | None = Field(
        None,
        description="If there is no substitute, or it fails too: stop the crew, or skip the member. Default: stop in"
        " sequential and routed crews, otherwise skip.",
    )


class RouteForm(Form):
    """A routing rule."""

    match: str = Field(min_length=1, description="A regular expression to search for in the task.")
    member: Name = Field(description="The member that receives matching tasks.")


class RouterForm(Form):
    """How a routed crew finds the member for a task."""

    by: Literal["rules", "embedding", "model"] = Field("rules", description="How the router chooses the member.")
    rules: list[RouteForm] = Field(
        [], description="For rules: the first match chooses the member. Default: compare the capabilities."
    )
    agent: Name = Field(crews.ANYBODY, description="For model: the agent that chooses the member.")
    model: Model | None = Field(None, description="For model: the model of that agent.")
    threshold: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="For embedding: the minimum similarity. Default: depends on the embedding model."
    )
    fallback: Name | None = Field(None, description="The member for tasks that no other member fits.")


class AggregateForm(Form):
    """How the answers of a parallel crew are combined."""

    by: Literal["concat", "merge", "structured"] = Field(
        "concat", description="concat: join the answers. merge: an agent combines them. structured: one JSON object."
    )
    agent: Name = Field(crews.ANYBODY, description="The agent that merges the answers.")
    model: Model | None = Field(None, description="The model of that agent.")
    task: str = Field("", description="Instructions for merging.")


class CoordinatorForm(Form):
    """The agent that leads a coordinated crew."""

    agent: Name = Field(crews.ANYBODY, description="The agent that coordinates.")
    model: Model | None = Field(None, description="The coordinator's model.")
    max_rounds: Annotated[int, Field(ge=1, le=20)] = Field(
        3, description="Maximum number of times that the coordinator may assign work."
    )


class JudgeForm(Form):
    """The agent that scores the branches' answers, and the number of rounds."""

    agent: Name = Field(crews.ANYBODY, description="The agent that scores the answers.")
    model: Model | None = Field(None, description="The judge's model.")
    rounds: Annotated[int, Field(ge=1, le=crews.MOST_LEVELS)] = Field(
        1, description="Number of rounds. In each round after the first, the members improve on the best answer so far."
    )


class CrewForm(Form):
    """Several agents and how they share a task."""

    kind: Literal["crew"] = Field("crew", description="The kind of definition in this file.")
    name: Name | None = Field(
        None, description="The name for use in requests. Default: the file's name without its suffix."
    )
    description: str = Field("", description="The crew's purpose.")
    mode: Literal["sequential", "parallel", "coordinated", "routed", "planned", "tree"] = Field(
        description="How the members share a task."
    )
    members: list[MemberForm] = Field(min_length=1, description="The crew's members.")
    coordinator: CoordinatorForm = Field(CoordinatorForm(), description="Settings of a coordinated crew.")
    router: RouterForm = Field(RouterForm(), description="Settings of a routed crew.")
    aggregate: AggregateForm = Field(AggregateForm(), description="Settings of a parallel crew.")
    judge: JudgeForm = Field(JudgeForm(), description="Settings of a tree crew.")
    permissions: dict[str, Verdict] = Field(
        {}, description="Permission rules that apply in addition to every member's own rules."
    )


def read_crew(given: Mapping[str, Any], *, name: str = "", origin: str = "request") -> Crew:
    """Return the crew with these fields. Raises BadRequest, which lists all errors in the fields, one per line."""
    if problems := list(complaints(given, where=f"crew {given.get('name') or name!r} ({origin})")):
        raise BadRequest("\n".join(problems), field="crew")
    return _crew(CrewForm.model_validate(given), name, origin)


def complaints(given: Mapping[str, Any], *, where: str) -> Iterator[str]:
    """Yield each error in a crew's fields as one sentence."""
    try:
        form = CrewForm.model_validate(given)
    except ValidationError as error:
        yield from (f"{where}: {explained(problem, _fields_at)}" for problem in error.errors(include_url=False))
        return
    yield from (f"{where}: {why}" for why in crews.complaints(_crew(form, "crew", "")))


def _fields_at(location: Sequence[int | str]) -> Sequence[str]:
    """Return the fields that are valid at the location of an unknown field."""
    inner: dict[str, type[BaseModel]] = {
        "members": MemberForm,
        "coordinator": CoordinatorForm,
        "router": RouteForm if "rules" in location else RouterForm,
        "aggregate": AggregateForm,
        "judge": JudgeForm,
    }
    form = inner.get(str(location[0]), CrewForm) if len(location) > 1 else CrewForm
    return sorted(form.model_fields)


def _crew(form: CrewForm, name: str, origin: str) -> Crew:
    return Crew(
        name=form.name or name,
        mode=CrewMode(form.mode),
        members=tuple(_member(member) for member in form.members),
        description=form.description,
        coordinator=Coordinator(**form.coordinator.model_dump()),
        router=Router(
            by=form.router.by,
            rules=tuple(Route(match=rule.match, member=rule.member) for rule in form.router.rules),
            agent=form.router.agent,
            model=form.router.model,
            threshold=form.router.threshold,
            fallback=form.router.fallback or "",
        ),
        aggregate=Aggregation(**form.aggregate.model_dump()),
        judge=Judge(**form.judge.model_dump()),
        permissions=dict(form.permissions),
        origin=origin,
    )


def _member(form: MemberForm) -> Member:
    given = form.model_dump()
    lists = {name: tuple(given[name]) for name in ("capabilities", "tools", "after")}
    return Member(**{**given, **lists, "substitute": form.substitute or ""})


class CrewFields(TypedDict, total=False):
    """The keyword arguments of `LoomApp.create_crew`."""

    description: str
    mode: Literal["sequential", "parallel", "coordinated", "routed", "planned", "tree"]
    members: Sequence[Mapping[str, Any]]
    coordinator: Mapping[str, Any]
    router: Mapping[str, Any]
    aggregate: Mapping[str, Any]
    judge: Mapping[str, Any]
    permissions: Mapping[str, str]


def listed(value: Any) -> Any:
    """Convert Python values to the types that a file contains: tuples to lists, and other mappings to dictionaries."""
    if isinstance(value, Mapping):
        return {name: listed(each) for name, each in value.items() if each is not None}
    return [listed(each) for each in value] if isinstance(value, list | tuple) else value
