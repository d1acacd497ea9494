"""Crews: several agents on one task, and how they share it.

    sequential     one after the other, each with what those before it brought
    parallel       all at once; their answers are combined
    coordinated    a coordinator splits the task, assigns the parts, reads the results, and answers
    routed         the one member that matches the task best does it
    planned        each as soon as the members it waits for are done; never after one that failed
    tree           all at once on the whole task; their answers are scored, and the best one is improved on, or answers

A crew runs like an agent: in each turn it assigns jobs to members, and each job is a child run. Each member's settings
say what happens if it fails: the job is retried, given to a substitute, left out, or ends the crew.
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
"""The agent of a member that does not name one."""
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
    """A member of a crew: an agent with a role."""

    name: str
    agent: str = ANYBODY
    description: str = ""
    """What it is good at; coordinators and routers read it."""
    capabilities: tuple[str, ...] = ()
    """What it is good at, as keywords."""
    task: str = ""
    """Its role in every task."""
    model: str | None = None
    """None: the agent's model."""
    tools: tuple[str, ...] = ()
    """Which of its agent's tools it may use; empty: all of them."""
    after: tuple[str, ...] = ()
    """In a planned crew, the members whose answers it waits for."""
    retries: int = 1
    """Retries after a failure."""
    substitute: str = ""
    """The member that takes over after the last retry has failed."""
    on_failure: OnFailure | None = None
    """What to do without a substitute. None: sequential and routed crews stop, the others go on."""

    @property
    def about(self) -> str:
        """One line that describes the member to a coordinator or a router."""
        able = f"can: {', '.join(self.capabilities)}" if self.capabilities else ""
        return "; ".join(part for part in (self.description, able) if part) or self.task or f"agent {self.agent}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """Sends tasks that match a pattern to a member."""

    match: str
    """A regular expression; case is ignored."""
    member: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Router:
    """How a routed crew finds the member for a task."""

    by: RouteBy = "rules"
    rules: tuple[Route, ...] = ()
    """The first matching rule decides. Without rules, members are matched by capabilities named in the task."""
    agent: str = ANYBODY
    """The agent that chooses, if `by` is `model`."""
    model: str | None = None
    threshold: float | None = None
    """The least similarity, if `by` is `embedding`. None: a threshold that suits the embedding model."""
    fallback: str = ""
    """The member for tasks that match no other; empty: such a task fails."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregation:
    """How the answers of a parallel crew are combined."""

    by: AggregateBy = "concat"
    agent: str = ANYBODY
    """The agent that merges them."""
    model: str | None = None
    task: str = ""
    """Instructions for merging them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Coordinator:
    """The agent that leads a coordinated crew."""

    agent: str = ANYBODY
    model: str | None = None
    max_rounds: int = 3
    """Rounds of assignments before it has to answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judge:
    """The agent that scores the answers of a tree's members, and the number of rounds."""

    agent: str = ANYBODY
    model: str | None = None
    rounds: int = 1
    """Levels of the tree. From the second on, the members improve on the best answer so far."""


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
    """Rules that cap those of every member."""
    origin: str = ""
    """Where the crew was defined, for error messages."""

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
        """Whether one run writes the crew's answer, so that an output schema can be required of that run."""
        by_one = self.mode in (CrewMode.SEQUENTIAL, CrewMode.ROUTED)
        return by_one or (self.mode is CrewMode.PARALLEL and self.aggregate.by == "merge")

    def carries_on_without(self, member: Member) -> bool:
        """Whether the crew goes on when the member has failed for good."""
        if member.on_failure is not None:
            return member.on_failure == "skip"
        return self.mode not in (CrewMode.SEQUENTIAL, CrewMode.ROUTED)


def branch_name(number: int) -> str:
    """The default name of a member of a tree."""
    return f"branch-{number}"


def complaints(crew: Crew) -> Iterator[str]:
    """Each problem of a crew, as a sentence."""
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
