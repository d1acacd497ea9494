"""The file kinds that `loom validate` supports: how to recognize, check and draw each kind.

To add a kind, add an entry to `KINDS`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from loom.activities.crew_lookup import unknown_members
from loom.app import agent_files, crew_files
from loom.app.forms.agent import AgentForm, complaints
from loom.app.forms.crew import CrewForm
from loom.app.forms.crew import complaints as crew_complaints
from loom.app.registry import Registry
from loom.domain.agents.inheritance import DEFAULT_AGENT, inheritance_tree
from loom.domain.core.errors import BadRequest
from loom.domain.crews.crew import CrewMode
from loom.domain.permissions.dead_rules import dead_rules
from loom.domain.permissions.rules import parse_rules
from loom.domain.permissions.subjects import Place

SCHEMA: Final = "https://json-schema.org/draft/2020-12/schema"
_VERDICTS: Final = ("allow", "ask", "deny")
_CREW_MODES: Final = tuple(mode.value for mode in CrewMode)


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """The contents of a file."""

    path: Path
    fields: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The registry that a worker in this directory would have, including the files that are being validated."""

    registry: Registry
    place: Place

    def dead(self, rules: Mapping[str, str]) -> Iterable[str]:
        """Return the rules that can never match."""
        tools = [tool.spec for tool in self.registry.tools.values()]
        return dead_rules(rules, tools, servers=[s.name for s in self.registry.mcp_servers], place=self.place)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A file kind."""

    name: str
    """The value of the file's `kind:` field."""
    folder: str
    """Files in a folder with this name are of this kind unless they set `kind:`."""
    fits: Callable[[Mapping[str, Any]], bool]
    """Whether the fields match this kind. This check is used if neither the file nor its folder specifies a kind."""
    schema: Callable[[], dict[str, Any]]
    """The kind's JSON Schema."""
    alone: Callable[[Document], Iterable[str]]
    """The errors in the file itself. Each error is one sentence that starts with the file's path."""
    among: Callable[[Document, Surroundings], Iterable[str]]
    """The errors that the file would cause on a worker in this directory."""
    drawn: Callable[[Surroundings], str]
    """The graph of all files of this kind, as text. Empty if this kind has no graph."""


def kind_of(document: Document) -> Kind:
    """Return the kind of a file. Raises BadRequest if the kind is unknown."""
    said = document.fields.get("kind")
    named = next((kind for kind in KINDS if kind.name == said), None)
    if named is not None:
        return named
    known = ", ".join(kind.name for kind in KINDS)
    if said is not None:
        raise BadRequest(f"{document.path}: kind: {said!r} is not a known kind: use one of {known}", field="kind")
    lying = next((kind for kind in KINDS if kind.folder == document.path.absolute().parent.name), None)
    looking = next((kind for kind in KINDS if kind.fits(document.fields)), None)
    if (found := lying or looking) is None:
        raise BadRequest(f"{document.path}: the kind is unclear: add `kind: …` with one of {known}", field="kind")
    return found


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind. Raises BadRequest if the kind is unknown."""
    found = next((kind for kind in KINDS if kind.name == name), None)
    if found is None:
        raise BadRequest(
            f"--schema: unknown kind {name!r}; known: {', '.join(k.name for k in KINDS)}", field="--schema"
        )
    return {"$schema": SCHEMA, **found.schema()}


def _agent_schema() -> dict[str, Any]:
    return {**AgentForm.model_json_schema(), "title": "Loom agent"}


def _agent_among(document: Document, around: Surroundings) -> Iterator[str]:
    origin = str(document.path.resolve())
    agent = next(agent for agent in around.registry.agents.values() if agent.origin == origin)
    yield from (f"{document.path}: permissions: {why}" for why in around.dead(agent.permissions))


def _crew_among(document: Document, around: Surroundings) -> Iterator[str]:
    crew = crew_files.read_crew_file(document.path)
    agents = {DEFAULT_AGENT, *around.registry.agents}
    if (error := unknown_members(crew, agents, around.registry.tools)) is not None:
        yield f"{document.path}: {error.message}"
    yield from (f"{document.path}: permissions: {why}" for why in around.dead(crew.permissions))


def _rules_of(document: Document) -> Mapping[str, Any]:
    inner = document.fields.get("permissions", document.fields)
    return {name: verdict for name, verdict in inner.items() if name != "kind"} if isinstance(inner, Mapping) else {}


def _looks_like_rules(fields: Mapping[str, Any]) -> bool:
    if set(fields) == {"permissions"}:
        return True
    return all(isinstance(verdict, str) for verdict in fields.values()) and not set(fields) & set(
        AgentForm.model_fields
    )


def _rules_alone(document: Document) -> Iterator[str]:
    rules = _rules_of(document)
    wrong = {name: verdict for name, verdict in rules.items() if verdict not in _VERDICTS}
    yield from (f"{document.path}: rule {n!r} must be allow, ask or deny, not {v!r}" for n, v in wrong.items())
    try:
        parse_rules({name: verdict for name, verdict in rules.items() if name not in wrong})
    except BadRequest as error:
        yield f"{document.path}: {error.message}"


def _rules_schema() -> dict[str, Any]:
    verdicts = TypeAdapter(dict[str, Literal["allow", "ask", "deny"]]).json_schema()
    return {**verdicts, "title": "Loom permissions", "description": "tool, or tool(pattern): allow, ask or deny"}


KINDS: Final = (
    Kind(
        name="permissions",
        folder="permissions",
        fits=_looks_like_rules,
        schema=_rules_schema,
        alone=_rules_alone,
        among=lambda document, around: [f"{document.path}: {why}" for why in around.dead(_rules_of(document))],
        drawn=lambda _: "",
    ),
    Kind(
        name="crew",
        folder=crew_files.FOLDER,
        fits=lambda fields: "members" in fields or fields.get("mode") in _CREW_MODES,
        schema=lambda: {**CrewForm.model_json_schema(), "title": "Loom crew"},
        alone=lambda document: crew_complaints(document.fields, where=str(document.path)),
        among=_crew_among,
        drawn=lambda _: "",
    ),
    Kind(
        name="agent",
        folder=agent_files.FOLDER,
        fits=lambda fields: bool(set(fields) & set(AgentForm.model_fields)),
        schema=_agent_schema,
        alone=lambda document: complaints(document.fields, where=str(document.path)),
        among=_agent_among,
        drawn=lambda around: inheritance_tree(around.registry.agents),
    ),
)
