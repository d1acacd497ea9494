"""The activities `await_child` and `abort_orphans`, which look after children that the server no longer looks after.

The server reports a child's end only to the execution that started the child, and doesn't end children whose parent is
terminated. After continue-as-new, the next execution therefore asks. Each attempt asks once and doesn't wait: the
activity's retry policy asks again, and the history doesn't grow.
"""

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from loom.activities.ports import ChildRunsOnServer
from loom.activities.publish import heartbeating
from loom.domain.run.activity_payloads import ChildOutcome, ChildRequest
from loom.domain.tree.signals import LOST, PARENT


class ChildRuns:
    """Looks at children on the server."""

    def __init__(self, children: ChildRunsOnServer) -> None:
        self._children = children

    @activity.defn(name="await_child")
    async def await_child(self, request: ChildRequest) -> ChildOutcome:
        """Return how the child has ended. Raises ApplicationError while it is running."""
        if (outcome := await self._children.outcome(request.run_id)) is None:
            raise ApplicationError(
                f"{request.run_id} is still running", type="ChildRunning", category=ApplicationErrorCategory.BENIGN
            )
        return outcome

    @activity.defn(name="abort_orphans")
    async def abort_orphans(self) -> int:
        """Abort running children whose parent no longer runs. Return their number."""
        number = 0
        async with heartbeating():
            async for run_id in self._children.orphans():
                await self._children.abort(run_id, reason=LOST, by=PARENT)
                number += 1
        return number
