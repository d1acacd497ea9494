"""A worker with real parts for each workflow test."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import httpx2
import pytest

from loom.activities.adapters.sandbox import bubblewrap, hidden_paths
from loom.activities.adapters.sandbox.namespaces import Bubblewrap
from loom.activities.toolbox import function_tool
from loom.app.packages import installed
from loom.domain.tools.sandbox_limits import Limits
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


_look_for_reasons = bubblewrap._why_not
_private_settings = hidden_paths._private
_reasons: dict[Limits, str] = {}


def _why_not_once(sandbox: Bubblewrap, limits: Limits) -> str:
    """Why no sandbox works on this machine. Those of the tests differ only in the folders that they hide."""
    if limits not in _reasons:
        _reasons[limits] = _look_for_reasons(sandbox, limits)
    return _reasons[limits]


_LOOKED_UP_ONCE: Final = {
    "loom.activities.adapters.sandbox.bubblewrap._why_not": _why_not_once,
    "loom.activities.adapters.sandbox.hidden_paths._private": cache(lambda folder: tuple(_private_settings(folder))),
    "loom.activities.toolbox.function_tool.schema_of": cache(function_tool.schema_of),
    "loom.app.packages.installed": cache(installed),
    "httpx2._transports.default.create_ssl_context": cache(httpx2.create_ssl_context),
}
"""What is the same for all workers of a process, and what costs each of them a tenth of a second when it starts."""


@pytest.fixture(scope="module", autouse=True)
def _quick_start() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, once in _LOOKED_UP_ONCE.items():
            patch.setattr(name, once)
        yield


@pytest.fixture(autouse=True)
def _patient_with_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a minute for a heartbeat. A busy machine may stand still for the usual 1.8 seconds, and a call would then
    be made again, for which a script has no reply. Workers that die are tested in processes of their own.
    """
    monkeypatch.setattr(options, "LEASED_HEARTBEAT", timedelta(minutes=1))
