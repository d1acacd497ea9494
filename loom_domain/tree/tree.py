"""A run's place in its tree: its origin, and the runs that it has started.

A tree consists of a root run and all runs that it delegated work to, directly or indirectly. Each run keeps track of
only its own children. Each child reports to its parent on the child's own descendants.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

from loom.domain.core.messages import JsonObject, Usage, usage_view
from loom.domain.core.requests import RunResult, RunStatus
from loom.domain.tree.budget import BudgetRequest, Share, Spend
from loom.domain.tree.lineage import Lineage, TreeLimits


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeSignal:
    """A queued signal to another run in the tree."""

    to: str
    signal: str
    payload: JsonObject


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeAsk:
    """A call that is waiting for a person, in the form that parent and ancestor runs receive."""

    call_id: str
    """An id that is unique among a run's asks: the names of the intermediate runs and the call id, joined by `/`."""
    run_id: str
    """The id of the run that made the call."""
    agent: str
    depth: int
    tool: str
    arguments: JsonObject
    cut: bool = False
    """Whether long texts in `arguments` have been truncated. The digest covers the full arguments."""
    reason: str = ""
    rule: str = ""
    risk: str = ""
    """The possible effects of the call. Empty if its worker doesn't report them."""
    digest: str = ""
    for_run: tuple[str, ...] = ()
    asked_at: str | None = None
    expires_at: str | None = None
    question: str = ""
    """The question of an MCP server. An approval answers it with `arguments`, and a denial declines to answer."""
    schema: JsonObject | None = None
    """The JSON Schema of the answer's fields, if the question has any."""
    url: str = ""
    """The address that the MCP server asks a person to open."""
    execution: str = ""
    """What the proof of an approval names the execution by. Empty if the call needs no proof."""

    @property
    def key(self) -> tuple[str, str, str | None]:
        """Identifies this ask. If the same call needs approval again, the new ask has a different key."""
        return (self.call_id, self.digest, self.asked_at)


