"""The activities `await_child` and `abort_orphans`, which look after children for which the server does nothing more.

The server tells only the execution that started a child how the child has ended, and ends no child whose parent is
terminated. After continue-as-new, the next execution therefore asks. An attempt to find out takes no time: the
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
