"""Prepare the clone of a run before its first turn, and return its change at the end.

`prepare_workspace` clones the repository, or unpacks the archive. At the end, `store_change` stores the patch, and
`push_change` pushes it to a branch, which gets the Git tree that the patch was made from, so both always have the same
content. An outage is no answer: the activities raise, and Temporal tries again.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import structlog
from temporalio import activity

from loom.activities.archives import Archives
from loom.activities.failures import to_application_error
from loom.activities.ports import ArtifactStore, Clone, CloneChange, Clones
from loom.activities.publish import heartbeating
from loom.activities.run_workspaces import LOST, RunWorkspaces
from loom.domain.core.errors import LoomError, UnreachableError
from loom.domain.core.repositories import PATCH, ArchiveWorkspace, Checkout, GitWorkspace, Repositories, ReturnedChange
from loom.domain.core.tool_calls import ARTIFACT_LENGTH, MOST_PARTS, artifact_parts, stored_artifact
from loom.domain.run.activity_payloads import ChangeRequest, Pushed, PushRequest, WorkspaceRequest

_log = structlog.get_logger("loom.workspace")

_LONGEST: Final = ARTIFACT_LENGTH * MOST_PARTS
"""The maximum number of characters of a patch that is stored as an artifact."""
_MOST_TOLD: Final = 5
"""The maximum number of files that a message names."""
_LONGEST_PATH: Final = 200


class WorkspaceSteps:
    """Prepares the clones of runs, and stores and pushes what they have changed."""

    def __init__(
        self,
        *,
        workspaces: RunWorkspaces,
        clones: Clones,
        repositories: Repositories,
        archives: Archives,
        artifacts: ArtifactStore | None,
        push_ci_files: bool,
        redact: Callable[[str], str],
    ) -> None:
        """`artifacts` is None without a database. `push_ci_files` says whether runs push files that a Git host runs as
        CI.
        """
        self._workspaces = workspaces
        self._clones = clones
        self._repositories = repositories
        self._archives = archives
        self._artifacts = artifacts
        self._push_ci_files = push_ci_files
        self._redact = redact

    @activity.defn(name="prepare_workspace")
    async def prepare_workspace(self, request: WorkspaceRequest) -> Checkout:
        """Clone the run's repository or unpack its archive, and pin the commit. Raises an application failure of the
        type BadRequest if that isn't possible.
        """
        async with heartbeating():
            try:
                async with self._clones.opened(request.folder) as clone:
                    checkout = await self._pinned(clone, request)
                    state = clone.state
                    if state is None or (state.commit, state.version) != (checkout.commit, 0):
                        await clone.build(checkout)
            except UnreachableError:
                raise  # Temporal retries the activity
            except LoomError as error:
                raise to_application_error(error, self._redact) from None
        _log.info("workspace_cloned", **request.origin.log_ids, url=checkout.url, commit=checkout.commit)
        return checkout

    async def _pinned(self, clone: Clone, request: WorkspaceRequest) -> Checkout:
        match request.workspace:
            case GitWorkspace() as workspace:
                self._repositories.refuse(workspace)
                return await clone.pin(workspace)
            case ArchiveWorkspace(archive=archive):
                content = await self._archives.content(archive.digest, request.origin)
                return await clone.unpack(content, archive.name)

    @activity.defn(name="store_change")
    async def store_change(self, request: ChangeRequest) -> ReturnedChange:
        """Store the patch as an artifact of the run. What isn't possible is told in the result."""
        checkout = request.checkout
        try:
            async with heartbeating(), self._workspaces.held(request.origin, checkout, "the end of the run") as held:
                await held.store(within=0.0)  # another machine may push it
                async with held.changing():
                    async with self._clones.opened(checkout.folder) as clone:
                        change = await clone.change(checkout)
                    assert change is not None  # noqa: S101 - it is None only if the files equal a tree that is named
                    stored = await self._stored(change, request)
                if held.lost:
                    stored = stored.with_problem(LOST.format(call=held.lost))
        except UnreachableError:
            raise  # Temporal retries the activity
        except LoomError as error:
            return ReturnedChange(problem=f"the change wasn't stored: {self._redact(error.message)}")
        _log.info("change_stored", **request.origin.log_ids, files=stored.files, patch=stored.patch)
        return stored

    async def _stored(self, change: CloneChange, request: ChangeRequest) -> ReturnedChange:
        stored = ReturnedChange(files=change.files, tree=change.tree, withheld=self._withheld(change.ci_files))
        if change.left_out:
            stored = stored.with_problem(f"the change doesn't contain {_named(change.left_out)}: Git refuses the names")
        if self._artifacts is None:
            why = "the patch isn't stored, because the worker has no database: set LOOM_DATABASE_URL"
            return stored.with_problem(why) if change.files else stored
        text = "" if change.patch is None else change.patch.decode("utf-8")
        is_too_long = change.patch is None or len(text) > _LONGEST
        kept = "" if is_too_long or not change.files else text
        parts = {
            stored_artifact(part, request.origin.execution): kept[
                number * ARTIFACT_LENGTH : (number + 1) * ARTIFACT_LENGTH
            ]
            for number, part in enumerate(artifact_parts(PATCH, _LONGEST))
        }
        await self._artifacts.replace(request.origin.run_id, parts)  # an earlier end of the run may have stored one
        if is_too_long:
            return stored.with_problem(f"the patch isn't stored, because it is longer than {_LONGEST:,} characters")
        return replace(stored, patch=PATCH, characters=len(kept)) if kept else stored

    def _withheld(self, ci_files: Sequence[str]) -> str:
        if not ci_files or self._push_ci_files:
            return ""
        return (
            f"the change has files that the repository's server may run as CI ({_named(ci_files)}): review the patch"
            " and push it yourself, or set LOOM_PUSH_CI_FILES=on on the workers"
        )

    @activity.defn(name="push_change")
    async def push_change(self, request: PushRequest) -> Pushed:
        """Push the stored change to its branch. Why that isn't possible is told in the result."""
        try:
            async with heartbeating():
                return await self._pushed(request)
        except UnreachableError:
            raise  # Temporal retries the activity
        except LoomError as error:
            return Pushed(problem=f"the change wasn't pushed: {self._redact(error.message)}")

    async def _pushed(self, request: PushRequest) -> Pushed:
        checkout = request.checkout
        self._repositories.refuse(GitWorkspace(git=checkout.url, push=request.branch))
        async with self._workspaces.held(request.origin, checkout), self._clones.opened(checkout.folder) as clone:
            if await clone.change(checkout, unless=request.tree) is not None:
                return Pushed(problem="the change wasn't pushed, because the files no longer equal the stored patch")
            commit = await clone.push(
                checkout,
                request.tree,
                request.branch,
                message=f"{self._redact(request.title) or 'Change'}\n\nLoom-Run: {request.origin.run_id}\n",
                at=request.at,
            )
        _log.info("change_pushed", **request.origin.log_ids, branch=request.branch, commit=commit)
        return Pushed(commit=commit)


def _named(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _MOST_TOLD} more" if len(paths) > _MOST_TOLD else ""
    # The names come from the agent, and may not be text.
    told = (path[:_LONGEST_PATH].encode("utf-8", "backslashreplace").decode() for path in paths[:_MOST_TOLD])
    return ", ".join(told) + more
