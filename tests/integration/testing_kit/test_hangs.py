"""What a test that hangs at its end says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from loom.testing import harness
from loom.testing.harness import ends_in_time, in_time


async def waits_in_vain() -> None:
    """Wait for something that nobody does."""
    await asyncio.Event().wait()


async def test_work_that_hangs_says_what_it_was_and_where_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "HANGS_AFTER", 0.1)
    with pytest.raises(AssertionError, match="replaying 12 events of run-1: not ended after 0.1 s") as failed:
        await in_time(waits_in_vain(), "replaying 12 events of run-1")
    assert "in waits_in_vain" in str(failed.value)
    assert "Current thread" in str(failed.value)


async def test_a_worker_that_does_not_stop_says_where_its_tasks_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "HANGS_AFTER", 0.1)

    @asynccontextmanager
    async def worker() -> AsyncIterator[Any]:
        polling = asyncio.create_task(waits_in_vain())
        try:
            yield None
            await polling
        finally:
            polling.cancel()

    with pytest.raises(AssertionError, match="the worker didn't stop within 0.1 s") as failed:
        async with ends_in_time(worker()):
            pass
    assert "in waits_in_vain" in str(failed.value)
