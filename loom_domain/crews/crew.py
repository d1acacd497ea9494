"""Crews: several agents on one task, and how they share it.

    sequential     one after the other, each with what those before it brought
    parallel       all at once; their answers are put together
    coordinated    a coordinator splits the task, gives out the parts, reads what came, and answers
    routed         the one member that fits the task best does it
    planned        each as soon as those that it waits for are done; what waits for one that failed is not begun
    tree           all at once on the whole task; their answers are scored, and the best one is improved on, or answers

A crew is run like an agent: each step is a turn in which it hands work to members, each of them a run of its own. What
a member's failure means is the member's own business: tried again, handed to another, left out, or the crew's end.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from loom.domain.core.errors import BadRequest
from loom.domain.permissions.rules import parse_rules
from loom.domain.tree.plans import circle_in

RouteBy: TypeAlias = Literal["rules", "embedding", "model"]
AggregateBy: TypeAlias = Literal["concat", "merge", "structured"]
OnFailure: TypeAlias = Literal["stop", "skip"]

ANYBODY: Final = "default"
"""The agent of a member that names none."""
FEWEST_BRANCHES: Final = 2
MOST_BRANCHES: Final = 10
"""Members of a tree."""
MOST_LEVELS: Final = 5
"""Rounds of a tree."""


class CrewMode(StrEnum):
    """How the members of a crew share a task."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"
    COORDINATED = "coordinated"
    ROUTED = "routed"
    PLANNED = "planned"
    TREE = "tree"


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One of a crew: an agent with a part in it."""

    name: str
    agent: str = ANYBODY
    description: str = ""
    """What it is good at, for whoever chooses among members."""
    capabilities: tuple[str, ...] = ()
    """The same in single words."""
    task: str = ""
    """Its part of every task."""
    model: str | None = None
    """None: its agent's."""
    tools: tuple[str, ...] = ()
    """Of its agent's tools; none: all of them."""
    after: tuple[str, ...] = ()
    """In a planned crew, the members whose answers it waits for."""
    retries: int = 1
    """How often it may try again when it failed."""
    substitute: str = ""
    """The member that takes over once it has failed for good."""
    on_failure: OnFailure | None = None
    """And if there is none; None: sequential and routed crews stop, the others do without it."""

    @property
    def about(self) -> str:
        """One line for whoever chooses among members."""
        able = f"can: {', '.join(self.capabilities)}" if self.capabilities else ""
        return "; ".join(part for part in (self.description, able) if part) or self.task or f"agent {self.agent}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """Tasks that a pattern is found in go to a member."""

    match: str
    """A regular expression, whatever the case."""
    member: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Router:
    """How a routed crew finds the member for a task."""

    by: RouteBy = "rules"
    rules: tuple[Route, ...] = ()
    """The first that matches counts; without rules, a member's capability that is found in the task."""
    agent: str = ANYBODY
    """Who chooses, by model."""
    model: str | None = None
    threshold: float | None = None
    """By embedding: the least likeness of a task and what a member is good at; None: as the embedder's model needs."""
    fallback: str = ""
    """The member for tasks that nobody fits; none: such a task fails."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregation:
    """How the answers of a parallel crew become one."""

    by: AggregateBy = "concat"
    agent: str = ANYBODY
    """Who merges them."""
    model: str | None = None
    task: str = ""
    """What to make of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Coordinator:
    """Who leads a coordinated crew."""

    agent: str = ANYBODY
    model: str | None = None
    max_rounds: int = 3
    """Times that it may give out work before it has to answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judge:
    """Who scores the answers of a tree's members, and how often the best one goes round."""

    agent: str = ANYBODY
    model: str | None = None
    rounds: int = 1
    """Levels: in each after the first, the members improve on the best answer so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Crew:
    """Several agents and how they work together; pinned into its run at the start."""

    name: str
    mode: CrewMode
    members: tuple[Member, ...]
    description: str = ""
    coordinator: Coordinator = field(default_factory=Coordinator)
    router: Router = field(default_factory=Router)
    aggregate: Aggregation = field(default_factory=Aggregation)
    judge: Judge = field(default_factory=Judge)
    permissions: Mapping[str, str] = field(default_factory=dict)
    """Rules above those of every member, who never may more."""
    origin: str = ""
    """Where it was defined, for people."""

    def member(self, name: str) -> Member | None:
        """The member of that name."""
        return next((member for member in self.members if member.name == name), None)

    @property
    def agents(self) -> frozenset[str]:
        """Every agent that it takes to run it."""
        extra = {
            CrewMode.COORDINATED: (self.coordinator.agent,),
            CrewMode.ROUTED: (self.router.agent,) if self.router.by == "model" else (),
            CrewMode.PARALLEL: (self.aggregate.agent,) if self.aggregate.by == "merge" else (),
            CrewMode.SEQUENTIAL: (),
            CrewMode.PLANNED: (),
            CrewMode.TREE: (self.judge.agent,),
        }
        return frozenset((*(member.agent for member in self.members), *extra[self.mode]))

    @property
    def is_answered_by_one(self) -> bool:
        """Its answer is what one run has answered, so that a form can be asked of that run."""
        by_one = self.mode in (CrewMode.SEQUENTIAL, CrewMode.ROUTED)
        return by_one or (self.mode is CrewMode.PARALLEL and self.aggregate.by == "merge")

    def carries_on_without(self, member: Member) -> bool:
        """Whether the crew goes on when the member has failed for good."""
        if member.on_failure is not None:
            return member.on_failure == "skip"
        return self.mode not in (CrewMode.SEQUENTIAL, CrewMode.ROUTED)


def branch_name(number: int) -> str:
    """How a member of a tree is called that nobody has named."""
    return f"branch-{number}"


def check_crew(crew: Crew) -> Crew:
    """The crew itself; raises BadRequest with everything that is wrong with it, a line each."""
    if wrong := list(complaints(crew)):
        where = f"crew {crew.name!r}" + (f" ({crew.origin})" if crew.origin else "")
        raise BadRequest("\n".join(f"{where}: {each}" for each in wrong), field="crew")
    return crew


def complaints(crew: Crew) -> Iterator[str]:
    """What is wrong with a crew, a sentence each."""
    names = [member.name for member in crew.members]
    if not names:
        yield "it has no members: name at least one"
    yield from (f"two members are called {name!r}: rename one" for name, count in Counter(names).items() if count > 1)
    for member in crew.members:
        if member.substitute and (member.substitute not in names or member.substitute == member.name):
            others = _listed([name for name in names if name != member.name])
            yield f"the substitute of {member.name!r} must be another member ({others}), not {member.substitute!r}"
    if crew.mode is CrewMode.ROUTED:
        yield from _routing_complaints(crew, names)
    if crew.mode is CrewMode.TREE and not FEWEST_BRANCHES <= len(names) <= MOST_BRANCHES:
        yield f"a tree has {FEWEST_BRANCHES} to {MOST_BRANCHES} members, not {len(names)}"
    yield from _order_complaints(crew, names)
    try:
        parse_rules(crew.permissions)
    except BadRequest as error:
        yield f"permissions: {error.message}"


def _order_complaints(crew: Crew, names: list[str]) -> Iterator[str]:
    waiting = {member.name: member.after for member in crew.members if member.after}
    if waiting and crew.mode is not CrewMode.PLANNED:
        yield f"{next(iter(waiting))!r} waits for others, which only members of a planned crew do: leave `after` out"
        return
    unknown = [(name, other) for name, before in waiting.items() for other in before if other not in names]
    yield from (f"{name!r} waits for {other!r}: name members ({_listed(names)})" for name, other in unknown)
    if not unknown and (circle := circle_in({member.name: member.after for member in crew.members})):
        yield f"these wait for each other: {' → '.join(circle)}; take one `after` out"


def _routing_complaints(crew: Crew, names: list[str]) -> Iterator[str]:
    router = crew.router
    if router.fallback and router.fallback not in names:
        yield f"router.fallback must be a member ({_listed(names)}), not {router.fallback!r}"
    for route in router.rules:
        if route.member not in names:
            yield f"the route for {route.match!r} must name a member ({_listed(names)}), not {route.member!r}"
        try:
            re.compile(route.match)
        except re.error as error:
            yield f"the route {route.match!r} is no regular expression: {error}"
    if router.rules and router.by != "rules":
        yield f"router.rules are there, and the router goes by {router.by}: leave out one of them"
    if router.by == "rules" and not router.rules and not any(member.capabilities for member in crew.members):
        yield "the router has nothing to go by: give it rules, or members capabilities"


def _listed(names: list[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "there is none"
