"""Send reports to a run's parent and instructions to the run's children."""

from loom.domain.agents.sub_agent import with_rights_of_parent
from loom.domain.core.frozen import replace
from loom.domain.core.requests import RunStatus
from loom.domain.machine.steering import under_other_rules
from loom.domain.permissions.judge import Level
from loom.domain.run.pending_approvals import open_asks, shortened_for_ancestors
from loom.domain.run.state import RunState, status_of, total_micros, total_tool_calls, total_usage, waiting_on
from loom.domain.tree.events import AncestryChanged
from loom.domain.tree.signals import PARENT, ChildInstructions, with_instructions_sent, with_report_sent
from loom.domain.tree.tree import ChildReport


def ancestry_changed(state: RunState, event: AncestryChanged) -> RunState:
    """Return the next state of a run whose ancestors' rules have changed. Calls that have not run are checked again."""
    if state.tree.lineage is None:
        return state
    lineage = replace(state.tree.lineage, above=event.above)
    spec = replace(state.spec, above=event.above) if state.spec is not None else None
    if spec is not None and state.request.crew is not None:
        spec = with_rights_of_parent(spec, lineage).with_permissions(state.request.permissions)
    return under_other_rules(replace(state, tree=replace(state.tree, lineage=lineage)), spec)


def sync_relatives(state: RunState) -> RunState:
    """Queue a signal for each change that the run's parent or children don't know about yet, and return the updated
    run.
    """
    tree = state.tree
    if state.spec is None or (tree.lineage is None and not tree.running):
        return state
    if tree.running:
        tree = with_instructions_sent(tree, _instructions(state))
    if state.outcome is None:
        tree = with_report_sent(tree, report_of(state))
    return state if tree is state.tree else replace(state, tree=tree)


def report_of(state: RunState) -> ChildReport:
    """Return the report on this run for its parent."""
    status = status_of(state)
    waits = status is not RunStatus.RUNNING or state.parked is not None
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
        asks=tuple(map(shortened_for_ancestors, open_asks(state))),
        reset_at=state.signature_checks.asks_renewed_at,
    )


def _instructions(state: RunState) -> ChildInstructions:
    end = None
    if state.outcome is not None:
        error = state.outcome.error
        why = str(error.context.get("reason") or "") if error else ""
        told = f"the run above has ended ({state.outcome.status})" + (f": {why}" if why else "")
        end = {"reason": told, "by": PARENT}
    return ChildInstructions(levels=levels(state), held=state.hold is not None, end=end)


def levels(state: RunState) -> tuple[Level, ...]:
    """Return the permission rules of this run and its ancestors, root first."""
    agent = state.agent
    own = Level(whose=agent.name, rules=agent.permissions, mode=agent.mode, grants=state.calls.grants)
    return (*agent.above, own)
