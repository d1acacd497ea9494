"""The end of a run in a clone: when its change is stored and pushed, and who can end the wait for that."""

from datetime import timedelta

import pytest

from loom.domain.core.frozen import replace
from loom.domain.core.repositories import (
    Archive,
    ArchiveWorkspace,
    Checkout,
    GitWorkspace,
    ReturnedChange,
    repository_line,
    workspace_view,
)
from loom.domain.core.requests import Budget, RunError, RunRequest, RunStatus
from loom.domain.machine.activity_requests import push_request
from loom.domain.machine.checkout_step import change_told, is_wait_over, pushing_change, storing_change
from loom.domain.machine.reopening import WITHIN
from loom.domain.machine.steering import refusal
from loom.domain.machine.transitions import evolve, ignored, start
from loom.domain.run.activity_payloads import Prepared
from loom.domain.run.events import (
    AbortRequested,
    ChangePushed,
    ChangeStored,
    RetryRequested,
    ReturnStopped,
    RunPrepared,
    RunReopened,
    TurnBegan,
    WorkspacePrepared,
)
from loom.domain.run.state import Outcome, RunState, waiting_on
from loom.domain.run.status import status_view
from loom.domain.tree.lineage import TreeLimits
from loom.workflows.visibility import markdown
from tests.unit.domain.story import AT, SPEC

REPOSITORY = GitWorkspace(git="https://git.example/app.git", push="fix/{run}")
CHECKOUT = Checkout(url=REPOSITORY.git, commit="1" * 40, revision="main", folder="/clones/1")
CHANGE = ReturnedChange(files=2, patch="workspace.patch", characters=9, tree="2" * 40)
LIMIT = RunError(type="BudgetExceededError", message="no more", context={"limit": "tool_calls"})


def ended(status: RunStatus, error: RunError | None = None) -> RunState:
    """A run in a clone that has ended, and whose change is about to be stored."""
    state = start("run:1", RunRequest(task="Fix it.\nNow.", workspace=REPOSITORY), AT)
    state = evolve(state, RunPrepared(prepared=Prepared(spec=SPEC, limits=TreeLimits())))
    state = evolve(state, WorkspacePrepared(checkout=CHECKOUT, at=AT))
    state = evolve(state, TurnBegan(at=AT))
    return storing_change(replace(state, outcome=Outcome(status=status, error=error)))


def stored(state: RunState, change: ReturnedChange = CHANGE) -> RunState:
    """The run once its change is stored, and about to be pushed if it is."""
    return pushing_change(evolve(state, ChangeStored(change=change, at=AT)))


def test_the_change_of_a_run_that_completed_is_stored_and_then_pushed() -> None:
    state = ended(RunStatus.COMPLETED)
    assert "to be stored" in (waiting_on(state) or "")
    state = stored(state)
    assert "to be pushed to fix/run-1" in str(status_view(state)["waiting_on"])
    request = push_request(state, AT)
    assert (request.tree, request.branch, request.title) == (CHANGE.tree, "fix/run-1", "Fix it.")

    state = evolve(state, ChangePushed(commit="3" * 40, at=AT))

    assert (state.returning, waiting_on(state)) == (None, None)
    assert state.change == replace(CHANGE, branch="fix/run-1", commit="3" * 40)
    assert change_told(state, AT).notices.pending[-1].parameters["pushed"] == "3" * 40
    line = (
        "repository https://git.example/app.git, main at 111111111111 · 2 changed files, patch workspace.patch, pushed"
        " to fix/run-1 as 333333333333"
    )
    assert repository_line(workspace_view(state.checkout, state.change) or {}) == line
    assert "pushed to fix/run-1 as 333333333333" in markdown(state)


@pytest.mark.parametrize(
    ("status", "change", "why"),
    [
        (RunStatus.ABORTED, CHANGE, "nothing was pushed, because the run didn't complete (status: aborted)"),
        (RunStatus.FAILED, CHANGE, "(status: failed)"),
        (RunStatus.LIMIT_REACHED, CHANGE, "(status: limit_reached)"),
        (RunStatus.COMPLETED, replace(CHANGE, withheld="it has .gitlab-ci.yml"), "nothing was pushed: it has .gitlab"),
        (RunStatus.COMPLETED, ReturnedChange(), ""),
        (RunStatus.COMPLETED, ReturnedChange(problem="the change wasn't stored: no"), "the change wasn't stored: no"),
    ],
)
def test_a_change_that_may_not_be_pushed_says_why(status: RunStatus, change: ReturnedChange, why: str) -> None:
    state = stored(ended(status), change)
    assert state.returning is None
    assert state.change is not None
    assert why in state.change.problem
    assert bool(why) == bool(state.change.problem)


