"""Workers that a test may kill, or one beside the test, on the session's servers."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.acceptance.processes import BEGUN, Workers, mortal
from tests.harness import Addresses, Harness
from tests.integration.workflows.conftest import Working, _patient_with_workers, working
from tests.model_server import ModelServer

__all__ = ["Killable", "Working", "_patient_with_workers", "killable", "working"]

Killable: TypeAlias = Callable[..., Any]


@pytest.fixture
async def killable(addresses: Addresses, workspace: Path) -> AsyncIterator[Killable]:
    """`loom, model, workers = await killable(script)`: worker processes until the test ends; its runs are replayed."""
    async with AsyncExitStack() as stack:

        async def begin(script: Any, **settings: Any) -> tuple[Harness, ModelServer, Workers]:
            return await stack.enter_async_context(mortal(addresses, workspace, script, **settings))

        yield begin


@pytest.fixture(autouse=True)
async def _commands_end() -> AsyncIterator[None]:
    """End the commands that a failed test has left running, and close their pipes."""
    yield
    while BEGUN:
        process = BEGUN.pop()
        with suppress(ProcessLookupError):  # it has just ended by itself
            process.kill()
        if process.returncode is None:
            await process.communicate()
