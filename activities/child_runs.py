"""The `await_child` activity, which finds out how a child has ended that an earlier execution of its parent started.

Only the execution that started a child hears of its end from the server. After continue-as-new, the next execution asks
with this activity. An attempt takes no time: the activity's retry policy asks again, and the history doesn't grow.
"""

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from loom.activities.ports import ChildOutcomes
from loom.domain.run.activity_payloads import ChildOutcome, ChildRequest


class ChildRuns:
    """Looks at children on the server."""

    def __init__(self, outcomes: ChildOutcomes) -> None:
        self._outcomes = outcomes

    @activity.defn(name="await_child")
    async def await_child(self, request: ChildRequest) -> ChildOutcome:
        """Return how the child has ended. Raises ApplicationError while it is running."""
        if (outcome := await self._outcomes.outcome(request.run_id)) is None:
            raise ApplicationError(
                f"{request.run_id} is still running", type="ChildRunning", category=ApplicationErrorCategory.BENIGN
            )
        return outcome
