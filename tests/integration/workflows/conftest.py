"""A worker with real parts for each workflow test."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from loom.activities.adapters.redis.connection import RedisConnection
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


@pytest.fixture
def patient_with_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait 30 seconds for Redis. After one second, which a busy machine may take, a run goes on without its events."""
    assert RedisConnection.__init__.__kwdefaults__
    monkeypatch.setitem(RedisConnection.__init__.__kwdefaults__, "answer_within", 30.0)
