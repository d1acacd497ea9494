"""Admit a run that was moved here from another server.

Its state decides what the run may do, so only the owner of the worker's key may bring one, and only within the bounds
of this worker.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from temporalio import activity

from loom.activities.failures import to_application_error
from loom.activities.run_workspaces import RunWorkspaces
from loom.activities.start_gate import StartGate
from loom.domain.core.errors import BadRequest, LoomError, UnreachableError
from loom.domain.core.notifications import NotifyPlan
from loom.domain.permissions.bounds import Bounds
from loom.domain.run.activity_payloads import AdmittedRun, MovedRunRequest


class AdmitMovedRun:
    """Admits moved runs."""

    def __init__(
        self,
        *,
        gate: StartGate,
        bounds: Bounds,
        owner_bounds: Bounds,
        ledger: bool,
        notify: NotifyPlan | None,
        search_attributes: Callable[[], Awaitable[frozenset[str]]],
        redact: Callable[[str], str],
        workspaces: RunWorkspaces,
    ) -> None:
        self._gate = gate
        self._bounds = bounds
        self._owner_bounds = owner_bounds
        self._ledger = ledger
        self._notify = notify
        self._search_attributes = search_attributes
        self._redact = redact
        self._workspaces = workspaces

    @activity.defn(name="admit_moved_run")
    async def admit_moved_run(self, request: MovedRunRequest) -> AdmittedRun:
        """Check the signature and the bounds. Raises an application failure of the type BadRequest if one is wrong."""
        try:
            if request.start is None or not self._gate.is_signed_by_owner(request.start):
                raise BadRequest(
                    "a moved run must be signed with the worker's key: run `loom move` with the key of the workers"
                    " (LOOM_SIGNING_KEY)",
                    field="LOOM_SIGNING_KEY",
                )
            self._owner_bounds.refuse_mode(request.mode)
            if request.checkout is None or request.origin is None:
                self._refuse_workspace(request.workspace)
            else:
                await self._workspaces.refuse_moved(request.origin, request.checkout)
            await self._gate.use(request.start, activity.info().workflow_run_id or "")
        except UnreachableError:
            raise  # Temporal retries the activity
        except LoomError as error:
            raise to_application_error(error, self._redact) from None
        bounds = self._bounds.with_clone(_real(request.workspace) if request.checkout else "")
        widened = request.widened or bounds.refuses(_real(request.workspace), request.mode)
        return AdmittedRun(
            search_attributes=tuple(sorted(await self._search_attributes())),
            ledger=self._ledger,
            steering_key=self._gate.steering_key(widened=widened),
            notify=self._notify,
            widened=widened,
        )

    def _refuse_workspace(self, workspace: str) -> None:
        self._owner_bounds.refuse_workspace(_real(workspace))
        self._workspaces.refuse_folder(Path(_real(workspace)))
        if not Path(workspace).is_dir():
            raise BadRequest(
                f"workspace {workspace!r} is not a folder on the worker: copy the files to the same path",
                field="workspace",
            )


def _real(path: str) -> str:
    return str(Path(path).resolve())
