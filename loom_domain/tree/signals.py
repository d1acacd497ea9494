"""Signals between the runs in a tree: a parent instructs its children, and a child reports to its parent.

No other code queues these signals. After each event, `machine.tree_sync` compares the run's state with the information
last sent to the parent and to each child, and queues a signal for each difference.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from loom.domain.core.messages import JsonObject, canonical, short_digest
from loom.domain.permissions.judge import Level
from loom.domain.tree.tree import Child, ChildReport, Tree, TreeAsk, TreeSignal, child_of, plain_ask, with_child

REPORT: Final = "child_report"
"""The signal that a child sends to report to its parent."""
ANCESTRY: Final = "set_ancestry"
"""The signal that tells a child the rules of its ancestors. The parent sends it."""
TURNS_BETWEEN_REPORTS: Final = 5
"""The number of turns after which a child that outlives its parent's execution reports, even if nothing has changed."""
LOST: Final = "the run above no longer runs"
"""The reason for which a run is aborted that has lost its parent."""
PARENT: Final = "the run above"
"""The value of `by` in a signal from a parent to its child."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildInstructions:
    """The instructions that a run sends to all its children."""

    levels: tuple[Level, ...]
    """The rules of the run and its ancestors."""
    held: bool = False
    """Whether the children must pause."""
    end: Mapping[str, str] | None = None
    """The payload of `abort`. Set if the children must be aborted."""


def with_instructions_sent(tree: Tree, instructions: ChildInstructions) -> Tree:
    """Queue a signal for each child that has not received these instructions, and return the updated tree."""
    for child in tree.children:
        if child.started and not child.ended:
            tree = _instructed(tree, child, instructions)
    return tree


def with_report_sent(tree: Tree, report: ChildReport) -> Tree:
    """If the parent needs to know about a change, queue a report and return the updated tree. Otherwise, return the
    tree unchanged.
    """
    if tree.lineage is None:
        return tree
    known = _report_digest(report, regularly=tree.lineage.detached)
    if known == tree.reported:
        return tree
    payload = {**asdict(report), "asks": [plain_ask(ask) for ask in report.asks]}
    if not report.reset_at:  # as in histories of earlier releases
        del payload["reset_at"]
    return with_signal(replace(tree, reported=known), tree.lineage.parent_run_id, REPORT, payload)


def with_report(tree: Tree, report: ChildReport) -> Tree:
    """Return the tree, updated with a report that a child has sent."""
    child = child_of(tree, report.run_id)
    if child is None or child.ended:
        return tree
    if report.reset_at != child.reset_at:  # it has forgotten its instructions, so they are sent again
        tree = with_child(tree, report.run_id, lambda c: replace(c, levels="", held=False, reset_at=report.reset_at))
    keys = {ask.key for ask in report.asks}
    return with_child(
        tree,
        report.run_id,
        lambda c: replace(
            c,
            status=report.status,
            waiting_on=report.waiting_on,
            turns=report.turns,
            usage=report.usage,
            cost_micros=report.cost_micros,
            tool_calls=report.tool_calls,
            all_turns=report.all_turns,
            sub_agents=report.sub_agents,
            asks=report.asks,
            # While an answer is being sent to the child, the answered ask must not be listed again.
            answered=tuple(key for key in c.answered if key in keys),
        ),
    )


def with_answer(tree: Tree, ask: TreeAsk, signal: str, payload: Mapping[str, Any]) -> Tree:
    """Queue an answer for the child that reported the ask, and return the updated tree."""
    child = next((c for c in tree.running if ask.run_id == c.run_id or ask.run_id.startswith(f"{c.run_id}/")), None)
    if child is None:
        return tree
    below = replace(ask, call_id=ask.call_id.removeprefix(f"{child.name}/"))
    tree = with_child(tree, child.run_id, lambda c: replace(c, answered=(*c.answered, below.key)))
    return with_signal(tree, child.run_id, signal, {**payload, "call_id": below.call_id})


def without_first_signal(tree: Tree) -> Tree:
    """Return the tree without its first queued signal, which has been sent."""
    return replace(tree, unsent=tree.unsent[1:])


def with_signal(tree: Tree, to: str, signal: str, payload: Mapping[str, Any]) -> Tree:
    """Queue a signal to another run, and return the updated tree. The payload is plain JSON."""
    return replace(
        tree, unsent=(*tree.unsent, TreeSignal(to=to, signal=signal, payload=json.loads(canonical(payload))))
    )


def digest_of(levels: Sequence[Level]) -> str:
    """Return a digest of these rules."""
    return short_digest(canonical({"levels": [asdict(level) for level in levels]}))


def _instructed(tree: Tree, child: Child, instructions: ChildInstructions) -> Tree:
    if instructions.end is not None:
        if child.end_sent:
            return tree
        tree = with_child(tree, child.run_id, lambda c: replace(c, end_sent=True))
        return with_signal(tree, child.run_id, "abort", instructions.end)
    if (digest := digest_of(instructions.levels)) != child.levels:
        tree = with_child(tree, child.run_id, lambda c: replace(c, levels=digest))
        tree = with_signal(tree, child.run_id, ANCESTRY, {"above": [_plain(level) for level in instructions.levels]})
    if instructions.held != child.held:
        tree = with_child(tree, child.run_id, lambda c: replace(c, held=instructions.held))
        tree = with_signal(tree, child.run_id, "pause" if instructions.held else "resume", {"by": PARENT})
    return tree


def _plain(level: Level) -> JsonObject:
    """Convert the rules to plain JSON, so that a queued signal doesn't change across continue-as-new."""
    return {**asdict(level), "grants": list(level.grants)}


def _report_digest(report: ChildReport, *, regularly: bool) -> str:
    """Return a digest of the parts of a report that require a signal when they change. One such part is what the child
    is waiting for. Progress requires a signal only if the child reports regularly.
    """
    asks = [ask.key for ask in report.asks]
    facts: dict[str, Any] = {}
    if asks or report.waiting_on:
        facts = {"status": report.status, "waiting_on": report.waiting_on, "asks": asks}
    if regularly and (reports := report.turns // TURNS_BETWEEN_REPORTS):
        facts["reports"] = reports
    if report.reset_at:
        facts["reset_at"] = report.reset_at
    return short_digest(canonical(facts)) if facts else ""
