"""Runs that wait leave their worker's cache, and go on from their history."""

from collections.abc import Callable
from pathlib import Path

import pytest

from loom.domain.core.requests import RunStatus
from loom.testing.model_server import ToolUse, calls, text
from loom.testing.waiting import eventually
from loom.workflows.cached_waits import CachedWaits
from tests.integration.workflows.conftest import Working

WRITE = ToolUse("write_file", {"path": "out.txt", "content": "hello"}, "w1")


def test_the_run_that_has_waited_longest_leaves_the_cache_first() -> None:
    evicted: list[str] = []
    waits = CachedWaits(most=2)
    waits.evict_with(evicted.append)

    went_on = waits.begun("first", restored=False)
    waits.begun("second", restored=False)
    went_on()
    waits.begun("third", restored=False)
    assert not evicted
    waits.begun("fourth", restored=False)
    assert evicted == ["second"]


def test_restored_runs_displace_each_other_and_not_those_that_began_to_wait() -> None:
    evicted: list[str] = []
    waits = CachedWaits(most=1)
    waits.evict_with(evicted.append)

    waits.begun("waiting", restored=False)
    went_on = waits.begun("answered", restored=True)
    went_on()
    waits.begun("queried", restored=True)
    assert not evicted
    waits.begun("queried later", restored=True)
    assert evicted == ["queried"]


async def test_a_run_that_has_left_the_cache_answers_queries_and_goes_on(
    working: Working, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evicted: list[str] = []

    async def has_left() -> bool:
        return bool(evicted)

    connect = CachedWaits.evict_with

    def recorded(self: CachedWaits, evict: Callable[[str], None]) -> None:
        def evict_and_note(execution: str) -> None:
            evicted.append(execution)
            evict(execution)

        connect(self, evict_and_note)

    monkeypatch.setattr(CachedWaits, "evict_with", recorded)
    loom, _ = await working(lambda request: text("done") if request.turn else calls(WRITE), max_cached_waits=1)
    run_ids = [await loom.start() for _ in range(3)]
    for _ in range(2):  # a query restores a run, and another one leaves
        evicted.clear()
        for run_id in run_ids:
            assert (await loom.asked(run_id))["status"] == "waiting_for_approval"
    await eventually(has_left)
    for run_id in run_ids:
        await loom.client.approve(run_id, "w1")

    results = [await loom.client.result(run_id) for run_id in run_ids]
    assert [(result.status, result.output) for result in results] == [(RunStatus.COMPLETED, "done")] * 3
    assert (workspace / "out.txt").read_text() == "hello"
