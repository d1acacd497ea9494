"""A worker with real parts for each workflow test."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from loom.activities.adapters.redis.connection import RedisConnection
from loom.testing.harness import Addresses, Harness, harness
from loom.testing.model_server import ModelServer
from loom.workflows import options
from tests.webhook_receiver import WebhookReceiver

Working: TypeAlias = Callable[..., Any]


@pytest.fixture
async def working(addresses: Addresses, workspace: Path) -> AsyncIterator[Working]:
    """`loom, model = await working(script, **settings)`: a worker until the test ends; its runs are replayed then."""
    async with AsyncExitStack() as stack:

        async def begin(script: Any, **settings: Any) -> tuple[Harness, ModelServer]:
            return await stack.enter_async_context(harness(addresses, workspace, script, **settings))

        yield begin


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    """A receiver of notifications that listens."""
    receiver = WebhookReceiver()
    async with receiver.listening():
        yield receiver


@pytest.fixture(autouse=True)
def patient_with_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait 30 seconds for Redis. After one second, which a busy machine may take, a run goes on without its events."""
    assert RedisConnection.__init__.__kwdefaults__
    monkeypatch.setitem(RedisConnection.__init__.__kwdefaults__, "answer_within", 30.0)


@pytest.fixture(autouse=True)
def patient_with_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a minute for a heartbeat. A busy machine may stand still for the usual 1.8 seconds, and a call would then
    be made again, for which a script has no reply. Workers that die are tested in processes of their own.
    """
    monkeypatch.setattr(options, "LEASED_HEARTBEAT", timedelta(minutes=1))