def plain_ask(ask: TreeAsk) -> JsonObject:
    """Return the ask as JSON. Fields that earlier releases don't know are left out if they are empty."""
    later = ("question", "schema", "url", "execution")
    return {name: value for name, value in asdict(ask).items() if value or name not in later}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildReport:
    """A child's report to its parent, sent when the parent needs to know about a change."""

    run_id: str
    status: RunStatus
    waiting_on: str = ""
    turns: int = 0
    usage: Usage = field(default_factory=Usage)
    cost_micros: int | None = 0
    tool_calls: int = 0
    all_turns: int = 0
    """The turns of the child and its descendants."""
    sub_agents: int = 0
    asks: tuple[TreeAsk, ...] = ()
    """The pending asks of the child and its descendants."""
    reset_at: int = 0
    """The time of the child's latest reset, in microseconds since the epoch, or 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Child:
    """A run that this run has started."""

    run_id: str
    call_id: str
    """The call that the child answers."""
    agent: str
    description: str
    status: RunStatus = RunStatus.RUNNING
    started: bool = False
    """Whether the server has started the child, so that it can receive signals."""
    detached: bool = False
    """Whether the child goes on when the execution that started it closes, because it continued as new."""
    ended: bool = False
    spend_unknown: bool = False
    """Whether the child was ended externally. If so, there is no result that states what the child has spent."""
    turns: int = 0
    usage: Usage = field(default_factory=Usage)
    """The usage of the child and its descendants, as last reported."""
    cost_micros: int | None = 0
    tool_calls: int = 0
    all_turns: int = 0
    """The turns of the child and its descendants."""
    sub_agents: int = 0
    """The number of runs below the child."""
    share: Share = field(default_factory=Share)
    """The total amounts lent so far to the child and its descendants."""
    waiting_on: str = ""
    asks: tuple[TreeAsk, ...] = ()
    """The asks as last reported, with the child's own `call_id` values."""
    answered: tuple[tuple[str, str, str | None], ...] = ()
    """The keys of asks whose answers are being sent to the child."""
    levels: str = ""
    """The digest of the rules that were last sent to the child."""
    held: bool = False
    """Whether the last instruction was to pause."""
    end_sent: bool = False
    """Whether the child was instructed to end."""
    reset_at: int = 0
    """The time of the child's latest reset, as last reported."""

    @property
    def spend(self) -> Spend:
        """The amounts that the child and its descendants have spent, as last reported."""
        return Spend(
            tokens=self.usage.total_tokens,
            micros=self.cost_micros or 0,
            tool_calls=self.tool_calls,
            turns=self.all_turns,
            children=self.sub_agents,
        )

    @property
    def name(self) -> str:
        """The last part of the child's run id."""
        return self.run_id.rpartition("/")[2]

    @property
    def open_asks(self) -> tuple[TreeAsk, ...]:
        """The asks that are still waiting for a person, with the ids that the parent lists."""
        if self.ended:
            return ()
        waiting = (ask for ask in self.asks if ask.key not in self.answered)
        return tuple(replace(ask, call_id=f"{self.name}/{ask.call_id}") for ask in waiting)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """What a run knows about its tree."""

    lineage: Lineage | None = None
    """None for the root."""
    limits: TreeLimits | None = None
    """None if the run was prepared by a version that doesn't support trees."""
    children: tuple[Child, ...] = ()
    unsent: tuple[TreeSignal, ...] = ()
    """Signals that have not been sent, in order."""
    reported: str = ""
    """The digest of the last report to the parent. Empty if no report has been sent."""
    share: Share = field(default_factory=Share)
    """The amounts that this run and its descendants can spend."""
    reserve: Spend = field(default_factory=Spend)
    """The amounts that the run reserves for its own last answer. It doesn't lend them."""
    requests: tuple[BudgetRequest, ...] = ()
    """Unanswered budget requests, including the run's own."""
    asking: BudgetRequest | None = None
    """The open request to the parent."""
    asked: int = 0
    """The number of requests sent to the parent so far, which is also the number of the last request."""
    refused: tuple[str, ...] = ()
    """The budget dimensions that the parent has refused to increase."""

    @property
    def asks(self) -> tuple[TreeAsk, ...]:
        """The calls of descendant runs that are waiting for a person."""
        return tuple(ask for child in self.children for ask in child.open_asks)

    @property
    def depth(self) -> int:
        """The run's level below the root."""
        return self.lineage.depth if self.lineage else 0

    @property
    def running(self) -> tuple[Child, ...]:
        """The children that have not ended."""
        return tuple(child for child in self.children if not child.ended)

    @property
    def outlives_execution(self) -> bool:
        """Whether the run can continue as new now without ending or losing a child."""
        return all(child.started and child.detached for child in self.running)

    @property
    def usage(self) -> Usage:
        """The token usage of all descendants."""
        return sum((child.usage for child in self.children), Usage())

    @property
    def cost_micros(self) -> int | None:
        """The cost of all descendants. None if the price of any part is unknown."""
        costs = [child.cost_micros for child in self.children]
        return None if None in costs else sum(cost for cost in costs if cost is not None)

    def depends_on(self, run_id: str) -> bool:
        """Whether the run must end if the run with this id no longer runs."""
        return self.lineage is not None and self.lineage.detached and run_id == self.lineage.parent_run_id


def root_of(tree: Tree, run_id: str) -> str:
    """Return the id of the tree's root."""
    return tree.lineage.root_run_id if tree.lineage else run_id


def with_child(tree: Tree, run_id: str, change: Callable[[Child], Child]) -> Tree:
    """Return the tree with one child changed."""
    return replace(tree, children=tuple(change(c) if c.run_id == run_id else c for c in tree.children))


def child_of(tree: Tree, run_id: str) -> Child | None:
    """Return the child with this id, or None."""
    return next((child for child in tree.children if child.run_id == run_id), None)


def left_of(tree: Tree, own: Spend) -> Share:
    """Return the share that a run can still spend or lend after spending `own` itself."""
    return tree.share.minus(own + spent_by_children(tree))


def spent_by_children(tree: Tree) -> Spend:
    """Return the amounts that count as spent by the children.

    For a running child, the full amount lent to it counts. For an ended child, the amount that it used counts. The call
    that a child answers is counted for the child until the child ends, and then as one of the run's own calls.
    """
    return sum((_cost(child) for child in tree.children), Spend())


def _cost(child: Child) -> Spend:
    if not child.ended:
        return Spend(children=1, tool_calls=1) + child.share.lent
    return Spend(children=1) + (child.share.lent if child.spend_unknown else child.spend)


def without_unbegun(tree: Tree) -> Tree:
    """Return the tree of an ended run, without children that never started."""
    return replace(tree, children=tuple(child for child in tree.children if child.started or child.ended))


def ended_with(child: Child, result: RunResult) -> Child:
    """Return the child, updated with the result that has arrived."""
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
    """Return the token usage, read from the counts under their public names."""
    names = ("input_tokens", "output_tokens", "cached_tokens", "model_calls", "cache_write_tokens")
    return Usage(**{name: view[name] for name in names if isinstance(view.get(name), int)})


def child_view(child: Child) -> JsonObject:
    """Return the view of a child for `status` and results."""
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
