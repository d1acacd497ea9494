"""A worker with real parts for each workflow test."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from loom.workflows import options
from tests.harness import Addresses, Harness, harness
from tests.model_server import ModelServer

Working: TypeAlias = Callable[..., Any]


@pytest.fixture
async def working(addresses: Addresses, workspace: Path) -> AsyncIterator[Working]:
    """`loom, model = await working(script, **settings)`: a worker until the test ends; its runs are replayed then."""
    async with AsyncExitStack() as stack:

        async def begin(script: Any, **settings: Any) -> tuple[Harness, ModelServer]:
            return await stack.enter_async_context(harness(addresses, workspace, script, **settings))

        yield begin


@pytest.fixture(autouse=True)
def _patient_with_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a minute for a heartbeat. A busy machine may stand still for the usual 1.8 seconds, and a call would then
    be made again, for which a script has no reply. Workers that die are tested in processes of their own.
    """
    monkeypatch.setattr(options, "LEASED_HEARTBEAT", timedelta(minutes=1))
