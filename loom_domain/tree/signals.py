"""What the runs of a tree have to tell each other: a parent its children, a child its parent.

Nobody sends anything by hand. `in_touch` compares what each relative was told last with how things stand, and writes a
letter for what differs; so whatever changes a run, at whatever moment, its relatives learn of it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from loom.domain.core.messages import JsonObject, canonical, short_digest
from loom.domain.permissions.judge import Level
from loom.domain.tree.tree import Child, ChildReport, Letter, Tree, TreeAsk, child_of, with_child

REPORT: Final = "child_report"
"""The signal by which a child tells its parent how it stands."""
ANCESTRY: Final = "set_ancestry"
"""The signal by which a parent tells its child what those above it allow now."""
PARENT: Final = "the run above"
"""Who has paused or resumed a child that its parent has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stance:
    """What a run wants of all its children."""

    levels: tuple[Level, ...]
    """What it and those above it allow."""
    held: bool = False
    """They are to pause."""
    end: Mapping[str, str] | None = None
    """They are to end: the payload of `abort`."""


def with_told_children(tree: Tree, stance: Stance) -> Tree:
    """The tree with a letter for each child that does not know this yet."""
    for child in tree.children:
        if child.started and not child.ended:
            tree = _told(tree, child, stance)
    return tree


def with_told_parent(tree: Tree, report: ChildReport) -> Tree:
    """The tree with a letter to the parent, if something changed that it has to know."""
    if tree.lineage is None:
        return tree
    known = _known(report)
    if known == tree.reported:
        return tree
    payload = {**asdict(report), "asks": [asdict(ask) for ask in report.asks]}
    return written(replace(tree, reported=known), tree.lineage.parent_run_id, REPORT, payload)


def with_report(tree: Tree, report: ChildReport) -> Tree:
    """The tree after a child has told how it stands."""
    child = child_of(tree, report.run_id)
    if child is None or child.ended:
        return tree
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
            # An answer that is still under way keeps its ask from coming up again.
            answered=tuple(key for key in c.answered if key in keys),
        ),
    )


def with_answer(tree: Tree, ask: TreeAsk, signal: str, payload: Mapping[str, Any]) -> Tree:
    """The tree with an answer on its way to the child that an ask came from, bound to what was asked."""
    child = next((c for c in tree.running if ask.run_id == c.run_id or ask.run_id.startswith(f"{c.run_id}/")), None)
    if child is None:
        return tree
    below = replace(ask, call_id=ask.call_id.removeprefix(f"{child.name}/"))
    tree = with_child(tree, child.run_id, lambda c: replace(c, answered=(*c.answered, below.key)))
    return written(tree, child.run_id, signal, {**payload, "call_id": below.call_id})


def sent(tree: Tree) -> Tree:
    """The tree after its first letter is gone."""
    return replace(tree, letters=tree.letters[1:])


def written(tree: Tree, to: str, signal: str, payload: Mapping[str, Any]) -> Tree:
    """The tree with a letter to another run, its payload as JSON says it."""
    return replace(tree, letters=(*tree.letters, Letter(to=to, signal=signal, payload=json.loads(canonical(payload)))))


def digest_of(levels: Sequence[Level]) -> str:
    """Names what these levels allow."""
    return short_digest(canonical({"levels": [asdict(level) for level in levels]}))


def _told(tree: Tree, child: Child, stance: Stance) -> Tree:
    if stance.end is not None:
        if child.told_end:
            return tree
        tree = with_child(tree, child.run_id, lambda c: replace(c, told_end=True))
        return written(tree, child.run_id, "abort", stance.end)
    if (digest := digest_of(stance.levels)) != child.levels:
        tree = with_child(tree, child.run_id, lambda c: replace(c, levels=digest))
        tree = written(tree, child.run_id, ANCESTRY, {"above": [_plain(level) for level in stance.levels]})
    if stance.held != child.held:
        tree = with_child(tree, child.run_id, lambda c: replace(c, held=stance.held))
        tree = written(tree, child.run_id, "pause" if stance.held else "resume", {"by": PARENT})
    return tree


def _plain(level: Level) -> JsonObject:
    """As JSON has it, so that a letter stays equal to itself when it is carried on."""
    return {**asdict(level), "grants": list(level.grants)}


def _known(report: ChildReport) -> str:
    """What of a report makes it worth a signal: not how far the child has come, but that something waits."""
    asks = [ask.key for ask in report.asks]
    if not asks and not report.waiting_on:
        return ""
    facts: JsonObject = {"status": report.status, "waiting_on": report.waiting_on, "asks": asks}
    return short_digest(canonical(facts))
