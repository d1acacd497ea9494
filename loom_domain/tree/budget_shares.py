"""Budget shares in a tree: a run lends budget to its children, grants requests, and requests more from its parent."""

from dataclasses import replace
from typing import Final

from loom.domain.tree.budget import BudgetRequest, Share, Spend, grant
from loom.domain.tree.signals import with_signal
from loom.domain.tree.tree import Tree, child_of, left_of, with_child

WANT: Final = "want_budget"
"""The signal that a child sends to request budget from its parent."""
GRANT: Final = "grant_budget"
"""The signal that a parent sends to answer a budget request."""


def share_for_each(tree: Tree, own: Spend, number: int) -> Share:
    """Return the share to lend to each of `number` new children.

    The remaining share is divided into equal parts, one of which is kept for later requests. The new shares don't
    include any sub-agents.
    """
    pot = left_of(tree, own).minus(tree.reserve + Spend(children=number, tool_calls=number))
    part = pot.part(number + 1)
    return replace(part, children=None if part.children is None else 0)


def may_request(tree: Tree, need: Spend) -> bool:
    """Whether the run can request this budget from its parent. Dimensions that the parent has refused cannot be
    requested again.
    """
    return tree.lineage is not None and not set(need.named) & set(tree.refused)


def with_request(tree: Tree, own: Spend, want: BudgetRequest, run_id: str) -> Tree:
    """Return the tree of the run `run_id`, updated with a budget request from the run or one of its children."""
    return _settled(replace(tree, requests=(*tree.requests, want)), own, run_id)


def answered(tree: Tree, own: Spend, number: int, granted: Spend, run_id: str) -> Tree:
    """Return the tree, updated with the parent's answer. The granted amount goes to the run that made the request."""
    asking = tree.asking
    if asking is None or asking.number != number:
        return tree
    refused = tree.refused if granted else (*tree.refused, *asking.need.named)
    tree = replace(tree, share=tree.share.plus(granted), asking=None, refused=tuple(dict.fromkeys(refused)))
    return _settled(tree, own, run_id)


def without_requests_of(tree: Tree, run_id: str) -> Tree:
    """Return the tree without the requests of a child that has ended."""
    return replace(tree, requests=tuple(want for want in tree.requests if want.run_id != run_id))


def _settled(tree: Tree, own: Spend, run_id: str) -> Tree:
    """Return the tree, updated with answers to all requests that can be answered.

    The first request that can't be answered is passed to the parent or refused.
    """
    while True:
        for want in tree.requests:
            tree = _served(tree, own, want, run_id)
        if not tree.requests or tree.asking is not None:
            return tree
        first = tree.requests[0]
        lack = _pot(tree, own, first, run_id).shortfall(first.need)
        if tree.lineage is not None and may_request(tree, lack):
            return _asked(tree, tree.lineage.parent_run_id, lack, run_id)
        tree = _refused(tree, first, run_id)


def _served(tree: Tree, own: Spend, want: BudgetRequest, run_id: str) -> Tree:
    if want.run_id == run_id:
        return _done(tree, want) if not left_of(tree, own).shortfall(want.need) else tree
    child = child_of(tree, want.run_id)
    if child is None or child.ended:
        return _done(tree, want)
    granted = grant(left_of(tree, own), tree.reserve, want.need, len(tree.running))
    if granted is None:
        return tree
    tree = with_child(tree, child.run_id, lambda c: replace(c, share=c.share.plus(granted)))
    return _told(_done(tree, want), want, granted)


def _pot(tree: Tree, own: Spend, want: BudgetRequest, run_id: str) -> Share:
    left = left_of(tree, own)
    return left if want.run_id == run_id else left.minus(tree.reserve)


def _asked(tree: Tree, parent: str, lack: Spend, run_id: str) -> Tree:
    want = BudgetRequest(run_id=run_id, number=tree.asked + 1, need=lack)
    payload = {"run_id": run_id, "number": want.number, "need": lack.named}
    tree = replace(tree, asking=want, asked=want.number)
    return with_signal(tree, parent, WANT, payload)


def _refused(tree: Tree, want: BudgetRequest, run_id: str) -> Tree:
    tree = _done(tree, want)
    return tree if want.run_id == run_id else _told(tree, want, Spend())


def _told(tree: Tree, want: BudgetRequest, granted: Spend) -> Tree:
    return with_signal(tree, want.run_id, GRANT, {"number": want.number, "granted": granted.named})


def _done(tree: Tree, want: BudgetRequest) -> Tree:
    return replace(tree, requests=tuple(other for other in tree.requests if other != want))
