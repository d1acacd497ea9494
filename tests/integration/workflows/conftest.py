"""A worker with real parts for each workflow test."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import httpx2._transports.default as http_transports
import pytest

from loom.activities.adapters.sandbox import bubblewrap, hidden_paths
from loom.activities.adapters.sandbox.namespaces import Bubblewrap
from loom.activities.toolbox import function_tool
from loom.app import registry
from loom.domain.tools.sandbox_limits import Limits
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


_look_for_reasons = bubblewrap._why_not
_look_for_private_settings = hidden_paths._private
_reasons: dict[Limits, str] = {}


def _why_not_once(sandbox: Bubblewrap, limits: Limits) -> str:
    """Why no sandbox works on this machine. Those of the tests differ only in the folders that they hide."""
    if limits not in _reasons:
        _reasons[limits] = _look_for_reasons(sandbox, limits)
    return _reasons[limits]


_LOOKED_UP_ONCE: Final = (
    (bubblewrap, "_why_not", _why_not_once),
    (hidden_paths, "_private", cache(lambda folder: tuple(_look_for_private_settings(folder)))),
    (function_tool, "schema_of", cache(function_tool.schema_of)),
    (registry, "installed", cache(registry.installed)),
    (http_transports, "create_ssl_context", cache(http_transports.create_ssl_context)),
)
"""What is the same for all workers of a process, and what costs each of them a tenth of a second when it starts."""


@pytest.fixture(scope="module", autouse=True)
def _quick_start() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, name, once in _LOOKED_UP_ONCE:
            patch.setattr(module, name, once)
        yield


@pytest.fixture(autouse=True)
def _patient_with_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a minute for a heartbeat. A busy machine may stand still for the usual 1.8 seconds, and a call would then
    be made again, for which a script has no reply. Workers that die are tested in processes of their own.
    """
    monkeypatch.setattr(options, "LEASED_HEARTBEAT", timedelta(minutes=1))
