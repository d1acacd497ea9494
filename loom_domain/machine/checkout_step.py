"""Work in a clone of a repository or an archive: make it before the first turn, and return the change at the end.

Only the root of a tree clones and returns. Its sub-agents work in the same clone, which their lineage names.

    the run's end ─▶ store the change ─▶ hooks, interceptors ─▶ push the change, if the run completed

An interceptor's `after` can still fail the run, so the change is pushed after it. Each step waits for up to a day while
a server is unavailable. Meanwhile, a person can abort the wait, which doesn't change how the run ends, or retry a run
that hasn't completed.
"""

from datetime import datetime

from loom.domain.core.frozen import replace
from loom.domain.core.messages import JsonObject
from loom.domain.core.repositories import PATCH, GitWorkspace, Repository, ReturnedChange, workspace_view
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.domain.machine.turn_start import is_clone_due, ready
from loom.domain.run.events import ChangePushed, ChangeStored, ReturnStopped, WorkspacePrepared
from loom.domain.run.state import Returning, RunState, note


def workspace_prepared(state: RunState, event: WorkspacePrepared) -> RunState:
    """Return the run with its clone. The run is then ready for its hooks and its first turn."""
    state = replace(state, checkout=event.checkout)
    told = note(state, Action.WORKSPACE, event.at, **(workspace_view(event.checkout, None) or {}))
    return told if state.outcome is not None else ready(told)


def awaits_clone(state: RunState, _event: WorkspacePrepared | None = None) -> bool:
    """Whether the run has a repository to clone."""
    return state.spec is not None and is_clone_due(state)


def returns_change(state: RunState) -> bool:
    """Whether this run returns the change to its repository."""
    return state.checkout is not None and isinstance(state.request.workspace, Repository)


def storing_change(state: RunState) -> RunState:
    """Return the ended run, which next stores its change if it has a repository."""
    return replace(state, returning=Returning(step="store")) if returns_change(state) else state


def pushing_change(state: RunState) -> RunState:
    """Return the ended run, which next pushes its change, or knows why nothing is pushed."""
    change = state.change
    if change is None or not _names_branch(state) or not change.files:
        return state
    if why := _why_not_pushed(state, change):
        return replace(state, change=change.with_problem(why))
    return replace(state, returning=Returning(step="push"))


def _names_branch(state: RunState) -> bool:
    return isinstance(state.request.workspace, GitWorkspace) and bool(state.request.workspace.push)


def _why_not_pushed(state: RunState, change: ReturnedChange) -> str:
    if state.outcome is not None and state.outcome.status is not RunStatus.COMPLETED:
        return f"nothing was pushed, because the run didn't complete (status: {state.outcome.status})"
    if not change.tree:
        return "nothing was pushed"
    return f"nothing was pushed: {change.withheld}" if change.withheld else ""


def is_storing(state: RunState, _event: ChangeStored | None = None) -> bool:
    """Whether the run waits until its change is stored."""
    return state.returning is not None and state.returning.step == "store"


def is_pushing(state: RunState, _event: ChangePushed | None = None) -> bool:
    """Whether the run waits until its change is pushed."""
    return state.returning is not None and state.returning.step == "push"


def is_wait_over(state: RunState) -> bool:
    """Whether a person wants the run no longer to wait until its change is returned."""
    return state.reopening is not None or (state.returning is not None and bool(state.returning.given_up))


def change_stored(state: RunState, event: ChangeStored) -> RunState:
    """Return the run with the change that is stored. Its patch replaces the one of an earlier end."""
    change = event.change
    artifacts = tuple(each for each in state.work.artifacts if each["id"] != PATCH)
    if change.patch:
        artifacts = (*artifacts, _patch(change.patch, change.characters))
    return _returned(replace(state, change=change, work=replace(state.work, artifacts=artifacts)), event.at)


def change_pushed(state: RunState, event: ChangePushed) -> RunState:
    """Return the run with the commit that was pushed, or with the reason that nothing was pushed."""
    change, workspace = state.change or ReturnedChange(), state.request.workspace
    if event.commit and isinstance(workspace, GitWorkspace):
        change = replace(change, branch=workspace.branch(state.run_id), commit=event.commit)
    return _returned(replace(state, change=change.with_problem(event.problem)), event.at)


def return_stopped(state: RunState, event: ReturnStopped) -> RunState:
    """Return the run, which doesn't wait any more, or which a person's retry takes up."""
    if state.returning is None or not state.returning.given_up:
        return _heard(state, event.at)
    what = "wasn't stored" if state.returning.step == "store" else "may not have been pushed"
    why = f"the change {what}, because the wait was {state.returning.given_up}"
    change = (state.change or ReturnedChange()).with_problem(why)
    return _returned(replace(state, change=change), event.at)


def change_told(state: RunState, at: datetime) -> RunState:
    """Return the run with a notice that says what has become of its change."""
    if not returns_change(state) or state.change is None:
        return state
    return note(state, Action.WORKSPACE, at, **(workspace_view(state.checkout, state.change) or {}))


def _returned(state: RunState, at: datetime) -> RunState:
    return _heard(replace(state, returning=None), at)


def _heard(state: RunState, at: datetime) -> RunState:
    """Return the run with a retry that has come in time, however long the step then took to stop."""
    asked = state.reopening
    return state if asked is None else replace(state, reopening=replace(asked, at=at))


def _patch(artifact: str, characters: int) -> JsonObject:
    return {"id": artifact, "call_id": "", "tool": "", "characters": characters}
