"""A run's place in its tree: where it comes from, and the runs that it has started.

A tree is a root run with everything that it delegated, directly or not. Each run keeps track of its own children only;
they report what happens further down.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from loom.domain.core.messages import JsonObject, Usage, usage_view
from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.tree.budget import BudgetRequest, Share, Spend
from loom.domain.tree.lineage import Lineage, TreeLimits


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeSignal:
    """A signal on its way to another run of the tree."""

    to: str
    signal: str
    payload: JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeAsk:
    """A call that waits for a person, as the runs above see it."""

    call_id: str
    """Unique among the asks that a run lists: the names of the runs between, then the id of the call, joined by `/`."""
    run_id: str
    """The run whose call it is."""
    agent: str
    depth: int
    tool: str
    arguments: JsonObject
    cut: bool = False
    """Long texts in the arguments are cut; the digest covers the whole."""
    reason: str = ""
    rule: str = ""
    risk: str = ""
    """What the call may do; empty if its worker does not say."""
    digest: str = ""
    for_run: tuple[str, ...] = ()
    asked_at: str | None = None
    expires_at: str | None = None

    @property
    def key(self) -> tuple[str, str, str | None]:
        """Identifies this ask: when the same call is asked about again, that is another ask."""
        return (self.call_id, self.digest, self.asked_at)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildReport:
    """A report of a child to its parent, sent when something changes that the parent has to know."""

    run_id: str
    status: RunStatus
    waiting_on: str = ""
    turns: int = 0
    usage: Usage = field(default_factory=Usage)
    cost_micros: int | None = 0
    tool_calls: int = 0
    all_turns: int = 0
    """Its own turns and those of everything below it."""
    sub_agents: int = 0
    asks: tuple[TreeAsk, ...] = ()
    """Its own and those of everything below it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Child:
    """A run that this one has started."""

    run_id: str
    call_id: str
    """The call that it answers."""
    agent: str
    description: str
    status: RunStatus = RunStatus.RUNNING
    started: bool = False
    """The server has begun it, so it can get signals."""
    ended: bool = False
    spend_unknown: bool = False
    """It was ended from outside, and its result, which says what it spent, is missing."""
    turns: int = 0
    usage: Usage = field(default_factory=Usage)
    """Of the child and everything below it, as last reported."""
    cost_micros: int | None = 0
    tool_calls: int = 0
    all_turns: int = 0
    """Its own and those of everything below it."""
    sub_agents: int = 0
    """Runs below it."""
    share: Share = field(default_factory=Share)
    """What the child and everything below it may spend, as lent until now."""
    waiting_on: str = ""
    asks: tuple[TreeAsk, ...] = ()
    """As last reported, with the `call_id` of the child."""
    answered: tuple[tuple[str, str, str | None], ...] = ()
    """Keys of asks whose answer is on its way to the child."""
    levels: str = ""
    """Digest of the rules that were last sent to it."""
    held: bool = False
    """The last instruction was to pause."""
    end_sent: bool = False
    """It was instructed to end."""

    @property
    def spend(self) -> Spend:
        """What the child and everything below it have spent, as last reported."""
        return Spend(
            tokens=self.usage.total_tokens,
            micros=self.cost_micros or 0,
            tool_calls=self.tool_calls,
            turns=self.all_turns,
            children=self.sub_agents,
        )

    @property
    def name(self) -> str:
        """The last part of its run id."""
        return self.run_id.rpartition("/")[2]

    @property
    def open_asks(self) -> tuple[TreeAsk, ...]:
        """The asks that still wait for a person, with ids as its parent lists them."""
        if self.ended:
            return ()
        waiting = (ask for ask in self.asks if ask.key not in self.answered)
        return tuple(replace(ask, call_id=f"{self.name}/{ask.call_id}") for ask in waiting)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """What a run knows of its tree."""

    lineage: Lineage | None = None
    """None for the root."""
    limits: TreeLimits | None = None
    """None for a run prepared by a version without trees."""
    children: tuple[Child, ...] = ()
    unsent: tuple[TreeSignal, ...] = ()
    """Signals that have not been sent yet, in order."""
    reported: str = ""
    """Digest of the last report to the parent; empty while it only knows that the run is running."""
    share: Share = field(default_factory=Share)
    """What this run and everything below it may spend."""
    reserve: Spend = field(default_factory=Spend)
    """What the run needs for its own last answer: it lends no part of that."""
    requests: tuple[BudgetRequest, ...] = ()
    """Budget requests that are not answered yet, the run's own among them."""
    asking: BudgetRequest | None = None
    """The open request to its parent."""
    asked: int = 0
    """Requests to its parent so far; numbers them."""
    refused: tuple[str, ...] = ()
    """Dimensions of the budget that its parent has refused."""

    @property
    def asks(self) -> tuple[TreeAsk, ...]:
        """The calls further down that wait for a person."""
        return tuple(ask for child in self.children for ask in child.open_asks)

    @property
    def depth(self) -> int:
        """How far below the root it is."""
        return self.lineage.depth if self.lineage else 0

    @property
    def running(self) -> tuple[Child, ...]:
        """The children that have not ended."""
        return tuple(child for child in self.children if not child.ended)

    @property
    def usage(self) -> Usage:
        """Tokens of everything below this run."""
        return sum((child.usage for child in self.children), Usage())

    @property
    def cost_micros(self) -> int | None:
        """What everything below this run has cost; None once a part of it has no known price."""
        costs = [child.cost_micros for child in self.children]
        return None if None in costs else sum(cost for cost in costs if cost is not None)