def test_an_archive_is_in_the_state_by_its_digest_and_its_change_is_stored_but_never_pushed() -> None:
    workspace = ArchiveWorkspace(archive=Archive(data="UEs=", name="app.zip"))
    checkout = Checkout(url="archive:12", commit="1" * 40, revision="app.zip", folder="/clones/1", left_out=(".git",))
    state = start("run:1", RunRequest(task="Fix it.", workspace=workspace), AT)

    state = evolve(state, RunPrepared(prepared=Prepared(spec=SPEC, limits=TreeLimits(), archive="12")))

    assert state.request.workspace == ArchiveWorkspace(archive=Archive(digest="12", name="app.zip"))
    state = evolve(evolve(state, WorkspacePrepared(checkout=checkout, at=AT)), TurnBegan(at=AT))
    state = storing_change(replace(state, outcome=Outcome(status=RunStatus.COMPLETED)))
    assert "to be stored" in (waiting_on(state) or "")
    state = stored(state)
    assert state.returning is None
    assert workspace_view(state.checkout, state.change) == {
        "archive": "12",
        "name": "app.zip",
        "commit": "1" * 40,
        "left_out": [".git"],
        "files": 2,
        "patch": "workspace.patch",
        "branch": None,
        "pushed": None,
        "problem": None,
    }


def test_the_patch_of_a_later_end_replaces_the_earlier_one() -> None:
    state = stored(ended(RunStatus.FAILED), CHANGE)
    for change in (replace(CHANGE, characters=20), ReturnedChange(tree="4" * 40)):
        state = stored(storing_change(state), change)
        assert [each["characters"] for each in state.work.artifacts] == [change.characters] * bool(change.patch)


def test_an_abort_ends_the_wait_and_not_the_run_again() -> None:
    state = evolve(stored(ended(RunStatus.COMPLETED)), AbortRequested(by="ann", reason="enough", at=AT))
    assert is_wait_over(state)
    state = evolve(state, ReturnStopped(at=AT))
    assert state.outcome == Outcome(status=RunStatus.COMPLETED)
    assert state.change is not None
    assert state.change.problem.endswith("the wait was aborted by ann: enough")
    assert refusal(state, AbortRequested(at=AT)) == "the run has ended: completed"


def test_a_retry_ends_the_wait_however_long_the_step_takes_to_stop() -> None:
    state, late = ended(RunStatus.BUDGET_EXHAUSTED, LIMIT), AT + 2 * WITHIN
    more = RetryRequested(budget=Budget(tool_calls=9), at=AT)
    assert "name a larger one" in (refusal(state, RetryRequested(at=AT)) or "")
    assert "already gone on" in (refusal(state, replace(more, end=3)) or "")

    state = evolve(state, more)
    assert is_wait_over(state)
    state = evolve(evolve(state, ReturnStopped(at=late)), RunReopened(at=late))

    assert (state.outcome, state.returning, state.retries) == (None, None, 1)


def test_a_run_without_a_repository_waits_for_nothing() -> None:
    state = replace(ended(RunStatus.COMPLETED), checkout=None, returning=None)
    assert storing_change(state) is state
    assert pushing_change(state) is state
    assert change_told(state, AT) is state
    assert ignored(state, ChangeStored(change=CHANGE, at=AT + timedelta(1))) is not None


@pytest.mark.parametrize(
    ("run_id", "branch"),
    [
        ("test-1", "fix/test-1"),
        ("schedule-a-2026-11-29T00:00:00Z", "fix/schedule-a-2026-11-29T00-00-00Z"),
        ("acme:../x.lock", "fix/acme-x-lock"),
        ("日本", "fix/63101527425ea2d3a382a68af7d4fdca"),
    ],
)
def test_the_id_of_a_run_stands_in_a_branch_as_git_accepts_it(run_id: str, branch: str) -> None:
    assert REPOSITORY.branch(run_id) == branch
