"""Many runs that wait for one provider: they send few probes together, and go on one after the other."""

import asyncio
import time
from itertools import pairwise
from typing import Final

import pytest

from loom.domain.core.requests import RunStatus
from loom.testing.model_server import Reply, SeenRequest, ToolUse, calls, status, text

from .conftest import Working

BURST: Final = 5.0
"""The calls of all runs may be under way when the outage begins."""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("runs", "outage"), [(10, 12.0), pytest.param(50, 60.0, marks=pytest.mark.slow)])
async def test_many_runs_send_few_probes_and_have_all_gone_on_within_a_minute(
    working: Working, runs: int, outage: float
) -> None:
    failed: list[float] = []
    answered: list[float] = []

    def reply(request: SeenRequest) -> Reply:
        now = time.monotonic()
        if failed and now >= failed[0] + outage:
            answered.append(now)
            return text("done")
        if request.turn == 0 and not failed:
            return calls(ToolUse("list_dir", {"path": "."}))
        failed.append(now)
        return status(503)

    loom, _ = await working(reply)
    run_ids = await asyncio.gather(*(loom.start(f"task {number}") for number in range(runs)))
    results = await asyncio.gather(*(loom.client.result(run_id) for run_id in run_ids))

    assert [result.status for result in results] == [RunStatus.COMPLETED] * runs
    probes = [at for at in failed if at > failed[0] + BURST]
    assert len(probes) <= 12
    assert all(later - earlier >= 4.5 for earlier, later in pairwise(probes))
    assert len(answered) == runs
    assert answered[-1] - (failed[0] + outage) <= 60
    assert answered[-1] - answered[0] > 0.2 * runs
