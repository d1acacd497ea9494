"""One budget for a tree of runs: what is lent, asked for, granted and given back, in any order of events."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loom.domain.core.messages import Usage
from loom.domain.tree.budget import DIMENSIONS, BudgetRequest, Share, Spend, grant
from loom.domain.tree.budget_shares import GRANT, WANT, answered, share_for_each, with_request
from loom.domain.tree.lineage import Lineage, TreeLimits
from loom.domain.tree.signals import without_first_signal
from loom.domain.tree.tree import Child, Tree, left_of, spent_by_children, with_child


def test_a_share_that_is_not_limited_never_runs_out() -> None:
    assert not Share().minus(Spend(tokens=10**9)).shortfall(Spend(tokens=10**9))


def test_what_lacks_is_told_by_dimension() -> None:
    assert Share(tokens=10, micros=5).shortfall(Spend(tokens=12, micros=5, turns=3)) == Spend(tokens=2)


@pytest.mark.parametrize(
    ("left", "kept", "need", "granted"),
    [
        (Share(tokens=100), Spend(), Spend(tokens=10), Spend(tokens=33)),
        (Share(tokens=100), Spend(), Spend(tokens=60), Spend(tokens=60)),
        (Share(tokens=100), Spend(tokens=50), Spend(tokens=60), None),
        (Share(tokens=100, micros=3), Spend(), Spend(tokens=10, micros=4), None),
        (Share(), Spend(tokens=50), Spend(tokens=60), Spend(tokens=60)),
        (Share(tokens=-5), Spend(), Spend(tokens=1), None),
    ],
)
def test_a_wish_is_granted_with_an_equal_part_at_least_what_lacks_or_not_at_all(
    left: Share, kept: Spend, need: Spend, granted: Spend | None
) -> None:
    assert grant(left, kept, need, sharers=2) == granted


def test_children_get_equal_parts_and_their_parent_keeps_one_and_its_last_answer() -> None:
    tree = Tree(share=Share(tokens=1000, children=20), reserve=Spend(tokens=100))
    assert share_for_each(tree, Spend(tokens=100), 3) == Share(tokens=200, children=0)


def test_what_a_child_did_not_spend_comes_back() -> None:
    child = Child(run_id="r/a", call_id="c", agent="x", description="d", share=Share(tokens=200), started=True)
    tree = Tree(share=Share(tokens=1000), children=(child,))
    assert left_of(tree, Spend(tokens=100)).tokens == 700
    ended = with_child(tree, "r/a", lambda c: replace(c, ended=True, usage=Usage(input_tokens=30)))
    assert left_of(ended, Spend(tokens=100)).tokens == 870


@dataclass
class Node:
    """A run of a simulated tree: its account, what it has spent, and the children below."""

    run_id: str
    tree: Tree
    own: int = 0
    waits: bool = False
    children: dict[str, "Node"] = field(default_factory=dict)

    def everyone(self) -> list["Node"]:
        return [self, *(each for child in self.children.values() for each in child.everyone())]

    def spent(self) -> int:
        return self.own + sum(child.spent() for child in self.children.values())


LIMITS = TreeLimits()


def grown(dice: Random, root: Node) -> None:
    """One step of any run of the tree that can take one."""
    node = dice.choice([each for each in root.everyone() if not gone(root, each)])
    if node.tree.unsent and dice.random() < 0.6:
        return delivered(root, node)
    step = dice.choice((called, delegated, one_child_ended))
    return step(dice, node)


def called(dice: Random, node: Node) -> None:
    """A model call is made only if what it takes at most is there; else the run asks for that."""
    if node.tree.running or node.waits:
        return
    own, need = Spend(tokens=node.own), Spend(tokens=dice.randint(1, 120))
    if not left_of(node.tree, own).shortfall(need):
        node.own += need.tokens
    elif node.tree.lineage is not None and "tokens" not in node.tree.refused:
        want = BudgetRequest(run_id=node.run_id, number=0, need=need)
        node.tree, node.waits = with_request(node.tree, own, want, node.run_id), True


def delegated(dice: Random, node: Node) -> None:
    if node.tree.running or node.waits or node.run_id.count("/") == 3:
        return
    number = dice.randint(1, 4)
    share = share_for_each(node.tree, Spend(tokens=node.own), number)
    for _ in range(number):
        born(node, share)


def one_child_ended(dice: Random, node: Node) -> None:
    over = [
        child
        for child in node.children.values()
        if not (ended_in(node, child) or child.tree.running or child.tree.unsent or child.waits)
    ]
    if not over:
        return
    child = dice.choice(over)
    usage = Usage(input_tokens=child.spent())
    node.tree = with_child(node.tree, child.run_id, lambda c: replace(c, ended=True, usage=usage))


def ended_in(parent: Node, child: Node) -> bool:
    return any(c.run_id == child.run_id and c.ended for c in parent.tree.children)


def gone(root: Node, node: Node) -> bool:
    """Its parent has seen its end."""
    return any(ended_in(each, node) for each in root.everyone())


def born(node: Node, share: Share) -> None:
    run_id = f"{node.run_id}/{len(node.tree.children)}"
    child = Child(run_id=run_id, call_id=run_id, agent="x", description="d", share=share, started=True)
    lineage = Lineage(parent_run_id=node.run_id, root_run_id="r", depth=1, limits=LIMITS, share=share)
    node.tree = replace(node.tree, children=(*node.tree.children, child))
    node.children[run_id] = Node(run_id=run_id, tree=Tree(lineage=lineage, limits=LIMITS, share=share))


def delivered(root: Node, node: Node) -> None:
    letter = node.tree.unsent[0]
    node.tree = without_first_signal(node.tree)
    to = next(each for each in root.everyone() if each.run_id == letter.to)
    own = Spend(tokens=to.own)
    if letter.signal == WANT:
        want = BudgetRequest(
            run_id=letter.payload["run_id"], number=letter.payload["number"], need=Spend(**letter.payload["need"])
        )
        to.tree = with_request(to.tree, own, want, to.run_id)
    if letter.signal == GRANT:
        granted = Spend(**letter.payload["granted"])
        to.tree = answered(to.tree, own, letter.payload["number"], granted, to.run_id)
        to.waits = any(want.run_id == to.run_id for want in to.tree.requests)


@settings(max_examples=settings().max_examples // 2)
@given(seed=st.integers(0, 10**6), tokens=st.integers(0, 5000), steps=st.integers(1, 150))
def test_no_order_of_events_lets_a_tree_spend_more_than_its_budget(seed: int, tokens: int, steps: int) -> None:
    dice = Random(seed)
    root = Node(run_id="r", tree=Tree(limits=LIMITS, share=Share(tokens=tokens)))
    for _ in range(steps):
        grown(dice, root)
        assert root.spent() <= tokens
        for node in root.everyone():
            assert node.tree.share.tokens is not None
            assert node.own + spent_by_children(node.tree).tokens <= node.tree.share.tokens
    while any(node.tree.unsent for node in root.everyone()):
        delivered(root, dice.choice([node for node in root.everyone() if node.tree.unsent]))
    assert not any(node.waits for node in root.everyone() if not gone(root, node)), "a wish was never answered"


def test_every_dimension_has_a_place_in_shares_and_spends() -> None:
    assert set(DIMENSIONS) == set(Share.__dataclass_fields__) == set(Spend.__dataclass_fields__)
