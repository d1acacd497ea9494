"""The HTTP service on a free port, beside a worker with a scripted model."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from playwright.async_api import Browser, expect

from loom.testing.harness import Addresses
from tests.integration.serve.browser import CHROMIUM, browser
from tests.integration.serve.served import Served, served
from tests.integration.workflows.conftest import Working, _patient_with_workers, working
from tests.missing_programs import skip_or_fail

__all__ = ["Serving", "Working", "_patient_with_workers", "serving", "working"]

Serving: TypeAlias = Callable[..., Any]


@pytest.fixture
async def serving(addresses: Addresses, workspace: Path) -> AsyncIterator[Serving]:
    """`api = await serving(script, **settings)`: a worker and the HTTP service until the test ends."""
    async with AsyncExitStack() as stack:

        async def begin(script: Any, **settings: Any) -> Served:
            return await stack.enter_async_context(served(addresses, workspace, script, **settings))

        yield begin


@pytest.fixture(scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """A browser for all tests of the page."""
    if CHROMIUM is None:
        skip_or_fail("there is no chromium: see .ci/chromium")
    expect.set_options(timeout=60_000)
    async with browser() as started:
        yield started
