"""A request that the server doesn't pass on to the run is sent again, or left to a signal; a refused one isn't."""

from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from loom.activities.adapters.temporal.runs import UPDATE_TRIES, TemporalRuns
from loom.domain.core.errors import RefusedError, UnreachableError

LOST = WorkflowUpdateFailedError(ApplicationError("a worker lost it", type="UnprocessedUpdate"))
REFUSED = WorkflowUpdateFailedError(ApplicationError("is not waiting", type="RefusedError"))
RECEIPT = {"accepted": True}


class Server:
    """Answers each update with the next of these answers."""

    def __init__(self, *answers: Any) -> None:
        self.left = list(answers)

    def get_workflow_handle(self, run_id: str) -> "Server":
        return self

    async def execute_update(self, name: str, payload: Any, **options: Any) -> Any:
        answer = self.left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def runs(server: Server) -> TemporalRuns:
    return TemporalRuns(server)  # type: ignore[arg-type]


def no_answer(status: RPCStatusCode) -> RPCError:
    return RPCError("no", status, b"")


async def test_an_update_that_a_worker_has_lost_is_sent_again() -> None:
    server = Server(LOST, RECEIPT)
    assert await runs(server).update("run", "approve", {}) == RECEIPT


async def test_after_some_tries_it_is_left_to_a_signal() -> None:
    server = Server(*[LOST] * (UPDATE_TRIES + 1))
    assert await runs(server).update("run", "approve", {}) is None
    assert server.left == [LOST]


@pytest.mark.parametrize("status", [RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.FAILED_PRECONDITION])
async def test_a_run_that_takes_no_update_now_gets_a_signal(status: RPCStatusCode) -> None:
    assert await runs(Server(no_answer(status))).update("run", "approve", {}) is None


async def test_an_update_that_is_cut_off_reaches_the_next_execution_or_hears_of_the_end() -> None:
    cut_off = RPCError("workflow update was aborted by closing workflow", RPCStatusCode.NOT_FOUND, b"")
    over = RPCError("workflow execution already completed", RPCStatusCode.NOT_FOUND, b"")
    assert await runs(Server(cut_off, RECEIPT)).update("run", "approve", {}) == RECEIPT
    with pytest.raises(RefusedError, match="run 'run' has ended"):
        await runs(Server(cut_off, over)).update("run", "approve", {})


async def test_what_the_run_refuses_is_refused() -> None:
    with pytest.raises(RefusedError, match="is not waiting"):
        await runs(Server(REFUSED)).update("run", "approve", {})


async def test_a_server_that_is_away_is_an_error() -> None:
    with pytest.raises(UnreachableError):
        await runs(Server(no_answer(RPCStatusCode.UNAVAILABLE))).update("run", "approve", {})
