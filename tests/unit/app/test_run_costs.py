"""Reports of costs that are asked for at the same time don't read more at once than one of them."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from loom.activities.adapters.temporal.run_history import TemporalPasts
from loom.activities.adapters.temporal.runs import TemporalRuns
from loom.client import LoomClient
from loom.domain.core.errors import RunNotFoundError
from loom.run_costs import AT_ONCE


async def test_all_reports_of_a_client_together_read_a_few_histories_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = most = 0

    async def current(_: TemporalRuns, query: str) -> AsyncIterator[Any]:
        del query
        for number in range(AT_ONCE):
            yield SimpleNamespace(
                id=f"run-{number}",
                root_id=f"run-{number}",
                status=WorkflowExecutionStatus.RUNNING,
                close_time=None,
                search_attributes={},
            )

    async def beginning(_: TemporalPasts, run_id: str) -> None:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await asyncio.sleep(0)
        reading -= 1
        raise RunNotFoundError(run_id)

    monkeypatch.setattr(TemporalRuns, "current", current)
    monkeypatch.setattr(TemporalPasts, "beginning", beginning)
    client = LoomClient(await Client.connect("127.0.0.1:1", lazy=True))

    reports = await asyncio.gather(*(client.costs("user") for _ in range(3)))

    assert [report.total.running for report in reports] == [AT_ONCE] * 3
    assert most == AT_ONCE
