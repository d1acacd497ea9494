"""What a run tells the one above it and those below it, whenever something changed that they have to know."""

from dataclasses import replace

from loom.domain.agents.sub_agent import with_rights_of_parent
from loom.domain.core.requests import RunStatus
from loom.domain.machine.steering import under_other_rules
from loom.domain.permissions.judge import Level
from loom.domain.run.pending_approvals import open_asks, told_above
from loom.domain.run.state import RunState, status_of, total_micros, total_tool_calls, total_usage, waiting_on
from loom.domain.tree.events import AncestryChanged
from loom.domain.tree.signals import PARENT, Stance, with_told_children, with_told_parent
from loom.domain.tree.tree import ChildReport


def take_ancestry(state: RunState, event: AncestryChanged) -> RunState:
    """The run under other rules of those above it; what has not run yet is judged again."""
    if state.tree.lineage is None:
        return state
    lineage = replace(state.tree.lineage, above=event.above)
    spec = replace(state.spec, above=event.above) if state.spec is not None else None
    if spec is not None and state.request.crew is not None:
        spec = with_rights_of_parent(spec, lineage).with_permissions(state.request.permissions)
    return under_other_rules(replace(state, tree=replace(state.tree, lineage=lineage)), spec)


def in_touch(state: RunState) -> RunState:
    """The run with letters to its relatives about all that they do not know yet."""
    tree = state.tree
    if state.spec is None or (tree.lineage is None and not tree.running):
        return state
    if tree.running:
        tree = with_told_children(tree, _stance(state))
    if state.outcome is None:
        tree = with_told_parent(tree, report_of(state))
    return state if tree is state.tree else replace(state, tree=tree)


def report_of(state: RunState) -> ChildReport:
    """What a run tells the one above it."""
    status = status_of(state)
    waits = status is not RunStatus.RUNNING
    return ChildReport(
        run_id=state.run_id,
        status=status,
        waiting_on=(waiting_on(state) or "") if waits else "",
        turns=state.turns,
        usage=total_usage(state),
        cost_micros=total_micros(state),
        tool_calls=total_tool_calls(state),
        all_turns=state.turns + sum(child.all_turns for child in state.tree.children),
        sub_agents=sum(1 + child.sub_agents for child in state.tree.children),
        asks=tuple(map(told_above, open_asks(state))),
    )


def _stance(state: RunState) -> Stance:
    end = None
    if state.outcome is not None:
        error = state.outcome.error
        why = str(error.context.get("reason") or "") if error else ""
        told = f"the run above has ended ({state.outcome.status})" + (f": {why}" if why else "")
        end = {"reason": told, "by": PARENT}
    return Stance(levels=levels(state), held=state.hold is not None, end=end)


def levels(state: RunState) -> tuple[Level, ...]:
    """What this run and those above it allow, root first."""
    agent = state.agent
    own = Level(whose=agent.name, rules=agent.permissions, mode=agent.mode, grants=state.grants)
    return (*agent.above, own)
