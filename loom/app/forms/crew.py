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

    name: Name = Field(description="How the crew calls it.")
    agent: Name = Field(crews.ANYBODY, description="The agent that it is.")
    description: str = Field("", description="What it is good at, for whoever chooses among members.")
    capabilities: list[str] = Field([], description="The same in single words; routers look for them.")
    task: str = Field("", description="Its part of every task.")
    model: Model | None = Field(None, description="openai:NAME, anthropic:NAME or demo; default: its agent's.")
    tools: list[str] = Field([], description="Which of its agent's tools it gets; default: all.")
    after: list[str] = Field([], description="Of a planned crew: the members whose answers it waits for.")
    retries: _Count = Field(1, description="How often it may try again when it failed.")
    substitute: Name | None = Field(None, description="The member that takes over once it has failed for good.")
    on_failure: Literal["stop", "skip"] | None = Field(
        None, description="And then: the crew stops, or does without. Default: stop if sequential or routed, else skip."
    )


class RouteForm(Form):
    """A routing rule."""

    match: str = Field(min_length=1, description="A regular expression that is looked for in the task.")
    member: Name = Field(description="Who gets the tasks that it is found in.")


class RouterForm(Form):
    """How a routed crew finds the member for a task."""

    by: Literal["rules", "embedding", "model"] = Field("rules", description="How the member is found.")
    rules: list[RouteForm] = Field([], description="By rules: the first that matches; none: members' capabilities.")
    agent: Name = Field(crews.ANYBODY, description="By model: the agent that chooses.")
    model: Model | None = Field(None, description="By model: its model.")
    threshold: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="By embedding: the least likeness. Default: as the embedder's model needs it."
    )
    fallback: Name | None = Field(None, description="The member for tasks that nobody fits.")


class AggregateForm(Form):
    """How the answers of a parallel crew are combined."""

    by: Literal["concat", "merge", "structured"] = Field("concat", description="Joined; by an agent; as JSON.")
    agent: Name = Field(crews.ANYBODY, description="Who merges.")
    model: Model | None = Field(None, description="Its model.")
    task: str = Field("", description="What it is to make of them.")


class CoordinatorForm(Form):
    """The agent that leads a coordinated crew."""

    agent: Name = Field(crews.ANYBODY, description="The agent.")
    model: Model | None = Field(None, description="Its model.")
    max_rounds: Annotated[int, Field(ge=1, le=20)] = Field(3, description="Times that it may give out work.")


class JudgeForm(Form):
    """The agent that scores the answers of branches, and the number of rounds."""

    agent: Name = Field(crews.ANYBODY, description="The agent.")
    model: Model | None = Field(None, description="Its model.")
    rounds: Annotated[int, Field(ge=1, le=crews.MOST_LEVELS)] = Field(
        1, description="Levels; after the first, the members improve on the best answer so far."
    )


class CrewForm(Form):
    """Several agents and how they share a task."""

    kind: Literal["crew"] = Field("crew", description="What this file defines.")
    name: Name | None = Field(None, description="How requests name it; default: the file's name without its ending.")
    description: str = Field("", description="What it is for.")
    mode: Literal["sequential", "parallel", "coordinated", "routed", "planned", "tree"] = Field(
        description="How they share a task."
    )
    members: list[MemberForm] = Field(min_length=1, description="Who is in it.")
    coordinator: CoordinatorForm = Field(CoordinatorForm(), description="Of a coordinated crew.")
    router: RouterForm = Field(RouterForm(), description="Of a routed crew.")
    aggregate: AggregateForm = Field(AggregateForm(), description="Of a parallel crew.")
    judge: JudgeForm = Field(JudgeForm(), description="Of a tree.")
    permissions: dict[str, Verdict] = Field({}, description="Rules above those of every member.")


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
