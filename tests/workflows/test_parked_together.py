"""Many runs that wait for one provider: they send few probes together, and go on one after the other."""

import asyncio
import time
from itertools import pairwise
from typing import Final

import pytest

from loom.domain.core.requests import RunStatus
from tests.model_server import Reply, SeenRequest, ToolUse, calls, status, text

from .conftest import Working

RUNS: Final = 50
OUTAGE: Final = 60.0
BURST: Final = 5.0
"""The calls of all runs may be under way when the outage begins."""


@pytest.mark.timeout(300)
async def test_fifty_runs_send_few_probes_and_have_all_gone_on_within_a_minute(working: Working) -> None:
    failed: list[float] = []
    answered: list[float] = []

    def reply(request: SeenRequest) -> Reply:
        now = time.monotonic()
        if failed and now >= failed[0] + OUTAGE:
            answered.append(now)
            return text("done")
        if request.turn == 0 and not failed:
            return calls(ToolUse("list_dir", {"path": "."}))
        failed.append(now)
        return status(503)

    loom, _ = await working(reply)
    run_ids = await asyncio.gather(*(loom.start(f"task {number}") for number in range(RUNS)))
    results = await asyncio.gather(*(loom.client.result(run_id) for run_id in run_ids))

    assert [result.status for result in results] == [RunStatus.COMPLETED] * RUNS
    probes = [at for at in failed if at > failed[0] + BURST]
    assert len(probes) <= 12
    assert all(later - earlier >= 4.5 for earlier, later in pairwise(probes))
    assert len(answered) == RUNS
    assert answered[-1] - (failed[0] + OUTAGE) <= 60
    assert answered[-1] - answered[0] > 10