def root_of(tree: Tree, run_id: str) -> str:
    """The id of the tree's root."""
    return tree.lineage.root_run_id if tree.lineage else run_id


def with_child(tree: Tree, run_id: str, change: Callable[[Child], Child]) -> Tree:
    """The tree with one child changed."""
    return replace(tree, children=tuple(change(c) if c.run_id == run_id else c for c in tree.children))


def child_of(tree: Tree, run_id: str) -> Child | None:
    """The child of that id."""
    return next((child for child in tree.children if child.run_id == run_id), None)


def left_of(tree: Tree, own: Spend) -> Share:
    """What a run that has spent `own` itself may still spend or lend."""
    return tree.share.minus(own + spent_by_children(tree))


def spent_by_children(tree: Tree) -> Spend:
    """What counts as spent by the children: all that was lent to running ones, and what the others have used.

    The call that a child answers counts here until the child has ended, and as one of the run's own from then on.
    """
    return sum((_cost(child) for child in tree.children), Spend())


def _cost(child: Child) -> Spend:
    if not child.ended:
        return Spend(children=1, tool_calls=1) + child.share.lent
    return Spend(children=1) + (child.share.lent if child.spend_unknown else child.spend)


def without_unbegun(tree: Tree) -> Tree:
    """The tree of a run that has ended, without children that never began."""
    return replace(tree, children=tuple(child for child in tree.children if child.started or child.ended))


def ended_with(child: Child, result: RunResult) -> Child:
    """The child after its result came."""
    return replace(
        child,
        status=result.status,
        ended=True,
        waiting_on="",
        asks=(),
        answered=(),
        turns=result.turns,
        usage=read_usage(result.usage),
        cost_micros=None if result.cost is None else round(result.cost * 1_000_000),
        tool_calls=result.tool_calls,
        all_turns=result.turns + sum(_count(below, "all_turns") for below in result.children),
        sub_agents=sum(1 + _count(below, "sub_agents") for below in result.children),
    )


def _count(view: JsonObject, name: str) -> int:
    value = view.get(name)
    return value if isinstance(value, int) else 0


def read_usage(view: JsonObject) -> Usage:
    """Token counts from their public names."""
    names = ("input_tokens", "output_tokens", "cached_tokens", "model_calls")
    return Usage(**{name: view[name] for name in names if isinstance(view.get(name), int)})


def child_view(child: Child) -> JsonObject:
    """A child as `status` and results show it."""
    return {
        "run_id": child.run_id,
        "agent": child.agent,
        "description": child.description,
        "status": child.status,
        "waiting_on": child.waiting_on or None,
        "turn": child.turns,
        "all_turns": child.all_turns,
        "sub_agents": child.sub_agents,
        "tool_calls": child.tool_calls,
        "usage": usage_view(child.usage),
        "cost": None if child.cost_micros is None else child.cost_micros / 1_000_000,
    }
