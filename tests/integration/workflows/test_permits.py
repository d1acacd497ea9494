"""Runs that wait for a permit for their model call."""

import pytest

from loom.domain.core.messages import JsonObject
from loom.domain.core.requests import RunStatus
from loom.domain.core.tasks import Action
from loom.testing.model_server import script, status, text

from .conftest import Working


def backs_off(status: JsonObject) -> bool:
    return "next try at" in (status["waiting_on"] or "")


@pytest.mark.slow
async def test_a_run_without_a_permit_waits_in_the_workflow_until_it_is_due(working: Working) -> None:
    loom, model = await working(script([status(429, retry_after=6), text("one"), text("other")]))

    first = await loom.start("one")
    await loom.until(first, backs_off)
    second = await loom.start("other")
    waiting = await loom.until(second, backs_off)
    assert waiting["turn"] == 1
    results = [await loom.client.result(run_id) for run_id in (first, second)]

    assert [result.status for result in results] == [RunStatus.COMPLETED] * 2
    assert sorted(result.output for result in results) == ["one", "other"]
    assert len(model.requests) == 3
    events = [streamed.task async for streamed in loom.client.events(second)]
    told = [task.status for task in events if task.action is Action.MODEL_CALL]
    assert told == ["completed"]  # a call that waits has not been made
