"""Crews: several agents that work on one task. A crew's mode defines how the agents share the task.

    sequential     members work one after another, and each receives the previous results
    parallel       all members work concurrently, and their answers are combined
    coordinated    a coordinator splits the task, assigns the work, reads the results, and answers
    routed         the member that is best suited to the task works on it
    planned        each member starts when its dependencies are done, and a failure blocks its dependents
    tree           all members work on the whole task, and the best-scored answer is used or improved

A crew runs like an agent. In each turn, it assigns work to members, and each member runs as a separate child run. Each
member's definition determines how the crew handles a failure: it retries the member, uses a substitute, continues
without the member, or stops.
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
"""The agent for a member that doesn't name one."""
FEWEST_BRANCHES: Final = 2
MOST_BRANCHES: Final = 10
"""The maximum number of members in a crew with branches."""
MOST_LEVELS: Final = 5
"""The maximum number of rounds in a crew with branches."""


class CrewMode(StrEnum):
    """How a crew's members share a task."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"
    COORDINATED = "coordinated"
    ROUTED = "routed"
    PLANNED = "planned"
    TREE = "tree"


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A crew member: an agent that does a share of the task."""

    name: str
    agent: str = ANYBODY
    description: str = ""
    """The member's strengths, described for the people and models that choose a member."""
    capabilities: tuple[str, ...] = ()
    """Single words that describe the member's strengths."""
    task: str = ""
    """The member's share of every task."""
    model: str | None = None
    """The member's model. If None, the agent's model is used."""
    tools: tuple[str, ...] = ()
    """A subset of its agent's tools. If empty, the member has all of them."""
    after: tuple[str, ...] = ()
    """In a planned crew, the members whose answers this member needs."""
    retries: int = 1
    """The maximum number of retries."""
    substitute: str = ""
    """The member that takes over after all retries have failed."""
    on_failure: OnFailure | None = None
    """The behavior if the member has failed and there is no substitute. If None, sequential and routed crews stop, and
    other crews continue without the member.
    """

    @property
    def about(self) -> str:
        """Return one line for the people and models that choose a member."""
        able = f"can: {', '.join(self.capabilities)}" if self.capabilities else ""
        return "; ".join(part for part in (self.description, able) if part) or self.task or f"agent {self.agent}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """A route: a pattern, and the member that receives each task that matches the pattern."""

    match: str
    """A regular expression, matched case-insensitively."""
    member: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Router:
    """How a routed crew selects the member for a task."""

    by: RouteBy = "rules"
    rules: tuple[Route, ...] = ()
    """The routing rules. The first rule that matches selects the member. Without rules, the crew compares the task's
    text with the members' capabilities.
    """
    agent: str = ANYBODY
    """The agent that chooses the member. Used only for `model` routing."""
    model: str | None = None
    threshold: float | None = None
    """The minimum similarity between a task and a member's description. Used only for `embedding` routing. If None, the
    embedding model's default is used.
    """
    fallback: str = ""
    """The member that receives a task if no member is suitable for it. If empty, such a task fails."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Aggregation:
    """How a parallel crew's answers are combined."""

    by: AggregateBy = "concat"
    agent: str = ANYBODY
    """The agent that merges the answers."""
    model: str | None = None
    task: str = ""
    """The instructions for merging."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Coordinator:
    """The agent that leads a coordinated crew."""

    agent: str = ANYBODY
    model: str | None = None
    max_rounds: int = 3
    """The maximum number of times that the coordinator can assign work before it must answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judge:
    """The agent that scores the branches' answers, and the number of rounds."""

    agent: str = ANYBODY
    model: str | None = None
    rounds: int = 1
    """The number of rounds. In each round after the first, the members improve on the best answer so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Crew:
    """Several agents and how they work together. A crew is pinned into its run when the run starts."""

    name: str
    """What requests and agents call the crew."""
    mode: CrewMode
    """How the members share a task."""
    members: tuple[Member, ...]
    """The members, in the order in which a sequential crew calls them."""
    description: str = ""
    """The crew's strengths, described for the people and models that choose a crew."""
    coordinator: Coordinator = field(default_factory=Coordinator)
    """Who leads the crew. Used only in `coordinated` mode."""
    router: Router = field(default_factory=Router)
    """How a member is selected. Used only in `routed` mode."""
    aggregate: Aggregation = field(default_factory=Aggregation)
    """How the answers are combined. Used only in `parallel` mode."""
    judge: Judge = field(default_factory=Judge)
    """Who scores the answers. Used only in `tree` mode."""
    permissions: Mapping[str, str] = field(default_factory=dict)
    """Rules that apply in addition to every member's own rules. A member never has more rights than the crew."""
    origin: str = ""
    """The place where the crew was defined, for error messages."""

    def member(self, name: str) -> Member | None:
        """Return the member with that name."""
        return next((member for member in self.members if member.name == name), None)

    @property
    def agents(self) -> frozenset[str]:
        """Return every agent that the crew needs."""
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
        """Whether one of the crew's runs produces the crew's answer. If so, that run can receive an output schema."""
        by_one = self.mode in (CrewMode.SEQUENTIAL, CrewMode.ROUTED)
        return by_one or (self.mode is CrewMode.PARALLEL and self.aggregate.by == "merge")

    def carries_on_without(self, member: Member) -> bool:
        """Whether the crew continues after the member has failed permanently."""
        if member.on_failure is not None:
            return member.on_failure == "skip"
        return self.mode not in (CrewMode.SEQUENTIAL, CrewMode.ROUTED)


def branch_name(number: int) -> str:
    """Return the name for a branch that doesn't have its own name."""
    return f"branch-{number}"


def complaints(crew: Crew) -> Iterator[str]:
    """Return one sentence for each error in the crew's definition."""
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
        yield f"{next(iter(waiting))!r} waits for other members, but only a planned crew allows that: remove `after`"
        return
    unknown = [(name, other) for name, before in waiting.items() for other in before if other not in names]
    yield from (
        f"{name!r} waits for the unknown member {other!r}: name members ({_listed(names)})" for name, other in unknown
    )
    if not unknown and (circle := circle_in({member.name: member.after for member in crew.members})):
        yield f"these wait for each other: {' → '.join(circle)}; remove one `after`"


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
            yield f"the route {route.match!r} is not a regular expression: {error}"
    if router.rules and router.by != "rules":
        yield f"router.rules are set, but router.by is {router.by}: leave out one of them"
    if router.by == "rules" and not router.rules and not any(member.capabilities for member in crew.members):
        yield "the router has no criteria: add rules to it, or capabilities to the members"


def _listed(names: list[str]) -> str:
    return ", ".join(dict.fromkeys(names)) or "there is none"
