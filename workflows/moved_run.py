"""The `MovedRun` workflow, which continues a run of another server.

Temporal can't move a history between servers. A run that waits needs none: its whole state is one value, which the run
also hands on when it continues as new. `loom move` reads the state from the other server's history and starts this
workflow with it, under the run's id. It continues as new as the run itself.
"""

from dataclasses import replace
from typing import Final

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.workflow import ActivityConfig, ContinueAsNewVersioningBehavior

from loom.activities.admit_moved_run import AdmitMovedRun
from loom.activities.failures import failure_of
from loom.domain.core.requests import AGENT_RUN, RunResult
from loom.domain.machine.activity_requests import origin_of
from loom.domain.run.activity_payloads import MovedRunRequest
from loom.domain.run.state import RunState
from loom.workflows import options
from loom.workflows.signed_requests import signed_start
from loom.workflows.validation import read_state
from loom.workflows.visibility import attribute_updates, attributes_of

MOVED_RUN: Final = "MovedRun"
_ADMISSION: Final[ActivityConfig] = {**options.PREPARE, "summary": "admit a run of another server"}


@workflow.defn(name=MOVED_RUN)
class MovedRun:
    """A run that arrives from another server."""

    @workflow.run
    async def run(self, request: object = None, carried: object = None, *_: object) -> RunResult:
        """Check that the owner of the worker's key moved the run, and continue it."""
        start = signed_start([request, carried]) if workflow.info().headers else None
        state = _state_in(carried)
        assert state.spec is not None  # noqa: S101 - `_state_in` has checked it
        asked = MovedRunRequest(
            start=start,
            workspace=state.spec.workspace,
            mode=state.spec.mode,
            checkout=state.checkout,
            origin=origin_of(state) if state.checkout else None,
            widened=state.signature_checks.widened,
        )
        try:
            admitted = await workflow.execute_activity_method(AdmitMovedRun.admit_moved_run, asked, **_ADMISSION)
        except ActivityError as error:
            failure = failure_of(error)
            raise ApplicationError(failure.message, type=failure.type, non_retryable=True) from error
        here = replace(
            state,
            announced=(),  # the workflows that announce and escalate stay on the other server
            environment=replace(
                state.environment,
                search_attributes=admitted.search_attributes,
                ledger=admitted.ledger,
                notify=admitted.notify,
            ),
            signature_checks=replace(state.signature_checks, key=admitted.steering_key, widened=admitted.widened),
        )
        workflow.upsert_search_attributes(attribute_updates(attributes_of(here)))
        workflow.continue_as_new(
            workflow=AGENT_RUN,
            args=[request, here],
            initial_versioning_behavior=ContinueAsNewVersioningBehavior.AUTO_UPGRADE,
        )


def _state_in(carried: object) -> RunState:
    try:
        state = read_state(carried)
    except ValueError as error:
        raise _refused(f"the state of the moved run can't be read: {error}") from None
    if state.run_id != workflow.info().workflow_id or state.spec is None:
        raise _refused("a moved run keeps its id, and has begun its first turn")
    return state


def _refused(reason: str) -> ApplicationError:
    return ApplicationError(reason, type="BadRequest", non_retryable=True)
